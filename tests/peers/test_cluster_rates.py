"""Nodes of a cluster share the rate of a next hop and the throttle of logins: a host that counts gets no more from all
of them, and who guesses passwords no more tries.
"""

import base64
import threading
import time
import unittest

from cluster_case import ClusterCase
from harness import Client, await_that
from hosts import Host
from outbound import text_message
from peers.mailrace import LOGINS, listener

_RATE = 10  # attempts in a second, of all nodes
_MESSAGES = 60  # of each node
_BURST = _RATE  # the share of one second
_LATE = 25  # more that may come together, since the host was not scheduled for some time
_FREE_FAILURES = 5  # of one user from one client, before delays begin
_TELLING_SECONDS = 1.0  # nodes tell each other twice as often; each guess before counts


class ClusterRates(ClusterCase):
    def setUp(self):
        super().setUp()
        self.arrivals, self._lock = [], threading.Lock()

    def node(self, name, **settings):
        return super().node(name, smtp=f'\nrate = "{_RATE}/s"', **settings)

    def count(self, _session, argument):
        """Notes the time and the node of a message."""
        with self._lock:
            self.arrivals.append((time.monotonic(), argument.split("@")[0].lstrip("<").split(":<")[-1]))

    def send_all(self, server):
        with Client(server.port) as client:
            client.greet()
            for number in range(_MESSAGES):
                sender = f"{server.folder.parent.name}@bench.test"
                reply = client.deliver(text_message(str(number)), f"{number}@far.test", sender=sender)
                self.assertEqual(reply.code, 250, reply)

    def test_all_nodes_together_keep_to_the_rate_and_take_turns(self):
        nodes = [self.node(name) for name in ("first", "second")]
        for server in nodes:
            server.start()
            self.send_all(server)
        self.ending(Host(port=self.next_hop, script={"MAIL": self.count}))
        await_that(lambda: len(self.arrivals) >= 2 * _MESSAGES, "all messages", nodes[0], 120)
        times = sorted(when for when, _ in self.arrivals)
        seconds = 5
        most = max(sum(start <= when < start + seconds for when in times) for start in times)
        # If each node had the whole rate, it would be at least 100.
        self.assertLessEqual(most, seconds * _RATE + _BURST + _LATE)
        # While both had mail, each had its part.
        half = [sender for _, sender in sorted(self.arrivals)[:_MESSAGES]]
        for server in nodes:
            name = server.folder.parent.name
            self.assertGreater(sum(name in sender for sender in half), _MESSAGES // 4, half)
            shared = self.metrics(server)
            self.assertGreater(shared['mailrace_cluster_departures_total{source="shared"}'], _MESSAGES // 2)


class ClusterLimits(ClusterCase):
    def start_both(self, extra):
        nodes = [self.node(name, extra=extra) for name in ("first", "second")]
        for server in nodes:
            server.start()
        return nodes

    def test_what_a_sender_uses_on_one_node_counts_on_all(self):
        first, second = self.start_both('\n[[limit]]\nname = "each"\nby = "sender"\nmessages = "5/1h"\n')
        with Client(first.port) as client:
            client.greet()
            codes = [client.deliver(text_message("x"), "x@far.test", sender="a@bench.test").code for _ in range(5)]
        self.assertEqual(codes, [250] * 5)

        def says(sender):
            with Client(second.port) as client:
                client.greet()
                return client.say(f"MAIL FROM:<{sender}>").code

        await_that(lambda: says("a@bench.test") == 450, "the other node knows", second)
        self.assertEqual(says("b@bench.test"), 250)

    def guess(self, server, password):
        """The reply to a login with this password."""
        with Client(server.ports["submission"]) as client:
            client.greet()
            words = base64.b64encode(f"\0alice\0{password}".encode()).decode()
            return client.say(f"AUTH PLAIN {words}").code

    def test_a_guess_on_one_node_counts_on_all(self):
        nodes = self.start_both(listener("submission") + LOGINS)
        for number in range(_FREE_FAILURES):
            self.assertEqual(self.guess(nodes[0], f"guess {number}"), 535)

        def is_refused():
            time.sleep(_TELLING_SECONDS)
            return self.guess(nodes[1], "another guess") == 454

        # Each further one has to wait longer.
        await_that(is_refused, "the other node knows", nodes[1])
        counts = self.metrics(nodes[1])
        self.assertLess(counts['mailrace_auth_logins_total{result="refused"}'], _FREE_FAILURES)


if __name__ == "__main__":
    unittest.main()
