"""A cluster of three servers: what a node has answered 250 is delivered, whatever becomes of the node.

Three NATS servers keep the second copies. The mail goes to a host that is closed while it is accepted,
so that it waits in the queue of the node that then fails.
"""

import shutil
import signal
import time
import unittest

from cluster_case import LEASE_SECONDS, ClusterCase
from doubled import losses_of
from harness import Client
from nats_servers import TcpProxy
from outbound import text_message

_LANE_LOST = 4  # the exit status
_TAKEOVER_SECONDS_MAX = 30
_LONG_LEASE_SECONDS = 60


class Cluster(ClusterCase):
    def test_a_node_that_burns_is_replaced_with_all_its_mail(self):
        first, second, third = (self.node(name) for name in ("first", "second", "third"))
        for server in (first, second, third):
            server.start()
        subjects = self.fill(first)
        first.kill()
        shutil.rmtree(first.data)
        begin = time.monotonic()
        heir = self.await_takeover(second, third)
        self.assertLess(time.monotonic() - begin, _TAKEOVER_SECONDS_MAX)
        self.assertEqual(sum("took over a lane" in one.log.read_text() for one in (second, third)), 1)
        self.await_queued(heir, len(subjects))
        host = self.open_host()
        came = self.await_delivery(host, subjects, heir)
        self.assertEqual(came, sorted(subjects), "a message came twice")
        # It comes back without its disk, as a node with new lanes.
        first.start()
        more = [f"again-{number}" for number in range(3)]
        with Client(first.port) as client:
            client.greet()
            for subject in more:
                self.assertEqual(client.deliver(text_message(subject), "x@far.test").code, 250)
        self.assertEqual(self.await_delivery(host, subjects + more, first), sorted(subjects + more))
        nodes = self.command(first, "cluster", "nodes")
        self.assertTrue(all(name in nodes for name in ("first*", "second", "third")), nodes)

    def test_a_node_that_starts_again_soon_goes_on_with_its_own_disk(self):
        server = self.node("only")
        server.start()
        subjects = self.fill(server)
        server.kill()
        server.start()
        self.await_queued(server, len(subjects))
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, server), sorted(subjects))
        self.assertIn("owner", self.command(server, "cluster", "status"))

    def test_a_node_that_comes_back_after_its_lease_gives_up_what_another_has(self):
        first, second = self.node("first"), self.node("second")
        first.start()
        second.start()
        subjects = self.fill(first)
        first.kill()
        self.await_takeover(second)
        first.start()
        self.assertEqual(self.queued(first), 0)
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, second), sorted(subjects))
        self.assertNotIn("a folder holds a lane", first.log.read_text(), "all of it was copied")

    def test_a_node_that_is_stopped_for_30_seconds_ends_when_it_wakes(self):
        first, second = self.node("first"), self.node("second")
        first.start()
        second.start()
        subjects = self.fill(first)
        first.process.send_signal(signal.SIGSTOP)
        self.addCleanup(first.process.send_signal, signal.SIGCONT)
        self.await_takeover(second)
        host = self.open_host()
        # The whole pause: the node must not deliver when it wakes, however late.
        time.sleep(30 - LEASE_SECONDS)
        first.process.send_signal(signal.SIGCONT)
        self.assertEqual(first.process.wait(60), _LANE_LOST)
        self.assertEqual(len(losses_of(first.log.read_text())), 1, "the ledger of bench/cluster goes by what the log says")
        self.assertEqual(self.await_delivery(host, subjects, second), sorted(subjects))
        first.start()
        self.assertEqual(self.queued(first), 0)

    def test_a_node_that_is_cut_off_accepts_and_delivers_nothing(self):
        proxies = [self.ending(TcpProxy(port)) for port in self.nats.ports]
        first = self.node("first", [f"nats://127.0.0.1:{proxy.port}" for proxy in proxies])
        second = self.node("second")
        first.start()
        second.start()
        subjects = self.fill(first)
        for proxy in proxies:
            proxy.cut()
        with Client(first.port, timeout=60) as client:
            client.greet()
            reply = client.deliver(text_message("late"), "late@far.test")
            self.assertEqual(reply.code // 100, 4, reply)
        self.await_takeover(second)
        host = self.open_host()
        came = self.await_delivery(host, subjects, second)
        self.assertEqual(came, sorted(subjects), "both nodes have delivered")
        self.assertIsNone(first.process.poll())
        for proxy in proxies:
            proxy.heal()
        self.assertEqual(first.process.wait(60), _LANE_LOST)
        # Nothing that it had begun arrives later, neither before its end nor after its next start.
        first.start()
        self.assertEqual(self.queued(first), 0)
        self.assertEqual(self.subjects(host), sorted(subjects), "a message came twice")

    def test_drain_hands_the_queue_over_before_the_lease_is_over(self):
        first, second = (self.node(name, lease=_LONG_LEASE_SECONDS) for name in ("first", "second"))
        first.start()
        second.start()
        subjects = self.fill(first)
        self.command(first, "cluster", "drain")
        self.assertEqual(first.process.wait(60), 0)
        begin = time.monotonic()
        self.await_takeover(second)
        self.assertLess(time.monotonic() - begin, _LONG_LEASE_SECONDS)
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, second), sorted(subjects))


if __name__ == "__main__":
    unittest.main()
