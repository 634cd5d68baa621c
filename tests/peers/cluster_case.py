"""Shared by the tests of clusters: NATS servers, nodes, and what becomes of the mail that they have accepted.

The mail goes to a host that is closed while it is accepted, so that it waits in the queue of a node.
"""

import json
import os
import subprocess
import unittest

from harness import Client, await_that
from hosts import Host
from nats_servers import BINARY, NatsServers
from outbound import OutboundCase, text_message
from peers.mailrace import route
from peers.smtp import free_port

MESSAGES = 30
LEASE_SECONDS = 3
# A host that comes back gets its mail soon.
_RETRY = 'first = "300ms", factor = 1.0, jitter = 0.0'
_PROBE = 'probe = { first = "300ms", factor = 1.0, longest = "300ms" }'
_CLUSTER = """
[cluster]
name = "test"
node = "{node}"
servers = [{servers}]
lease = "{lease}s"
"""


@unittest.skipUnless(os.access(BINARY, os.X_OK), "nats-server is missing")
class ClusterCase(OutboundCase):
    """Tests with three NATS servers, and nodes that deliver to one host."""

    def setUp(self):
        super().setUp()
        self.nats = self.ending(self.make_servers())
        self.nats.start()
        self.next_hop = free_port()

    def make_servers(self):
        """The NATS servers, which are not started yet."""
        return NatsServers(self.folder)

    def node(self, name, urls=None, smtp="", lease=LEASE_SECONDS, extra="", retry=_RETRY, **settings):
        """A node, which is not started yet."""
        servers = ", ".join(f'"{url}"' for url in urls or self.nats.urls)
        cluster = _CLUSTER.format(node=name, servers=servers, lease=lease)
        extra = route("far.test", f"[127.0.0.1]:{self.next_hop}") + cluster + extra
        return self.configure(name, extra=extra, retry=retry, smtp=_PROBE + smtp, **settings)

    def open_host(self):
        """The host that all mail waits for."""
        return self.ending(Host(port=self.next_hop))

    def fill(self, server, count=MESSAGES):
        """Sends messages, the last one too large for the log; returns their subjects."""
        subjects = [f"{server.folder.parent.name}-{number}" for number in range(count)]
        with Client(server.port) as client:
            client.greet()
            for subject in subjects:
                body = "x" * 70 + "\r\n"
                message = text_message(subject, body * (30_000 if subject is subjects[-1] else 20))
                reply = client.deliver(message, f"{subject}@far.test")
                self.assertEqual(reply.code, 250, reply)
        return subjects

    def subjects(self, host):
        """The subjects of the accepted messages, sorted."""
        found = [received.content.split(b"Subject: ", 1)[1].split(b"\r\n", 1)[0] for received in host.accepted]
        return sorted(subject.decode() for subject in found)

    def await_delivery(self, host, subjects, server):
        """Waits until each message has come, and returns those that came."""
        await_that(lambda: set(subjects) <= set(self.subjects(host)), f"{len(subjects)} messages", server, 60)
        return self.subjects(host)

    def queued(self, server):
        """The recipients that are queued on this node."""
        return int(self.command(server, "queue", "list", "--count", "--node", server.folder.parent.name))

    def await_queued(self, server, count):
        """Waits until so many recipients are queued on this node."""
        await_that(lambda: self.queued(server) == count, f"{count} recipients in the queue", server, 60)

    def await_known(self, *nodes):
        """Waits until each of these nodes knows all of them."""
        for server in nodes:
            words = ("cluster", "nodes", "--json")
            await_that(lambda server=server: len(self.command(server, *words).splitlines()) == len(nodes), "all nodes are known",
                       server, 60)  # fmt: skip

    def await_watched(self, server, count=1):
        """Waits until a node watches so many lanes of others."""
        await_that(lambda: self.watched_lanes(server) >= count, f"{count} lanes are watched", server, 60)

    def watched_lanes(self, server):
        """How many lanes of other nodes it watches."""
        lanes = map(json.loads, self.command(server, "cluster", "status", "--json").splitlines())
        return sum(lane["role"] == "watched" for lane in lanes)

    def metrics(self, server):
        """The metrics of this node: their values by name and labels."""
        words = ("status", "--json", "--node", server.folder.parent.name)
        return json.loads(self.command(server, *words))["metrics"]

    def command(self, server, *words):
        done = self.ended_command(server, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def ended_command(self, server, *words):
        """The result of a command, which may have failed."""
        argv = [str(server.binary), "--config", str(server.config), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    def await_takeover(self, *servers):
        """Waits until one of the servers has taken over a lane; returns that server."""
        def taken():
            return [one for one in servers if "took over a lane" in one.log.read_text()]

        return await_that(taken, "a lane is taken over", servers[0], 60)[0]
