"""8-bit mail for a next hop without 8BITMIME: it arrives in 7 bits with the same content, as Python's
email package reads it: single messages with special cases, and many that are made at random."""

import base64
import email
import email.policy
import itertools
import quopri
import random
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

MESSAGES = 300


def contents(message):
    """The types and decoded contents of all parts."""
    parsed = email.message_from_bytes(message, policy=email.policy.compat32)
    parts = [(part.get_content_type(), part.get_payload(decode=True)) for part in parsed.walk()]
    return [(kind, content.replace(b"\r\n", b"\n")) for kind, content in parts if content is not None]


WORDS = ("Grüße", "naïve", "plain", "=3D", ".", "From", "--", "日本語", "\t", "x" * 90, "é" * 60, "")
CHARSETS = ("utf-8", "iso-8859-1", "windows-1252")


class Generator:
    """Messages as mail programs write them, from a seed: nested multiparts, charsets, attachments, messages in
    messages, and texts in 7 and 8 bits and in both encodings."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._boundaries = 0

    def message(self):
        """A message."""
        kind, encoding, body = self._entity(0)
        return HEADER + b"MIME-Version: 1.0\r\n" + self._fields(kind, encoding) + b"\r\n" + body

    def _fields(self, kind, encoding):
        fields = [b"Content-Type: " + kind]
        if encoding:
            fields.append(b"Content-Transfer-Encoding: " + encoding)
        fields += self._random.sample([b"Content-Disposition: inline", b"X-Other: x", b"Content-ID: <a@b>"], 1)
        self._random.shuffle(fields)
        return b"".join(field + b"\r\n" for field in fields)

    def _entity(self, depth):
        """The type, the encoding and the body of an entity."""
        choices = ["text", "text", "binary"] + (["multipart"] * 3 + ["message"] if depth < 4 else [])
        return getattr(self, f"_{self._random.choice(choices)}")(depth)

    def _text(self, _depth):
        charset = self._random.choice(CHARSETS)
        lines = (" ".join(self._random.choices(WORDS, k=self._random.randrange(8))) for _ in range(self._random.randrange(20)))
        text = "\r\n".join(lines).encode(charset, "replace")
        text += self._random.choice((b"", b"\r\n", b" \r\n\t\r\n"))
        kind = self._random.choice((b"text/plain", b"text/html", b"application/json")) + b"; charset=" + charset.encode()
        match self._random.randrange(4):
            case 0:
                return kind, b"base64", base64.encodebytes(text).replace(b"\n", b"\r\n")
            case 1:
                return kind, b"quoted-printable", quopri.encodestring(text.replace(b"\r\n", b"\n")).replace(b"\n", b"\r\n")
        return kind, b"8bit" if self._random.random() < 0.7 else b"", text

    def _binary(self, _depth):
        octets = self._random.randbytes(self._random.randrange(3000)).translate(None, b"\r\n\0")
        lines = (octets[at : at + 700] for at in range(0, len(octets), 700))
        return b'image/png; name="a.png"', b"8bit", b"\r\n".join(lines)

    def _multipart(self, depth):
        self._boundaries += 1
        boundary = self._random.choice(("=_{}", "b'()+_,-./:=? {}x", "{}")).format(self._boundaries).encode()
        parts = [self._entity(depth + 1) for _ in range(self._random.randrange(1, 4))]
        texts = [self._fields(kind, encoding) + b"\r\n" + body for kind, encoding, body in parts]
        if self._random.random() < 0.2:
            texts[0] = b"\r\n" + "ohne Köpfe".encode()  # text/plain by default (RFC 2046 section 5.1)
        body = b"".join(b"--" + boundary + b"\r\n" + text + b"\r\n" for text in texts) + b"--" + boundary + b"--\r\n"
        subtype = self._random.choice((b"mixed", b"alternative", b"related"))
        encoding = b"" if body.isascii() else b"8bit"
        preamble = self._random.choice((b"", b"This is MIME.\r\n"))
        return b"multipart/" + subtype + b'; boundary="' + boundary + b'"', encoding, preamble + body

    def _message(self, depth):
        kind, encoding, body = self._entity(depth + 1)
        inner = b"Subject: inner\r\nMIME-Version: 1.0\r\n" + self._fields(kind, encoding) + b"\r\n" + body
        return b"message/rfc822", b"" if inner.isascii() else b"8bit", inner


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

    def test_many_messages_of_many_forms_keep_their_content(self):
        host = self.host(extensions=SEVEN_BIT)
        server = self.start(extra=routed(host))
        count = 0
        for seed in range(MESSAGES):
            message = Generator(seed).message()
            if message.isascii():
                continue
            self.send(server, "bob@one.test", message=stuffed(message + b"\r\n"), mail="BODY=8BITMIME")
            count += 1
            received = self.await_messages(host, count, server)[-1].content
            self.assertTrue(received.isascii(), seed)
            self.assertLessEqual(max(len(line) for line in received.split(b"\r\n")), 998, seed)
            self.assertEqual(contents(received), contents(message + b"\r\n"), seed)
        self.assertGreater(count, MESSAGES // 2)

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
