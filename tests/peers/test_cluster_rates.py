"""Nodes of a cluster share the rate of a next hop: a host that counts gets no more from all of them."""

import json
import threading
import time
import unittest

from cluster_case import ClusterCase
from harness import Client, await_that
from hosts import Host
from outbound import text_message

_RATE = 10  # attempts in a second, of all nodes
_MESSAGES = 60  # of each node
_BURST = _RATE  # the share of one second


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
        for seconds in (2, 5):
            most = max(sum(start <= when < start + seconds for when in times) for start in times)
            self.assertLessEqual(most, seconds * _RATE + _BURST, f"in {seconds} seconds")
        # While both had mail, each had its part.
        half = [sender for _, sender in sorted(self.arrivals)[:_MESSAGES]]
        for server in nodes:
            name = server.folder.parent.name
            self.assertGreater(sum(name in sender for sender in half), _MESSAGES // 4, half)
            shared = self.departures(server)
            self.assertGreater(shared['mailrace_cluster_departures_total{source="shared"}'], _MESSAGES // 2)

    def departures(self, server):
        words = ("status", "--json", "--node", server.folder.parent.name)
        return json.loads(self.command(server, *words))["metrics"]


if __name__ == "__main__":
    unittest.main()
