"""Shared by the tests of reading: a server with POP3 and HTTP, raw connections to both, and messages
that are put into Maildirs.

A connection sends exactly the given bytes, and reads only what it is asked to read, since half of
these clients are hostile. Each protocol has two listeners: the first one uses sendfile, the second
one copies.
"""

import contextlib
import http.client
import os
import pathlib
import socket
import unittest

from harness import WAIT_SECONDS_MAX, Mailrace, folder
from peers.dovecot import PASSWORD
from peers.mailrace import LOGINS, listener

SENDFILE, COPIED = 0, 1  # indexes of the listeners of a protocol
FORMS = {SENDFILE: "sendfile", COPIED: "copied"}
_PARTS = ("tmp", "new", "cur")
_READ_OCTETS = 1 << 16
_LINES_PER_DOT = 500


def numbered_text(octets):
    """A message of about this many octets with CRLF line ends. Each line has its number, so no piece
    can be taken for another one; some begin with a dot.
    """
    filling = b"0123456789 " * 6 + b"\r\n"
    first = b"Subject: numbered\r\n\r\n"
    numbers = range(octets // (10 + len(filling)))
    begin = {True: b".%08d ", False: b"%08d  "}
    return first + b"".join(begin[number % _LINES_PER_DOT == 0] % number + filling for number in numbers)


def retrieval_server(place, users, extra=""):
    """A server, which is not started yet, and the folder that it serves by HTTP."""
    files = place / "www"
    files.mkdir()
    ways = ("sendfile = true", "sendfile = false")
    listeners = [listener("pop3", way) for way in ways] + [listener("http", f'files = "{files}"', way) for way in ways]
    return Mailrace(place, users=users, extra="".join(listeners) + LOGINS + extra), files


def store(server, user, text, name="1.stored.mx"):
    """Puts a message into the user's new/, as a delivery does, and returns its path."""
    path = _new_path(server, user, name, len(text))
    path.write_bytes(text)
    _give_to_server(server, path)
    return path


def store_link(server, user, stored, name="1.stored.mx"):
    """Like `store`, with the file of another user's message."""
    path = _new_path(server, user, name, stored.stat().st_size)
    path.hardlink_to(stored)


def _new_path(server, user, name, octets):
    maildir = server.maildir(user)
    for part in _PARTS:
        (maildir / part).mkdir(parents=True, exist_ok=True)
    for place in (server.maildirs, maildir.parent, maildir, *(maildir / part for part in _PARTS)):
        _give_to_server(server, place)
    return maildir / "new" / f"{name},S={octets},W={octets}"


def _give_to_server(server, path):
    owner = server.data.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


class RetrievalCase(unittest.TestCase):
    """Tests that share one server, which must still respond after each test."""

    USERS = ["alice"]
    EXTRA = ""

    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.folder = pathlib.Path(made.name)
        cls.server, cls.files = retrieval_server(cls.folder, [*cls.USERS, "witness"], cls.EXTRA)
        cls.addClassCleanup(cls.server.stop)
        store(cls.server, "witness", b"Subject: witness\r\n\r\nHello.\r\n")
        (cls.files / "witness").write_bytes(b"Hello.")
        cls.server.start()

    def tearDown(self):
        with self.connect("pop3") as connection:
            self.assertRegex(connection.log_in("witness"), rb"^\+OK", "POP3 does not answer after the test")
            self.assertRegex(connection.ask("QUIT"), rb"^\+OK")
        with self.connect("http") as connection:
            connection.get("/witness")
            self.assertEqual(connection.response()[::2], (200, b"Hello."), "HTTP does not answer after the test")

    def connect(self, protocol, form=SENDFILE, **named):
        """A connection that ends with the test."""
        connection = ReaderConnection(self.server.all_ports[protocol][form], **named)
        self.addCleanup(connection.close)
        return connection


class ReaderConnection:
    """A connection of a client that reads mail or files."""

    def __init__(self, port, *, source="127.0.0.1", receive_buffer=None, timeout=WAIT_SECONDS_MAX):
        self.socket = socket.socket()
        self.socket.settimeout(timeout)
        if receive_buffer:
            # Before the connection, which announces it.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.bind((source, 0))
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes it, without QUIT."""
        self._input.close()
        self.socket.close()

    def write(self, data):
        """Sends bytes unchanged."""
        self.socket.sendall(data)

    def end_output(self):
        """Closes the client's side; the server may still send."""
        self.socket.shutdown(socket.SHUT_WR)

    def line(self):
        """The next line without its end; EOFError if the server closed the connection."""
        line = self._input.readline()
        if not line:
            raise EOFError("the server closed the connection")
        return line.rstrip(b"\r\n")

    def read(self, octets):
        """The next bytes; fewer only at the end of the connection."""
        return self._input.read(octets)

    def rest(self):
        """All that follows until the connection ends, also by a reset."""
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while part := self._input.read1(_READ_OCTETS):
                parts.append(part)
        return b"".join(parts)

    def ask(self, command):
        """Sends a POP3 command and returns the first line of its reply."""
        self.write(command.encode() + b"\r\n")
        return self.line()

    def log_in(self, user, password=PASSWORD):
        """Reads the greeting and logs in by POP3; returns the last reply."""
        self.line()
        self.ask(f"USER {user}@bench.test")
        return self.ask(f"PASS {password}")

    def get(self, path, method="GET", fields=""):
        """Sends an HTTP request."""
        self.write(f"{method} {path} HTTP/1.1\r\nHost: bench.test\r\n{fields}\r\n".encode())

    def response_head(self):
        """The status and the fields of the next HTTP response."""
        status = int(self.line().split()[1])
        return status, http.client.parse_headers(self._input)

    def response(self, method="GET"):
        """The status, the fields and the body of the next HTTP response."""
        status, fields = self.response_head()
        return status, fields, b"" if method == "HEAD" else self.read(int(fields["Content-Length"]))
