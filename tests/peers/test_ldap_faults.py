"""Faults of a directory, each played by a scripted one: no user is ever unknown because of them.

In all cases the recipient gets 451 4.3.0, the log describes the fault, and lookups work again as
soon as the directory does.
"""

import threading
import unittest

from harness import await_that
from ldap_server import (
    BUSY,
    UNAVAILABLE,
    answer_with,
    answer_wrong_id,
    before,
    disconnect,
    disconnect_in_entry,
    refer_to,
    send_raw,
    slow,
    stall,
    times,
    users,
)
from tables import QUICK, TablesCase, ldap_table, replies_in_parallel, stats, user
from peers import ldap, people

NOBODY = f"nobody@{people.DOMAIN}"
UNCACHED = QUICK + "cache = false\n"


def answer_garbage(operation):
    """Answers with a message of this operation with any contents."""

    def act(session, request):
        session.raw(ldap.message(request.number, operation))
        return True

    return act


def disconnect_after(octets):
    """Sends these octets and closes the connection."""

    def act(session, request):
        session.raw(octets)
        disconnect(session, request)

    return act


_LATE = "no answer within"
# By name: the stage, the fault, and words that the log must have.
FAULTS = {
    "disconnects": ("search", disconnect, "closed the connection"),
    "disconnects right away": ("connect", disconnect, ""),
    "disconnects in the middle of an entry": ("search", disconnect_in_entry, ""),
    "disconnects in a number": ("search", disconnect_after(b"\x30\x20\x02"), ""),
    "is busy": ("search", answer_with(BUSY, "come again"), "come again"),
    "is unavailable": ("search", answer_with(UNAVAILABLE, "being backed up"), "being backed up"),
    "has no such base": ("search", answer_with(32), "noSuchObject"),
    "sends nothing": ("search", stall, _LATE),
    "answers another request": ("search", answer_wrong_id, _LATE),
    "sends a referral": ("search", refer_to("ldap://127.0.0.1:1/"), "referral"),
    "has too many results": ("entry", None, "ize"),
    "sends a length of 2 GB": ("search", send_raw(b"\x30\x84\x7f\xff\xff\xff\x02\x01\x01"), "malformed"),
    "sends a length of 40 bits": ("search", send_raw(b"\x30\x85\x01\x00\x00\x00\x00"), "malformed"),
    "sends no length": ("search", send_raw(b"\x30\x80\x02\x01\x01\x00\x00"), "malformed"),
    "sends HTTP": ("search", send_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "malformed"),
    "sends an invalid entry": ("search", answer_garbage(ldap.element(ldap.ENTRY, b"\xff\xff\xff")), "malformed"),
    "sends a truncated entry": ("search", answer_garbage(bytes([ldap.ENTRY, 0x7F, 4, 1])), "malformed"),
    "sends an unknown operation": ("search", answer_garbage(ldap.element(0x7E, b"")), "malformed"),
    "sends a result without a code": ("search", answer_garbage(ldap.element(ldap.SEARCH_DONE)), "malformed"),
}  # fmt: skip


class Faults(TablesCase):
    def test_no_fault_makes_a_user_unknown(self):
        for name, (stage, act, words) in FAULTS.items():
            with self.subTest(name):
                self.assert_survives(stage, act, words)

    def assert_survives(self, stage, act, words):
        """Expects 451 during the fault, words in the log, and 250 and 550 afterwards."""
        directory = self.ldap_server(users(1))
        timeout = "1s" if words == _LATE else "20s"  # the directory is a thread of the test, which may be late itself
        server = self.server(ldap_table("people", directory.url, UNCACHED, timeout=timeout))
        self.await_reply(server, user(1), 250)
        if act is None:
            directory.size_limit = 0
        else:
            directory.script[stage] = act
        for session in directory.sessions if stage == "connect" else ():
            session.close()
        for address in (user(1), user(1), NOBODY if act else user(1)):
            self.assert_reply(server, address, 451, "4.3.0")
        self.assert_logged(server, "people", directory.url, words)
        directory.script.clear()
        directory.size_limit = None
        self.await_reply(server, user(1), 250)
        self.await_reply(server, NOBODY, 550)

    def test_a_single_failure_is_retried(self):
        """A failed request is sent once more, since connections end for many reasons."""
        for act in (disconnect, disconnect_in_entry, send_raw(b"\x30\x80")):
            directory = self.ldap_server(users(1), script={"search": times(1, act)})
            server = self.server(ldap_table("people", directory.url, UNCACHED))
            self.assert_reply(server, user(1), 250)
            self.assertEqual(len(directory.searches), 2)

    def test_a_slow_directory_is_awaited(self):
        directory = self.ldap_server(users(1), script={"search": slow(1.0)})
        server = self.server(ldap_table("people", directory.url, UNCACHED))
        self.assert_reply(server, user(1), 250)
        self.assert_reply(server, NOBODY, 550)

    def test_a_request_has_a_timeout(self):
        directory = self.ldap_server(users(1), script={"search": stall})
        server = self.server(ldap_table("people", directory.url, UNCACHED, 'wait = "300ms"', timeout="10s"))
        self.assert_reply(server, user(1), 451, "4.3.0")

    def test_a_refused_bind_is_logged(self):
        directory = self.ldap_server(users(1), script={"bind": answer_with(49, "who are you")})
        server = self.server(ldap_table("people", directory.url, UNCACHED, bind_dn="cn=mail", password="secret"))
        self.assert_reply(server, user(1), 451, "4.3.0")
        self.assert_logged(server, "people", "bind", "who are you")

    def test_another_server_is_used_if_one_fails(self):
        for act in (disconnect, answer_with(BUSY), answer_with(UNAVAILABLE), stall, send_raw(b"HTTP/1.1 400\r\n")):
            bad, good = self.ldap_server(script={"search": act}), self.ldap_server(users(1))
            timeout = "2s" if act is stall else "20s"
            server = self.server(ldap_table("people", [bad.url, good.url], UNCACHED, timeout=timeout))
            self.assert_reply(server, user(1), 250)
            self.assert_reply(server, NOBODY, 550)

    def test_a_referral_is_followed_if_allowed(self):
        good = self.ldap_server(users(1))
        first = self.ldap_server(script={"search": refer_to(f"{good.url}/{people.PEOPLE}")})
        server = self.server(ldap_table("people", first.url, UNCACHED, referrals=True))
        self.assert_reply(server, user(1), 250)
        self.assert_reply(server, NOBODY, 550)

    def test_too_many_values_are_an_error(self):
        entries = users(1)
        entries[people.dn(1)]["description"] = [f"path{number}" for number in range(20)]
        directory = self.ldap_server(entries)
        server = self.server(
            ldap_table("people", directory.url, UNCACHED),
            ldap_table("paths", directory.url, UNCACHED, result="description", values_max=10),
        )
        said = server.table("get", "paths", user(1))
        self.assertEqual((said.returncode, said.stdout), (69, ""), said.stderr)


class Batches(TablesCase):
    """Many sessions in parallel."""

    COUNT = 100

    def gather(self, directory, *, pattern="(mail={key})", **settings):
        """The replies of 100 sessions whose lookups arrive while the first two are delayed."""
        server = self.server(ldap_table("people", directory.url, UNCACHED, filter=pattern, **settings))
        addresses = [user(number) for number in range(1, self.COUNT + 1)]
        replies = []
        asking = threading.Thread(target=lambda: replies.extend(replies_in_parallel(server, addresses)))
        asking.start()
        await_that(lambda: stats(server, "people")["waiting"] >= self.COUNT, "everybody's question", server)
        self.held.set()
        asking.join()
        self.assertEqual({one.code for one in replies}, {250}, server.log_tail())
        return server

    def directory(self, **settings):
        """A directory that delays the first requests."""
        self.held = threading.Event()
        self.addCleanup(self.held.set)
        script = {"search": times(2, before(self.held))}
        return self.ldap_server(users(*range(1, self.COUNT + 1)), script=script, **settings)

    def keys(self, directory):
        return [search.keys for search in directory.searches]

    def test_waiting_lookups_are_sent_together(self):
        directory = self.directory()
        server = self.gather(directory)
        self.assertLessEqual(max(self.keys(directory)), 64)
        self.assertGreater(max(self.keys(directory)), 20)
        self.assertEqual(sum(self.keys(directory)), self.COUNT)
        self.assertLess(stats(server, "people")["requests"], 10)
        self.assertLessEqual(len(directory.sessions), 2)

    def test_a_batch_that_is_too_large_for_the_server_is_split(self):
        directory = self.directory(size_limit=5)
        self.gather(directory)
        self.assertGreater(max(self.keys(directory)), 20)

    def test_without_a_schema_each_key_is_asked_alone(self):
        directory = self.directory(has_schema=False)
        self.gather(directory)
        self.assertEqual(set(self.keys(directory)), {1})

    def test_a_filter_that_splits_the_key_is_asked_alone(self):
        directory = self.directory()
        self.gather(directory, pattern="(&(uid={local})(mail=*))")
        self.assertEqual(set(self.keys(directory)), {1})

    def test_equal_lookups_are_asked_once(self):
        directory = self.directory()
        server = self.server(ldap_table("people", directory.url, UNCACHED))
        replies = []
        asking = threading.Thread(target=lambda: replies.extend(replies_in_parallel(server, [user(1)] * 50, 50)))
        asking.start()
        await_that(lambda: stats(server, "people")["joined"] >= 49, "everybody's question", server)
        self.held.set()
        asking.join()
        self.assertEqual(({one.code for one in replies}, len(directory.searches)), ({250}, 1))

    def test_a_directory_under_load_defers_no_recipient(self):
        directory = self.ldap_server(users(*range(1, self.COUNT + 1)), script={"search": slow(0.05)})
        server = self.server(ldap_table("people", directory.url, UNCACHED))
        addresses = [user(1 + number % (2 * self.COUNT)) for number in range(6 * self.COUNT)]
        replies = replies_in_parallel(server, addresses)
        expected = [250 if number % (2 * self.COUNT) < self.COUNT else 550 for number in range(6 * self.COUNT)]
        self.assertEqual([one.code for one in replies], expected, server.log_tail())
        self.assertGreater(max(self.keys(directory)), 1)

    def test_a_fault_during_a_batch_makes_no_user_unknown(self):
        directory = self.directory()
        directory.script["entry"] = times(1, disconnect)
        self.gather(directory)


if __name__ == "__main__":
    unittest.main()
