"""Scripted mail hosts: each listens on an address, follows its script, and records what it
received.

A script maps a stage to a reply: `connect`, a verb such as `RCPT`, `content` (in the middle of it),
`message` (after it; for LMTP once for each recipient), `STARTTLS`. Stages that are not in the
script succeed. A reply is text, or a function of the session and the command's argument, which
returns the reply, returns None for success, or raises `CloseConnection` to close the connection. `hangup`,
`stall`, `endless`, `once` and `before` make such functions.
"""

import contextlib
import dataclasses
import os
import socket
import ssl
import subprocess
import threading

EXTENSIONS = ("PIPELINING", "SIZE 10240000", "8BITMIME", "SMTPUTF8", "DSN", "ENHANCEDSTATUSCODES")
_TRIES = 50
_STOP_SECONDS_MAX = 10
_TCP_ESTABLISHED = 1
_ENDLESS_OCTETS_MAX = 64 << 20  # enough to count as endless


class CloseConnection(Exception):
    """Closes the connection."""


@dataclasses.dataclass
class ReceivedMessage:
    """A message that was received completely, with its replies."""

    sender: str  # the argument of MAIL with its parameters
    recipients: list  # arguments of accepted RCPT commands with their parameters
    content: bytes
    session: object
    replies: list = dataclasses.field(default_factory=list)

    @property
    def accepted(self):
        """Whether it was accepted for any recipient."""
        return any(reply.startswith("2") for reply in self.replies)


class Host:
    """A server on an address, or on the unix socket `path`."""

    def __init__(self, address="127.0.0.1", port=0, *, path=None, script=None, extensions=EXTENSIONS, lmtp=False,
                 tls=None):  # fmt: skip
        self.script = dict(script or {})
        self.extensions, self.lmtp, self.tls = list(extensions), lmtp, tls
        self.sessions, self.messages = [], []
        self.open_most = 0  # highest number of concurrent connections
        self.read_endless_reply = False  # the client read all of an endless reply
        self.stopped = threading.Event()
        self.path = path
        if path is None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._listener = socket.create_server((address, port), family=family, backlog=1024)
            self.address, self.port = self._listener.getsockname()[:2]
            self.target = f"{self.address}:{self.port}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            os.chmod(path, 0o666)
            self.target = f"unix:{path}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def stop(self):
        """Stops listening and closes stalled connections."""
        self.stopped.set()
        # A socket that is closed while a thread waits in accept(2) keeps listening, and its number
        # may be reused for another host's socket, from which that thread would then accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(_STOP_SECONDS_MAX)
        self._listener.close()

    @property
    def accepted(self):
        """The messages that were accepted for any recipient."""
        return [received for received in list(self.messages) if received.accepted]

    def _accept(self):
        while not self.stopped.is_set():
            try:
                connection, client = self._listener.accept()
            except OSError:
                return
            if self.path is None:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = _Session(self, connection, client[0] if client else "")
            self.sessions.append(session)
            self.open_most = max(self.open_most, sum(one.is_open() for one in self.sessions))
            threading.Thread(target=session.run, daemon=True).start()


class _Session:
    """A connection."""

    def __init__(self, host, connection, client):
        self.host, self.connection, self.client = host, connection, client
        self.commands = []  # as received, without message content
        self.is_secure = False
        self.node = None  # for scripts: whose connection it is
        self.ended = threading.Event()
        self._lines = connection.makefile("rb")
        self._sender, self._recipients, self._chunks = None, [], b""

    def run(self):
        """Runs until the connection ends."""
        try:
            self._converse()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(5)
            while self.connection.recv(65536):  # unread input would reset the connection and lose the last reply
                pass
        except (CloseConnection, OSError, ValueError):
            pass
        finally:
            self.ended.set()
            self._lines.close()
            self.connection.close()

    def is_open(self):
        """Whether neither side has closed the connection, as the kernel knows it: the thread of the session may be late."""
        if self.ended.is_set() or self.connection.family == socket.AF_UNIX:
            return not self.ended.is_set()
        try:
            return self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_ESTABLISHED
        except OSError:  # it has just ended
            return False

    def close(self):
        """Closes the connection in any state; the client may have closed it first."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def say(self, text):
        """Sends a reply, or what the script has instead."""
        self.connection.sendall(text.encode() + b"\r\n")

    def _converse(self):
        self.say(self._scripted("connect", "", "220 host.test ESMTP"))
        while line := self._lines.readline():
            command = line.decode().rstrip("\r\n")
            self.commands.append(command)
            verb, _, argument = command.partition(" ")
            verb = verb.upper()
            answer = getattr(self, f"_answer_{verb.lower()}", self._answer_any)
            answer(verb, argument)
            if verb == "QUIT":
                return

    def _scripted(self, stage, argument, kind):
        """The reply of the script for this stage, or the given default."""
        said = self.host.script.get(stage)
        said = said(self, argument) if callable(said) else said
        return kind if said is None else said

    def _answer_any(self, verb, argument):
        self.say(self._scripted(verb, argument, "221 2.0.0 bye" if verb == "QUIT" else "250 2.0.0 fine"))

    def _answer_ehlo(self, verb, argument):
        extensions = list(self.host.extensions)
        if self.host.tls and not self.is_secure:
            extensions.append("STARTTLS")
        lines = ["host.test", *extensions]
        kind = "\r\n".join(f"250{'-' if line is not lines[-1] else ' '}{line}" for line in lines)
        self.say(self._scripted(verb, argument, kind))

    _answer_lhlo = _answer_ehlo

    def _answer_starttls(self, verb, argument):
        reply = self._scripted(verb, argument, "220 2.0.0 go on")
        self.say(reply)
        if reply.startswith("2"):
            # Everything that the client has sent so far is read: it waits for the 220.
            self.connection = self.host.tls.wrap_socket(self.connection, server_side=True)
            self._lines = self.connection.makefile("rb")
            self.is_secure = True

    def _answer_mail(self, verb, argument):
        self._sender, self._recipients = argument, []
        self.say(self._scripted(verb, argument, "250 2.1.0 fine"))

    def _answer_rcpt(self, verb, argument):
        reply = self._scripted(verb, argument, "250 2.1.5 fine")
        if reply.startswith("2"):
            self._recipients.append(argument)
        self.say(reply)

    def _answer_data(self, verb, argument):
        kind = "354 go on" if self._recipients else "554 5.5.1 no recipients"
        reply = self._scripted(verb, argument, kind)
        self.say(reply)
        if reply.startswith("354"):
            content, first = [], True
            while (line := self._lines.readline()) != b".\r\n":
                if not line:
                    raise CloseConnection
                if first:
                    self._scripted("content", "", "")
                    first = False
                content.append(line[1:] if line.startswith(b".") else line)
            self._take(b"".join(content))

    def _answer_bdat(self, verb, argument):
        size, _, last = argument.partition(" ")
        chunk = self._lines.read(int(size))
        if len(chunk) < int(size):
            raise CloseConnection
        self._chunks += chunk
        if not last:
            self.say("250 2.0.0 more")
            return
        content, self._chunks = self._chunks, b""
        self._take(content)

    def _take(self, content):
        received = ReceivedMessage(self._sender, list(self._recipients), content, self)
        self.host.messages.append(received)
        for recipient in self._recipients if self.host.lmtp else [""]:
            reply = self._scripted("message", recipient, "250 2.0.0 taken")
            received.replies.append(reply)
            self.say(reply)
        self._sender, self._recipients = None, []


def hangup(says=b""):
    """Sends these bytes, if any, and closes the connection."""

    def act(session, _argument):
        session.connection.sendall(says)
        session.connection.shutdown(socket.SHUT_RDWR)
        raise CloseConnection

    return act


def stall(session, _argument):
    """Sends nothing until the client has gone or the host is stopped."""
    session.connection.settimeout(0.2)
    while not session.host.stopped.is_set():
        try:
            if not session.connection.recv(65536):
                break
        except TimeoutError:
            pass
    raise CloseConnection


def endless(line):
    """Sends the same line until the client disconnects."""

    def act(session, _argument):
        block, said = line * (65536 // len(line)), 0
        while said < _ENDLESS_OCTETS_MAX:
            session.connection.sendall(block)
            said += len(block)
        session.host.read_endless_reply = True
        raise CloseConnection

    return act


def once(said):
    """Applies only the first time over all connections; later the stage succeeds."""
    left = [said]
    lock = threading.Lock()

    def act(session, argument):
        with lock:
            what = left.pop() if left else None
        return what(session, argument) if callable(what) else what

    return act


def before(event, said=None):
    """Waits for the event, then sends the reply; the client may have gone."""

    def act(session, argument):
        event.wait()
        return said(session, argument) if callable(said) else said

    return act


def reserved_addresses(count, first=2):
    """Sockets on 127.0.0.2, .3 and so on with the same port: bound, so that the port is reserved,
    and not listening until a `Host` replaces one.
    """
    for _ in range(_TRIES):
        with contextlib.ExitStack() as bound:
            port, sockets = 0, []
            try:
                for number in range(first, first + count):
                    one = bound.enter_context(socket.socket())
                    one.bind((f"127.0.0.{number}", port))
                    port = one.getsockname()[1]
                    sockets.append(one)
            except OSError:
                continue
            bound.pop_all()
            return sockets
    raise RuntimeError("no port is free on all addresses")


def host_on(place, **named):
    """A host in place of one of the `reserved_addresses`."""
    address, port = place.getsockname()
    place.close()
    return Host(address, port, **named)


def certificate(folder):
    """A server context with a self-signed certificate."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=host.test", "-keyout", key, "-out", cert]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
