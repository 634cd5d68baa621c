"""Addresses that are rewritten on the way out (`generic` of a transport): the next hop sees the new ones, and this host,
its mailboxes, its log and its notices keep the original ones.
"""

import unittest

from harness import await_messages, await_that, stuffed
from hosts import EXTENSIONS
from outbound import OutboundCase, await_event, mail_events
from test_outbound import routed
from test_reload import edit, reload

SEVEN_BIT = [word for word in EXTENSIONS if word not in ("8BITMIME", "SMTPUTF8")]
GENERIC = "alice@bench.test alice.b@isp.example\nbob bob@isp.example\n@host.test office@isp.example\nbad@bench.test @\n"
UNAVAILABLE = '\n[[table]]\nname = "generic"\ntype = "unavailable"\nreason = "test"\n'
MESSAGE = (
    'From: "Grün, A" <alice@bench.test>\r\nTo: bob@bench.test,\r\n\tAny <x@host.test> (alice@bench.test),\r\n y@d.test\r\n'
    "Subject: alice@bench.test\r\n\r\nDear alice@bench.test,\r\n.Grüße\r\n"
).encode()
SENT = MESSAGE.replace(b"<alice@bench.test>", b"<alice.b@isp.example>").replace(b"To: bob@bench.test", b"To: bob@isp.example")
SENT = SENT.replace(b"<x@host.test>", b"<office@isp.example>")


class Generic(OutboundCase):
    def table(self):
        """The section of the table."""
        path = self.folder / "generic"
        path.write_text(GENERIC)
        path.chmod(0o644)
        return f'\n[[table]]\nname = "generic"\ntype = "text"\npath = "{path}"\n'

    def serve(self, host, table=None, **named):
        """A server that rewrites for this host."""
        settings = {"smtp": 'generic = "generic"\ntls = "never"', "retry": 'first = "1s", jitter = 0.0'} | named
        return self.start(extra=(table or self.table()) + routed(host), **settings)

    def test_the_next_hop_sees_valid_addresses_and_local_mail_keeps_its_own(self):
        host = self.host()
        server = self.serve(host)
        self.send(server, "bob@bench.test", "x@host.test", "y@host.test", sender="alice@bench.test", message=stuffed(MESSAGE))
        (relayed,) = self.await_messages(host, 1, server)
        self.assertEqual(relayed.sender.split()[0], "FROM:<alice.b@isp.example>")
        self.assertEqual(relayed.recipients, ["TO:<office@isp.example>"] * 2)
        self.assertTrue(relayed.content.endswith(SENT), relayed.content)
        (path,) = await_messages(server, "bob", 1)
        stored = path.read_bytes()
        self.assertTrue(stored.endswith(MESSAGE), stored)
        self.assertTrue(stored.startswith(b"Return-Path: <alice@bench.test>"), stored)
        await_event(server, "delivered", to="<x@host.test>")
        self.assertEqual(mail_events(server, "received")[0].fields["from"], "<alice@bench.test>")

    def test_a_large_body_follows_the_new_header(self):
        host = self.host()
        server = self.serve(host)
        body = "".join(f"line {number} of alice@bench.test\r\n" for number in range(20_000)).encode()
        header = b"From: alice@bench.test\r\nSubject: large\r\n\r\n"
        self.send(server, "x@host.test", message=header + body)
        (relayed,) = self.await_messages(host, 1, server)
        self.assertTrue(relayed.content.endswith(header.replace(b"alice@bench.test", b"alice.b@isp.example") + body))

    def test_mail_is_converted_to_7_bits_with_its_new_header(self):
        host = self.host(extensions=SEVEN_BIT)
        server = self.serve(host)
        message = b"From: alice@bench.test\r\n\r\n" + "Grüße\r\n".encode()
        self.send(server, "x@host.test", message=message)
        (relayed,) = self.await_messages(host, 1, server)
        self.assertIn(b"From: alice.b@isp.example\r\n", relayed.content)
        self.assertTrue(relayed.content.endswith(b"\r\n\r\nGr=C3=BC=C3=9Fe\r\n"), relayed.content)

    def test_a_message_without_the_end_of_its_header_is_rewritten(self):
        host = self.host()
        server = self.serve(host)
        self.send(server, "x@host.test", message=b"Subject: x\r\nFrom: alice@bench.test\r\n")
        (relayed,) = self.await_messages(host, 1, server)
        self.assertIn(b"\r\nFrom: alice.b@isp.example\r\n", relayed.content)

    def test_notices_are_for_the_original_addresses(self):
        host = self.host(script={"RCPT": "550 5.1.1 no such user"})
        server = self.serve(host)
        self.send(server, "x@host.test", sender="alice@bench.test", message=stuffed(MESSAGE))
        (path,) = await_messages(server, "alice", 1)
        notice = path.read_bytes()
        self.assertIn(b"Final-Recipient: rfc822; x@host.test", notice.replace(b"rfc822;x", b"rfc822; x"))
        self.assertNotIn(b"isp.example", notice)

    def test_the_null_sender_stays(self):
        host = self.host()
        server = self.serve(host)
        self.send(server, "x@host.test", sender="", message=b"From: alice@bench.test\r\n\r\nx\r\n")
        (relayed,) = self.await_messages(host, 1, server)
        self.assertEqual(relayed.sender.split()[0], "FROM:<>")
        self.assertIn(b"From: alice.b@isp.example\r\n", relayed.content)

    def test_mail_waits_while_the_table_is_not_there(self):
        host = self.host()
        server = self.serve(host, UNAVAILABLE)
        self.send(server, "x@host.test", "bob@bench.test", sender="alice@bench.test", message=stuffed(MESSAGE))
        await_messages(server, "bob", 1)
        event = await_event(server, "deferred", to="<x@host.test>")
        self.assertEqual(event.reason, "451 4.3.0 unable to rewrite addresses: table 'generic': test")
        self.assertEqual(host.sessions, [])
        edit(server, UNAVAILABLE, self.table())
        self.assertEqual(reload(server).returncode, 0)
        (relayed,) = self.await_messages(host, 1, server)
        self.assertEqual(relayed.sender.split()[0], "FROM:<alice.b@isp.example>")
        self.assertTrue(relayed.content.endswith(SENT))
        await_that(lambda: not server.queued(), "an empty queue", server)

    def test_a_value_that_is_no_address_keeps_the_mail_here(self):
        host = self.host()
        server = self.serve(host)
        self.send(server, "x@host.test", sender="bad@bench.test")
        event = await_event(server, "deferred", to="<x@host.test>")
        self.assertIn("the value of bad@bench.test is not an address", event.reason)
        self.assertEqual(host.sessions, [])


if __name__ == "__main__":
    unittest.main()
