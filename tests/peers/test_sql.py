"""Recipients in databases: a PostgreSQL that is stopped, restarted and refuses, and an SQLite file
with other writers.
"""

import sqlite3
import unittest

from harness import Client, await_messages, await_that, make_message
from tables import QUICK, SHORT, TablesCase, ending, folder_for, server_for, replies_in_parallel, stats, table, values
from peers.postgresql import Postgresql

SCHEMA = """
CREATE TABLE mailboxes (address text PRIMARY KEY, path text);
CREATE TABLE aliases (address text NOT NULL, target text);
INSERT INTO mailboxes VALUES ('alice@bench.test', 'a/alice'), ('bob@bench.test', NULL);
INSERT INTO aliases VALUES ('all@bench.test', 'alice@bench.test'), ('all@bench.test', 'bob@bench.test'),
  ('all@bench.test', NULL);
"""
MAILBOXES = "SELECT address, path FROM mailboxes WHERE address = ANY($1)"
ALIASES = "SELECT address, target FROM aliases WHERE address = ANY($1)"
HOSTILE = ("'; DROP TABLE mailboxes; --", "%", "' OR ''='", "{alice@bench.test}", "alice@bench.test\\", "NULL", '"')
PASSWORD = "geheim"


def postgresql_for(case, **settings):
    """A cluster that runs until the case ends."""
    one = Postgresql(**settings)
    ending(case, one.stop)
    one.start()
    one.sql(SCHEMA)
    return one


class InPostgresql(TablesCase):
    """One cluster and one server for all tests that do not disturb them."""

    @classmethod
    def setUpClass(cls):
        cls.database = database = postgresql_for(cls)
        wrong = "SELECT address FROM nowhere WHERE address = ANY($1)"
        cls.server_ = server_for(
            cls,
            table("people", "postgres", QUICK, url=database.url, query=MAILBOXES),
            table("aliases", "postgres", QUICK, url=database.url, query=ALIASES),
            table("by_socket", "postgres", url=database.socket_url, query=MAILBOXES),
            table("second", "postgres", url=database.url.replace("127", "127.0.0.1:1,127", 1), query=MAILBOXES),
            table("wrong", "postgres", url=database.url, query=wrong),
            aliases="aliases",
        )

    def test_a_user_in_the_database_is_accepted_and_others_are_unknown(self):
        self.assert_reply(self.server_, "alice@bench.test", 250)
        self.assert_reply(self.server_, "bob@bench.test", 250)  # whose row has no value
        self.assert_reply(self.server_, "eve@bench.test", 550, "5.1.1")

    def test_an_alias_with_several_rows_expands_to_all(self):
        with Client(self.server_.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("hello"), "all@bench.test").code, 250)
        for name in ("alice", "bob"):
            await_messages(self.server_, name, 1)

    def test_every_kind_of_connection_works(self):
        for name in ("people", "by_socket", "second"):
            with self.subTest(name):
                self.assertEqual(values(self.server_, name, "alice@bench.test"), ["a/alice"])

    def test_a_key_cannot_inject_sql(self):
        for key in HOSTILE:
            with self.subTest(key):
                said = self.server_.table("get", "people", key)
                self.assertEqual((said.returncode, said.stdout), (1, ""), said.stderr)
        self.assertEqual(values(self.server_, "people", "alice@bench.test"), ["a/alice"])

    def test_a_failed_query_is_logged_with_the_error_of_the_database(self):
        said = self.server_.table("get", "wrong", "alice@bench.test")
        self.assertEqual((said.returncode, said.stdout), (69, ""), said.stderr)
        self.assertIn("nowhere", said.stderr)


class PostgresqlAway(TablesCase):
    """Each test has a cluster of its own."""

    def test_cached_users_are_accepted_during_an_outage_and_others_soon_after(self):
        database = postgresql_for(self)
        server = self.server(table("people", "postgres", QUICK, SHORT, url=database.url, query=MAILBOXES))
        self.assert_reply(server, "alice@bench.test", 250)
        self.assert_reply(server, "eve@bench.test", 550)
        database.kill()
        await_that(lambda: "backend fails" in server.table("get", "people", "alice@bench.test").stderr, "stale", server)
        self.assert_reply(server, "alice@bench.test", 250)
        self.await_reply(server, "eve@bench.test", 451)  # as soon as the cache entry expires
        self.assert_reply(server, "bob@bench.test", 451, "4.3.0")
        self.assert_logged(server, "people", f"127.0.0.1:{database.port}", "refused")
        database.start()
        self.await_reply(server, "bob@bench.test", 250, 2.0)
        self.assert_reply(server, "eve@bench.test", 550, "5.1.1")

    def test_passwords(self):
        database = postgresql_for(self, password=PASSWORD)
        database.set_password()
        file = folder_for(self) / "password"
        file.write_text(f"{PASSWORD}\n")
        file.chmod(0o644)
        with_password = database.url.replace("postgres@", f"postgres:{PASSWORD}@")
        wrong = database.url.replace("postgres@", "postgres:guessed@")
        server = self.server(
            table("people", "postgres", QUICK, url=wrong, query=MAILBOXES),
            table("right", "postgres", url=with_password, query=MAILBOXES),
            table("by_file", "postgres", url=database.url, password_file=str(file), query=MAILBOXES),
        )
        for name in ("right", "by_file"):
            self.assertEqual(values(server, name, "alice@bench.test"), ["a/alice"])
        self.assert_reply(server, "alice@bench.test", 451, "4.3.0")
        self.assert_logged(server, "people", "password authentication failed")
        self.assertNotIn("guessed", server.log.read_text())

    def test_many_lookups_are_batched_and_none_is_deferred(self):
        database = postgresql_for(self)
        database.sql("INSERT INTO mailboxes SELECT 'user' || n || '@bench.test', 'x' FROM generate_series(1, 300) n")
        server = self.server(table("people", "postgres", "cache = false", url=database.url, query=MAILBOXES))
        replies = replies_in_parallel(server, [f"user{number}@bench.test" for number in range(1, 401)])
        self.assertEqual([one.code for one in replies], [250] * 300 + [550] * 100, server.log_tail())
        self.assertEqual(stats(server, "people")["keys_asked"], 400)


class InSqlite(TablesCase):
    """Each test has a file of its own."""

    def setUp(self):
        place = folder_for(self)
        self.path = place / "people.db"
        with self.writer() as database:
            database.executescript(SCHEMA)
        self.path.chmod(0o644)
        file = {"path": str(self.path), "timeout": "300ms"}
        self.server_ = self.server(
            table("people", "sqlite", query="SELECT path FROM mailboxes WHERE address = :key", **file),
            table("aliases", "sqlite", query="SELECT target FROM aliases WHERE address = :key", **file),
            aliases="aliases",
        )

    def writer(self):
        database = sqlite3.connect(self.path)
        self.addCleanup(database.close)
        return database

    def test_a_user_in_the_database_is_accepted_and_others_are_unknown(self):
        self.assert_reply(self.server_, "alice@bench.test", 250)
        self.assert_reply(self.server_, "bob@bench.test", 250)
        self.assert_reply(self.server_, "eve@bench.test", 550, "5.1.1")
        self.assertEqual(values(self.server_, "aliases", "all@bench.test"), ["alice@bench.test", "bob@bench.test"])
        for key in HOSTILE:
            self.assertEqual(self.server_.table("get", "people", key).returncode, 1, key)

    def test_changes_are_seen_immediately(self):
        with self.writer() as database:
            database.execute("INSERT INTO mailboxes VALUES ('eve@bench.test', 'e')")
        self.assert_reply(self.server_, "eve@bench.test", 250)
        with self.writer() as database:
            database.execute("DELETE FROM mailboxes")
        self.assert_reply(self.server_, "alice@bench.test", 550)

    def test_a_locked_file_makes_no_user_unknown(self):
        database = self.writer()
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")
        self.assert_reply(self.server_, "alice@bench.test", 451, "4.3.0")
        self.assert_reply(self.server_, "eve@bench.test", 451, "4.3.0")
        self.assert_logged(self.server_, "locked")
        database.close()
        self.await_reply(self.server_, "alice@bench.test", 250, 2.0)


if __name__ == "__main__":
    unittest.main()
