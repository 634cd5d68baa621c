#!/usr/bin/env python3
"""Sessions that guess passwords at a fixed rate, regardless of the server.

    guesses.py PORT RATE SECONDS USERS COMMAND

Each session comes from a different address in 127.0.0.0/8, makes three guesses (the limit of a
session) and ends; the next one does not wait for it. COMMAND is `auth`: each guess is for one of
USERS users, every second of whom does not exist, with a new password; or `noop`: the same sessions
with NOOP instead. It prints JSON: `guesses`, `sessions`, `replies` (code to count, for the
guesses), `seconds`, `late_seconds` (the largest delay of a session), and `failed`.
"""

import base64
import collections
import json
import random
import selectors
import socket
import sys
import time

GUESSES_PER_SESSION = 3
_READ_OCTETS = 4096
_SESSIONS_MAX = 5000  # at the same time
_SILENCE_SECONDS_MAX = 60.0  # there may be many passwords to compute before this one
_GREETING = b"EHLO guesser.test\r\n"


class Guesser:
    """All sessions."""

    def __init__(self, port, users, command):
        self._port, self._users, self._is_auth = port, users, command == "auth"
        self._random = random.Random(1)
        self._selector = selectors.EpollSelector()
        self._sessions = 0
        self.guesses = 0
        self.replies, self.failed = collections.Counter(), collections.Counter()

    def under_way(self):
        """Open sessions."""
        return len(self._selector.get_map())

    def begin(self):
        """Starts a session."""
        self._sessions += 1
        number = self._sessions
        connection = socket.socket()
        connection.setblocking(False)
        try:
            connection.bind((f"127.{number >> 16 & 0x7F | 0x80}.{number >> 8 & 0xFF}.{number & 0xFF or 1}", 0))
            connection.connect_ex(("127.0.0.1", self._port))
        except OSError as error:
            self.failed[str(error)] += 1
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, [b"", False])

    def serve(self, seconds):
        """Handles what arrives within this time."""
        for key, _ in self._selector.select(seconds):
            connection, state = key.fileobj, key.data
            try:
                octets = connection.recv(_READ_OCTETS)
                if octets and not state[1]:
                    state[1] = True
                    guesses = b"".join(self._guess() for _ in range(GUESSES_PER_SESSION))
                    connection.send(_GREETING + guesses + b"QUIT\r\n")
                    continue
            except OSError as error:
                self.failed[str(error)] += 1
                octets = b""
            state[0] += octets
            if not octets:
                self._selector.unregister(connection)
                connection.close()
                self._count(state[0])

    def _guess(self):
        self.guesses += 1
        if not self._is_auth:
            return b"NOOP\r\n"
        user = self._random.randrange(2 * self._users) + 1
        return b"AUTH PLAIN " + base64.b64encode(f"\0user{user}\0wrong{self.guesses}".encode()) + b"\r\n"

    def _count(self, received):
        """Counts the replies after that to EHLO."""
        lines = [line for line in received.split(b"\r\n") if line[3:4] == b" "]
        for line in lines[1 : 1 + GUESSES_PER_SESSION]:
            self.replies[line[:9].decode() if line[:1] in b"45" else line[:3].decode()] += 1


def main():
    port, rate, seconds, users = map(int, sys.argv[1:5])
    guesser = Guesser(port, users, sys.argv[5])
    begin, late, sessions, every = time.monotonic(), 0.0, 0, GUESSES_PER_SESSION / rate
    while (now := time.monotonic()) < begin + seconds:
        due = begin + sessions * every
        while due <= now and guesser.under_way() < _SESSIONS_MAX:
            late = max(late, now - due)
            guesser.begin()
            sessions += 1
            due = begin + sessions * every
        guesser.serve(max(0.0, min(due - time.monotonic(), 0.01)))
    spent = time.monotonic() - begin
    while guesser.under_way() and time.monotonic() < begin + seconds + _SILENCE_SECONDS_MAX:
        guesser.serve(0.1)
    if left := guesser.under_way():
        guesser.failed["not finished in time"] += left
    print(json.dumps({
        "guesses": guesser.guesses, "sessions": sessions, "replies": guesser.replies, "seconds": spent,
        "late_seconds": late, "failed": guesser.failed,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
