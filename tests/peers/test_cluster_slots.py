"""Nodes of a cluster share the connections to a next hop: a host that counts never has more of them than the limit.
Without NATS servers each node has its part of them, and of a shared rate.
"""

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
_MESSAGES_OF_FIRST = 80  # so that it still has some when the others get their first connection
_MESSAGES_OF_PART = 100  # sent again while fewer than half of them are left
_MESSAGES_OF_TURNS = 24  # take longer than a turn
_REPLY_SECONDS = 0.3
_RATE = 10  # attempts in a second, of all nodes
_SOON = 25  # seconds: what a node that died held is free after 30
_REFUSED = "mailrace_cluster_slots_refused_total"


class Stall:
    """What the connections of a node wait for."""

    def __init__(self, connections):
        self._connections, self._ended, self._lock = connections, threading.Event(), threading.Lock()
        self._waiting = 0

    def wait(self, connections):
        """Waits for the end, if the node has as many connections as wanted."""
        if connections >= self._connections:
            with self._lock:
                self._waiting += 1
            self._ended.wait()

    def is_complete(self):
        """Whether all of them wait."""
        return self._waiting >= self._connections

    def end(self):
        """They go on."""
        self._ended.set()


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
        self._stalls = {}  # by the name of a node

    def slow_mail(self, session, argument):
        """Notes the node of a message, and takes its time."""
        session.node = argument.split("@")[0].split("<")[-1]
        with self._lock:
            self.senders.append(session.node)
        if stall := self._stalls.get(session.node):
            stall.wait(sum(one.is_open() and one.node == session.node for one in session.host.sessions))
        time.sleep(_REPLY_SECONDS)

    def stall(self, node, connections=_CONNECTIONS):
        """As soon as this node has so many connections, they get no reply: it keeps them until the stall ends."""
        stall = self._stalls[node] = Stall(connections)
        self.addCleanup(stall.end)
        return stall

    def node(self, name, connections=_CONNECTIONS, cluster="", extra="", **settings):
        """A node; `cluster` has more lines of its section."""
        smtp = f'\nconnections = {connections}\nidle = "1s"'
        way = route("shared.test", f"[{_ADDRESS}]:{self.next_hop}")
        return super().node(name, smtp=smtp, extra=cluster + way + extra, **settings)

    def send_all(self, server, count=_MESSAGES, domain="shared.test"):
        with Client(server.port) as client:
            client.greet()
            for number in range(count):
                sender = f"{server.folder.parent.name}@bench.test"
                reply = client.deliver(text_message(str(number)), f"{number}@{domain}", sender=sender)
                self.assertEqual(reply.code, 250, reply)

    def host(self):
        return self.ending(Host(_ADDRESS, self.next_hop, script={"MAIL": self.slow_mail}))

    def test_all_nodes_together_keep_to_the_limit_and_each_gets_connections(self):
        nodes = [self.node(name) for name in ("first", "second", "third")]
        host = self.host()
        for server in nodes:
            server.start()
        # The first one has them all, and does not go on before the others have asked.
        stall = self.stall("first")
        self.send_all(nodes[0], _MESSAGES_OF_FIRST)
        await_that(stall.is_complete, "one node uses the whole limit", nodes[0])
        for server in nodes[1:]:
            self.send_all(server)
            await_that(lambda server=server: self.metrics(server)[_REFUSED] > 0, "the other node gets none", server)
        stall.end()
        count = _MESSAGES_OF_FIRST + 2 * _MESSAGES
        await_that(lambda: len(self.senders) >= count, "all messages", nodes[0], 120)
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
        await_that(lambda: "second" in self.senders[killed:], "the other node delivers", second, 120)

    def test_a_node_that_stops_gives_its_connections_back_at_once(self):
        first, second = (self.node(name) for name in ("first", "second"))
        host = self.host()
        first.start()
        second.start()
        stall = self.stall("first")
        self.stall("second")
        self.send_all(first)
        await_that(stall.is_complete, "one node uses the whole limit", first)
        held = 'mailrace_cluster_slots_held{source="shared"}'
        self.assertEqual(self.metrics(first)[held], _CONNECTIONS)
        self.send_all(second)
        await_that(lambda: self.metrics(second)[_REFUSED] > 0, "the other node gets none", second)
        self.assertIn(" refused", self.command(second, "cluster", "status"))
        stall.end()
        self.assertEqual(first.terminate(), 0)
        await_that(lambda: self.metrics(second)[held] == _CONNECTIONS, "it gets all of them", second, _SOON)
        self.assertEqual(host.open_most, _CONNECTIONS)

    def most_in(self, seconds, times):
        """The most of these times in such a span."""
        return max(sum(start <= when < start + seconds for when in times) for start in times)

    def test_a_node_has_its_part_while_no_server_answers_and_the_whole_again_when_they_return(self):
        rate = f'\n[[next_hop]]\nhost = "127.0.0.1"\nrate = "{_RATE}/s"\n'
        nodes = [self.node(name, cluster="require = false\n", extra=rate) for name in ("first", "second")]
        host, arrivals = self.host(), []
        self.ending(Host(port=self.next_hop, script={"MAIL": lambda *_: arrivals.append(time.monotonic())}))
        for server in nodes:
            server.start()
        server = nodes[1]
        await_that(lambda: self.metrics(server)["mailrace_cluster_nodes"] == 2, "both are known", server, 20)
        for number in range(len(self.nats.ports)):
            self.nats.kill_one(number)
        await_that(lambda: "without a second copy" in server.log.read_text(), "a local lane", server, 60)
        refill = self.refilling(server, {"shared.test": self.senders, "far.test": arrivals})
        refill()
        await_that(lambda: len(arrivals) >= 3 * _RATE // 2, "mail at half of the rate", server)
        # About two seconds; at the whole rate it would be a half.
        self.assertGreater(arrivals[3 * _RATE // 2 - 1] - arrivals[0], 1)
        await_that(lambda: refill() or host.open_most == _CONNECTIONS // 2, "half of the connections", server)
        self.assertEqual(self.slots(server), (0, _CONNECTIONS // 2))
        self.assertGreater(self.metrics(server)['mailrace_cluster_departures_total{source="own part"}'], _RATE)
        for number in range(len(self.nats.ports)):
            self.nats.start_one(number)
        await_that(lambda: refill() or self.slots(server) == (_CONNECTIONS, 0), "all connections", server, 120)
        self.assertEqual(self.slots(nodes[0]), (0, 0))
        await_that(lambda: refill() or host.open_most == _CONNECTIONS, "all of them are used", server)
        await_that(lambda: refill() or self.most_in(2, arrivals) > 3 * _RATE // 2, "the whole rate", server)
        # At most 60; with twice the rate it would be 100. The host may be late with some, which then come together.
        self.assertLessEqual(self.most_in(5, arrivals), 85)
        self.assertEqual(host.open_most, _CONNECTIONS)

    def refilling(self, server, arrived):
        """A function that sends further messages to the domains of which few are left; `arrived` has what came, by domain."""
        sent = dict.fromkeys(arrived, 0)

        def refill():
            for domain, came in arrived.items():
                if sent[domain] - len(came) < _MESSAGES_OF_PART // 2:
                    self.send_all(server, _MESSAGES_OF_PART, domain)
                    sent[domain] += _MESSAGES_OF_PART

        return refill

    def slots(self, server):
        """The shared slots of a node, and those of its own part."""
        metrics = self.metrics(server)
        return tuple(metrics[f'mailrace_cluster_slots_held{{source="{source}"}}'] for source in ("shared", "own part"))


if __name__ == "__main__":
    unittest.main()
