"""What operators see and do in a cluster from any of its nodes: one queue, metrics, lanes taken over by hand."""

import http.client
import json
import signal
import socket
import subprocess
import time
import unittest

from cluster_case import LEASE_SECONDS, ClusterCase
from harness import await_that
from hosts import Host
from outbound import await_event, mail_events
from peers.mailrace import listener

_UNAVAILABLE = 69  # the exit status
_LONG_LEASE_SECONDS = 60  # others wait a third longer


class ClusterOperators(ClusterCase):
    def start_filled(self, lease=LEASE_SECONDS):
        """Two nodes with mail that waits; returns them, and its subjects."""
        first, second = (self.node(name, lease=lease) for name in ("first", "second"))
        for server in (first, second):
            server.start()
        subjects = [self.fill(first, 3), self.fill(second, 2)]
        self.await_known(first, second)
        return first, second, subjects

    def nodes(self, server):
        return self.rows(server, "cluster", "nodes")

    def is_alone(self, server):
        """Whether it knows no other node that lives. It does not while busy NATS servers do not answer in time."""
        done = self.ended_command(server, "cluster", "nodes", "--json")
        return done.returncode == 0 and len(done.stdout.splitlines()) == 1

    def rows(self, server, *words):
        return [json.loads(line) for line in self.command(server, *words, "--json").splitlines()]

    def oldest_rows_sent(self, server, node, limit, conditions):
        """The rows that a node sends to the server for a list of its oldest recipients."""
        request = {"node": node, "request": {"list-oldest": {"limit": limit, "filter": conditions}}}
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(server.data / "control.sock"))
            control.sendall(f"nodes {json.dumps(request)}\n".encode())
            with control.makefile() as lines:
                answer = json.loads(lines.readline())
        *rows, last = answer["answer"].splitlines()
        self.assertEqual(last, "done", answer)
        return rows

    def await_held(self, server):
        """Waits until all recipients are held: one whose attempt is under way is held when that has failed."""
        await_that(lambda: {row["state"] for row in self.rows(server, "queue", "list")} == {"held"}, "all are held", server)

    def attempt(self, server, *words):
        """A command that may fail."""
        argv = [str(server.binary), "--config", str(server.config), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    def test_a_queue_is_listed_and_changed_from_any_node(self):
        first, second, _ = self.start_filled()
        rows = self.rows(second, "queue", "list")
        self.assertEqual(sorted(row["node"] for row in rows), ["first"] * 3 + ["second"] * 2)
        self.assertEqual(int(self.command(second, "queue", "list", "--count")), 5)
        self.assertEqual((self.queued(first), self.queued(second)), (3, 2))
        self.assertIn("5 recipients to be held", self.command(second, "queue", "hold", "--all"))
        self.await_held(first)
        # The node that does it says who asked.
        await_that(lambda: "on node second" in first.log.read_text(), "who asked", first)
        released = self.command(second, "queue", "release", "--all", "--node", "first")
        self.assertIn("3 recipients to be released", released)
        await_that(lambda: "held" not in [row["state"] for row in self.rows(first, "queue", "list", "--node", "first")],
                   "released", first)  # fmt: skip
        self.assertEqual({row["state"] for row in self.rows(first, "queue", "list", "--node", "second")}, {"held"})
        there = next(row["id"] for row in rows if row["node"] == "first")
        explained = self.command(second, "explain", there)
        self.assertTrue(explained.startswith("# node first\n") and there in explained, explained)
        self.assertEqual([row["node"] for row in self.rows(second, "status")], ["first", "second"])

    def test_recipients_are_retried_removed_and_bounced_from_any_node(self):
        host = self.ending(Host(port=self.next_hop, script={"RCPT": lambda *_: "451 4.3.0 later"}))
        first, second = (self.node(name, retry='first = "1h", jitter = 0.0') for name in ("first", "second"))
        for server in (first, second):
            server.start()
        subjects = [*self.fill(first, 3), *self.fill(second, 2)]
        for server, count in ((first, 3), (second, 2)):
            await_that(lambda server=server, count=count: len(mail_events(server, "deferred")) == count, "all wait", server)
        self.await_known(first, second)
        host.script.clear()
        removed = self.command(second, "queue", "remove", "--recipient", "first-0@far.test")
        bounced = self.command(second, "queue", "bounce", "--recipient", "first-1@far.test")
        self.assertIn("1 recipient", removed)
        self.assertIn("1 recipient", bounced)
        await_event(first, "bounced", to="<first-1@far.test>")
        # The notice to the sender asks the DNS in vain: during that attempt nobody can retry it.
        await_that(lambda: self.queued(first) == 2, "one recipient and the notice are left", first)
        self.assertRegex(self.command(second, "queue", "retry", "--all"), r"(?m)^[34] recipients to be tried again$")
        self.assertEqual(self.await_delivery(host, subjects[2:], first), sorted(subjects[2:]))
        await_that(lambda: first.log.read_text().count("on node second") >= 3, "who asked", first)
        await_that(lambda: int(self.command(second, "queue", "list", "--count")) == 1, "the notice is left", second)

    def test_a_node_is_forgotten_when_others_have_its_lanes(self):
        first, second = (self.node(name, lease=60) for name in ("first", "second"))
        first.start()
        second.start()
        subjects = self.fill(first, 2)
        self.await_known(first, second)
        lane = next(row["lane"] for row in self.rows(first, "cluster", "status") if row["role"] == "owner")
        self.assert_refused("node first is alive", second, "cluster", "forget", "first", "--force")
        first.kill()
        await_that(lambda: self.is_alone(second), "first is not alive", second, 90)
        for target in ("first", lane):
            self.assert_refused("their mail would be lost; wait, or use --force", second, "cluster", "forget", target)
        self.command(second, "cluster", "adopt", lane)
        self.await_takeover(second)
        self.assertIn("first is forgotten", self.command(second, "cluster", "forget", "first"))
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, second), sorted(subjects))

    def test_a_node_is_forgotten_by_force_with_a_lane_that_nobody_can_take_over(self):
        first, second = self.node("first"), self.node("second")
        first.start()
        second.start()
        subjects = self.fill(first, 2)
        lane = next(row["lane"] for row in self.rows(first, "cluster", "status") if row["role"] == "owner")
        first.kill()
        # A record that no version can read: nobody may know what is in the lane.
        self.nats.request(f"mailrace.test.lane.{lane}.log")
        await_that(lambda: "cannot watch a lane" in second.log.read_text(), "the lane cannot be taken over", second)
        await_that(lambda: [row["node"] for row in self.nodes(second)] == ["second"], "first is not alive", second, 40)
        self.assert_refused(f"no node has taken over lane {lane}", second, "cluster", "forget", "first")
        forgotten = self.command(second, "cluster", "forget", "first", "--force")
        self.assertIn("first is forgotten; lanes given up with their mail: 1", forgotten)
        self.assertIn("forgot a lane", second.log.read_text())
        self.assertIn("error", self.nats.request(f"$JS.API.STREAM.INFO.mailrace-test-{lane}"))
        self.assertIn("given up with their mail: 0", self.command(second, "cluster", "forget", "first", "--force"))
        # Its disk is not lost after all.
        first.start()
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, first), sorted(subjects))

    def assert_refused(self, text, server, *words):
        """A command fails, and says why."""
        done = self.attempt(server, *words)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(text, done.stderr)

    def test_the_api_acts_and_lists_on_all_nodes(self):
        first, second = self.node("first", extra=listener("http", "api = true")), self.node("second")
        for server in (first, second):
            server.start()
        self.fill(first, 3)
        self.fill(second, 2)
        self.await_known(first, second)
        token = self.command(first, "token", "create", "--role", "operate").splitlines()[-1]

        def ask(path, content=None):
            """The status and the content of an answer."""
            connection = http.client.HTTPConnection("127.0.0.1", first.all_ports["http"][0], timeout=60)
            fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            body = None if content is None else json.dumps(content)
            connection.request("GET" if content is None else "POST", f"/api/v1/{path}", body, fields)
            answer = connection.getresponse()
            found = answer.status, json.loads(answer.read())
            connection.close()
            return found

        self.assertEqual([node["node"] for node in ask("cluster/nodes")[1]["nodes"]], ["first", "second"])
        self.assertIn("owner", [lane["role"] for lane in ask("cluster/lanes")[1]["lanes"]])
        listed = ask("cluster/recipients?limit=2")[1]["nodes"]
        self.assertEqual([(node["node"], len(node["recipients"]), node["has_more"]) for node in listed],
                         [("first", 2, True), ("second", 2, False)])  # fmt: skip
        self.assertEqual(len(self.oldest_rows_sent(first, "second", 1, {})), 1)
        # Of a filter that needs the messages, too: the first one does not pass.
        [passing] = self.oldest_rows_sent(first, "first", 1, {"recipient": "first-1@far.test"})
        self.assertEqual(json.loads(passing)["recipient"], "first-1@far.test")
        states = ask("cluster/status")[1]["nodes"]
        self.assertEqual([(node["node"], node["answer"]["metrics"]["mailrace_queue_recipients"]) for node in states],
                         [("first", 3), ("second", 2)])  # fmt: skip
        self.assertTrue(states[1]["answer"]["adapts"])
        groups = ask("cluster/summary?by=queue")[1]["nodes"]
        self.assertEqual([sum(group["recipients"] for group in node["answer"]["groups"]) for node in groups], [3, 2])
        there = listed[1]["recipients"][0]["id"]
        [explained] = ask(f"cluster/messages/{there}/explanation")[1]["nodes"]
        self.assertEqual((explained["node"], explained["answer"]["id"], explained["error"]), ("second", there, None))
        [routed] = ask("cluster/explanation?address=x@one.test&node=second")[1]["nodes"]
        self.assertEqual((routed["node"], routed["answer"]["address"]), ("second", "x@one.test"))
        status, held = ask("recipients/hold", {"all": True})
        counts = {node["node"]: node["recipients"] for node in held["nodes"]}
        self.assertEqual((status, held["recipients"], counts), (200, 5, {"first": 3, "second": 2}))
        self.await_held(first)
        self.assertEqual(ask("recipients/release?node=second", {"all": True})[1]["recipients"], 2)
        self.assertEqual(ask("cluster/lanes/none/adopt", {})[0], 422)
        second.process.kill()
        status, held = ask("recipients/hold", {"all": True})
        missing = {node["node"]: node for node in held["nodes"]}["second"]
        self.assertEqual((status, missing["recipients"], missing["in_attempt"]), (200, None, None))
        self.assertTrue(missing["error"])

    def test_a_reload_shows_the_new_configuration_to_other_nodes(self):
        first, second = self.node("first"), self.node("second")
        for server in (first, second):
            server.start()
        self.await_known(first, second)

        def shown():
            return {node["node"]: node["configuration"] for node in self.nodes(second)}["first"]

        before = shown()
        first.config.write_text(first.config.read_text() + '\n[[access]]\nclients = ["192.0.2.66"]\naction = "refuse"\n')
        self.command(first, "reload")
        await_that(lambda: shown() != before, "another configuration", first, 30)

    def test_a_node_that_does_not_answer_is_named(self):
        first, second, _ = self.start_filled(lease=60)  # nobody takes over its mail meanwhile
        second.process.kill()
        done = self.attempt(first, "queue", "list", "--count")
        # It is known for some seconds after its last sign of life.
        self.assertEqual((done.returncode, done.stdout.strip()), (_UNAVAILABLE, "3"), done.stderr)
        self.assertIn("node second ", done.stderr)
        self.assertEqual(self.attempt(first, "queue", "list", "--node", "first").returncode, 0)

    def test_what_a_node_could_not_begin_in_time_is_not_done_later(self):
        first, second = (self.node(name, lease=60) for name in ("first", "second"))
        for server in (first, second):
            server.start()
        self.fill(first, 1)
        self.fill(second, 2)
        self.await_known(first, second)
        second.process.send_signal(signal.SIGSTOP)
        try:
            done = self.attempt(first, "queue", "hold", "--all")
        finally:
            second.process.send_signal(signal.SIGCONT)
        self.assertEqual(done.returncode, _UNAVAILABLE, done.stderr)
        self.assertRegex(done.stderr, "node second does not answer: .*; nothing was done there")
        # The node answers in the order in which it was asked.
        await_that(lambda: self.attempt(first, "queue", "list", "--node", "second").returncode == 0, "it goes on", second)
        states = [row["state"] for row in self.rows(first, "queue", "list", "--node", "second")]
        self.assertEqual((len(states), "held" in states), (2, False), states)

    def test_metrics_show_leases_copies_and_lanes(self):
        first, second, _ = self.start_filled()
        found = self.metrics(first)
        self.assertEqual(found["mailrace_cluster_connected"], 1)
        self.assertEqual(found['mailrace_cluster_lanes{role="own"}'], 1)
        self.assertGreater(found["mailrace_cluster_lease_seconds"], 0)
        self.assertGreaterEqual(found['mailrace_cluster_batches_total{result="stored"}'], 3)
        await_that(lambda: self.metrics(first)["mailrace_cluster_stream_messages"] == 3, "three messages in the stream", first)
        await_that(lambda: self.metrics(first)["mailrace_cluster_nodes"] == 2, "two nodes", first, 30)
        self.await_watched(first)
        second.kill()
        self.await_takeover(first)
        await_that(lambda: self.metrics(first)['mailrace_cluster_lanes{role="adopted"}'] == 1, "adopted", first)
        self.assertEqual(self.metrics(first)["mailrace_cluster_takeovers_total"], 1)

    def test_a_lane_with_a_long_lease_is_taken_over_by_hand(self):
        first, second = (self.node(name, lease=_LONG_LEASE_SECONDS) for name in ("first", "second"))
        first.start()
        second.start()
        subjects = self.fill(first, 4)
        self.await_watched(second)
        lane = next(row["lane"] for row in self.rows(first, "cluster", "status") if row["role"] == "owner")
        refused = self.attempt(second, "cluster", "adopt", lane)
        self.assertEqual(refused.returncode, 1, refused)
        self.assertIn("node first", refused.stderr)
        first.kill()
        begin = time.monotonic()
        await_that(lambda: len(self.nodes(second)) == 1, "first is not alive", second, 90)
        self.assertIn("is taken over", self.command(second, "cluster", "adopt", lane))
        self.await_takeover(second)
        self.assertLess(time.monotonic() - begin, 1.25 * _LONG_LEASE_SECONDS)
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, second), sorted(subjects))


if __name__ == "__main__":
    unittest.main()
