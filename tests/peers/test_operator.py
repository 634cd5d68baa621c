"""What the operator decides about mail on its way to others, seen from the next hop and from the sender."""

import subprocess
import unittest

from harness import await_letters, await_that
from outbound import OutboundCase, await_fact, facts, metrics
from peers.mailrace import route


class Operator(OutboundCase):
    """A server whose mail all waits, since its next hop said 450 to the first try and would take the second."""

    def setUp(self):
        super().setUp()
        self.replies = {"RCPT": "450 4.2.1 later"}
        self.one = self.host(script=self.replies)
        self.server = self.start(
            extra=route("one.test", f"[127.0.0.1]:{self.one.port}") + route("two.test", f"[127.0.0.1]:{self.one.port}")
        )
        self.kept = self.send(self.server, "bob@one.test", "carol@two.test")
        await_that(lambda: len(facts(self.server, "deferred")) == 2, "two deferred", self.server)
        self.one.script.clear()

    def queue(self, *words):
        return self.server._queue(*words)

    def came(self, count=1):
        return [letter.recipients for letter in self.await_letters(self.one, count, self.server)]

    def test_retry_sends_what_waits_now_and_leaves_the_rest(self):
        self.queue("retry", "--destination", "one.test")
        self.assertEqual(self.came(), [["TO:<bob@one.test>"]])
        self.assertEqual(self.server.queued(), 1)

    def test_the_list_tells_the_last_error_and_can_be_filtered_by_it(self):
        self.assertEqual(self.queue("list", "--count", "--error", "4.2.1 later").split()[0], "2")
        self.assertEqual(self.queue("list", "--count", "--error", "no such text").split()[0], "0")
        self.assertIn("450 4.2.1 later", self.queue("list", "--json"))
        by_destination = self.queue("list", "--by", "destination")
        self.assertIn("one.test", by_destination)
        self.assertIn("two.test", by_destination)

    def test_what_is_held_stays_whatever_happens_until_it_is_released(self):
        self.queue("hold", "--recipient", "carol@two.test")
        await_fact(self.server, "held", to="<carol@two.test>")
        self.queue("retry", "--all")
        self.came()
        self.server.terminate()
        self.server.start()
        self.assertEqual(self.server.queued(), 1)
        self.queue("release", "--all")
        self.assertEqual(self.came(2)[1], ["TO:<carol@two.test>"])
        await_fact(self.server, "released", to="<carol@two.test>")
        self.assertEqual(len(facts(self.server, "deferred")), 2, "a release is no deferral")

    def test_what_is_removed_is_gone_and_nobody_is_told(self):
        self.queue("remove", "--sender", "alice@bench.test")
        await_that(lambda: self.server.queued() == 0, "an empty queue", self.server)
        await_that(lambda: len(facts(self.server, "removed")) == 2, "two lines in the log", self.server)
        self.server.terminate()
        self.server.start()
        self.assertEqual((self.server.queued(), self.one.letters), (0, []))

    def test_what_is_given_up_is_told_to_the_sender(self):
        self.queue("bounce", "--id", self.kept)
        content = b"".join(path.read_bytes() for path in await_letters(self.server, "alice", 2))
        for recipient in (b"bob@one.test", b"carol@two.test"):
            self.assertIn(b"Final-Recipient: rfc822; " + recipient, content)
        self.assertEqual(self.one.letters, [])

    def test_a_queue_that_is_paused_keeps_its_mail(self):
        self.queue("pause", "standard")
        self.queue("retry", "--all")
        self.send(self.server, "dave@one.test", "alice@bench.test")
        await_fact(self.server, "delivered", to="<alice@bench.test>")
        self.assertEqual(self.one.letters, [])
        self.assertEqual(metrics(self.server)['mailrace_queue_paused{queue="standard"}'], 1)
        self.queue("resume", "standard")
        self.came(3)

    def test_explain_says_where_mail_would_go_and_what_holds_a_message(self):
        self.assertIn(f"127.0.0.1:{self.one.port}", self.explain("someone@one.test"))
        self.assertIn("450 4.2.1 later", self.explain(self.kept))

    def explain(self, what):
        argv = [str(self.server.binary), "explain", what, "--config", str(self.server.config)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


if __name__ == "__main__":
    unittest.main()
