"""How nodes start: without NATS servers, and without the disk that had their mail. And what a server without a cluster
does not run.
"""

import collections
import pathlib
import shutil
import socket
import unittest

from cluster_case import ClusterCase
from harness import await_that, mail_files
from nats_servers import TcpProxy
from outbound import send
from peers.smtp import free_port

_MESSAGES = 5
_GREETING_SECONDS_MAX = 30
_WAITS = "waiting for the NATS servers: nothing is accepted or delivered before they answer"
_HOSTS = """
[[table]]
name = "users"
type = "static"
values = ["yes"]

[[table]]
name = "hosts"
type = "static"
values = ["[127.0.0.1]:{port}"]

[[domain]]
name = "shared.test"
mailboxes = "users"
hosts = "hosts"
transport = "maildir"
"""


class ClusterStart(ClusterCase):
    def test_a_node_without_servers_refuses_connections_and_delivers_nothing(self):
        proxies = [self.ending(TcpProxy(port)) for port in self.nats.ports]
        urls = [f"nats://127.0.0.1:{proxy.port}" for proxy in proxies]
        server = self.node("only", urls, address=f"127.0.0.1:{free_port()}")
        server.start()
        subjects = self.fill(server, _MESSAGES)
        server.kill()
        for proxy in proxies:
            proxy.cut()
        host = self.open_host()
        server.start_until(_WAITS)
        with self.assertRaises(ConnectionRefusedError, msg="a client goes on to the next host at once"):
            greeting(server.port)
        self.assertEqual(self.subjects(host), [], "delivered, although another node may have the lane")
        for proxy in proxies:
            proxy.heal()
        self.assertEqual(self.await_delivery(host, subjects, server), sorted(subjects))
        await_that(lambda: is_open(server.port), "the port is open", server)
        self.assertEqual(greeting(server.port), b"220")

    def test_a_lone_node_that_lost_its_disk_restores_its_mail_from_the_servers(self):
        server = self.node("only")
        server.start()
        subjects = self.fill(server)
        server.kill()
        shutil.rmtree(server.data)
        server.start()
        self.await_takeover(server)
        self.await_queued(server, len(subjects))
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, server), sorted(subjects))

    def test_the_next_owner_sends_mail_to_the_host_that_stores_the_mailbox(self):
        first, second = (self.node(name, extra=_HOSTS.format(port=self.next_hop)) for name in ("first", "second"))
        first.start()
        second.start()
        send(first, "alice@shared.test")
        first.kill()
        shutil.rmtree(first.data)
        self.await_takeover(second)
        self.await_queued(second, 1)
        host = self.open_host()
        await_that(lambda: host.accepted, "the host has the message", second, 60)
        self.assertEqual(host.accepted[0].recipients, ["TO:<alice@shared.test>"])
        self.assertEqual(mail_files(second.maildir("alice", "shared.test") / "new"), [])


class Threads(ClusterCase):
    def test_a_server_without_a_cluster_has_none_of_its_threads(self):
        alone, node = self.configure("alone"), self.node("only")
        for server in (alone, node):
            server.start()
        without, having = thread_names(alone), thread_names(node)
        of_cluster = {"cluster", "cluster-disk"}  # the second one runs while folders are worked on
        self.assertFalse(of_cluster & set(without), without)
        self.assertGreater(having["cluster"], 0, having)
        self.assertLessEqual(set(having) - set(without), of_cluster)


def greeting(port):
    """The reply code of the greeting."""
    with socket.create_connection(("127.0.0.1", port), _GREETING_SECONDS_MAX) as connection:
        return connection.recv(3)


def is_open(port):
    """Whether a server listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def thread_names(server):
    """How many threads of each name the server has."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    return collections.Counter(path.read_text().strip() for path in tasks.glob("*/comm"))


if __name__ == "__main__":
    unittest.main()
