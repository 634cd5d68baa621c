"""Shared by all tests: a server in its own folder, a raw SMTP client, and waiting with a deadline.

The client sends exactly the given bytes, since half of these tests send what no library would. A
wait that exceeds its deadline fails with the end of the server's log.
"""

import pathlib
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from peers.mailrace import Mailrace  # noqa: E402

WAIT_SECONDS_MAX = 30.0


def folder():
    """A new folder that other users can enter, since the server gives up root."""
    made = tempfile.TemporaryDirectory(prefix="mailrace-test-", ignore_cleanup_errors=True)
    pathlib.Path(made.name).chmod(0o755)
    return made


class ServerCase(unittest.TestCase):
    """Tests that share one server, made with `SERVER`, which must still respond after each test."""

    SERVER = {"users": ["alice", "bob"]}

    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = Mailrace(pathlib.Path(cls.folder.name), **cls.SERVER)
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def tearDown(self):
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.say("NOOP").code, 250, "the server does not answer after the test")

    def await_messages(self, user, count):
        """Waits until the user's new/ has `count` messages, and returns their paths."""
        return await_messages(self.server, user, count)


def await_messages(server, user, count, seconds_max=WAIT_SECONDS_MAX, domain="bench.test"):
    """Waits until the user's new/ has at least `count` messages, and returns their paths."""
    new = server.maildir(user, domain) / "new"

    def enough():
        found = mail_files(new)
        return found if len(found) >= count else None

    return await_that(enough, f"{count} messages for {user}", server, seconds_max)


def mail_files(new):
    """The messages in a folder; none if the folder does not exist yet."""
    return sorted(new.iterdir()) if new.is_dir() else []


def await_that(probe, what, server, seconds_max=WAIT_SECONDS_MAX):
    """Waits until `probe` returns a true value, and returns it."""
    deadline = time.monotonic() + seconds_max
    while not (found := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds_max:.0f} s: {what}\n{server.log_tail()}")
        time.sleep(0.02)
    return found


class Reply:
    """A reply of the server: its code, and its text with LF between lines."""

    def __init__(self, lines):
        self.code = int(lines[0][:3])
        self.text = "\n".join(line[4:] for line in lines)

    def __repr__(self):
        return f"{self.code} {self.text}"

    def is_a(self, code, enhanced=""):
        """Whether it has this code and begins with this enhanced code."""
        return self.code == code and self.text.startswith(enhanced)


class Client:
    """A raw SMTP connection."""

    def __init__(self, port, timeout=WAIT_SECONDS_MAX, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout, (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._replies.close()
        self.socket.close()

    def greet(self):
        """Reads the banner and sends EHLO."""
        banner = self.read()
        if banner.code != 220:
            raise AssertionError(f"banner: {banner}")
        return self.say("EHLO client.test")

    def read(self):
        """The next reply; EOFError if the server closed the connection."""
        lines = []
        while True:
            line = self._replies.readline()
            if not line:
                raise EOFError("the server closed the connection")
            lines.append(line.decode().rstrip("\r\n"))
            if lines[-1][3:4] != "-":
                return Reply(lines)

    def write(self, data):
        """Sends bytes unchanged."""
        self.socket.sendall(data)

    def say(self, line):
        """Sends a command and returns its reply."""
        self.write(line.encode() + b"\r\n")
        return self.read()

    def envelope(self, *recipients, sender="sender@client.test"):
        """Sends MAIL and RCPT; returns the last reply."""
        replies = [self.say(f"MAIL FROM:<{sender}>"), *(self.say(f"RCPT TO:<{to}>") for to in recipients)]
        return replies[-1]

    def deliver(self, message, *recipients, sender="sender@client.test"):
        """Sends a transaction with pipelining (RFC 2920); returns the reply that decides."""
        commands = [f"MAIL FROM:<{sender}>", *(f"RCPT TO:<{to}>" for to in recipients), "DATA"]
        self.write("".join(f"{line}\r\n" for line in commands).encode())
        replies = [self.read() for _ in commands]
        for reply in replies:
            if reply.code >= 400:
                return reply
        self.write(stuffed(message) + b".\r\n")
        return self.read()

    def is_closed(self):
        """Waits until the server closes the connection; further output is ignored."""
        try:
            while self._replies.readline():
                pass
        except ConnectionResetError:
            pass
        return True


def stuffed(message):
    """The dot-stuffed message for DATA (RFC 5321 section 4.5.2); it must end in CRLF."""
    first = b"." if message.startswith(b".") else b""
    return first + message.replace(b"\r\n.", b"\r\n..")


def make_message(subject, body="Hello.\r\n"):
    """A small message."""
    return f"From: sender@client.test\r\nTo: alice@bench.test\r\nSubject: {subject}\r\n\r\n{body}".encode()
