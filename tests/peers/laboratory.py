"""Shared by the tests of `mailrace bench`: running commands, sinks, and servers with faults."""

import base64
import json
import pathlib
import re
import socket
import subprocess
import threading
import unittest

from harness import folder
from peers.mailrace import BINARY

SECONDS_MAX = 240
_STAMP = re.compile(rb"^X-Mailrace-Bench: .*\bseq=(\d+)\b", re.M)
_CONTENT_PART = 2000  # octets of a message before a server closes the connection


def bench(*argv, code=0):
    """Runs a `mailrace bench` command and returns its JSON report."""
    command = [str(BINARY), "bench", *map(str, argv), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode != code:
        raise AssertionError(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


class Sink:
    """A sink on a port of its own."""

    def __init__(self, *argv):
        self._process = subprocess.Popen(
            [str(BINARY), "bench", "sink", "--listen", "127.0.0.1:0", "--json", *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.target = self._process.stdout.readline().split()[-1]

    def end(self):
        """Ends it and returns its summary."""
        self._process.terminate()
        output, _ = self._process.communicate(timeout=SECONDS_MAX)
        return json.loads(output)

    def stop(self):
        """Ends it if it is still running."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class ScriptedServer:
    """An SMTP server with one fault, in a stage of its `fault_message`th message, which records
    what it receives.

    It handles one command at a time. The fault is that it closes the connection, or sends 421
    first. Stages are connect and EHLO (of the first connection), MAIL, RCPT, DATA, content (in the
    middle), message (after it), idle, and QUIT. While `answers` is not set, no message gets its
    reply.
    """

    fault_message = 3

    def __init__(self, stage=None, says=b"", extensions=(), password=None):
        self.stage, self.says, self.extensions, self.password = stage, says, list(extensions), password
        self.begun, self.accepted = [], []  # numbers of messages, in order of arrival
        self.octets = 0  # of accepted messages
        self.clients, self.senders = set(), set()
        self.answers = threading.Event()
        self.answers.set()
        self._messages = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        """Stops listening."""
        self._listener.close()
        self.answers.set()

    def _accept(self):
        while True:
            try:
                connection, (client, _) = self._listener.accept()
            except OSError:
                return
            self.clients.add(client)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as lines:
            try:
                self._converse(connection, lines)
                connection.shutdown(socket.SHUT_WR)
                while lines.read(65536):  # unread input would reset the connection and lose the last reply
                    pass
            except OSError:
                pass

    def _converse(self, connection, lines):
        if self._fails_at("connect", connection):
            return
        connection.sendall(b"220 scripted.test\r\n")
        while line := lines.readline():
            verb = line[:4].upper().decode()
            self._messages += verb == "MAIL"
            if self._fails_at(verb, connection):
                return
            if verb == "DATA":
                connection.sendall(b"354 go on\r\n")
                if not self._take(connection, lines):
                    return
            connection.sendall(self._answer(verb, line))
            if verb == "QUIT" or verb == "DATA" and self._fails_at("idle", connection):
                return

    def _take(self, connection, lines):
        """Reads a message; returns whether the session continues."""
        content = b""
        while (line := lines.readline()) not in (b".\r\n", b""):
            content += line[1:] if line.startswith(b".") else line
            if len(content) > _CONTENT_PART and self._fails_at("content", connection):
                self.begun.append(_number(content))
                return False
        number = _number(content)
        self.begun.append(number)
        self.answers.wait()
        if self._fails_at("message", connection):
            return False
        self.accepted.append(number)
        self.octets += len(content)
        return True

    def _fails_at(self, stage, connection):
        early = stage in ("connect", "EHLO", "QUIT")
        if stage != self.stage or not early and self._messages != self.fault_message:
            return False
        self.stage = None
        connection.sendall(self.says)
        return True

    def _answer(self, verb, line):
        if verb == "EHLO":
            keywords = ["scripted.test", *self.extensions]
            ends = ["-"] * (len(keywords) - 1) + [" "]
            return "".join(f"250{end}{keyword}\r\n" for end, keyword in zip(ends, keywords, strict=True)).encode()
        if verb == "AUTH":
            *_, said = base64.b64decode(line.split()[2]).decode().split("\0")
            return b"235 2.7.0 welcome\r\n" if said == self.password else b"535 5.7.8 who are you\r\n"
        if verb == "MAIL":
            self.senders.add(line[line.index(b"<") + 1 : line.index(b">")].decode())
        return b"221 bye\r\n" if verb == "QUIT" else b"250 fine\r\n"


def _number(content):
    return int(_STAMP.search(content)[1])


class FolderCase(unittest.TestCase):
    """Tests with a folder and servers of their own."""

    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def sink(self, *argv):
        """A sink that ends with the test."""
        sink = Sink(*argv)
        self.addCleanup(sink.stop)
        return sink

    def scripted(self, *args, **named):
        """A scripted server that ends with the test."""
        server = ScriptedServer(*args, **named)
        self.addCleanup(server.stop)
        return server


def acknowledged(ledger):
    """The numbers of the messages in a ledger, in order."""
    return [int(line.split("\t")[0]) for line in ledger.read_text().splitlines() if "\t" in line]
