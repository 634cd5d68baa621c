"""8-bit mail for a next hop without 8BITMIME: it arrives in 7 bits with the same content, as Python's
email package reads it."""

import email
import email.policy
import itertools
import unittest

import hosts
from harness import stuffed
from hosts import EXTENSIONS
from outbound import OutboundCase
from test_outbound import routed

SEVEN_BIT = [word for word in EXTENSIONS if word not in ("8BITMIME", "SMTPUTF8")]
HEADER = b"From: alice@bench.test\r\nSubject: x\r\n"
TEXT = "Grüße = \r\n.\r\n.punkt\r\n \r\n".encode()
IMAGE = bytes(range(128, 256)) * 700
NO_MIME = HEADER + b"\r\n" + TEXT
MIXED = (
    HEADER + b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="=_a b"\r\n'
    b"Content-Transfer-Encoding: 8bit\r\n\r\nThis is MIME.\r\n--=_a b\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + TEXT + b"\r\n--=_a b\r\n"
    b"Content-Type: image/png\r\nContent-Transfer-Encoding: binary\r\n\r\n" + IMAGE + b"\r\n--=_a b\r\n"
    b"Content-Type: text/plain\r\n\r\nascii = stays\r\n\r\n--=_a b\r\n"
    b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: 8bit\r\n\r\nSubject: inner\r\n\r\n" + TEXT + b"\r\n--=_a b\r\n"
    b"Content-Type: multipart/alternative; boundary==_a\r\n\r\n--=_a\r\n\r\n" + TEXT + b"\r\n--=_a\r\n"
    b"Content-Type: text/html; charset=utf-8\r\n\r\n<p>" + "é".encode() * 2000 + b"\r\n--=_a--\r\n--=_a b--\r\nthe end\r\n"
)  # fmt: skip
UNCLOSED = MIXED.replace(b"--=_a--\r\n--=_a b--\r\n", b"")
NO_BOUNDARY = HEADER + b"MIME-Version: 1.0\r\nContent-Type: multipart/mixed\r\n\r\n" + TEXT
NO_PARTS = HEADER + b"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=none\r\n\r\n" + TEXT
LABELLED = HEADER + b"MIME-Version: 1.0\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=C3=A4 \xc3\xa4=\r\n=41\r\n"
SIGNED = (
    HEADER + b"MIME-Version: 1.0\r\nContent-Type: multipart/signed; boundary=s\r\n\r\n--s\r\n"
    b"Content-Type: text/plain\r\n\r\n" + TEXT + b"\r\n--s\r\nContent-Type: application/pgp-signature\r\n\r\nx\r\n--s--\r\n"
)  # fmt: skip


def contents(message):
    """The types and decoded contents of all parts."""
    parsed = email.message_from_bytes(message, policy=email.policy.compat32)
    parts = [(part.get_content_type(), part.get_payload(decode=True)) for part in parsed.walk()]
    return [(kind, content.replace(b"\r\n", b"\n")) for kind, content in parts if content is not None]


class EightBit(OutboundCase):
    def relay(self, message, extensions=SEVEN_BIT, tls=None, **settings):
        """What a next hop gets."""
        host = self.host(extensions=extensions, tls=tls)
        server = self.start(place=str(id(host)), extra=routed(host), **settings)
        self.send(server, "bob@one.test", message=stuffed(message), mail="BODY=8BITMIME")
        (received,) = self.await_messages(host, 1, server)
        self.assertNotIn("BODY=", received.sender)
        return received

    def test_it_arrives_in_seven_bits_with_the_same_content(self):
        variants = ((SEVEN_BIT, None), ((*SEVEN_BIT, "CHUNKING"), None), ((), hosts.certificate(self.folder)))
        for message, (extensions, tls) in itertools.product((NO_MIME, MIXED, UNCLOSED, LABELLED), variants):
            received = self.relay(message, extensions, tls)
            self.assertTrue(received.content.isascii())
            self.assertLessEqual(max(len(line) for line in received.content.split(b"\r\n")), 998)
            # The trace fields come first.
            self.assertEqual(contents(received.content), contents(message), message[:200])

    def test_multiparts_without_parts_keep_their_text(self):
        for message in (NO_BOUNDARY, NO_PARTS):
            received = self.relay(message)
            self.assertTrue(received.content.isascii())
            parsed = email.message_from_bytes(received.content)
            self.assertEqual(parsed["Content-Transfer-Encoding"], "quoted-printable")
            self.assertEqual(parsed.get_payload(decode=True), TEXT)

    def test_signed_parts_stay_as_they_are(self):
        received = self.relay(SIGNED)
        self.assertTrue(received.content.endswith(SIGNED))

    def test_it_may_be_sent_as_it_is(self):
        received = self.relay(MIXED, smtp='eight_bit = "send"')
        self.assertTrue(received.content.endswith(MIXED))

    def test_a_host_with_8bitmime_gets_the_original(self):
        host = self.host()
        server = self.start(extra=routed(host))
        self.send(server, "bob@one.test", message=stuffed(MIXED), mail="BODY=8BITMIME")
        (received,) = self.await_messages(host, 1, server)
        self.assertIn("BODY=8BITMIME", received.sender)
        self.assertTrue(received.content.endswith(MIXED))


if __name__ == "__main__":
    unittest.main()
