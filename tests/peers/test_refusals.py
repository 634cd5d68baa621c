"""Who is refused, and by which reply."""

import unittest

from harness import Client, ServerCase, letter


class Refusals(ServerCase):
    def reply_to(self, recipient):
        with Client(self.server.port) as client:
            client.greet()
            return client.envelope(recipient)

    def test_an_unknown_user_is_refused_at_rcpt(self):
        reply = self.reply_to("nobody-here@bench.test")
        self.assertTrue(reply.is_a(550, "5.1.1"), reply)

    def test_a_stranger_may_not_relay(self):
        reply = self.reply_to("someone@elsewhere.test")
        self.assertTrue(reply.is_a(550, "5.7.1"), reply)

    def test_postmaster_is_always_accepted(self):
        for recipient in ("postmaster@bench.test", "PostMaster@bench.test", "Postmaster"):
            reply = self.reply_to(recipient)
            self.assertEqual(reply.code, 250, f"{recipient}: {reply}")

    def test_a_refused_recipient_does_not_spoil_the_others(self):
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.envelope("alice@bench.test").code, 250)
            self.assertEqual(client.say("RCPT TO:<nobody-here@bench.test>").code, 550)
            self.assertEqual(client.say("DATA").code, 354)
            client.write(letter("for one") + b".\r\n")
            self.assertEqual(client.read().code, 250)
        self.assertEqual(len(self.await_letters("alice", 1)), 1)


if __name__ == "__main__":
    unittest.main()
