"""A node whose mail requires no second copy (`require = false`), while no NATS server answers.

It accepts into a new lane, delivers from that, and copies what is left when the servers are back.
"""

import json
import shutil
import unittest

from cluster_case import ClusterCase
from harness import Client, await_that
from nats_servers import TcpProxy
from outbound import text_message

_LANE_LOST = 4  # the exit status
_NOT_REQUIRED = "require = false\n"
_COPIED = "all mail of a lane has its second copy"


class LocalMail(ClusterCase):
    def setUp(self):
        super().setUp()
        self.proxies = [self.ending(TcpProxy(port)) for port in self.nats.ports]
        self.first = self.node("first", [f"nats://127.0.0.1:{proxy.port}" for proxy in self.proxies], extra=_NOT_REQUIRED)

    def cut_off(self):
        for proxy in self.proxies:
            proxy.cut()

    def heal(self):
        for proxy in self.proxies:
            proxy.heal()

    def await_local_lane(self):
        await_that(lambda: "local" in self.command(self.first, "cluster", "status"), "a local lane", self.first, 60)

    def deliver(self, subject):
        """Accepted as soon as new mail comes into the local lane."""

        def accepted():
            with Client(self.first.port, timeout=60) as client:
                client.greet()
                return client.deliver(text_message(subject), "x@far.test").code == 250

        await_that(accepted, f"{subject} is accepted", self.first, 60)

    def test_mail_is_accepted_and_delivered_without_servers(self):
        self.first.start()
        self.cut_off()
        self.await_local_lane()
        host = self.open_host()
        self.deliver("delivered")
        await_that(lambda: self.subjects(host) == ["delivered"], "it is delivered", self.first, 60)
        self.assertIn("mail is accepted without a second copy", self.first.log.read_text())
        lines = self.command(self.first, "cluster", "status", "--json").splitlines()
        roles = [json.loads(line)["role"] for line in lines]
        self.assertEqual((roles.count("local"), roles.count("owner")), (1, 1))

    def test_what_is_left_when_the_servers_are_back_is_copied(self):
        self.first.start()
        before = self.fill(self.first, 3)
        self.cut_off()
        self.await_local_lane()
        self.deliver("left")
        self.heal()
        await_that(lambda: _COPIED in self.first.log.read_text(), "the mail is copied", self.first, 60)
        self.first.kill()
        shutil.rmtree(self.first.data)
        second = self.node("second")
        second.start()
        host = self.open_host()
        subjects = sorted([*before, "left"])
        self.assertEqual(self.await_delivery(host, subjects, second), subjects)

    def test_mail_of_a_node_that_was_cut_off_and_fenced_is_delivered_once(self):
        second = self.node("second")
        self.first.start()
        second.start()
        before = self.fill(self.first, 3)
        self.cut_off()
        self.await_local_lane()
        self.deliver("local")
        self.await_takeover(second)
        self.heal()
        self.assertEqual(self.first.process.wait(60), _LANE_LOST)
        self.first.start()
        self.await_queued(self.first, 1)
        host = self.open_host()
        subjects = sorted([*before, "local"])
        self.assertEqual(self.await_delivery(host, subjects, self.first), subjects)

    def test_a_node_starts_without_servers(self):
        self.first.start()
        before = self.fill(self.first, 3)
        self.first.kill()
        self.cut_off()
        self.first.start()
        self.deliver("alone")
        self.await_queued(self.first, 1)  # nobody knows who owns the lane of before
        self.heal()
        self.await_queued(self.first, 4)
        host = self.open_host()
        subjects = sorted([*before, "alone"])
        self.assertEqual(self.await_delivery(host, subjects, self.first), subjects)


if __name__ == "__main__":
    unittest.main()
