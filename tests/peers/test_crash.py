"""A 250 survives `kill -9`: the server is killed repeatedly under load, and no acknowledged message
may be lost.

Clients send messages of many kinds over several connections and record the acknowledged ones. The
server is killed at a random moment and restarted on the same data, repeatedly; deliveries run at
the same time, so they crash too. At the end the queue is emptied, and then

    every message with a 250    is in the Maildir, identical after the trace fields
    every message in a Maildir  is a complete message that was sent, acknowledged or not
    a message delivered twice   is allowed (a crash between delivery and its record), counted and printed

MAILRACE_KILL_ROUNDS is the number of kills (default 20), MAILRACE_SEED repeats a run.
"""

import collections
import hashlib
import os
import pathlib
import random
import threading
import time
import unittest

from harness import Client, Mailrace, folder, mail_files

ROUNDS = int(os.environ.get("MAILRACE_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("MAILRACE_SEED", random.SystemRandom().randrange(1 << 32)))
CONNECTIONS = 6
EMPTY_SECONDS_MAX = 300
USERS = [f"user{number}" for number in range(10)]
_NAME = b"X-Number: "


class Ledger:
    """The sent and the acknowledged messages."""

    def __init__(self):
        self._lock = threading.Lock()
        self._count = 0
        self.sent = {}  # number to digest
        self.acknowledged = set()

    def write(self, random_numbers):
        """A new message: (number, bytes)."""
        with self._lock:
            self._count += 1
            number = self._count
        message = _NAME + str(number).encode() + b"\r\nSubject: crash\r\n\r\n" + body(random_numbers)
        with self._lock:
            self.sent[number] = hashlib.sha256(message).digest()
        return number, message

    def acknowledge(self, number):
        """Records a 250."""
        with self._lock:
            self.acknowledged.add(number)


def body(random_numbers):
    """Mostly small, sometimes large enough for its own file; with dots, 8-bit bytes, NUL, and
    sometimes empty.
    """
    size = random_numbers.choice([0, 100, 1500, 6000, 6000, 6000, 40_000])
    if random_numbers.random() < 0.01:
        size = 1_500_000
    lines = []
    while size > 0:
        long = random_numbers.randbytes(8).hex().encode() * 40
        line = random_numbers.choice([b"", b".", b"..", b".x", b"\0\xff\xfe", long])
        lines.append(line + b"\r\n")
        size -= len(lines[-1])
    return b"".join(lines)


def send(port, ledger, stop, seed):
    """A client: sends messages on one connection until the server dies."""
    random_numbers = random.Random(seed)
    try:
        with Client(port, timeout=20) as client:
            client.greet()
            while not stop.is_set():
                number, message = ledger.write(random_numbers)
                recipients = [f"{random_numbers.choice(USERS)}@bench.test"]
                if client.deliver(message, *recipients).code == 250:
                    ledger.acknowledge(number)
    except (OSError, EOFError, ValueError):
        pass  # killed: an unacknowledged message may be kept or not


class Crash(unittest.TestCase):
    def test_a_message_with_a_250_survives_kill_9_byte_for_byte(self):
        print(f"seed {SEED}, {ROUNDS} rounds", flush=True)
        random_numbers, ledger = random.Random(SEED), Ledger()
        with folder() as name:
            server = Mailrace(pathlib.Path(name), users=USERS, retry_first="1s")
            self.addCleanup(server.stop)
            for round_ in range(ROUNDS):
                server.start()
                self.load_until_killed(server, ledger, random_numbers, round_)
            server.start()
            server.wait_until_empty(EMPTY_SECONDS_MAX)
            self.assertEqual(server.terminate(), 0)
            self.compare(server, ledger)

    def load_until_killed(self, server, ledger, random_numbers, round_):
        stop = threading.Event()
        clients = [
            threading.Thread(target=send, args=(server.port, ledger, stop, random_numbers.randrange(1 << 32)))
            for _ in range(CONNECTIONS)
        ]
        for client in clients:
            client.start()
        before = len(ledger.acknowledged)
        moment = random_numbers.uniform(0.02, 1.2)
        # This is not a wait: the moment of the crash is random.
        time.sleep(moment)
        server.kill()
        stop.set()
        for client in clients:
            client.join()
        more = len(ledger.acknowledged) - before
        print(f"round {round_ + 1}: killed after {moment:.2f} s, {more} acknowledged", flush=True)

    def compare(self, server, ledger):
        came = collections.Counter()
        for user in USERS:
            for path in mail_files(server.maildir(user) / "new"):
                content = path.read_bytes()
                message = content[content.index(_NAME) :]
                number = int(message[len(_NAME) : message.index(b"\r\n")])
                self.assertEqual(hashlib.sha256(message).digest(), ledger.sent[number], f"{path} is damaged")
                came[number] += 1
        lost = sorted(ledger.acknowledged - set(came))
        doubled = sum(count - 1 for count in came.values())
        print(f"{len(ledger.acknowledged)} acknowledged, {len(came)} delivered, {len(lost)} lost, {doubled} delivered twice")
        self.assertEqual(lost, [], "acknowledged messages were lost")
        self.assertGreater(len(ledger.acknowledged), ROUNDS, "too few messages to prove anything")


if __name__ == "__main__":
    unittest.main()
