"""Users in MariaDB: the database of PostfixAdmin, an outage, passwords, and a converted set-up of
Postfix.
"""

import shutil
import unittest

from harness import Client, await_that, make_message
from peers.mailrace import listener
from peers.mariadb import Mariadb
from tables import QUICK, SHORT, TablesCase, ending, folder_for, replies_in_parallel, server_for, stats, table, values
from test_dovecot_auth import login

# The tables of PostfixAdmin 3.3 that mail servers ask, without the columns that only it reads.
SCHEMA = """
CREATE DATABASE mail CHARACTER SET utf8mb4; USE mail;
CREATE TABLE domain (domain varchar(255) PRIMARY KEY, backupmx tinyint(1) NOT NULL DEFAULT 0,
  active tinyint(1) NOT NULL DEFAULT 1) COLLATE latin1_general_ci;
CREATE TABLE mailbox (username varchar(255) PRIMARY KEY, password varchar(255) NOT NULL, maildir varchar(255) NOT NULL,
  quota bigint(20) NOT NULL DEFAULT 0, local_part varchar(255) NOT NULL, domain varchar(255) NOT NULL,
  active tinyint(1) NOT NULL DEFAULT 1) COLLATE latin1_general_ci;
CREATE TABLE alias (address varchar(255) PRIMARY KEY, goto text NOT NULL, domain varchar(255) NOT NULL,
  active tinyint(1) NOT NULL DEFAULT 1) COLLATE latin1_general_ci;
CREATE TABLE alias_domain (alias_domain varchar(255) PRIMARY KEY, target_domain varchar(255) NOT NULL,
  active tinyint(1) NOT NULL DEFAULT 1) COLLATE latin1_general_ci;
INSERT INTO domain (domain, active) VALUES ('ALL', 1), ('shop.test', 1), ('old.test', 0), ('alias.test', 1);
INSERT INTO alias_domain (alias_domain, target_domain) VALUES ('alias.test', 'shop.test');
INSERT INTO mailbox VALUES ('alice@shop.test', '{PLAIN}secret', 'shop.test/alice/', 0, 'alice', 'shop.test', 1),
  ('Bob@shop.test', '{PLAIN}hidden', 'shop.test/bob/', 0, 'Bob', 'shop.test', 1),
  ('gone@shop.test', '{PLAIN}secret', 'shop.test/gone/', 0, 'gone', 'shop.test', 0);
INSERT INTO alias (address, goto, domain) VALUES ('alice@shop.test', 'alice@shop.test', 'shop.test'),
  ('bob@shop.test', 'bob@shop.test', 'shop.test'), ('gone@shop.test', 'gone@shop.test', 'shop.test'),
  ('sales@shop.test', 'alice@shop.test,bob@shop.test', 'shop.test');
"""
DOMAINS = "SELECT domain FROM domain WHERE domain = :key AND backupmx = 0 AND active = 1"
MAILBOXES = "SELECT maildir FROM mailbox WHERE username = :key AND active = 1"
ALIASES = "SELECT goto FROM alias WHERE address = :key AND active = 1"
ALIAS_DOMAINS = """SELECT goto FROM alias, alias_domain WHERE alias_domain.alias_domain = :domain AND
  alias.address = CONCAT(:local, '@', alias_domain.target_domain) AND alias.active = 1 AND alias_domain.active = 1"""
PASSWORDS = "SELECT password FROM mailbox WHERE username = :key AND active = 1"
HOSTILE = ("'; DROP TABLE mailbox; --", "%", "' OR ''='", "alice@shop.test\\", "alice@shop.test'#", "NULL", '"', "ł@shop.test")
DOMAIN = '\n[[domain]]\nnames = "domains"\nmailboxes = "mailboxes"\naliases = "all_aliases"\ntransport = "vmail"\n'
VMAIL = '\n[transport.vmail]\ntype = "maildir"\nroot = "{data_dir}/vmail"\nplaces = "mailboxes"\n'
AUTH = '\n[auth]\npasswords = "passwords"\nclear_text = true\n'


def mariadb_for(case, schema=SCHEMA):
    """A server with the tables that runs until the case ends."""
    one = Mariadb()
    ending(case, one.stop)
    one.start()
    one.sql(schema)
    return one


def postfixadmin_tables(url):
    """The tables of the configuration for a database of PostfixAdmin."""
    return (
        table("domains", "mysql", url=url, query=DOMAINS),
        table("mailboxes", "mysql", QUICK, url=url, query=MAILBOXES),
        table("aliases", "mysql", url=url, query=ALIASES, separator=","),
        table("alias_domains", "mysql", url=url, query=ALIAS_DOMAINS, separator=","),
        table("all_aliases", "chain", tables=["aliases", "alias_domains"]),
        table("passwords", "mysql", url=url, query=PASSWORDS),
    )


@unittest.skipUnless(shutil.which("mariadbd"), "MariaDB is not installed")
class Postfixadmin(TablesCase):
    """One database and one server for all tests that do not disturb them."""

    @classmethod
    def setUpClass(cls):
        cls.database = mariadb_for(cls)
        extra = (*postfixadmin_tables(cls.database.url()), DOMAIN, VMAIL, AUTH)
        by_socket = table("by_socket", "mysql", url=cls.database.socket_url(), query=MAILBOXES)
        extra += (listener("submission", 'tls = "none"'), by_socket)
        cls.server_ = server_for(cls, *extra, mailboxes=None)

    def test_mail_for_a_mailbox_is_delivered_where_the_database_says(self):
        self.deliver("alice@shop.test")
        self.await_mail("alice", 1)

    def test_an_alias_expands_to_all_its_mailboxes(self):
        self.deliver("sales@shop.test")
        for name in ("alice", "bob"):
            self.await_mail(name, 1)

    def test_an_alias_domain_has_the_mailboxes_of_its_target(self):
        self.deliver("Bob@alias.test")
        self.await_mail("bob", 1)
        self.assert_reply(self.server_, "eve@alias.test", 550, "5.1.1")

    def test_what_is_inactive_or_missing_is_unknown(self):
        self.assert_reply(self.server_, "nobody@shop.test", 550, "5.1.1")
        self.assert_reply(self.server_, "alice@old.test", 550)
        self.assertEqual(self.server_.table("get", "mailboxes", "gone@shop.test").returncode, 1)

    def test_users_log_in_with_their_passwords(self):
        for user, password, code in [
            ("alice@shop.test", "secret", 235),
            ("bob@shop.test", "hidden", 235),
            ("alice@shop.test", "hidden", 535),
            ("gone@shop.test", "secret", 535),
            ("' OR ''='", "secret", 535),
        ]:
            with self.subTest(user=user, password=password):
                self.assertEqual(login(self.server_, user, password), code)

    def test_a_key_cannot_inject_sql(self):
        for key in HOSTILE:
            with self.subTest(key):
                said = self.server_.table("get", "mailboxes", key)
                self.assertIn(said.returncode, (1, 69), said.stderr)
                self.assertEqual(said.stdout, "")
        self.assertEqual(values(self.server_, "mailboxes", "alice@shop.test"), ["shop.test/alice/"])
        self.assertEqual(values(self.server_, "by_socket", "alice@shop.test"), ["shop.test/alice/"])

    def deliver(self, recipient):
        with Client(self.server_.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("hello"), recipient).code, 250, self.server_.log_tail())

    def await_mail(self, name, count):
        new = self.server_.data / "vmail" / "shop.test" / name / "new"
        await_that(lambda: new.exists() and len(list(new.iterdir())) >= count, f"mail for {name}", self.server_)


@unittest.skipUnless(shutil.which("mariadbd"), "MariaDB is not installed")
class MariadbAway(TablesCase):
    """Each test has a server of its own."""

    def test_cached_users_are_accepted_during_an_outage_and_others_soon_after(self):
        database = mariadb_for(self, SCHEMA.replace("shop.test", "bench.test"))
        server = self.server(table("people", "mysql", QUICK, SHORT, url=database.url(), query=MAILBOXES))
        self.assert_reply(server, "alice@bench.test", 250)
        self.assert_reply(server, "eve@bench.test", 550)
        database.kill()
        await_that(lambda: "backend fails" in server.table("get", "people", "alice@bench.test").stderr, "stale", server)
        self.assert_reply(server, "alice@bench.test", 250)
        self.await_reply(server, "eve@bench.test", 451)
        self.assert_reply(server, "bob@bench.test", 451, "4.3.0")
        self.assert_logged(server, "people", f"127.0.0.1:{database.port}", "refused")
        database.start()
        self.await_reply(server, "bob@bench.test", 250, 5.0)
        self.assert_reply(server, "eve@bench.test", 550, "5.1.1")

    def test_passwords(self):
        database = mariadb_for(self, SCHEMA.replace("shop.test", "bench.test"))
        database.sql("CREATE USER mail@'127.0.0.1' IDENTIFIED BY 'geheim'; GRANT SELECT ON mail.* TO mail@'127.0.0.1'")
        file = folder_for(self) / "password"
        file.write_text("geheim\n")
        file.chmod(0o644)
        server = self.server(
            table("people", "mysql", QUICK, url=database.url("mail", "guessed"), query=MAILBOXES),
            table("right", "mysql", url=database.url("mail", "geheim"), query=MAILBOXES),
            table("by_file", "mysql", url=database.url("mail"), password_file=str(file), query=MAILBOXES),
        )
        for name in ("right", "by_file"):
            self.assertEqual(values(server, name, "alice@bench.test"), ["bench.test/alice/"])
        self.assert_reply(server, "alice@bench.test", 451, "4.3.0")
        self.assert_logged(server, "people", "Access denied")
        self.assertNotIn("guessed", server.log.read_text())

    def test_many_lookups_are_batched_and_none_is_deferred(self):
        database = mariadb_for(self, SCHEMA.replace("shop.test", "bench.test"))
        rows = "CONCAT('user', seq, '@bench.test'), '', 'x', 0, 'user', 'bench.test', 1"
        database.sql(f"INSERT INTO mail.mailbox SELECT {rows} FROM mysql.seq_1_to_300")
        server = self.server(table("people", "mysql", "cache = false", url=database.url(), query=MAILBOXES))
        replies = replies_in_parallel(server, [f"user{number}@bench.test" for number in range(1, 401)])
        self.assertEqual([one.code for one in replies], [250] * 300 + [550] * 100, server.log_tail())
        self.assertEqual(stats(server, "people")["keys_asked"], 400)


if __name__ == "__main__":
    unittest.main()
