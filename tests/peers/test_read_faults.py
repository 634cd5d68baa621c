"""Files that change, cannot be read or are slow while clients read them: no client gets a byte that
was not in its file, and what is missing is never taken for the end.

    Changes     truncated, deleted or replaced in the middle of a message and of a file
    Errors      the disk reports EIO, which strace injects: at the first byte, and in the middle
    SlowDisk    reads take long, also by strace: others do not wait for them
"""

import itertools
import os
import threading
import unittest

from harness import await_that, stuffed
from laboratory import FolderCase
from retrieval import COPIED, FORMS, SENDFILE, ReaderConnection, RetrievalCase, numbered_text, retrieval_server, store
from syscalls import skip_without_strace

TEXT = numbered_text(20_000_000)
WIRE = stuffed(TEXT) + b".\r\n"  # what POP3 sends
WAYS = list(itertools.product(("pop3", "http"), FORMS))
_FIRST_OCTETS = 1000
# Keeps what is in flight small: the server cannot have sent all of a file when it changes.
_RECEIVE_BUFFER = 1 << 16


class PrefixCase(unittest.TestCase):
    def assert_part(self, received, expected, octets_min=0):
        """It is the beginning of what was expected, without its end."""
        if not expected.startswith(received):
            self.fail(f"{_first_difference(received, expected)} differs")
        self.assertLess(len(received), len(expected))
        self.assertGreaterEqual(len(received), octets_min)


def _first_difference(received, expected):
    pairs = zip(received, expected, strict=False)
    place = next((place for place, (one, other) in enumerate(pairs) if one != other), len(expected))
    return f"octet {place} of {len(received)} ({received[place : place + 40]!r})"


class Changes(RetrievalCase, PrefixCase):
    USERS = [f"user{number}" for number in range(4 * len(FORMS))]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A mailbox for each message: a session that breaks off may keep its mailbox for a moment.
        cls.unused = iter(cls.USERS)

    def begin(self, protocol, form):
        """Begins to read, and stops; returns the connection, the path, what was read and what is to
        come.
        """
        connection = self.connect(protocol, form, receive_buffer=_RECEIVE_BUFFER)
        if protocol == "pop3":
            user, expected = next(self.unused), WIRE
            path = store(self.server, user, TEXT)
            connection.log_in(user)
            self.assertRegex(connection.ask("RETR 1"), rb"^\+OK")
        else:
            path, expected = self.files / "large", TEXT
            path.write_bytes(TEXT)
            connection.get("/large")
            self.assertEqual(connection.response_head()[0], 200)
        return connection, path, connection.read(_FIRST_OCTETS), expected

    def assert_whole(self, protocol, connection, first, expected):
        """The rest arrives as it was, and the connection goes on."""
        self.assertTrue(first + connection.read(len(expected) - len(first)) == expected)
        if protocol == "pop3":
            self.assertRegex(connection.ask("NOOP"), rb"^\+OK")
        else:
            connection.get("/witness")
            self.assertEqual(connection.response()[2], b"Hello.")

    def test_a_file_that_is_truncated_ends_the_connection(self):
        for protocol, form in WAYS:
            with self.subTest(protocol, form=FORMS[form]):
                connection, path, first, expected = self.begin(protocol, form)
                os.truncate(path, 15_000_001)
                self.assert_part(first + connection.rest(), expected, 13_000_000)

    def test_a_copied_file_that_is_truncated_to_what_is_in_flight_ends_the_connection(self):
        for protocol in ("pop3", "http"):
            with self.subTest(protocol):
                connection, path, first, expected = self.begin(protocol, COPIED)
                os.truncate(path, 30_001)
                self.assert_part(first + connection.rest(), expected)

    def test_a_file_that_is_deleted_arrives_as_it_was(self):
        for protocol, form in WAYS:
            with self.subTest(protocol, form=FORMS[form]):
                connection, path, first, expected = self.begin(protocol, form)
                path.unlink()
                self.assert_whole(protocol, connection, first, expected)

    def test_a_file_that_is_replaced_arrives_as_it_was(self):
        for protocol, form in WAYS:
            with self.subTest(protocol, form=FORMS[form]):
                connection, path, first, expected = self.begin(protocol, form)
                other = self.folder / "other"
                other.write_bytes(b"another file\r\n" * 2_000_000)
                os.replace(other, path)
                self.assert_whole(protocol, connection, first, expected)


class FaultCase(FolderCase, PrefixCase):
    """Each test has a server that strace starts, and that has faults on some files."""

    USERS = ["alice", "bob"]

    def setUp(self):
        super().setUp()
        skip_without_strace(self, self.folder)
        self.server, self.files = retrieval_server(self.folder, self.USERS)
        self.addCleanup(self.server.stop)

    def start(self, paths, *faults):
        """Starts the server with these faults, as strace spells them, on these files."""
        files = [word for path in paths for word in ("-P", str(path))]
        injected = [word for fault in faults for word in ("-e", f"inject={fault}")]
        traced = "trace=" + ",".join(fault.split(":")[0] for fault in faults)
        self.server.start(["strace", "-f", "-qq", "-o", str(self.folder / "trace"), *files, "-e", traced, *injected])

    def connect(self, protocol, form=SENDFILE):
        connection = ReaderConnection(self.server.all_ports[protocol][form])
        self.addCleanup(connection.close)
        return connection


class Errors(FaultCase):
    def store_large(self, protocol):
        """Stores a message or a file; returns its path."""
        if protocol == "pop3":
            return store(self.server, "alice", TEXT)
        path = self.files / "large"
        path.write_bytes(TEXT)
        return path

    def read_large(self, protocol, form):
        """What arrives until the connection ends, after the head."""
        connection = self.connect(protocol, form)
        if protocol == "pop3":
            connection.log_in("alice")
            self.assertRegex(connection.ask("RETR 1"), rb"^\+OK")
        else:
            connection.get("/large")
            self.assertEqual(connection.response_head()[0], 200)
        return connection.rest()

    def check_broken_off(self, protocol, form, fault):
        """A large message or file is broken off by the fault, and the log says so."""
        self.start([self.store_large(protocol)], fault)
        received = self.read_large(protocol, form)
        self.assert_part(received, WIRE if protocol == "pop3" else TEXT, octets_min=1)
        what = {"pop3": "cannot read a message of user", "http": "cannot serve /large"}[protocol]
        await_that(lambda: what in self.server.log.read_text(), what, self.server)

    def test_an_error_in_the_middle_of_a_message_breaks_it_off(self):
        self.check_broken_off("pop3", SENDFILE, "sendfile:error=EIO:when=3+")

    def test_an_error_in_the_middle_of_a_file_breaks_it_off(self):
        self.check_broken_off("http", SENDFILE, "sendfile:error=EIO:when=3+")

    def test_an_error_in_the_middle_of_a_copied_message_breaks_it_off(self):
        self.check_broken_off("pop3", COPIED, "preadv2:error=EIO:when=20+")

    def test_an_error_in_the_middle_of_a_copied_file_breaks_it_off(self):
        self.check_broken_off("http", COPIED, "preadv2:error=EIO:when=20+")

    def test_an_error_at_the_first_byte_is_a_reply_and_is_logged(self):
        message = store(self.server, "alice", numbered_text(5000))
        store(self.server, "alice", b"Subject: fine\r\n\r\n", "2.stored.mx")
        file = self.files / "small"
        file.write_bytes(b"small")
        self.start([message, file], "preadv2,pread64,read:error=EIO")
        session = self.connect("pop3")
        session.log_in("alice")
        self.assertRegex(session.ask("RETR 1"), rb"^-ERR \[SYS/TEMP\]")
        self.assertRegex(session.ask("RETR 2"), rb"^\+OK 17 octets")
        self.assertEqual(session.read(20), b"Subject: fine\r\n\r\n.\r\n")
        session.write(b"DELE 1\r\nRSET\r\nQUIT\r\n")
        self.assertEqual([line[:3] for line in session.rest().splitlines()], [b"+OK"] * 3)
        line = f"cannot read the message {message.name}"
        await_that(lambda: line in self.server.log.read_text(), line, self.server)
        browser = self.connect("http")

        def is_logged():
            browser.get("/small")
            self.assertEqual(browser.response()[0], 503)
            return "cannot serve /small" in self.server.log.read_text()

        # At most one such line a second is logged.
        await_that(is_logged, "a line about the file", self.server)


class SlowDisk(FaultCase):
    READERS = 20  # more than the server has threads for the disk
    MESSAGES = 10

    def test_others_do_not_wait_for_slow_reads(self):
        message = numbered_text(3000)
        for number in range(self.MESSAGES):
            store(self.server, "bob", message, f"{number}.stored.mx")
        slow = self.files / "slow"
        text = numbered_text(4_000_000)
        slow.write_bytes(text)
        # No byte is ever in memory, and 128 KiB take 50 ms.
        self.start([slow], "preadv2:error=EAGAIN", "pread64:delay_enter=50000")
        results = []

        def read():
            connection = self.connect("http")
            connection.get("/slow")
            results.append(connection.response()[2] == text)

        readers = [threading.Thread(target=read) for _ in range(self.READERS)]
        for reader in readers:
            reader.start()
        session = self.connect("pop3")
        self.assertRegex(session.log_in("bob"), rb"^\+OK")
        for number in range(self.MESSAGES):
            self.assertRegex(session.ask(f"RETR {number + 1}"), rb"^\+OK")
            expected = stuffed(message) + b".\r\n"
            self.assertEqual(session.read(len(expected)), expected)
        self.assertLess(len(results), self.READERS, "the disk was not slow enough")
        for reader in readers:
            reader.join()
        self.assertEqual(results, [True] * self.READERS)


if __name__ == "__main__":
    unittest.main()
