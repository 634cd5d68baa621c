"""Nodes of a cluster share the connections to a next hop: a host that counts never has more of them than the limit."""

import socket
import threading
import time
import unittest

from cluster_case import ClusterCase
from harness import Client, await_that
from hosts import Host
from outbound import text_message
from peers.mailrace import route

_CONNECTIONS = 4  # of all nodes
_MESSAGES = 40  # of each node
_MESSAGES_OF_TURNS = 24  # take longer than a turn
_REPLY_SECONDS = 0.3
_SOON = 10  # seconds: what a node that died held is free after 30


def _own_address():
    """An address of this machine that is no loopback address, since such a host is each node's own; None without."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


_ADDRESS = _own_address()


@unittest.skipUnless(_ADDRESS, "this machine has only a loopback address")
class ClusterSlots(ClusterCase):
    def setUp(self):
        super().setUp()
        self.senders, self._lock = [], threading.Lock()

    def slow_mail(self, _session, argument):
        """Notes the node of a message, and takes its time."""
        with self._lock:
            self.senders.append(argument.split("@")[0].split("<")[-1])
        time.sleep(_REPLY_SECONDS)

    def node(self, name, connections=_CONNECTIONS, **settings):
        smtp = f'\nconnections = {connections}\nidle = "1s"'
        way = route("shared.test", f"[{_ADDRESS}]:{self.next_hop}")
        return super().node(name, smtp=smtp, extra=way, **settings)

    def send_all(self, server, count=_MESSAGES):
        with Client(server.port) as client:
            client.greet()
            for number in range(count):
                sender = f"{server.folder.parent.name}@bench.test"
                reply = client.deliver(text_message(str(number)), f"{number}@shared.test", sender=sender)
                self.assertEqual(reply.code, 250, reply)

    def host(self):
        return self.ending(Host(_ADDRESS, self.next_hop, script={"MAIL": self.slow_mail}))

    def test_all_nodes_together_keep_to_the_limit_and_each_gets_connections(self):
        nodes = [self.node(name) for name in ("first", "second", "third")]
        host = self.host()
        for server in nodes:
            server.start()
        # The first one has them all before the others ask.
        self.send_all(nodes[0])
        await_that(lambda: host.open_most == _CONNECTIONS, "one node uses the whole limit", nodes[0], 30)
        for server in nodes[1:]:
            self.send_all(server)
        await_that(lambda: len(self.senders) >= len(nodes) * _MESSAGES, "all messages", nodes[0], 120)
        self.assertEqual(host.open_most, _CONNECTIONS)
        # The others did not wait for the end of its mail.
        last = len(self.senders) - self.senders[::-1].index("first")
        for name in ("second", "third"):
            self.assertLess(self.senders.index(name), last, self.senders)

    def test_nodes_take_turns_where_there_are_fewer_connections(self):
        nodes = [self.node(name, connections=1) for name in ("first", "second")]
        host = self.host()
        for server in nodes:
            server.start()
            self.send_all(server, _MESSAGES_OF_TURNS)
        await_that(lambda: len(set(self.senders)) == len(nodes), "both nodes deliver", nodes[0], 60)
        await_that(lambda: len(self.senders) >= len(nodes) * _MESSAGES_OF_TURNS, "all messages", nodes[0], 120)
        self.assertEqual(host.open_most, 1)

    def test_connections_of_a_node_that_died_are_used_by_others(self):
        first, second = (self.node(name) for name in ("first", "second"))
        host = self.host()
        first.start()
        second.start()
        self.send_all(first)
        await_that(lambda: host.open_most == _CONNECTIONS, "one node uses the whole limit", first, 30)
        first.kill()
        killed = len(self.senders)
        self.send_all(second, 20)
        await_that(lambda: "second" in self.senders[killed:], "the other node delivers", second, 60)

    def test_a_node_that_stops_gives_its_connections_back_at_once(self):
        first, second = (self.node(name) for name in ("first", "second"))
        host = self.host()
        first.start()
        second.start()
        self.send_all(first)
        await_that(lambda: host.open_most == _CONNECTIONS, "one node uses the whole limit", first, 30)
        held = 'mailrace_cluster_slots_held{source="shared"}'
        self.assertEqual(self.metrics(first)[held], _CONNECTIONS)
        self.send_all(second)
        refused = "mailrace_cluster_slots_refused_total"
        await_that(lambda: self.metrics(second)[refused] > 0, "the other node gets none", second, 20)
        self.assertIn(" refused", self.command(second, "cluster", "status"))
        self.assertEqual(first.terminate(), 0)
        await_that(lambda: self.metrics(second)[held] == _CONNECTIONS, "it gets all of them", second, _SOON)
        self.assertEqual(host.open_most, _CONNECTIONS)


if __name__ == "__main__":
    unittest.main()
