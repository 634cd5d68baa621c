"""Mail servers that look up half a million recipients, and their directory server.

A server that queries the directory is its only client: slapd runs only while that server does. The
CPU time of the directory is counted separately.
"""

import concurrent.futures
import dataclasses
import functools
import json
import socket
import time

from comparison import Side
from peers import load, machine, people, postfix
from peers.laboratory import Source
from peers.mailrace import BINARY, Mailrace
from peers.slapd import Slapd

_LOADED_SECONDS_MAX = 120
_WARM_CONNECTIONS, _WARM_RECIPIENTS = 16, 500
_WARM_SECONDS_MAX = 60
_POSTFIX_LINES = (
    "mydestination =", f"virtual_mailbox_domains = {people.DOMAIN}", "virtual_mailbox_base = /nonexistent",
    "virtual_uid_maps = static:65534", "virtual_gid_maps = static:65534", postfix.HOLD,
)  # fmt: skip
_POSTFIX_LDAP = """\
server_host = {url}
search_base = {base}
query_filter = {filter}
result_attribute = {attribute}
bind = no
version = 3
"""
_TABLE = '\n[[table]]\nname = "directory"\n'
_LDAP = f"""{_TABLE}type   = "ldap"
url    = "{{url}}"
base   = "{people.PEOPLE}"
filter = "(mail={{{{key}}}})"
result = "mail"
"""
_LIMITS = "recipients          = 1000\ncommands            = 1000000"


@dataclasses.dataclass(frozen=True)
class LookupSource(Source):
    """A source that continues after a refused recipient and keeps the replies."""

    refusals: list = dataclasses.field(default_factory=list)  # per round: replies other than 250 and their counts

    def run(self, port, _folder=None):
        """Sends all messages, from the first connection to the last reply."""
        ran = load.run(self.command(port), seconds_max=self.seconds_max, codes=(0, 1))
        summary = json.loads(ran.outputs[0])
        if summary["missed"] or summary["unfinished"] or not summary["done"]:
            raise RuntimeError(f"not all messages were sent: {summary['errors']}")
        self.refusals.append(summary["errors"])
        return load.LoadResult(summary["done"], ran.seconds, ran.cpu_seconds, threads=ran.threads)


@dataclasses.dataclass(frozen=True)
class LookupSide(Side):
    """A side that also measures its directory."""

    costs: list = dataclasses.field(default_factory=list)  # per round: CPU seconds of slapd for 1,000 messages
    asked: list = dataclasses.field(default_factory=list)  # per round: requests of Mailrace's table, and keys in them

    def measure(self, server, place):
        """Runs the load."""
        cpu, requests, keys = server.directory_cpu_seconds(), *server.asked()
        figures = super().measure(server, place)
        self.costs.append((server.directory_cpu_seconds() - cpu) / figures.messages * 1000)
        requests_now, keys_now = server.asked()
        self.asked.append((requests_now - requests, keys_now - keys))
        return figures


class LookupServer:
    """A mail server with its directory, if it has one; `prepare` is called before the load."""

    def __init__(self, name, server, slapd=None, prepare=None):
        self.name, self.group = name, server.group
        self._server, self._slapd, self._prepare = server, slapd, prepare
        self._slapd_runs = False

    def __getattr__(self, name):
        return getattr(self._server, name)

    def start(self):
        """Starts both."""
        if self._slapd:
            self._slapd.start()
            self._slapd_runs = True
        self.start_server()
        if self._prepare:
            self._prepare(self._server)

    def start_server(self):
        """Starts only the server."""
        self._server.start()

    def copy(self):
        """The state of Mailrace's copy of the directory."""
        return _stats(self._server)["replica"]

    def stop(self):
        """Ends the server and the directory."""
        try:
            self._server.stop()
        finally:
            if self._slapd_runs:
                self._slapd.terminate()
                self._slapd_runs = False

    def directory_cpu_seconds(self):
        """CPU seconds of the directory so far."""
        return self._slapd.group.cpu_seconds() if self._slapd else 0.0

    def asked(self):
        """Requests of Mailrace's table and the keys in them so far; zero for other servers."""
        if not (self._slapd and isinstance(self._server, Mailrace)):
            return 0, 0
        counts = _stats(self._server)
        return counts["requests"], counts["keys_asked"]


class Users:
    """All users in all formats that the sides need, created once for all rounds."""

    def __init__(self, folder, count):
        folder.mkdir()
        self.count = count
        self.slapd = Slapd(folder, count)
        self._text, self._cdb, self._postmap = folder / "people.txt", folder / "people.cdb", folder / "people"
        self.shuffled = folder / "shuffled.txt"
        self._ldap = folder / "ldap.cf"
        self._ldap.write_text(postfix_table(self.slapd))

    def make_local(self, sides):
        """Creates the local tables of these sides."""
        if kinds := [kind for kind in ("hash", "lmdb") if kind in sides]:
            people.write_postmap(self._postmap, self.count)
            for kind in kinds:
                postfix.build_table(kind, self._postmap)
        if "cold" in sides:
            people.write_shuffled(self.shuffled, self.count)
        if "cdb" in sides:
            people.write_text_table(self._text, self.count)
            machine.run(str(BINARY), "table", "build", str(self._text), str(self._cdb))

    def local_postfix(self, kind, place):
        """Postfix with a table in a file."""
        return LookupServer(kind, holding_postfix(place, f"{kind}:{self._postmap}"))

    def ldap_postfix(self, name, kind, place):
        """Postfix with the directory."""
        return LookupServer(name, holding_postfix(place, f"{kind}:{self._ldap}"), self.slapd)

    def cdb(self, place):
        """Mailrace with a table in a file."""
        return LookupServer("cdb", holding_mailrace(place, f'{_TABLE}type = "cdb"\npath = "{self._cdb}"\n'))

    def cold(self, place, binary=BINARY):
        """Mailrace with the directory and an empty cache."""
        return LookupServer("cold", holding_mailrace(place, self._ldap_table(), binary), self.slapd)

    def warm(self, place):
        """Mailrace with the directory and all users in the cache."""
        cache = f'cache  = {{ ttl = "1h", entries = {2 * self.count} }}\n'
        return LookupServer("warm", holding_mailrace(place, self._ldap_table() + cache), self.slapd, self._fill_cache)

    def replica(self, place):
        """Mailrace with a copy of the directory."""
        return LookupServer("replica", holding_mailrace(place, self._ldap_table() + 'mode   = "replica"\n'), self.slapd, self._await_copy)

    def _ldap_table(self):
        return _LDAP.format(url=self.slapd.url)

    def _fill_cache(self, server):
        fill_cache(server, self.count)

    def _await_copy(self, server):
        await_copy(server, self.count)


def postfix_table(slapd, key="(mail=%s)", attribute="description"):
    """Postfix's configuration of a table in the directory; the mailbox of an address by default."""
    return _POSTFIX_LDAP.format(url=slapd.url, base=people.PEOPLE, filter=key, attribute=attribute)


def fill_cache(server, count):
    """Looks up all users, so that they are in the cache."""
    starts = range(1, count + 1, _WARM_RECIPIENTS)
    blocks = [range(start, min(start + _WARM_RECIPIENTS, count + 1)) for start in starts]
    parts = [blocks[first::_WARM_CONNECTIONS] for first in range(_WARM_CONNECTIONS)]
    with concurrent.futures.ThreadPoolExecutor(_WARM_CONNECTIONS) as pool:
        list(pool.map(functools.partial(_send_rcpt, server.port), parts))
    if (cached := _stats(server)["cached"]) < count:
        raise RuntimeError(f"{cached} of {count} users are in the cache")


def await_copy(server, count):
    """Waits until the server's copy of the directory has this many entries."""
    deadline = time.monotonic() + _LOADED_SECONDS_MAX
    while not (copy := _stats(server)["replica"])["complete"] or copy["entries"] < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the copy of the directory is incomplete: {copy}\n{server.log_tail()}")
        time.sleep(0.2)


def holding_postfix(place, table):
    """Postfix, which keeps all messages, with its mailboxes in this table."""
    return postfix.Postfix(place, "tuned", [*_POSTFIX_LINES, f"virtual_mailbox_maps = {table}"])


def holding_mailrace(place, table, binary=BINARY):
    """Mailrace, which keeps all messages, with its mailboxes in this table, "directory"."""
    return Mailrace(place, concurrency=0, mailboxes="directory", limits=_LIMITS, extra=table, binary=binary)


def _stats(server):
    stats = server.table("stats", "directory", "--json")
    if stats.returncode:
        raise RuntimeError(f"table stats: {stats.stderr.strip()}")
    return json.loads(stats.stdout)


def _send_rcpt(port, blocks):
    """Sends RCPT for each user of the blocks on one connection, without sending a message."""
    with socket.create_connection(("127.0.0.1", port), _WARM_SECONDS_MAX) as connection:
        replies = connection.makefile("rb")
        for numbers in [(), *blocks]:
            recipients = [f"RCPT TO:<{people.address(number)}>\r\n" for number in numbers]
            transaction = ["MAIL FROM:<sender@bench.test>\r\n", *recipients, "RSET\r\n"]
            lines = transaction if recipients else ["HELO warm.test\r\n"]
            connection.sendall("".join(lines).encode())
            for _ in range(len(lines) + (not recipients)):  # plus the greeting
                if not (reply := replies.readline()).startswith(b"2"):
                    raise RuntimeError(f"RCPT failed: {reply.decode().strip()}")
