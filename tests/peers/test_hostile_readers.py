"""Hostile and broken clients of POP3 and HTTP: each meets a limit, and others are served promptly.

    Hostile      slow readers, clients that never read, endless input, half-closed connections
    Guessing     failed logins by the hundred, from one address and from many
"""

import contextlib
import itertools
import re
import threading
import time
import unittest

from harness import await_that, stuffed
from peers.dovecot import PASSWORD
from retrieval import COPIED, FORMS, SENDFILE, ReaderConnection, RetrievalCase, numbered_text, store, store_link

LARGE = numbered_text(4_000_000)  # more than the buffers of a connection hold
SMALL = numbered_text(4000)
_LIMIT_OCTETS = 64 << 20  # how much memory the clients of a test may use in the server
_RECEIVE_BUFFER = 4096
_CROWD = 100
_PROMPT_SECONDS = 5.0


class Hostile(RetrievalCase):
    MESSAGES = 50
    USERS = ["alice", *(f"slow{number}" for number in range(_CROWD))]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for number in range(cls.MESSAGES):
            store(cls.server, "alice", SMALL, f"{number}.stored.mx")
        large = store(cls.server, cls.USERS[1], LARGE)
        for user in cls.USERS[2:]:
            store_link(cls.server, user, large)
        (cls.files / "large").write_bytes(LARGE)

    def setUp(self):
        self.resident = self.server.resident_bytes()

    def tearDown(self):
        """The test's connections are still open."""
        super().tearDown()
        self.assertLess(self.server.resident_bytes() - self.resident, _LIMIT_OCTETS, "the server uses too much memory")

    def log_in(self, user, form=SENDFILE, **named):
        """A session; the mailbox may be in use by one that has just broken off."""

        def attempt():
            connection = self.connect("pop3", form, **named)
            reply = connection.log_in(user)
            if reply.startswith(b"+OK"):
                return connection
            self.assertRegex(reply, rb"^-ERR \[IN-USE\]")

        return await_that(attempt, f"the mailbox of {user} is free", self.server)

    def crowd(self, form):
        """As many clients of POP3 as of HTTP, in turn, which have asked for something large."""
        clients = []
        for user in self.USERS[1:]:
            clients.append(self.log_in(user, form, receive_buffer=_RECEIVE_BUFFER))
            clients[-1].write(b"RETR 1\r\n")
            clients.append(self.connect("http", form, receive_buffer=_RECEIVE_BUFFER))
            clients[-1].get("/large")
        return clients

    def check_prompt(self):
        """Alice gets all of her messages, soon."""
        begin, expected = time.monotonic(), stuffed(SMALL) + b".\r\n"
        with self.log_in("alice") as session:
            for number in range(self.MESSAGES):
                self.assertRegex(session.ask(f"RETR {number + 1}"), rb"^\+OK")
                self.assertEqual(session.read(len(expected)), expected)
            self.assertRegex(session.ask("QUIT"), rb"^\+OK")
        self.assertLess(time.monotonic() - begin, _PROMPT_SECONDS)

    def test_slow_readers_and_clients_that_never_read_delay_nobody(self):
        more = [b"RETR 1\r\n" * 500, b"GET /large HTTP/1.1\r\nHost: bench.test\r\n\r\n" * 500]
        for form in FORMS:
            with self.subTest(form=FORMS[form]), contextlib.ExitStack() as ended:
                clients = [ended.enter_context(client) for client in self.crowd(form)]
                slow, never = clients[:_CROWD], clients[_CROWD:]
                for number, client in enumerate(never):
                    client.write(more[number % 2])
                for _ in range(3):
                    begin = time.monotonic()
                    self.assertEqual({len(client.socket.recv(1)) for client in slow}, {1})
                    self.check_prompt()
                    time.sleep(max(0.0, begin + 1 - time.monotonic()))  # a byte a second
                self.assertLess(self.server.resident_bytes() - self.resident, _LIMIT_OCTETS)

    def test_thousands_of_capa_are_cut_off(self):
        clients = [self.connect("pop3", receive_buffer=_RECEIVE_BUFFER) for _ in range(50)]
        for client in clients:
            client.write(b"CAPA\r\n" * 5000)
        self.check_prompt()
        replies = clients[0].rest()
        self.assertEqual(replies.count(b"+OK capabilities"), 1000)
        self.assertTrue(replies.endswith(b"-ERR too many commands without progress; closing\r\n"), replies[-100:])

    def test_a_million_noops_are_cut_off(self):
        client = self.log_in("alice")
        # The server closes the connection before it has all of them.
        with contextlib.suppress(OSError):
            for _ in range(100):
                client.write(b"NOOP\r\n" * 10_000)
        replies = client.rest()
        self.assertEqual(replies.count(b"+OK\r\n"), 1000)
        self.assertTrue(replies.endswith(b"-ERR too many commands without progress; closing\r\n"), replies[-100:])

    def test_an_endless_command_line_is_refused(self):
        client = self.log_in("alice")
        for _ in range(256):
            client.write(b"N" * 65536)
        self.assertEqual(client.ask(""), b"-ERR line too long")
        self.assertEqual(client.ask("NOOP"), b"+OK")

    def test_an_endless_head_is_refused(self):
        for endless in (b"GET /" + b"a" * 65536, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000):
            client = self.connect("http")
            with contextlib.suppress(OSError):
                for piece in itertools.chain([endless], [endless[-60_000:]] * 256):
                    client.write(piece)
            self.assertTrue(client.rest().startswith(b"HTTP/1.1 431 "))

    def test_an_endless_body_is_refused(self):
        client = self.connect("http")
        client.get("/witness", fields="Transfer-Encoding: chunked\r\n")
        with contextlib.suppress(OSError):
            for _ in range(256):
                client.write(b"ffff\r\n" + b"b" * 65535 + b"\r\n")
        self.assertTrue(client.rest().startswith(b"HTTP/1.1 413 "))

    def test_a_client_that_closes_its_side_gets_all_replies(self):
        session = self.connect("pop3", COPIED)
        session.write(f"USER slow0@bench.test\r\nPASS {PASSWORD}\r\nSTAT\r\nRETR 1\r\nQUIT\r\n".encode())
        session.end_output()
        replies = session.rest()
        self.assertEqual(replies.count(b"\r\n+OK"), 5)
        self.assertIn(stuffed(LARGE) + b".\r\n+OK bye\r\n", replies)
        browser = self.connect("http")
        for path in ("/witness", "/large", "/witness"):
            browser.get(path)
        browser.end_output()
        self.assertEqual([browser.response()[2] for _ in range(3)], [b"Hello.", LARGE, b"Hello."])
        self.assertEqual(browser.rest(), b"")

    def test_clients_that_close_their_side_at_once_leave_nothing_behind(self):
        for protocol in ("pop3", "http"):
            clients = [self.connect(protocol) for _ in range(200)]
            for client in clients:
                client.end_output()
            self.assertEqual({client.rest().count(b"\n") for client in clients}, {1 if protocol == "pop3" else 0})


class Guessing(RetrievalCase):
    """The log has what an operator needs to see of an attack, and the right user gets in."""

    USERS = ["alice"]
    THREADS, SECONDS = 8, 1.5
    ATTACKER, USER_ADDRESS = "127.0.0.1", "127.0.0.2"

    def setUp(self):
        self.numbers = itertools.count(1)
        self.replies = []
        self.log_offset = len(self.server.log.read_bytes())

    def guess(self, sources, deadline):
        """Guesses passwords until the deadline, in sessions without a pause."""
        while time.monotonic() < deadline:
            number = next(self.numbers)
            users = (f"nobody{number}", "alice", "alice@bench.test")
            attempts = [f"USER {user}\r\nPASS {number}{user}\r\n" for user in users]
            with ReaderConnection(self.server.all_ports["pop3"][SENDFILE], source=sources(number)) as session:
                session.write("".join(attempts).encode() + b"QUIT\r\n")
                # After the greeting each attempt has two replies, and QUIT one.
                self.replies += session.rest().splitlines()[2:-1:2]

    def attack(self, sources):
        """Guesses while alice logs in again and again; returns the longest time that she needed."""
        deadline = time.monotonic() + self.SECONDS
        guessers = [threading.Thread(target=self.guess, args=(sources, deadline)) for _ in range(self.THREADS)]
        for guesser in guessers:
            guesser.start()
        longest, count = 0.0, 0
        while time.monotonic() < deadline:
            begin = time.monotonic()
            with self.connect("pop3", source=self.USER_ADDRESS) as session:
                reply = session.log_in("alice")
                self.assertRegex(reply, rb"^\+OK", f"login {count}")
                session.ask("QUIT")
            longest, count = max(longest, time.monotonic() - begin), count + 1
        for guesser in guessers:
            guesser.join()
        self.assertGreater(len(self.replies), 100)
        return longest

    def logged(self):
        """The results of the guesses in the log, and its length."""
        text = self.server.log.read_bytes()[self.log_offset :]
        return re.findall(rb" login result=(refused|throttled) client=127", text), len(text)

    def count(self, begin):
        return sum(reply.startswith(begin) for reply in self.replies)

    def test_one_address_that_guesses_is_slowed_down_and_the_user_gets_in(self):
        self.assertLess(self.attack(lambda _: self.ATTACKER), _PROMPT_SECONDS)
        refused, throttled = self.count(b"-ERR [AUTH]"), self.count(b"-ERR [SYS/TEMP] too many failures")
        self.assertEqual(refused + throttled, len(self.replies))
        # The free guesses, and those that were being checked when the delay began.
        self.assertLess(refused, 50 + self.THREADS + self.SECONDS)
        self.assertGreater(throttled, refused)

        # The log is written by a thread of its own.
        def is_complete():
            return len(self.logged()[0]) == len(self.replies)

        await_that(is_complete, f"{len(self.replies)} lines about logins", self.server)
        results, octets = self.logged()
        self.assertEqual(results.count(b"refused"), refused)
        self.assertLess(octets, 250 * (len(self.replies) + 1000))

    def test_many_addresses_that_guess_do_not_lock_out_a_known_user(self):
        with self.connect("pop3", source=self.USER_ADDRESS) as session:
            self.assertRegex(session.log_in("alice"), rb"^\+OK")
            session.ask("QUIT")
        spread = lambda number: f"127.{64 + number // 65_025}.{number // 255 % 255}.{number % 255 + 1}"
        self.assertLess(self.attack(spread), _PROMPT_SECONDS)
        self.assertGreater(self.count(b"-ERR [AUTH]"), 50)


if __name__ == "__main__":
    unittest.main()
