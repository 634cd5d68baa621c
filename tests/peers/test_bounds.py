"""Limits of a busy machine or a full disk: what is refused and when, and what is queued.

    421 before EHLO    the load is high, or a client connects too often
    452, 451 at MAIL   there is no space for a message, or a client sends too many
    never              after DATA
"""

import contextlib
import pathlib
import subprocess
import unittest

from harness import Client
from outbound import OutboundCase, await_event, mail_events, text_message
from peers.mailrace import route

RESERVED = "127.0.0.5"


class Load(OutboundCase):
    """Limits below any load, so that they apply from the start."""

    def setUp(self):
        super().setUp()
        if float(pathlib.Path("/proc/loadavg").read_text().split()[0]) == 0:
            self.skipTest("the machine has a load average of zero")

    def serving(self, limit, **settings):
        self.one = self.host()
        extra = route("one.test", f"[127.0.0.1]:{self.one.port}")
        extra += f'\n[load]\nreserve = ["{RESERVED}/32"]\nmargin = 0.0\n{limit}\n'
        return self.start(extra=extra, **settings)

    def test_clients_are_refused_before_ehlo_except_reserved_ones(self):
        server = self.serving("refuse_above = 0.0001")
        with Client(server.port) as client:
            reply = client.read()
            self.assertTrue(reply.is_a(421, "4.3.2"), reply)
            self.assertTrue(client.is_closed())
        with Client(server.port, source=RESERVED) as client:
            client.greet()
            self.assertEqual(client.deliver(text_message(), "alice@bench.test").code, 250)
        await_event(server, "delivered", to="<alice@bench.test>")

    def test_open_sessions_continue(self):
        server = self.serving("refuse_above = 0.0001")
        with Client(server.port, source=RESERVED) as client:
            client.greet()
            for _ in range(3):
                self.assertEqual(client.deliver(text_message(), "alice@bench.test").code, 250)

    def test_mail_is_accepted_and_queued(self):
        server = self.serving("queue_only_above = 0.0001")
        kept = self.send(server, "bob@one.test")
        listed = server._queue("list")
        self.assertIn(kept, listed)
        self.assertIn("waiting until", listed)
        server._queue("retry", "--id", kept)
        self.await_messages(self.one, 1, server)

    def test_nothing_is_delivered_above_the_limit(self):
        server = self.serving("no_delivery_above = 0.0001\nqueue_only_above = 0.0001")
        kept = self.send(server, "bob@one.test", "alice@bench.test")
        server._queue("retry", "--id", kept)
        self.assertEqual(server.queued(), 2)
        self.assertEqual((mail_events(server, "delivered"), self.one.sessions), ([], []))

    def test_limits_in_force_are_logged_and_shown(self):
        server = self.serving("refuse_above = 0.0001")
        argv = [str(server.binary), "load", "--config", str(server.config)]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertIn("/proc/loadavg", said)
        self.assertRegex(said, "refuse")
        self.assertIn("a load limit is in force", server.log.read_text())


class LowSpace(OutboundCase):
    def assert_full(self, extra):
        server = self.start(extra=extra)
        with Client(server.port) as client:
            client.greet()
            for _ in range(2):
                reply = client.say("MAIL FROM:<sender@client.test>")
                self.assertTrue(reply.is_a(452, "4.3.1"), reply)
            self.assertEqual(client.say("NOOP").code, 250)

    def test_a_full_disk_defers_mail_at_mail(self):
        self.assert_full('\n[spool]\nspace_min = "1000000GiB"\n')

    def test_low_memory_defers_mail_at_mail(self):
        self.assert_full('\n[load]\nmemory_min = "1000000GiB"\n')


class Clients(OutboundCase):
    """Rate limits of a client; relay networks are exempt."""

    def test_a_client_that_connects_too_often_is_refused(self):
        server = self.start(networks=[f"{RESERVED}/32"], limits='connections_per_client = "3/h"')
        with contextlib.ExitStack() as open_:
            clients = [open_.enter_context(Client(server.port)) for _ in range(3)]
            self.assertEqual([client.read().code for client in clients], [220] * 3)
            turned_away = open_.enter_context(Client(server.port)).read()
            self.assertTrue(turned_away.is_a(421, "4.7.0"), turned_away)
            for _ in range(5):
                self.assertEqual(open_.enter_context(Client(server.port, source=RESERVED)).read().code, 220)

    def test_a_client_that_sends_too_much_is_deferred_at_mail(self):
        server = self.start(networks=[f"{RESERVED}/32"], limits='messages_per_client = "2/h"')
        with Client(server.port) as client:
            client.greet()
            for _ in range(2):
                self.assertEqual(client.deliver(text_message(), "alice@bench.test").code, 250)
            reply = client.say("MAIL FROM:<sender@client.test>")
            self.assertTrue(reply.is_a(451, "4.7.1"), reply)


if __name__ == "__main__":
    unittest.main()
