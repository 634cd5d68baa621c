"""Refused recipients and their replies."""

import pathlib
import unittest

from harness import Client, Mailrace, ServerCase, folder, make_message


class Refusals(ServerCase):
    def reply_to(self, recipient):
        with Client(self.server.port) as client:
            client.greet()
            return client.envelope(recipient)

    def test_an_unknown_user_is_refused_at_rcpt(self):
        reply = self.reply_to("nobody-here@bench.test")
        self.assertTrue(reply.is_a(550, "5.1.1"), reply)

    def test_an_unknown_client_may_not_relay(self):
        reply = self.reply_to("someone@elsewhere.test")
        self.assertTrue(reply.is_a(550, "5.7.1"), reply)

    def test_postmaster_is_always_accepted(self):
        for recipient in ("postmaster@bench.test", "PostMaster@bench.test", "Postmaster"):
            reply = self.reply_to(recipient)
            self.assertEqual(reply.code, 250, f"{recipient}: {reply}")

    def test_a_refused_recipient_does_not_affect_the_others(self):
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.envelope("alice@bench.test").code, 250)
            self.assertEqual(client.say("RCPT TO:<nobody-here@bench.test>").code, 550)
            self.assertEqual(client.say("DATA").code, 354)
            client.write(make_message("for one") + b".\r\n")
            self.assertEqual(client.read().code, 250)
        self.assertEqual(len(self.await_messages("alice", 1)), 1)

    def test_common_address_syntax_errors_are_accepted(self):
        for recipient in ("alice@bench.test", "<alice@bench.test.>"):
            with Client(self.server.port) as client:
                client.greet()
                self.assertEqual(client.say("MAIL FROM:a@client.test").code, 250)
                self.assertEqual(client.say(f"RCPT TO:{recipient}").code, 250, recipient)
                self.assertTrue(client.say("RCPT TO:<alice>").is_a(501, "5.1.3"))


class RelayNetworks(ServerCase):
    """A client in the relay networks."""

    SERVER = {"users": ["alice"], "networks": ["127.0.0.1"]}

    def test_an_address_without_a_domain_gets_ours(self):
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("to a name"), "alice", sender="root").code, 250)
        [path] = self.await_messages("alice", 1)
        self.assertIn(b"Return-Path: <root@bench.test>", path.read_bytes())


class Deferred(unittest.TestCase):
    def test_relaying_by_an_unknown_client_is_deferred(self):
        made = folder()
        self.addCleanup(made.cleanup)
        server = Mailrace(pathlib.Path(made.name), users=["alice"])
        self.addCleanup(server.stop)
        server.config.write_text(server.config.read_text().replace("[relay]", '[relay]\nothers = "defer"'))
        server.start()
        with Client(server.port) as client:
            client.greet()
            reply = client.envelope("someone@elsewhere.test")
            self.assertTrue(reply.is_a(454, "4.7.1"), reply)


if __name__ == "__main__":
    unittest.main()
