"""Clients that fetch a file by HTTP, each on a connection of its own, and read a little of it once a
second.

They announce the segment size of an Ethernet, so that the kernel gives the server's sockets the
buffers that they have on a network, and a small window, as slow clients have it. All are in one
thread of this process.
"""

import pathlib
import resource
import socket
import threading
import time

_SEGMENT_OCTETS = 1460
_RECEIVE_BUFFER_OCTETS = 4096
_INTERVAL_SECONDS = 1.0
_CONNECT_SECONDS_MAX = 30.0
_PAGE_OCTETS = resource.getpagesize()


class SlowReaders:
    """A context in which `count` clients read the file at `path`, each `octets` a second."""

    def __init__(self, port, path, count, octets):
        self._port, self._octets = port, octets
        self._request = f"GET {path} HTTP/1.1\r\nHost: bench.test\r\n\r\n".encode()
        self._count, self._sockets, self._ended = count, [], 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self):
        try:
            for _ in range(self._count):
                self._sockets.append(self._connect())
        except OSError:
            self._close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join()
        self._close()

    def check(self):
        """Fails if a server has ended one of them."""
        if self._ended:
            raise RuntimeError(f"{self._ended} of {self._count} slow readers were disconnected")

    def _connect(self):
        client = socket.socket()
        client.settimeout(_CONNECT_SECONDS_MAX)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_OCTETS)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_OCTETS)
        client.connect(("127.0.0.1", self._port))
        client.sendall(self._request)
        client.setblocking(False)
        return client

    def _read(self):
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due += _INTERVAL_SECONDS
            self._ended = sum(not self._read_some(client) for client in self._sockets)

    def _read_some(self, client):
        """Reads what has come, up to the size; returns whether the connection is still open."""
        try:
            return bool(client.recv(self._octets))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _close(self):
        for client in self._sockets:
            client.close()


def kernel_socket_octets():
    """The memory that the kernel has for the data of all TCP sockets of this machine."""
    for line in pathlib.Path("/proc/net/sockstat").read_text().splitlines():
        name, *fields = line.split()
        if name == "TCP:":
            return int(fields[fields.index("mem") + 1]) * _PAGE_OCTETS
    return 0
