"""A local copy of a directory: it follows its master, works without it, and does not delete many
entries unasked.
"""

import threading
import unittest

from harness import await_that
from ldap_server import users
from tables import QUICK, Load, TablesCase, counted, ldap_table, logged, stats, user
from peers import people

NOBODY = f"nobody@{people.DOMAIN}"


def copied(url, *lines):
    """The table of `people` as a copy."""
    return ldap_table("people", url, QUICK, 'mode = "replica"', *lines)


class Copy(TablesCase):
    def pair(self, count=100, lines=(), **settings):
        """A directory, and a server with a copy of it and with mail on hold."""
        slapd = self.slapd(count, **settings)
        server = self.server(copied(slapd.url, *lines), concurrency=0)
        self.await_copy(server, count)
        return slapd, server

    def await_copy(self, server, count):
        """Waits until the copy is complete and has this many entries."""

        def is_complete():
            copy = stats(server, "people")["replica"]
            return copy["complete"] and copy["entries"] == count

        await_that(is_complete, f"a copy of {count}", server)

    def test_a_copy_answers_like_its_master_and_without_it(self):
        slapd, server = self.pair()
        self.assertTrue(stats(server, "people")["replica"]["live"])
        self.assertIn("in the replica, which is up to date", server.table("get", "people", user(1)).stderr)
        slapd.kill()
        await_that(lambda: not stats(server, "people")["replica"]["live"], "the loss", server)
        self.assert_reply(server, user(1), 250)
        self.assert_reply(server, "USER2@Bench.Test", 250)
        self.assert_reply(server, NOBODY, 550, "5.1.1")
        self.assert_logged(server, "people", "lost its master")
        self.assertIn("in the replica, as of", server.table("get", "people", user(1)).stderr)

    def test_changes_arrive_within_a_second(self):
        slapd, server = self.pair()
        slapd.add_user(101)
        self.await_reply(server, user(101), 250, 1.0)
        with slapd.admin() as admin:
            admin.append(people.dn(101), mail=["friend@bench.test"])
            self.await_reply(server, "friend@bench.test", 250, 1.0)
            admin.replace(people.dn(101), mail=["other@bench.test"])
            self.await_reply(server, user(101), 550, 1.0)
            self.await_reply(server, "friend@bench.test", 550, 1.0)
            self.assert_reply(server, "other@bench.test", 250)
        slapd.delete_users(101)
        self.await_reply(server, "other@bench.test", 550, 1.0)

    def test_changes_during_an_outage_are_copied_afterwards(self):
        slapd, server = self.pair()
        self.assertEqual(server.terminate(), 0)
        slapd.add_user(101)
        slapd.delete_users(1)
        slapd.restart()
        server.start()
        self.await_reply(server, user(101), 250)
        self.await_reply(server, user(1), 550)
        self.assert_reply(server, user(2), 250)

    def test_it_follows_again_after_the_master_was_restarted(self):
        slapd, server = self.pair()
        slapd.kill()
        slapd.start()
        slapd.add_user(101)
        self.await_reply(server, user(101), 250, 3.0)

    def test_a_restarted_server_knows_all_users_without_the_master(self):
        slapd, server = self.pair()
        slapd.kill()
        for end in (server.terminate, server.kill):
            end()
            server.start()
            for number in (1, 50, 100):
                self.assert_reply(server, user(number), 250)
            self.assert_reply(server, NOBODY, 550, "5.1.1")

    def test_a_server_killed_during_changes_has_all_of_them_in_the_end(self):
        slapd, server = self.pair()
        for number in range(101, 141):
            slapd.add_user(number)
            if number % 10 == 0:
                server.kill()
                server.start()
        self.await_copy(server, 140)
        for number in (1, 101, 120, 140):
            self.assert_reply(server, user(number), 250)

    def test_many_removals_are_held_back_until_they_are_accepted(self):
        slapd, server = self.pair()
        slapd.delete_users(*range(1, 61))
        await_that(lambda: stats(server, "people")["replica"]["held_back"], "an alarm", server)
        self.assert_logged(server, "people", "held back", "removals=")
        for number in range(51, 61):  # the first removals may be applied before there are many
            self.assert_reply(server, user(number), 250)
        self.assertGreater(counted(server, "table_replica_held_back", table="people"), 0)
        said = server.table("accept", "people")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.await_reply(server, user(60), 550)
        self.await_copy(server, 40)
        self.assertFalse(stats(server, "people")["replica"]["held_back"])

    def test_many_removals_during_an_outage_are_held_back_too(self):
        slapd, server = self.pair()
        server.terminate()
        slapd.delete_users(*range(1, 61))
        slapd.add_user(101)
        server.start()
        await_that(lambda: stats(server, "people")["replica"]["held_back"], "an alarm", server)
        self.assert_reply(server, user(1), 250)
        self.await_reply(server, user(101), 250)
        server.terminate()
        server.start()
        await_that(lambda: stats(server, "people")["replica"]["held_back"], "an alarm again", server)
        self.assertEqual(server.table("accept", "people").returncode, 0)
        self.await_reply(server, user(1), 550)
        self.assert_reply(server, user(100), 250)

    def test_a_master_without_syncprov_is_polled(self):
        slapd, server = self.pair(lines=['replica = { poll = "200ms" }'], syncprov=False)
        self.assertFalse(stats(server, "people")["replica"]["live"])
        slapd.add_user(101)
        slapd.delete_users(1)
        self.await_reply(server, user(101), 250, 3.0)
        self.await_reply(server, user(1), 550, 3.0)
        slapd.kill()
        self.assert_reply(server, user(2), 250)
        self.assert_reply(server, NOBODY, 550)

    def test_the_loss_of_the_master_under_load_is_not_noticed(self):
        slapd, server = self.pair()
        with Load(server, 100, 3) as load:
            await_that(lambda: stats(server, "people")["found"] > 100, "the load has begun", server)
            while load.runs():
                slapd.kill()
                slapd.start()
            summary = load.summary()
        self.assertEqual(summary["errors"], {}, server.log_tail())


class FirstLoad(TablesCase):
    def test_a_master_with_a_size_limit_is_queried_for_each_user(self):
        slapd = self.slapd(100, sizelimit=30)
        server = self.server(copied(slapd.url))
        self.assert_logged(server, "people", "sizeLimitExceeded")
        self.assertFalse(stats(server, "people")["replica"]["complete"])
        for number in (1, 50, 100):
            self.assert_reply(server, user(number), 250)
        self.assert_reply(server, NOBODY, 550)

    def test_during_the_first_load_unknown_users_are_checked_with_the_master(self):
        """The directory delays the copy after the first entries, and answers queries for keys."""
        loaded = threading.Event()
        self.addCleanup(loaded.set)
        sent = []

        def hold(_session, request):
            if not request.keys:  # asks for all entries
                sent.append(request)
                len(sent) > 3 and loaded.wait()

        directory = self.ldap_server(users(*range(1, 11)), script={"entry": hold})
        server = self.server(copied(directory.url, 'replica = { poll = "300ms" }'))
        await_that(lambda: len(sent) > 3, "the load has begun", server)
        self.assertFalse(stats(server, "people")["replica"]["complete"])
        for number in (1, 10):
            self.assert_reply(server, user(number), 250)
        self.assert_reply(server, NOBODY, 550)
        directory.script["search"] = lambda session, request: session.close()
        self.assert_reply(server, "another@bench.test", 451, "4.3.0")
        directory.script.clear()
        loaded.set()
        await_that(lambda: stats(server, "people")["replica"]["complete"], "a whole copy", server)
        directory.stop()
        self.assert_reply(server, user(10), 250)
        self.assert_reply(server, "another@bench.test", 550)

    def test_a_server_that_starts_before_its_directory_defers_all_users(self):
        slapd = self.slapd(10)
        slapd.kill()
        server = self.server(copied(slapd.url))
        self.assert_reply(server, user(1), 451, "4.3.0")
        self.assert_reply(server, NOBODY, 451, "4.3.0")
        slapd.start()
        self.await_reply(server, user(1), 250)
        self.await_reply(server, NOBODY, 550)
        self.assertEqual(logged(server, "5.1.1", user(1)), [])


if __name__ == "__main__":
    unittest.main()
