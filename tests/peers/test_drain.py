"""`serve --drain-only`: the server takes nothing in, delivers what is in its spool, and ends."""

import re
import signal
import socket
import subprocess
import unittest

from harness import await_messages, await_that, mail_files
from outbound import OutboundCase, await_event, mail_events
from peers.mailrace import route
from peers.smtp import free_port

_MAIL_LEFT = 3  # the exit code
# A host that comes back gets its mail soon, however long it was away.
_RETRY = 'first = "200ms", factor = 1.0, jitter = 0.0'
_PROBE = 'probe = { first = "200ms", factor = 1.0, longest = "200ms" }'


class Drain(OutboundCase):
    def setUp(self):
        super().setUp()
        self.port, self.next_hop = free_port(), free_port()
        self.server = self.configure(
            address=f"127.0.0.1:{self.port}", extra=route("far.test", f"[127.0.0.1]:{self.next_hop}"), retry=_RETRY,
            smtp=_PROBE, concurrency=0,
        )  # fmt: skip

    def fill(self, *recipients, hold=None):
        """Puts a message for each recipient into the spool of a server, which then stops. Servers
        that start later deliver to Maildirs.
        """
        self.server.start()
        ids = [self.send(self.server, recipient) for recipient in recipients]
        if hold:
            self.command("queue", "hold", "--recipient", hold)
            await_event(self.server, "held", to=f"<{hold}>")
        self.assertEqual(self.server.terminate(), 0)
        text = self.server.config.read_text()
        self.server.config.write_text(re.sub(r"(?m)^concurrency = 0$", "concurrency = 10", text))
        return ids

    def command(self, *words, **options):
        argv = [str(self.server.binary), "--config", str(self.server.config), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, **options)

    def ended(self):
        """The exit status."""
        return self.server.process.wait(60)

    def assert_nothing_listens(self):
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def await_attempt(self):
        """Waits until the next hop is down for another attempt than those so far."""
        before = len(mail_events(self.server, "deferred"))
        await_that(lambda: len(mail_events(self.server, "deferred")) > before, "an attempt", self.server)

    def test_it_delivers_what_it_has_takes_nothing_in_and_ends(self):
        _, far = self.fill("alice@bench.test", "bob@far.test")
        self.server.start_draining()
        self.assertEqual(mail_events(self.server, "info", message="draining")[0].messages, "2")
        await_messages(self.server, "alice", 1)
        self.await_attempt()
        self.assert_nothing_listens()
        self.assertEqual(self.server.queued(), 1)
        # Not while an attempt is under way.
        await_that(lambda: "Connection refused" in self.command("explain", far).stdout, "an explanation", self.server)
        self.assertEqual(self.command("inject", "bob@bench.test", input="Subject: local\n\nx\n").returncode, 0)
        self.assertEqual(self.command("reload").returncode, 0)
        self.assert_nothing_listens()
        host = self.host(port=self.next_hop)
        self.assertEqual(self.ended(), 0)
        self.assertEqual(len(self.await_messages(host, 1, self.server)), 1)
        self.assertEqual(len(mail_events(self.server, "info", message="the queue is empty")), 1)
        self.assertEqual(len(mail_files(self.server.data / "drop")), 1)
        self.assertEqual(mail_events(self.server, "received", protocol="local"), [])
        self.server.start()
        await_messages(self.server, "bob", 1)  # of the local program, and now taken in
        self.assertEqual(len(mail_files(self.server.maildir("alice") / "new")), 1)

    def test_it_delivers_the_notices_that_it_causes(self):
        self.fill("bob@far.test")
        self.host(port=self.next_hop, script={"RCPT": "550 5.1.1 no"})
        self.server.start_draining()
        self.assertEqual(self.ended(), 0)
        (notice,) = mail_files(self.server.maildir("alice") / "new")
        self.assertIn(b"Final-Recipient: rfc822; bob@far.test", notice.read_bytes())

    def test_messages_that_have_to_be_classified_first_are_waited_for(self):
        recipients = [f"user{number}@far.test" for number in range(20)]
        self.fill(*recipients)
        by_header = '\n[[queue]]\nname = "lists"\nheaders = ["List-Id: *"]\n'
        self.server.config.write_text(self.server.config.read_text() + by_header)
        host = self.host(port=self.next_hop)
        self.server.start_draining()
        self.assertEqual(self.ended(), 0)
        self.assertEqual(len(host.accepted), len(recipients))

    def test_an_empty_queue_is_drained_at_once(self):
        self.fill()
        self.server.start_draining()
        self.assertEqual(self.ended(), 0)

    def test_held_mail_is_left_and_reported(self):
        self.fill("alice@bench.test", "bob@bench.test", hold="bob@bench.test")
        self.server.start_draining()
        self.assertEqual(self.ended(), _MAIL_LEFT)
        await_messages(self.server, "alice", 1)
        (event,) = mail_events(self.server, "warning", message="only held messages are left")
        self.assertEqual(event.messages, "1")
        self.assertIn("messages left in the queue: 1", self.server.log_tail())

    def test_mail_that_is_released_meanwhile_is_delivered(self):
        self.fill("alice@bench.test", "bob@far.test", hold="alice@bench.test")
        self.server.start_draining()
        self.assertEqual(self.command("queue", "release", "--all").returncode, 0)
        self.host(port=self.next_hop)
        self.assertEqual(self.ended(), 0)
        await_messages(self.server, "alice", 1)

    def test_sigterm_ends_it_and_its_exit_code_says_that_mail_is_left(self):
        self.fill("bob@far.test")
        self.server.start_draining()
        self.await_attempt()
        self.server.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.ended(), _MAIL_LEFT)
        self.server.start()
        self.assertEqual(self.server.queued(), 1)


if __name__ == "__main__":
    unittest.main()
