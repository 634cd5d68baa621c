"""Operator commands for queued mail, seen from the next hop and from the sender."""

import json
import os
import pty
import subprocess
import unittest

from harness import await_messages, await_that
from outbound import OutboundCase, await_event, mail_events, metrics, text_message
from peers.mailrace import route


class Operator(OutboundCase):
    """A server with queued mail: the next hop replied 450 to the first attempt and would accept the
    second.
    """

    def setUp(self):
        super().setUp()
        self.replies = {"RCPT": "450 4.2.1 later"}
        self.one = self.host(script=self.replies)
        self.server = self.start(
            extra=route("one.test", f"[127.0.0.1]:{self.one.port}") + route("two.test", f"[127.0.0.1]:{self.one.port}"),
            retry='first = "1h", jitter = 0.0',
        )
        self.kept = self.send(self.server, "bob@one.test", "carol@two.test")
        await_that(lambda: len(mail_events(self.server, "deferred")) == 2, "two deferred", self.server)
        self.one.script.clear()

    def queue(self, *words):
        return self.server._queue(*words)

    def came(self, count=1):
        return [received.recipients for received in self.await_messages(self.one, count, self.server)]

    def test_retry_sends_selected_mail_now(self):
        self.queue("retry", "--destination", "one.test")
        self.assertEqual(self.came(), [["TO:<bob@one.test>"]])
        # The next hop has the message before its outcome is recorded.
        await_that(lambda: self.server.queued() == 1, "one recipient in the queue", self.server)

    def test_the_list_shows_the_last_error_and_can_be_filtered_by_it(self):
        self.assertEqual(self.queue("list", "--count", "--error", "4.2.1 later").split()[0], "2")
        self.assertEqual(self.queue("list", "--count", "--error", "no such text").split()[0], "0")
        self.assertIn("450 4.2.1 later", self.queue("list", "--json"))
        by_destination = self.queue("list", "--by", "destination")
        self.assertIn("one.test", by_destination)
        self.assertIn("two.test", by_destination)

    def test_held_mail_stays_until_it_is_released(self):
        self.queue("hold", "--recipient", "carol@two.test")
        await_event(self.server, "held", to="<carol@two.test>")
        self.queue("retry", "--all")
        self.came()
        await_that(lambda: self.server.queued() == 1, "one recipient in the queue", self.server)
        self.server.terminate()
        self.server.start()
        self.assertEqual(self.server.queued(), 1)
        self.queue("release", "--all")
        self.assertEqual(self.came(2)[1], ["TO:<carol@two.test>"])
        await_event(self.server, "released", to="<carol@two.test>")
        self.assertEqual(len(mail_events(self.server, "deferred")), 2, "a release was logged as a deferral")

    def test_a_release_is_logged_as_a_release_and_not_as_a_deferral(self):
        before = metrics(self.server)['mailrace_outcomes_total{outcome="deferred"}']
        self.queue("hold", "--all")
        await_event(self.server, "held", to="<bob@one.test>")
        self.queue("release", "--recipient", "bob@one.test")
        await_event(self.server, "released", to="<bob@one.test>")
        self.came()
        self.queue("release", "--recipient", "carol@two.test")
        await_event(self.server, "released", to="<carol@two.test>")
        self.came(2)
        self.assertEqual(len(mail_events(self.server, "deferred")), 2, "only the first attempts are deferrals")
        self.assertEqual(metrics(self.server)['mailrace_outcomes_total{outcome="deferred"}'], before)

    def test_a_retry_is_no_deferral_either(self):
        self.queue("retry", "--all")
        self.came(2)
        await_that(lambda: self.server.queued() == 0, "an empty queue", self.server)
        self.assertEqual(len(mail_events(self.server, "deferred")), 2, "only the first attempts are deferrals")

    def test_removed_mail_is_gone_without_a_notice(self):
        self.queue("remove", "--sender", "alice@bench.test")
        await_that(lambda: self.server.queued() == 0, "an empty queue", self.server)
        await_that(lambda: len(mail_events(self.server, "removed")) == 2, "two removals in the log", self.server)
        self.server.terminate()
        self.server.start()
        self.assertEqual((self.server.queued(), self.one.messages), (0, []))

    def test_failed_mail_bounces_to_the_sender(self):
        self.queue("bounce", "--id", self.kept)
        content = b"".join(path.read_bytes() for path in await_messages(self.server, "alice", 2))
        for recipient in (b"bob@one.test", b"carol@two.test"):
            self.assertIn(b"Final-Recipient: rfc822; " + recipient, content)
        self.assertEqual(self.one.messages, [])

    def test_a_queue_that_is_paused_keeps_its_mail(self):
        self.queue("pause", "standard")
        self.queue("retry", "--all")
        self.send(self.server, "dave@one.test", "alice@bench.test")
        await_event(self.server, "delivered", to="<alice@bench.test>")
        self.assertEqual(self.one.messages, [])
        self.assertEqual(metrics(self.server)['mailrace_queue_paused{queue="standard"}'], 1)
        self.queue("resume", "standard")
        self.came(3)

    def test_explain_shows_the_route_and_why_a_message_waits(self):
        self.assertIn(f"127.0.0.1:{self.one.port}", self.explain("someone@one.test"))
        self.assertIn("450 4.2.1 later", self.explain(self.kept))

    def test_explain_reports_held_only_for_mail_held_by_the_operator(self):
        self.assertIn("<bob@one.test>: waiting for its next attempt at ", self.explain(self.kept))
        self.assertNotIn("held", self.explain(self.kept))
        self.queue("hold", "--recipient", "bob@one.test")
        await_event(self.server, "held", to="<bob@one.test>")
        self.assertIn("<bob@one.test>: held by the operator", self.explain(self.kept))

    def test_explain_follows_the_route_of_mail_for_the_postmaster(self):
        self.send(self.server, "postmaster@mx.bench.test")
        await_event(self.server, "delivered", to="<postmaster@bench.test>")
        told = self.explain("postmaster@mx.bench.test")
        self.assertIn("postmaster@mx.bench.test: the postmaster of this host, postmaster@bench.test", told)
        self.assertIn("route: local mailbox", told)

    def test_recipients_are_selected_by_their_state(self):
        self.queue("hold", "--recipient", "carol@two.test")
        await_event(self.server, "held", to="<carol@two.test>")
        self.assertIn("<carol@two.test>", self.queue("list", "--state", "held"))
        self.assertIn("<bob@one.test>", self.queue("list", "--state", "waiting"))
        counts = [int(self.queue("list", "--count", "--state", state)) for state in ("held", "waiting,held", "active")]
        self.assertEqual(counts, [1, 2, 0])
        self.queue("pause", "standard")
        self.send(self.server, "dave@one.test")
        await_that(lambda: int(self.queue("list", "--count", "--state", "ready")) == 1, "one ready recipient", self.server)
        self.queue("remove", "--state", "active")
        await_event(self.server, "removed", to="<dave@one.test>")
        self.assertEqual(self.server.queued(), 2)

    def test_a_message_is_shown_with_its_recipients_and_its_header(self):
        shown = self.queue("show", self.kept)
        for part in ("from <alice@bench.test>", "<bob@one.test>: waiting until ", "last reply: 450 4.2.1 later",
                     f"queue standard, next hop smtp:127.0.0.1:{self.one.port}", "  Subject: hello",
                     f"look for {self.kept} in the server's standard error",
                     "client: 127.0.0.1"):  # fmt: skip
            self.assertIn(part, shown)
        told = json.loads(self.queue("show", "--json", self.kept))
        states = [(one["recipient"], one["state"], one["attempts"]) for one in told["recipients"]]
        self.assertEqual(states, [("bob@one.test", "waiting", 1), ("carol@two.test", "waiting", 1)])
        self.assertIn("Subject: hello\r\n", told["header"])

    def test_a_message_is_copied_byte_for_byte_however_long_it_is(self):
        body = b"".join(b"%d \xff\x1b\r\ndone\r\n\r\n" % number for number in range(80_000))
        self.queue("pause", "standard")
        kept = self.send(self.server, "dave@one.test", message=text_message().split(b"\r\n\r\n")[0] + b"\r\n\r\n" + body,
                         mail="BODY=8BITMIME")  # fmt: skip
        done = self.mailrace("queue", "show", "--message", kept)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        header, _, copied = done.stdout.partition(b"\r\n\r\n")
        self.assertTrue(copied == body, f"{len(copied)} bytes, expected {len(body)}")
        self.assertTrue(header.startswith(b"Received: ") and header.endswith(b"Subject: hello"), header)
        self.assertEqual(self.mailrace("queue", "show", "--header", kept).stdout, header + b"\r\n\r\n")

    def test_a_removed_message_cannot_be_shown(self):
        self.queue("remove", "--all")
        await_that(lambda: self.server.queued() == 0, "an empty queue", self.server)
        for how in ((), ("--json",), ("--header",), ("--message",)):
            done = self.mailrace("queue", "show", self.kept, *how)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertIn(f"no message {self.kept} in the queue", done.stderr.decode())
        self.assertEqual(self.mailrace("queue", "show", "bob").returncode, 64)

    def test_untrusted_text_cannot_control_the_terminal(self):
        self.one.script["RCPT"] = "450 4.2.1 go \u202e away \x1b[2J"
        header = "Subject: \x1b[2J\u2066x\r\n\r\n"
        hostile = self.send(self.server, "c\u202ed\u200b\U000e0041@one.test", sender="a\u2028b@bench.test",
                            message=header.encode() + b"hello\r\n", mail="SMTPUTF8")  # fmt: skip
        self.queue("retry", "--all")
        await_that(lambda: len(mail_events(self.server, "deferred")) >= 4, "two more deferred", self.server)
        self.queue("pause", "standard")
        self.send(self.server, "e\u202ef@one.test", mail="SMTPUTF8")
        said = [self.mailrace(*words) for words in (
            ("queue", "list"), ("queue", "list", "--json"), ("queue", "list", "--by", "sender"),
            ("queue", "list", "--by", "destination"), ("explain", self.kept), ("queue", "show", self.kept),
        )]  # fmt: skip
        for done in said:
            self.assertEqual(done.returncode, 0, done.stderr)
            raw = [c for c in done.stdout.decode() if c in "\u202e\u2028\u2066\u200b\U000e0041\x1b"]
            self.assertEqual(raw, [], done.args)
        self.assertIn(b"e\\u202ef@one.test", said[0].stdout)
        recipients = [json.loads(line)["recipient"] for line in said[1].stdout.decode().splitlines()]
        self.assertIn("e\u202ef@one.test", recipients)
        self.assertNotEqual(hostile, self.kept)

    def test_a_message_is_escaped_on_a_terminal(self):
        self.queue("pause", "standard")
        kept = self.send(self.server, "dave@one.test", message=b"Subject: x\r\n\r\n\x1b[2Jhello\r\n")
        ours, theirs = pty.openpty()
        argv = [str(self.server.binary), "queue", "show", "--message", kept, "--config", str(self.server.config)]
        subprocess.run(argv, stdout=theirs, timeout=60, check=True)
        os.close(theirs)
        told = os.read(ours, 65536)
        os.close(ours)
        self.assertIn(b"\\u001b[2Jhello", told)
        self.assertNotIn(b"\x1b", told)

    def test_a_closed_pipe_is_no_error(self):
        for words in (("queue", "list"), ("queue", "show", self.kept, "--message"), ("status",), ("explain", self.kept),
                      ("check",), ("completions", "bash")):  # fmt: skip
            reader, writer = os.pipe()
            os.close(reader)
            argv = [str(self.server.binary), *words, "--config", str(self.server.config)]
            done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, timeout=60)
            os.close(writer)
            said = [line for line in done.stderr.splitlines() if b"configuration: " not in line]
            self.assertEqual((done.returncode, said), (0, []), words)

    def explain(self, what):
        argv = [str(self.server.binary), "explain", what, "--config", str(self.server.config)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout

    def mailrace(self, *words):
        """Runs a command with any exit status; its output is bytes."""
        argv = [str(self.server.binary), *words, "--config", str(self.server.config)]
        return subprocess.run(argv, capture_output=True, timeout=60)


class ActsAndRestarts(OutboundCase):
    """A hold of many messages, of which only one can be recorded at a time."""

    MESSAGES = 100

    def setUp(self):
        super().setUp()
        hop = self.host(script={"RCPT": "450 4.2.1 later"})
        limit = "\n[queues]\nunrecorded = 2\n"
        self.server = self.start(extra=route("one.test", f"[127.0.0.1]:{hop.port}") + limit)
        for _ in range(self.MESSAGES):
            self.send(self.server, "bob@one.test")
        await_that(lambda: len(mail_events(self.server, "deferred")) == self.MESSAGES, "all deferred", self.server)

    def held(self):
        return int(self.server._queue("list", "--count", "--state", "held").split()[0])

    def test_a_hold_that_was_answered_survives_a_kill(self):
        """It was answered before it was recorded; the mail left after the restart."""
        self.assertIn(f"{self.MESSAGES} recipients", self.server._queue("hold", "--all"))
        self.server.kill()
        self.server.start()
        self.assertEqual(self.held(), self.MESSAGES)

    def test_a_stop_records_what_a_hold_has_selected(self):
        """The stop dropped what was selected and not recorded."""
        argv = [str(self.server.binary), "queue", "hold", "--all", "--config", str(self.server.config)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as hold:
            await_event(self.server, "held")
            self.server.terminate()
            hold.communicate(timeout=60)
        self.server.start()
        self.assertEqual(self.held(), self.MESSAGES)


if __name__ == "__main__":
    unittest.main()
