"""What a node takes over with a lane: holds and other acts of operators, the states of recipients, and notices to senders,
none of which is sent again. And that the lanes of a node are spread over those that live.
"""

import shutil
import unittest

from cluster_case import ClusterCase
from harness import await_that
from hosts import Host
from outbound import send
from peers.mailrace import route

_LANES = 10
_NOTICES = """
[bounce]
delay_notice_after = "1s"
"""


def answer(_session, argument):
    """The next hop refuses one recipient for ever, and all others for now."""
    return "550 5.1.1 who is that" if "bounced@" in argument else "451 4.3.0 later"


class Adoption(ClusterCase):
    def setUp(self):
        super().setUp()
        self.home = self.ending(Host())  # of the sender
        self.host = self.ending(Host(port=self.next_hop, script={"RCPT": answer}))

    def send_to(self, server, *names):
        for name in names:
            send(server, f"{name}@far.test", sender="sender@home.test")

    def notices(self):
        """What the sender was told: (action, recipient), sorted."""
        found = []
        for received in self.home.accepted:
            lines = received.content.decode().splitlines()
            values = dict(line.split(": ", 1) for line in lines if line.startswith(("Final-Recipient: ", "Action: ")))
            found.append((values["Action"], values["Final-Recipient"].partition("; ")[2]))
        return sorted(found)

    def rows(self, server):
        """The recipients in the queue of a node, with their states."""
        words = ("queue", "list", "--node", server.folder.parent.name, "--json")
        return self.command(server, *words)

    def test_holds_acts_and_notices_are_kept_and_not_doubled(self):
        extra = route("home.test", f"[127.0.0.1]:{self.home.port}") + _NOTICES
        first, second = (self.node(name, extra=extra) for name in ("first", "second"))
        first.start()
        second.start()
        self.send_to(first, "bounced", "delayed", "held", "removed")
        self.command(first, "queue", "hold", "--recipient", "held@far.test")
        self.command(first, "queue", "remove", "--recipient", "removed@far.test")
        expected = [("delayed", "delayed@far.test"), ("failed", "bounced@far.test")]
        await_that(lambda: set(expected) <= set(self.notices()), "a bounce and a notice of the delay", first)
        # The host has a notice before the node has recorded that.
        self.await_queued(first, 2)
        told = self.notices()
        self.await_copies(first)
        first.kill()
        shutil.rmtree(first.data)
        self.await_takeover(second)
        rows = self.rows(second)
        self.assertEqual(("held@far.test" in rows, "removed@far.test" in rows, "bounced@far.test" in rows), (True, False, False))
        self.host.script.clear()
        await_that(lambda: self.came() == ["delayed"], "the delayed message", second)
        self.assertIn('"held"', self.rows(second))
        self.command(second, "queue", "release", "--recipient", "held@far.test", "--node", "second")
        await_that(lambda: self.came() == ["delayed", "held"], "the held message", second)
        await_that(lambda: self.queued(second) == 0, "an empty queue", second)
        self.assertEqual(self.notices(), told, "a notice came twice")

    def await_copies(self, server):
        """Waits until the servers have all outcomes of a node."""
        words = ("status", "--json", "--node", server.folder.parent.name)
        await_that(lambda: '"mailrace_cluster_waiting_bytes":0' in self.command(server, *words).replace(" ", ""),
                   "all is copied", server)  # fmt: skip

    def came(self):
        """The recipients whose mail the host has taken."""
        found = (recipient.partition("<")[2].partition("@")[0] for one in self.host.accepted for recipient in one.recipients)
        return sorted(found)

    def test_a_bounce_that_waits_moves_with_the_queue_and_comes_once(self):
        home = self.home.port
        self.home.stop()
        extra = route("home.test", f"[127.0.0.1]:{home}")
        first, second = (self.node(name, extra=extra) for name in ("first", "second"))
        first.start()
        second.start()
        self.send_to(first, "bounced")
        await_that(lambda: '"sender@home.test"' in self.rows(first), "the bounce waits", first)
        self.await_copies(first)
        first.kill()
        shutil.rmtree(first.data)
        self.await_takeover(second)
        self.home = self.ending(Host(port=home))
        await_that(lambda: self.queued(second) == 0, "an empty queue", second)
        self.assertEqual(self.notices(), [("failed", "bounced@far.test")])

    def test_the_lanes_of_a_node_are_spread_over_those_that_live(self):
        folders = [self.folder / "first" / f"lane-{number}" for number in range(_LANES)]
        for folder in folders:
            folder.mkdir(parents=True)
            folder.chmod(0o777)
        lanes = ", ".join(f'"{folder}"' for folder in folders)
        first = self.node("first", extra=f"\n[spool]\nlanes = [{lanes}]\n")
        others = [self.node(name) for name in ("second", "third")]
        for server in (first, *others):
            server.start()
        for server in others:
            self.await_watched(server, _LANES)
        first.kill()

        def counts():
            found = [server.log.read_text().count("took over a lane") for server in others]
            return found if sum(found) == _LANES else None

        found = await_that(counts, "all lanes are taken over", others[0], 60)
        self.assertGreater(min(found), 0, found)


if __name__ == "__main__":
    unittest.main()
