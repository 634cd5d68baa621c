"""Recipients in an LDAP directory: a real slapd behind the real server.

    known          users with an entry are accepted, others are unknown, whatever the address looks like
    connections    every kind of URL and authentication, and the messages when one fails
    outages        cached users are accepted while the directory is down; others get 451; no user is ever
                   reported as unknown because of an outage
"""

import time
import unittest

from harness import Client, await_messages, await_that, make_message
from tables import (
    QUICK,
    SHORT,
    Load,
    TablesCase,
    counted,
    ldap_table,
    logged,
    folder_for,
    reply,
    replies_in_parallel,
    server_for,
    slapd_for,
    stats,
    table,
    user,
    values,
)
from peers import people
from peers.slapd import ADMIN, PASSWORD

NOBODY = f"nobody@{people.DOMAIN}"
ALIASES = f"ou=aliases,{people.BASE}"
GROUPS = f"""\
dn: {ALIASES}
objectClass: organizationalUnit
ou: aliases

dn: cn=both,{ALIASES}
objectClass: applicationProcess
objectClass: extensibleObject
cn: both
mail: user1@bench.test
mail: user2@bench.test

dn: cn=mill,{ALIASES}
objectClass: groupOfNames
cn: mill
member: {people.dn(3)}
member: cn=office,{ALIASES}

dn: cn=office,{ALIASES}
objectClass: groupOfNames
cn: office
member: {people.dn(4)}
member: cn=mill,{ALIASES}

dn: cn=empty,{ALIASES}
objectClass: groupOfNames
cn: empty
member: cn=gone,{ALIASES}

"""
HOSTILE = (
    "*", "user*", "user1)(mail=*", ")(", "*)(objectClass=*", "\\2a", "\\", "user1\\", "(user1", "user1)",
    "|(mail=*", "user1&", "\\28\\29", "a,dc=b", "#user1", "user1;",
)  # fmt: skip


class Known(TablesCase):
    """One directory and one server for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.slapd_ = slapd_for(cls, 50, extra=GROUPS)
        url = cls.slapd_.url
        group_filter = "(&(|(objectClass=groupOfNames)(objectClass=applicationProcess))(cn={local}))"
        cls.server_ = server_for(
            cls,
            ldap_table("people", url, QUICK),
            ldap_table("aliases", url, base=ALIASES, filter=group_filter, members="member"),
            ldap_table("paths", url, result=["{description}Maildir/", "uid"]),
            ldap_table("existing", url, filter="(&(objectClass=person)(uid={local})(mail={key}))", result=[]),
            aliases="aliases",
        )  # fmt: skip

    def test_a_user_with_an_entry_is_accepted_and_gets_the_message(self):
        with Client(self.server_.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("hello"), user(7)).code, 250)
        await_messages(self.server_, "user7", 1)

    def test_a_user_without_an_entry_is_unknown(self):
        self.assert_reply(self.server_, NOBODY, 550, "5.1.1")
        self.assert_reply(self.server_, user(51), 550, "5.1.1")

    def test_case_does_not_matter(self):
        self.assert_reply(self.server_, "USER8@Bench.Test", 250)

    def test_an_alias_with_several_values_expands_to_all(self):
        self.deliver("both")
        for name in ("user1", "user2"):
            await_messages(self.server_, name, 1)

    def test_a_group_expands_to_its_members_and_those_of_nested_groups(self):
        self.deliver("mill")  # which is a member of its own member
        for name in ("user3", "user4"):
            await_messages(self.server_, name, 1)
        self.assertEqual(sorted(values(self.server_, "aliases", "mill@bench.test")), [user(3), user(4)])

    def test_an_empty_group_is_unknown(self):
        self.assert_reply(self.server_, "empty@bench.test", 550, "5.1.1")

    def test_templates_make_values(self):
        self.assertEqual(values(self.server_, "paths", user(9)), ["bench.test/user9/Maildir/", "user9"])

    def test_without_result_attributes_an_entry_is_enough(self):
        self.assertEqual(values(self.server_, "existing", user(9)), [])
        said = self.server_.table("get", "existing", "user9@elsewhere.test")
        self.assertEqual((said.returncode, said.stdout), (1, ""), said.stderr)

    def test_a_local_part_cannot_inject_a_filter(self):
        for local in HOSTILE:
            quoted = '"' + local.replace("\\", "\\\\").replace('"', '\\"') + '"'
            with self.subTest(local):
                said = reply(self.server_, f"{quoted}@bench.test")
                self.assertIn(said.code, (550, 553, 501), f"{quoted}: {said!r}")
                said = self.server_.table("get", "people", f"{local}@bench.test")
                self.assertEqual((said.returncode, said.stdout), (1, ""), f"{local}: {said.stderr}")
        self.assertEqual(logged(self.server_, "a table lookup failed"), [])

    def test_table_get_shows_the_layer_and_the_time(self):
        first, again = (self.server_.table("get", "people", user(30)) for _ in range(2))
        self.assertEqual((first.stdout, again.stdout), (f"{user(30)}\n", f"{user(30)}\n"))
        self.assertIn("people: found in the backend; ", first.stderr)
        self.assertIn("people: found in the cache", again.stderr)
        self.assertRegex(again.stderr, r"; \d+(\.\d+)? (us|ms)")

    def test_metrics_count_lookups(self):
        before, metric = stats(self.server_, "people"), ("table_answers_total", {"table": "people", "answer": "found"})
        counted_before = counted(self.server_, metric[0], **metric[1])
        for _ in range(3):
            self.assert_reply(self.server_, user(31), 250)
        after = stats(self.server_, "people")
        self.assertEqual(after["found"] - before["found"], 3)
        self.assertEqual(after["requests"] - before["requests"], 1)
        self.assertEqual(after["hits"] - before["hits"], 2)
        self.assertEqual(counted(self.server_, metric[0], **metric[1]) - counted_before, 3)
        self.assertEqual(after["unavailable"], 0)

    def deliver(self, local):
        with Client(self.server_.port) as client:
            client.greet()
            said = client.deliver(make_message("hello"), f"{local}@bench.test")
            self.assertEqual(said.code, 250, f"{said!r}\n{self.server_.log_tail()}")


class Connections(TablesCase):
    """A directory that requires authentication, and a server with a table for each kind of
    connection.
    """

    @classmethod
    def setUpClass(cls):
        cls.slapd_ = slapd = slapd_for(cls, 10, tls=True, private=True)
        admin = {"bind_dn": ADMIN, "password": PASSWORD}
        file = folder_for(cls) / "password"
        file.write_text(f"{PASSWORD}\n")
        file.chmod(0o644)
        other = slapd_for(cls, 10, tls=True)  # with a certificate that is not trusted
        ca = {"ca_file": str(slapd.ca)}
        cls.server_ = server_for(
            cls,
            ldap_table("simple", slapd.url, **admin),
            ldap_table("by_file", slapd.url, bind_dn=ADMIN, password_file=str(file)),
            ldap_table("starttls", slapd.starttls_url, starttls=True, **ca, **admin),
            ldap_table("ldaps", slapd.tls_url, **ca, **admin),
            ldap_table("external", slapd.ldapi_url, sasl="external"),
            ldap_table("wrong", slapd.url, bind_dn=ADMIN, password="guessed"),
            ldap_table("stranger", other.tls_url, **ca),
            ldap_table("stranger_starttls", other.starttls_url, starttls=True, **ca),
            ldap_table("anonymous", slapd.url),
            ldap_table("nowhere", slapd.url, base="ou=nowhere,dc=bench,dc=test", **admin),
            ldap_table("second", ["ldap://127.0.0.1:1", slapd.url], **admin),
            ldap_table("people", slapd.url, QUICK, bind_dn=ADMIN, password="guessed"),
        )

    def test_every_way_to_a_directory(self):
        for name in ("simple", "by_file", "starttls", "ldaps", "external", "second"):
            with self.subTest(name):
                self.assertEqual(values(self.server_, name, user(3)), [user(3)])

    def test_a_refused_connection_does_not_make_users_unknown(self):
        for name, text in (
            ("wrong", "nvalid"), ("stranger", "ertificate"), ("stranger_starttls", "ertificate"),
            ("anonymous", "insufficientAccessRights"), ("nowhere", "noSuchObject"),
        ):  # fmt: skip
            with self.subTest(name):
                said = self.server_.table("get", name, user(3))
                self.assertEqual((said.returncode, said.stdout), (69, ""), said.stderr)
                self.assertRegex(said.stderr, text)

    def test_a_wrong_bind_password_is_logged_without_the_password(self):
        self.assert_reply(self.server_, user(3), 451, "4.3.0")
        self.assert_logged(self.server_, "people", "bind", "nvalid")
        self.assertNotIn("guessed", self.server_.log.read_text())


class Outages(TablesCase):
    """Each test has a directory of its own."""

    def setUp(self):
        self.slapd_ = self.slapd(200)

    def table(self, *lines):
        return ldap_table("people", self.slapd_.url, QUICK, *lines)

    def test_cached_users_are_accepted_while_the_directory_is_down(self):
        server = self.server(self.table(SHORT))
        self.assert_reply(server, user(1), 250)
        self.assert_reply(server, NOBODY, 550, "5.1.1")
        self.slapd_.kill()
        await_that(lambda: "backend fails" in server.table("get", "people", user(1)).stderr, "a stale answer", server)
        self.assert_reply(server, user(1), 250)
        self.await_reply(server, NOBODY, 451)  # a cached negative answer expires
        self.assert_reply(server, user(2), 451, "4.3.0")
        self.assert_logged(server, "people", self.slapd_.url, "refused")
        await_that(lambda: stats(server, "people")["down"], "the table is down", server)
        self.assertGreater(stats(server, "people")["stale"], 0)

    def test_lookups_work_within_two_seconds_of_recovery(self):
        server = self.server(self.table())
        self.slapd_.kill()
        for number in range(1, 6):
            self.assert_reply(server, user(number), 451, "4.3.0")
        self.assertIn("is down", server.table("get", "people", user(1)).stderr)
        self.slapd_.start()
        begin = time.monotonic()
        self.await_reply(server, user(1), 250, 2.0)
        self.assertLess(time.monotonic() - begin, 2.0)
        self.assert_reply(server, NOBODY, 550, "5.1.1")
        self.assert_logged(server, "people", "recovered")

    def test_kill_and_restart_under_load_makes_no_user_unknown_and_defers_no_cached_user(self):
        server = self.server(self.table(SHORT), concurrency=0)
        known = 100
        self.assertEqual({one.code for one in replies_in_parallel(server, map(user, range(1, known + 1)), 20)}, {250})
        with Load(server, known, 4) as cached, Load(server, 200, 4) as anyone:
            await_that(lambda: stats(server, "people")["cached"] > 150, "the load has begun", server)
            rounds = 0
            while cached.runs() and anyone.runs():
                self.slapd_.kill()
                await_that(lambda: stats(server, "people")["down"] or not anyone.runs(), "an outage", server)
                self.slapd_.start()
                await_that(lambda: not stats(server, "people")["down"] or not anyone.runs(), "a return", server)
                rounds += 1
            summaries = cached.summary(), anyone.summary()
        self.assertGreaterEqual(rounds, 2)
        self.assertEqual(summaries[0]["errors"], {}, server.log_tail())
        self.assertEqual([text for text in summaries[1]["errors"] if " 4.3.0 " not in text], [], server.log_tail())
        for one in summaries:
            self.assertGreater(one["done"], 200, "not every user was asked")

    def test_a_server_that_starts_before_its_directory(self):
        self.slapd_.kill()
        server = self.server(self.table())
        self.assert_reply(server, user(1), 451, "4.3.0")
        self.slapd_.start()
        self.await_reply(server, user(1), 250, 2.0)

    def test_changes_are_seen_when_the_cache_expires(self):
        server = self.server(self.table(SHORT))
        self.assert_reply(server, user(1), 250)
        self.assert_reply(server, user(201), 550)
        self.slapd_.add_user(201)
        self.slapd_.delete_users(1)
        self.await_reply(server, user(201), 250, 2.0)
        self.await_reply(server, user(1), 550, 2.0)

    def test_lookups_after_a_restart_of_the_directory_do_not_fail(self):
        server = self.server(self.table("cache = false"))
        for _ in range(3):
            self.assert_reply(server, user(1), 250)
            self.slapd_.restart()
        self.assert_reply(server, user(1), 250)

    def test_without_a_cache_each_lookup_is_a_query(self):
        server = self.server(self.table("cache = false"))
        for _ in range(3):
            self.assert_reply(server, user(1), 250)
        self.assertEqual(stats(server, "people")["requests"], 3)


class ManySessions(TablesCase):
    def test_a_hundred_sessions_with_a_slapd_that_gives_ten_entries_at_a_time(self):
        slapd = self.slapd(400, sizelimit=10)
        server = self.server(ldap_table("people", slapd.url, QUICK, "cache = false"))
        replies = replies_in_parallel(server, map(user, range(1, 501)))
        self.assertEqual([one.code for one in replies], [250] * 400 + [550] * 100, server.log_tail())

    def test_lookups_of_many_connections_are_batched(self):
        slapd = self.slapd(500)
        server = self.server(ldap_table("people", slapd.url, QUICK, "cache = false"), concurrency=0)
        with Load(server, 500, 2, connections=100) as load:
            summary = load.summary()
        self.assertEqual(summary["errors"], {}, server.log_tail())
        counts = stats(server, "people")
        self.assertLess(counts["requests"], counts["keys_asked"] / 2)


class TableChains(TablesCase):
    """Tables made of other tables, and tables without a backend."""

    def test_a_chain_ends_at_a_table_that_fails(self):
        """The next table must not decide instead."""
        slapd = self.slapd(5)
        server = self.server(
            ldap_table("staff", slapd.url, QUICK, "cache = false"),
            table("everyone", "static", values=["all"]),
            table("people", "chain", tables=["staff", "everyone"]),
        )
        self.assertEqual(values(server, "people", user(1)), [user(1)])
        self.assertEqual(values(server, "people", NOBODY), ["all"])
        slapd.kill()
        self.assert_reply(server, user(1), 451, "4.3.0")
        self.assert_reply(server, NOBODY, 451, "4.3.0")

    def test_pattern_and_static_tables_with_a_directory(self):
        slapd = self.slapd(5)
        patterns = folder_for(self) / "patterns"
        patterns.write_text("# sensors\n/^sensor-([0-9]+)@bench\\.test$/ user$1@bench.test\n")
        patterns.chmod(0o644)
        server = self.server(
            ldap_table("people", slapd.url, QUICK),
            table("aliases", "regexp", path=str(patterns)),
            aliases="aliases",
        )
        self.assert_reply(server, "sensor-3@bench.test", 250)
        self.assert_reply(server, "sensor-9@bench.test", 550)
        self.assertEqual(values(server, "aliases", "sensor-3@bench.test"), ["user3@bench.test"])


if __name__ == "__main__":
    unittest.main()
