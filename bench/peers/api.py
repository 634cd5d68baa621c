"""Clients of the operator's HTTP API: one that asks and times each answer, and dashboards as browsers have them open."""

import json
import socket
import subprocess
import threading
import time

from .mailrace import BINARY

_ANSWER_SECONDS_MAX = 120.0
_REQUESTS_PER_CONNECTION = 20
_CHUNK_OCTETS = 1 << 16
_HEAD_END = b"\r\n\r\n"
# What crates/control/dashboard/dashboard.js asks, and how often, while its first screen is shown.
_OVERVIEW_EVERY_SECONDS, _HISTORY_EVERY_SECONDS = 5.0, 10.0
_OVERVIEW, _HISTORY, _EVENTS = "/api/v1/overview", "/api/v1/history?span=hour", "/api/v1/events?log=no"


def create_token(server, name):
    """A token of a server with the rights to operate it: the last line of what the command prints."""
    argv = [str(BINARY), "token", "create", "--role", "operate", "--name", name, "--config", str(server.config)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[-1]


class ApiClient:
    """A client with one connection at a time. It uses a bare socket, so that its own work hardly counts in the times. It takes a
    new connection if the server has closed the old one, and after some requests: the threads of the server that serve it, and
    their processors, would otherwise stay the same, and so would what that costs.
    """

    def __init__(self, port, token):
        self._port = port
        self._fields = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"
        self._socket, self._requests = self._connect(), 0

    def close(self):
        """Disconnects."""
        self._socket.close()

    def timed(self, path, act=None):
        """The seconds from a request to the end of its answer, and the content. With `act`, its content, it is a POST."""
        request = self._request(path, act)
        if self._requests == _REQUESTS_PER_CONNECTION or self._is_closed():
            self.close()
            self._socket, self._requests = self._connect(), 0
        self._requests += 1
        begin = time.perf_counter()
        self._socket.sendall(request)
        head, content = self._read_answer()
        seconds = time.perf_counter() - begin
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{path}: {head.splitlines()[0].decode()}: {content.decode()}")
        return seconds, content

    def ask(self, path, act=None):
        """The answer, which is JSON."""
        return json.loads(self.timed(path, act)[1])

    def follow(self, path, is_stopping):
        """Reads a stream until `is_stopping`; yields how many octets came each time."""
        self._socket.settimeout(0.5)
        self._socket.sendall(self._request(path, None))
        while not is_stopping():
            try:
                received = len(self._socket.recv(_CHUNK_OCTETS))
            except TimeoutError:
                continue
            if not received:
                raise RuntimeError(f"{path}: the stream has ended")
            yield received

    def _connect(self):
        client = socket.create_connection(("127.0.0.1", self._port), timeout=_ANSWER_SECONDS_MAX)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def _is_closed(self):
        """Whether the server has closed the connection, as it does with one that is idle."""
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        finally:
            self._socket.settimeout(_ANSWER_SECONDS_MAX)

    def _request(self, path, act):
        if act is None:
            return f"GET {path} HTTP/1.1\r\n{self._fields}\r\n".encode()
        content = json.dumps(act)
        fields = f"{self._fields}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return f"POST {path} HTTP/1.1\r\n{fields}\r\n{content}".encode()

    def _read_answer(self):
        received = self._receive(b"")
        while _HEAD_END not in received:
            received += self._receive(received)
        head, content = received.split(_HEAD_END, 1)
        lengths = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-length:")]
        pieces, missing = [content], int(lengths[0]) - len(content)
        while missing > 0:
            pieces.append(self._receive(content))
            missing -= len(pieces[-1])
        return head, b"".join(pieces)

    def _receive(self, before):
        if not (received := self._socket.recv(_CHUNK_OCTETS)):
            raise RuntimeError(f"the connection has ended after {before[:100]}")
        return received


class Dashboards:
    """A context in which `count` browsers have the dashboard open. Each follows the events, and asks for overviews and history."""

    def __init__(self, port, token, count):
        self._clients = [ApiClient(port, token) for _ in range(2 * count)]
        self._stopping = threading.Event()
        self._faults, self.event_octets, self.answers = [], 0, 0
        offsets = [_OVERVIEW_EVERY_SECONDS * number / count for number in range(count)]
        followers = [(self._follow, client) for client in self._clients[:count]]
        askers = [(self._ask, client, offset) for client, offset in zip(self._clients[count:], offsets, strict=True)]
        self._threads = [threading.Thread(target=self._guarded, args=it, daemon=True) for it in (*followers, *askers)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()

    def check(self):
        """Fails if one of them did not get what it asked for."""
        if self._faults:
            raise RuntimeError(f"a dashboard failed: {self._faults[0]}")

    def _guarded(self, run, *words):
        try:
            run(*words)
        except (OSError, RuntimeError) as fault:
            self._faults.append(fault)

    def _follow(self, client):
        for octets in client.follow(_EVENTS, self._stopping.is_set):
            self.event_octets += octets

    def _ask(self, client, offset):
        due = time.monotonic() + offset
        history_due = due
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            paths = [_OVERVIEW]
            if due >= history_due:
                paths.append(_HISTORY)
                history_due += _HISTORY_EVERY_SECONDS
            for path in paths:
                client.timed(path)
                self.answers += 1
            due += _OVERVIEW_EVERY_SECONDS
