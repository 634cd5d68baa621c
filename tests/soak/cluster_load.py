"""Mail for a cluster while parts of it fail, and the ledger of what became of it.

Each node gets messages from a client of its own. The ledger has every 250 and every arrival at the next hop. At the end

    every message with a 250      has arrived
    every message that came twice  had its first copies from a node that failed, in a span of time in which an outcome may
                                   not have been copied, or an attempt was under way. Those are counted.
"""

import collections
import contextlib
import os
import signal
import sys
import threading
import time
import unittest

from cluster_case import LEASE_SECONDS, ClusterCase
from harness import Client, await_that
from hosts import Host
from outbound import text_message

MARGIN_SECONDS = 1.0  # others wait this much longer than the lease
LAG_SECONDS = 1.0  # between an attempt that has the lease and its arrival
NAMES = ("first", "second", "third")
_PAUSE_SECONDS = 0.05  # between the messages of a client
_LANE_LOST = 4  # the exit status
_STARTS_MAX = 5
ARRIVE_SECONDS = 120


class Load:
    """Clients that send until they are stopped."""

    def __init__(self, servers):
        self.accepted, self.refused = {}, []  # subjects to times; (time, reply code)
        self._waits = []  # (time of the answer, seconds until it came)
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(one,), daemon=True) for one in servers]
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Returns when no client waits for an answer."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)

    def count(self, since=0.0):
        """How many messages had a 250 after this time."""
        with self._lock:
            return sum(at > since for at in self.accepted.values())

    def longest_wait(self, since):
        """How many seconds the slowest answer after this time took."""
        with self._lock:
            return max((seconds for at, seconds in self._waits if at > since), default=0.0)

    def _send(self, server):
        name, number = server.folder.parent.name, 0
        while not self._stopped.is_set():
            with contextlib.suppress(OSError, EOFError, AssertionError, KeyError), Client(server.port, 40) as client:
                client.greet()
                while not self._stopped.wait(_PAUSE_SECONDS):
                    number += 1
                    self._note(f"{name}-{number}", client)
            self._stopped.wait(_PAUSE_SECONDS)

    def _note(self, subject, client):
        begin = time.monotonic()
        reply = client.deliver(text_message(subject, "x" * 70 + "\r\n"), f"{subject}@far.test")
        with self._lock:
            self._waits.append((time.time(), time.monotonic() - begin))
            if reply.code == 250:
                self.accepted[subject] = time.time()
            else:
                self.refused.append((time.time(), reply.code))
                client.say("RSET")


class FaultCase(ClusterCase):
    """A cluster of three nodes, with mail that flows while something fails."""

    noticed_after = 2 * LEASE_SECONDS  # how long before its end a node that lived may have lost a lane

    def setUp(self):
        super().setUp()
        self.spans, self.arrivals, self._lock = [], collections.defaultdict(list), threading.Lock()
        self.host = self.ending(Host(port=self.next_hop, script={"message": self._note}))

    def node(self, name, *args, **settings):
        """A node whose deliveries say that they are its own."""
        return super().node(name, *args, hostname=f"{name}.bench.test", **settings)

    def _note(self, session, _recipient):
        command = next(one for one in reversed(session.commands) if one.upper().startswith("RCPT"))
        subject = command.partition("<")[2].partition("@")[0]
        node = session.commands[0].split()[1].partition(".")[0]
        with self._lock:
            self.arrivals[subject].append((time.time(), node))

    def start_all(self, **settings):
        """Three nodes, and the mail that they get."""
        self.servers = [self.node(name, **settings) for name in NAMES]
        for server in self.servers:
            server.start()
        return self.load()

    def load(self):
        """Mail for all nodes, which flows when this returns."""
        self.mail = self.ending(Load(self.servers))
        self.await_mail(time.time(), 20)
        return self.mail

    def await_mail(self, since, count=20, seconds=90):
        """Waits until this many more messages had a 250. Meanwhile nodes that end are started again."""
        def flows():
            self.revive()
            return self.mail.count(since) >= count

        await_that(flows, f"{count} messages are accepted", self.servers[0], seconds)

    def revive(self):
        """Starts nodes that have ended because they had lost a lane, as a service manager does."""
        for server in self.servers:
            if server.process.poll() is not None:
                self.assertEqual(server.process.returncode, _LANE_LOST, server.log_tail())
                self.note_failure(server, before=self.noticed_after)
                self.restart(server)

    def restart(self, server, wrapper=()):
        """Starts a node. It ends at once if another one takes over its lane meanwhile, and then starts again."""
        for _ in range(_STARTS_MAX):
            try:
                return server.start(wrapper)
            except RuntimeError as error:
                if "during the start: start again" not in str(error):
                    raise
        raise AssertionError(f"{server.folder.parent.name} did not start in {_STARTS_MAX} tries")

    def note_failure(self, server, before=0.0, after=0.0):
        """Now this node fails, or did so before, or will."""
        now = time.time()
        begin = now - LEASE_SECONDS - MARGIN_SECONDS - LAG_SECONDS - before
        self.spans.append((server.folder.parent.name, begin, now + LAG_SECONDS + after))

    def check_ledger(self):
        """Every 250 has arrived; only what may come twice came twice."""
        self.mail.stop()

        def missing():
            self.revive()
            return sorted(set(self.mail.accepted) - set(self.arrivals))

        deadline = time.monotonic() + ARRIVE_SECONDS
        while (left := missing()) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.assertEqual(left, [], "messages with a 250 have not arrived")
        # A node that was cut off could deliver later.
        time.sleep(2 * (LEASE_SECONDS + MARGIN_SECONDS))
        self.revive()
        self.check_doubled()

    def check_doubled(self):
        """Prints the ledger, and compares what came twice with what may."""
        doubled = {subject: sorted(copies) for subject, copies in self.arrivals.items() if len(copies) > 1}
        may_be_doubled = sum(self.is_repeatable(min(copies)) for copies in self.arrivals.values())
        unexplained = {
            subject: copies for subject, copies in doubled.items() if not all(map(self.is_repeatable, copies[:-1]))
        }
        print(f"{self.id()}: {len(self.mail.accepted)} with a 250, 0 lost, {len(doubled)} twice of at most "
              f"{may_be_doubled}, {len(self.mail.refused)} refused", file=sys.stderr)  # fmt: skip
        self.assertEqual(unexplained, {}, f"came twice, but not in {self.spans}")

    def is_repeatable(self, copy):
        """Whether what came at this time from this node may come again."""
        at, node = copy
        return any(name == node and begin <= at <= end for name, begin, end in self.spans)


class ShortStops:
    """Stops processes for a moment, again and again, and lets them go on in between."""

    def __init__(self, processes, stopped_seconds, between_seconds):
        self._processes, self._ended = processes, threading.Event()
        self._thread = threading.Thread(target=self._run, args=(stopped_seconds, between_seconds), daemon=True)
        self._thread.start()

    def stop(self):
        """Returns when all of them go on for good."""
        self._ended.set()
        self._thread.join(60)

    def _run(self, stopped_seconds, between_seconds):
        while not self._ended.is_set():
            self._signal(signal.SIGSTOP)
            self._ended.wait(stopped_seconds)
            self._signal(signal.SIGCONT)
            self._ended.wait(between_seconds)

    def _signal(self, number):
        for process in self._processes:
            process.send_signal(number)


def needs_root(test):
    """Skips a test that mounts a file system."""
    return unittest.skipUnless(os.geteuid() == 0, "needs root, to mount a file system")(test)
