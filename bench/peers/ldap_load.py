#!/usr/bin/env python3
"""The maximum rate of a directory: precomputed searches, sent as fast as they are answered.

    ldap_load.py PORT USERS CONNECTIONS KEYS SECONDS

Each search asks for KEYS users of `people` with one OR filter; each connection has one search at a
time. Only the end of each answer is parsed, so that the client is cheap. It prints JSON:
`searches`, `keys`, `seconds`, and its own `cpu_seconds`.
"""

import itertools
import json
import pathlib
import random
import selectors
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from peers import ldap, people  # noqa: E402

_REQUESTS_MAX = 20_000
_READ_OCTETS = 1 << 18
_SILENCE_SECONDS_MAX = 30


def main():
    port, users, connections, keys, seconds = map(int, sys.argv[1:])
    requests = itertools.cycle(_requests(users, keys))
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, [b""])
    begin, cpu = time.monotonic(), time.process_time()
    for key in list(selector.get_map().values()):
        key.fileobj.sendall(next(requests))
    searches = 0
    while (now := time.monotonic()) < begin + seconds:
        ready = selector.select(_SILENCE_SECONDS_MAX)
        if not ready:
            raise SystemExit("the directory does not answer")
        for key, _ in ready:
            if _is_answered(key.fileobj, key.data):
                searches += 1
                key.fileobj.sendall(next(requests))
    cpu = time.process_time() - cpu
    print(json.dumps({"searches": searches, "keys": searches * keys, "seconds": now - begin, "cpu_seconds": cpu}))


def _requests(users, keys):
    """Searches for all users in random order, or for as many as are needed."""
    numbers = list(range(1, users + 1))
    random.Random(1).shuffle(numbers)
    made = []
    for start in range(0, min(users - keys + 1, keys * _REQUESTS_MAX), keys):
        equalities = [ldap.equality("mail", people.address(number)) for number in numbers[start : start + keys]]
        condition = ldap.any_of(equalities) if keys > 1 else equalities[0]
        made.append(ldap.message(1, ldap.search(people.PEOPLE, condition, ["mail"])))
    return made


def _is_answered(connection, rest):
    """Reads available bytes; returns whether the end of the search was among them."""
    octets = connection.recv(_READ_OCTETS)
    if not octets:
        raise SystemExit("the directory closed the connection")
    seen = rest[0] + octets
    rest[0] = seen[1 - len(ldap.SUCCESS_DONE) :]
    return ldap.SUCCESS_DONE in seen


if __name__ == "__main__":
    main()
