"""Incoming mail held against independent implementations, and hostile mail with a bound.

    OpenDKIM     what it signs is valid here
    dkimpy       made the chains of ARC. RFC 8617 has no vectors with keys, and the suite of its authors has no
                 licence: so the chains are made here, and broken in each way that the RFC names
    hostile      a header of 256 KB whose signatures name 256 fields, and a key of 16,384 bits
"""

import base64
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from sender_case import SenderAuthCase, dkimpy, message

_PATH = os.environ.get("PATH", "") + ":/usr/sbin"
_OPENDKIM = shutil.which("opendkim", path=_PATH)
_SIGNER = """\
Mode s
Domain good.test
Selector rsa
KeyFile {key}
Canonicalization {form}
SignatureAlgorithm rsa-sha256
OversignHeaders From
InternalHosts 127.0.0.0/8
Background no
Syslog no
RequireSafeKeys no
Socket inet:1@127.0.0.1
"""
# The seconds that one message may take on a busy machine, and the memory that it may leave behind.
_SECONDS_MAX = 30
_MEMORY_MAX = 64 << 20


@unittest.skipUnless(_OPENDKIM, "opendkim is not installed")
class OpenDkim(SenderAuthCase):
    """Signatures by OpenDKIM."""

    def signed(self, content, form):
        """The message with the signature of OpenDKIM, which it prints when it is given a file."""
        at = pathlib.Path(self.folder.name)
        (at / "opendkim.conf").write_text(_SIGNER.format(key=self.keys.rsa, form=form))
        (at / "unsigned").write_bytes(content)
        argv = [_OPENDKIM, "-x", at / "opendkim.conf", "-vv", "-t", at / "unsigned"]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
        field = re.search(r"hname='DKIM-Signature' hvalue='([^']*)'", said)[1]
        return b"DKIM-Signature: " + field.replace("\n", "\r\n").encode() + b"\r\n" + content

    def test_what_it_signs_is_valid_until_it_changes(self):
        bodies = ("Hello,  world \r\n.\r\n\r\n", "Hello,  world\t\r\n \r\n \r\n", "")
        forms = ("simple/simple", "simple/relaxed", "relaxed/simple", "relaxed/relaxed")
        for form in forms:
            for body in bodies:
                content = message("Ann  <ann@good.test>", subject=f"a  b {form}", body=body)
                signed = self.signed(content, form)
                with self.subTest(form=form, body=body):
                    self.assertIn("dkim=pass header.d=good.test", self.results(signed))
                    changed = signed.replace(b"Hello,", b"Howdy,") if body else signed + b"more\r\n"
                    self.assertIn("dkim=fail (the body has changed)", self.results(changed))
            self.assertIn("dkim=fail", self.results(signed.replace(b"a  b", b"a c")))


class Chains(SenderAuthCase):
    """Chains of one and of two sealers, and in how many ways they break."""

    def sealed(self, content, domain, results):
        """The message as a forwarder sends it on, who found these results."""
        field = f"Authentication-Results: {domain}; {results}\r\n".encode()
        return dkimpy(field + content, "arc", "rsa", domain, self.keys.rsa, domain)

    def chain(self, subject, second="arc=pass"):
        """A message that two forwarders have sealed."""
        one = self.sealed(message("ann@good.test", subject=subject), "list.test", "dmarc=pass header.from=good.test")
        return self.sealed(one, "stranger.test", f"{second}; dmarc=fail header.from=good.test")

    def assert_result(self, content, result):
        found = self.results(content, sender="list@list.test")
        self.assertIn(f"arc={result}", found)

    def test_a_chain_is_valid_until_anything_of_it_changes(self):
        two = self.chain("two")
        self.assert_result(two, "pass (i=2) header.d=stranger.test")
        self.assert_result(b"List-Id: <list.test>\r\n" + two, "pass")
        for number in (1, 2):
            for name in ("Seal", "Message-Signature", "Authentication-Results"):
                with self.subTest(number=number, name=name):
                    self.assert_result(altered(two, name, number), "fail")
                    self.assert_result(without(two, name, number), "fail")
                    self.assert_result(field(two, name, number) + two, "fail")
        self.assert_result(two.replace(b"world", b"there"), "fail")
        self.assert_result(two.replace(b"Subject: two", b"Subject: three"), "fail")

    def test_a_set_that_is_missing_breaks_it(self):
        for number in (1, 2):
            content = self.chain("missing")
            for name in ("Seal", "Message-Signature", "Authentication-Results"):
                content = without(content, name, number)
            # Without the second set the first one is a chain of its own, over the same message.
            self.assert_result(content, {1: "fail", 2: "pass (i=1) header.d=list.test"}[number])

    def test_a_chain_that_says_that_it_is_broken_is_so(self):
        self.assert_result(self.chain("failed", "arc=fail"), "fail")

    def test_a_message_that_changes_between_two_seals_is_still_sealed(self):
        one = self.sealed(message("ann@good.test"), "list.test", "dmarc=pass header.from=good.test")
        changed = one.replace(b"world", b"list")
        two = self.sealed(changed, "stranger.test", "arc=pass; dmarc=pass header.from=good.test")
        # Only the newest signature covers the message (RFC 8617 section 5.2).
        self.assert_result(two, "pass (i=2) header.d=stranger.test")
        self.assert_result(changed, "fail")

    def test_a_seal_with_the_key_of_another_domain_is_invalid(self):
        self.names.replace_txt("rsa._domainkey.stranger.test", self.keys.ed25519_record)
        self.addCleanup(self.names.replace_txt, "rsa._domainkey.stranger.test", self.keys.rsa_record)
        self.server.terminate()  # it would know the key
        self.server.start()
        self.assert_result(self.chain("foreign key"), "fail")


def field(content, name, number):
    """A field of a set."""
    pattern = rf"^ARC-{name}: i={number};.*\r\n(?:[ \t].*\r\n)*".encode()
    return re.search(pattern, content, re.M).group()


def without(content, name, number):
    """The message without it."""
    return content.replace(field(content, name, number), b"", 1)


def altered(content, name, number):
    """The message with a change in it that all signatures over it show."""
    before = field(content, name, number)
    after = before.replace(b"dmarc=", b"dkim=") if name == "Authentication-Results" else before.replace(b"t=1", b"t=2", 1)
    assert after != before, before
    return content.replace(before, after, 1)


class Hostile(SenderAuthCase):
    """Mail that is made to cost much."""

    LIMITS = 'header = "400KiB"'

    def memory(self):
        """The resident memory of the server, in octets."""
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def bounded_results(self, content):
        """Our results for a message, which takes neither long nor much."""
        before, began = self.memory(), time.monotonic()
        results = self.results(content)
        self.assertLess(time.monotonic() - began, _SECONDS_MAX)
        self.assertLess(self.memory() - before, _MEMORY_MAX)
        return results

    def test_a_header_of_256_kb_whose_signatures_name_256_fields(self):
        names = [f"x-{number:03}" for number in range(255)]
        # Each name appears many times, and each signature names all of them.
        fields = "".join(f"X-{number % 255:03}: {'y' * 30}\r\n" for number in range(7000))
        plain = message("ann@good.test", subject="256 KB", before=fields)
        signed = dkimpy(plain, "dkim", "rsa", "good.test", self.keys.rsa, "rsa-sha256")
        own = re.match(rb"DKIM-Signature:.*\r\n(?:[ \t].*\r\n)*", signed).group()
        many = re.sub(rb"(?<!b)h=[^;]*;", b"h=from:" + ":".join(names).encode() + b";", own)
        self.assertGreater(len(plain), 256 << 10)
        self.assertTrue(self.send(100 * many + signed).is_a(552, "5.3.4"))
        results = self.bounded_results(8 * many + signed)
        # The eight are looked at, and the valid one behind them is not.
        self.assertEqual(results.count("dkim=fail"), 8, results)
        results = self.bounded_results(7 * many + signed)
        self.assertEqual((results.count("dkim=fail"), results.count("dkim=pass")), (7, 1), results)
        more = re.sub(rb"(?<!b)h=[^;]*;", b"h=from:" + ":".join([*names, "to"]).encode() + b";", own)
        self.assertIn("dkim=neutral (too many signed fields)", self.bounded_results(more + plain))

    def test_a_key_of_16384_bits_is_not_used(self):
        self.names.txt("huge._domainkey.good.test", f"v=DKIM1; k=rsa; p={public_key(16384)}")
        self.names.txt("large._domainkey.good.test", f"v=DKIM1; k=rsa; p={public_key(4096)}")
        signed = dkimpy(message("ann@good.test"), "dkim", "rsa", "good.test", self.keys.rsa, "rsa-sha256")
        results = self.bounded_results(signed.replace(b"s=rsa;", b"s=huge;"))
        self.assertIn("dkim=policy (the key has more than 4096 bits) header.d=good.test", results)
        # The largest one that is used.
        self.assertIn("dkim=fail", self.bounded_results(signed.replace(b"s=rsa;", b"s=large;")))
        self.assertIn("dkim=pass", self.bounded_results(signed))


def public_key(bits):
    """The SubjectPublicKeyInfo of an RSA key of this size, by openssl, so that it is beyond doubt. Nobody has the private
    key: the modulus is a number without known factors, since to find primes of this size takes minutes.
    """
    modulus = random.Random(bits).getrandbits(bits) | 1 << bits - 1 | 1
    fields = "asn1=SEQUENCE:key\n[key]\nalgorithm=SEQUENCE:algorithm\nbits=BITWRAP,SEQUENCE:numbers\n"
    fields += "[algorithm]\nid=OID:rsaEncryption\nnone=NULL\n"
    fields += f"[numbers]\nmodulus=INTEGER:0x{modulus:x}\nexponent=INTEGER:65537\n"
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as file:
        file.write(fields)
        file.flush()
        argv = ["openssl", "asn1parse", "-genconf", file.name, "-noout", "-out", "/dev/stdout"]
        return base64.b64encode(subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout).decode()


del SenderAuthCase  # it has no tests

if __name__ == "__main__":
    unittest.main()
