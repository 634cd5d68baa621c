"""Looking up recipients in MariaDB: Postfix with mysql maps, and Mailrace.

Messages are only a header, a connection carries 3, and nothing is delivered, so that the cost of
lookups is as visible as possible.

    postfix, proxy  Postfix with the database, queried by each smtpd(8) or through proxymap(8)
    warm            Mailrace with the database, all users cached before
    cold            Mailrace with the database, an empty cache, and each message to a different recipient
"""

import functools
import statistics

import comparison
import lookups
import pairs
from comparison import Comparison
from lookups import LookupServer, LookupSide, LookupSource
from peers import machine, mariadb, people, postfix

from . import Scenario

USERS = 100_000
PAIRS = 10
POSTFIX_COUNT, MAILRACE_COUNT = 6_000, 100_000
SIDES = ("postfix", "proxy", "warm", "cold")
_MESSAGE_DISK_OCTETS = 8192
_SCHEMA = """
CREATE DATABASE mail CHARACTER SET utf8mb4;
CREATE TABLE mail.mailbox (username varchar(255) PRIMARY KEY, maildir varchar(255) NOT NULL) COLLATE latin1_general_ci;
INSERT INTO mail.mailbox SELECT CONCAT('user', seq, '@{domain}'), CONCAT('{domain}/user', seq, '/')
  FROM mysql.seq_1_to_{count};
"""
_MAP = """\
hosts = 127.0.0.1:{port}
user = root
dbname = mail
query = SELECT maildir FROM mailbox WHERE username = '%s'
"""
_TABLE = """
[[table]]
name  = "directory"
type  = "mysql"
url   = "{url}"
query = "SELECT maildir FROM mailbox WHERE username = :key"
"""

TARGETS = (
    pairs.Target("warm", "proxy", "rate", least=8),
    pairs.Target("cold", "proxy", "rate", least=5),
    pairs.Target("cold", "postfix", "rate"),
)

NOTES = (
    f"{USERS:,} users; 100 concurrent connections, 3 messages each, only a header. Nothing is delivered: Postfix "
    "has a HOLD action, Mailrace has `concurrency = 0`. After each run the queued messages are counted.",
    "The database is one MariaDB (InnoDB, by primary key) on the same processors, over TCP without TLS. Its CPU time has a "
    "column of its own.",
    "`cold` begins with an empty cache; each message goes to a different recipient, in random order. The others draw from all "
    "users.",
    comparison.REST_NOTE,
)


class Database:
    """The users in MariaDB, and the servers that look them up."""

    def __init__(self, folder, count):
        folder.mkdir()
        self.count = count
        self.mariadb = mariadb.Mariadb()
        self.mariadb.start()
        self.mariadb.sql(_SCHEMA.format(domain=people.DOMAIN, count=count))
        self.mariadb.terminate()
        self._map, self.shuffled = folder / "mailboxes.cf", folder / "shuffled.txt"
        self._map.write_text(_MAP.format(port=self.mariadb.port))
        people.write_shuffled(self.shuffled, count)

    def postfix(self, name, kind, place):
        """Postfix with the database."""
        return LookupServer(name, lookups.holding_postfix(place, f"{kind}:{self._map}"), self.mariadb)

    def cold(self, place):
        """Mailrace with the database and an empty cache."""
        return LookupServer("cold", lookups.holding_mailrace(place, self._table()), self.mariadb)

    def warm(self, place):
        """Mailrace with the database and all users in the cache."""
        cache = f'cache = {{ ttl = "1h", entries = {2 * self.count} }}\n'
        fill = functools.partial(lookups.fill_cache, count=self.count)
        return LookupServer("warm", lookups.holding_mailrace(place, self._table() + cache), self.mariadb, fill)

    def _table(self):
        return _TABLE.format(url=self.mariadb.url())


def scenario(options):
    """Runs all rounds."""
    with machine.run_folder("mariadb") as folder:
        database = Database(folder / "users", max(1000, USERS // options.shrink))
        try:
            sides = _sides(database)
            one = Comparison("Looking up recipients in MariaDB", sides, TARGETS, NOTES,
                             versions={"MariaDB": machine.package("mariadb-server-core")})  # fmt: skip
            found = one.measure("mariadb", folder, options)
        finally:
            database.mariadb.stop()
        found.tables = {"Medians": [_row(name, sides[name], found.rounds) for name in found.rounds[0]]}
        return found.finish(options)


def _sides(database):
    anyone = {"recipient": people.address("{}"), "users": database.count}
    each_once = {"recipients_from": str(database.shuffled), "order": "turn"}
    return {
        "postfix": _side(functools.partial(database.postfix, "postfix", "mysql"), POSTFIX_COUNT, anyone, _NEEDS_MAPS),
        "proxy": _side(functools.partial(database.postfix, "proxy", "proxy:mysql"), POSTFIX_COUNT, anyone, _NEEDS_MAPS),
        "warm": _side(database.warm, MAILRACE_COUNT, anyone),
        "cold": _side(database.cold, min(MAILRACE_COUNT, database.count), each_once),
    }


def _has_maps():
    return postfix.has_table_type("mysql")


_NEEDS_MAPS = (("the package postfix-mysql", _has_maps),)


def _side(server, count, to, needs=()):
    source = LookupSource(count, octets=0, per_connection=3, **to)
    return LookupSide(server, source, _MESSAGE_DISK_OCTETS, needs=(("MariaDB", mariadb.is_installed), *needs))


def _row(name, side, rounds):
    """The medians of a side."""
    figures = [measured[name] for measured in rounds]
    asked = [keys / requests for requests, keys in side.asked if requests]
    return {
        "side": name,
        "messages/s": f"{statistics.median(one.rate for one in figures):,.0f}",
        "server's CPU for 1,000 messages, s": f"{statistics.median(one.cpu_per_thousand for one in figures):.4f}",
        "MariaDB's CPU for 1,000 messages, s": f"{statistics.median(side.costs):.4f}",
        "keys in a request": f"{statistics.median(asked):.1f}" if asked else "",
    }


SCENARIOS = {"mariadb": Scenario(scenario, SIDES, PAIRS)}
