"""When the machine is busy or short of room: what is refused, and when; what is taken in and waits.

    421 before EHLO    the load is high, or one client comes too often
    452, 451 at MAIL   there is no room for a message, or one client sends too many
    never              after DATA
"""

import contextlib
import pathlib
import subprocess
import unittest

from harness import Client
from outbound import OutboundCase, await_fact, facts, text_message
from peers.mailrace import route

RESERVED = "127.0.0.5"


class Load(OutboundCase):
    """Limits that any load is above, so that they are in force from the start."""

    def setUp(self):
        super().setUp()
        if float(pathlib.Path("/proc/loadavg").read_text().split()[0]) == 0:
            self.skipTest("the machine has a load average of zero")

    def serving(self, limit, **settings):
        self.one = self.host()
        extra = route("one.test", f"[127.0.0.1]:{self.one.port}")
        extra += f'\n[load]\nreserve = ["{RESERVED}/32"]\nmargin = 0.0\n{limit}\n'
        return self.start(extra=extra, **settings)

    def test_strangers_are_turned_away_before_ehlo_and_the_reserved_let_in(self):
        server = self.serving("refuse_above = 0.0001")
        with Client(server.port) as client:
            reply = client.read()
            self.assertTrue(reply.is_a(421, "4.3.2"), reply)
            self.assertTrue(client.is_closed())
        with Client(server.port, source=RESERVED) as client:
            client.greet()
            self.assertEqual(client.deliver(text_message(), "alice@bench.test").code, 250)
        await_fact(server, "delivered", to="<alice@bench.test>")

    def test_who_is_already_in_is_served_to_the_end(self):
        server = self.serving("refuse_above = 0.0001")
        with Client(server.port, source=RESERVED) as client:
            client.greet()
            for _ in range(3):
                self.assertEqual(client.deliver(text_message(), "alice@bench.test").code, 250)

    def test_mail_is_taken_in_and_waits(self):
        server = self.serving("queue_only_above = 0.0001")
        kept = self.send(server, "bob@one.test")
        listed = server._queue("list")
        self.assertIn(kept, listed)
        self.assertIn("waiting until", listed)
        server._queue("retry", "--id", kept)
        self.await_letters(self.one, 1, server)

    def test_nothing_leaves_while_nothing_may(self):
        server = self.serving("no_delivery_above = 0.0001\nqueue_only_above = 0.0001")
        kept = self.send(server, "bob@one.test", "alice@bench.test")
        server._queue("retry", "--id", kept)
        self.assertEqual(server.queued(), 2)
        self.assertEqual((facts(server, "delivered"), self.one.sessions), ([], []))

    def test_the_operator_sees_what_is_in_force(self):
        server = self.serving("refuse_above = 0.0001")
        argv = [str(server.binary), "load", "--config", str(server.config)]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertIn("/proc/loadavg", said)
        self.assertRegex(said, "refuse")
        self.assertIn("a load limit is in force", server.log.read_text())


class Room(OutboundCase):
    def assert_full(self, extra):
        server = self.start(extra=extra)
        with Client(server.port) as client:
            client.greet()
            for _ in range(2):
                reply = client.say("MAIL FROM:<sender@client.test>")
                self.assertTrue(reply.is_a(452, "4.3.1"), reply)
            self.assertEqual(client.say("NOOP").code, 250)

    def test_a_disk_without_room_puts_mail_off_at_mail(self):
        self.assert_full('\n[spool]\nspace_min = "1000000GiB"\n')

    def test_memory_that_is_short_puts_mail_off_at_mail(self):
        self.assert_full('\n[load]\nmemory_min = "1000000GiB"\n')


class Clients(OutboundCase):
    """Rates of one client, which the relay networks are exempt from."""

    def test_a_client_that_comes_too_often_is_turned_away(self):
        server = self.start(networks=[f"{RESERVED}/32"], limits='connections_per_client = "3/h"')
        with contextlib.ExitStack() as open_:
            clients = [open_.enter_context(Client(server.port)) for _ in range(3)]
            self.assertEqual([client.read().code for client in clients], [220] * 3)
            turned_away = open_.enter_context(Client(server.port)).read()
            self.assertTrue(turned_away.is_a(421, "4.7.0"), turned_away)
            for _ in range(5):
                self.assertEqual(open_.enter_context(Client(server.port, source=RESERVED)).read().code, 220)

    def test_a_client_that_sends_too_much_is_put_off_at_mail(self):
        server = self.start(networks=[f"{RESERVED}/32"], limits='messages_per_client = "2/h"')
        with Client(server.port) as client:
            client.greet()
            for _ in range(2):
                self.assertEqual(client.deliver(text_message(), "alice@bench.test").code, 250)
            reply = client.say("MAIL FROM:<sender@client.test>")
            self.assertTrue(reply.is_a(451, "4.7.1"), reply)


if __name__ == "__main__":
    unittest.main()
