"""Fetches a file by HTTP several times and drops its bytes in the kernel; prints the length of each.

    discard.py PORT PATH TIMES

A client on the same machine copies what it gets, and so slows down the server beside it in a way that a remote client
does not. This one takes the bytes from the socket without a copy (MSG_TRUNC).
"""

import socket
import sys

_HEAD_OCTETS_MAX = 16 * 1024
_TAKEN_OCTETS = 1 << 20


def fetch(port, path):
    """The octets of the content."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(_HEAD_OCTETS_MAX)
            if not received:
                raise RuntimeError(f"the server has closed the connection after {head!r}")
            head += received
        status, octets = head.split(b"\r\n", 1)[0], len(head) - head.index(b"\r\n\r\n") - 4
        if b" 200 " not in status:
            raise RuntimeError(f"the server said {status!r}")
        buffer = bytearray(_TAKEN_OCTETS)
        while taken := connection.recv_into(buffer, _TAKEN_OCTETS, socket.MSG_TRUNC):
            octets += taken
        return octets


if __name__ == "__main__":
    for _ in range(int(sys.argv[3])):
        print(fetch(int(sys.argv[1]), sys.argv[2]), flush=True)
