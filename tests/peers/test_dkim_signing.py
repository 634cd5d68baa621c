"""DKIM signatures, verified by dkimpy and OpenDKIM at the next hop.

    signed       mail of relay networks, users and local programs, and bounces
    not signed   mail of strangers, also if an alias leads outside; authors that a user may not be
    keys         from files and tables, replaced by a reload; faults at the start and later
    commands     generate, show, check
"""

import base64
import email
import os
import pathlib
import re
import shutil
import smtplib
import subprocess
import tempfile
import time
import unittest

import dkim_verifier
from harness import Client, await_messages, await_that, folder
from outbound import EVERYONE, OutboundCase, metrics
from peers.mailrace import BINARY, LOGINS, listener, route
from test_reload import edit, reload

OUTSIDE = "bob@outside.test"
AUTHOR = "alice@bench.test"
ALGORITHMS = ("rsa", "ed25519")


def mailrace(*words, code=0):
    """Runs a command and checks its exit code; returns what it printed, output first."""
    done = subprocess.run([str(BINARY), *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (words, done.returncode, done.stdout + done.stderr)
    return done.stdout, done.stderr


class Keys:
    """Keys of a domain in a folder, and what the DNS says of them."""

    def __init__(self, at, domain="bench.test", suffix=""):
        self.domain, self.files, self.records = domain, {}, {}
        for algorithm in ALGORITHMS:
            selector = f"{algorithm}{suffix}"
            words = ("dkim", "generate", domain, "--selector", selector, "--algorithm", algorithm, "--dir", at)
            line, _ = mailrace(*words)
            self.files[algorithm] = at / f"{selector}.{domain}.pem"
            name = f"{selector}._domainkey.{domain}."
            assert line.startswith(f"{name} IN TXT "), line
            self.records[name] = "".join(re.findall(r'"([^"]*)"', line)).encode()
            if os.geteuid() == 0:
                shutil.chown(self.files[algorithm], "nobody")

    def section(self, *algorithms):
        """The sections of these keys."""
        return "".join(
            f'\n[[signing.key]]\ndomain = "{self.domain}"\nselector = "{self.files[name].name.partition(".")[0]}"\n'
            f'file = "{self.files[name]}"\n'
            for name in algorithms or ALGORITHMS
        )


def signatures(content):
    """The DKIM-Signature fields as they were sent."""
    header = content.partition(b"\r\n\r\n")[0] + b"\r\n"
    return re.findall(rb"^DKIM-Signature:.*\r\n(?:[ \t].*\r\n)*", header, re.M | re.I)


def message(author=AUTHOR, body=b"Hello.\r\n", more=b""):
    """A message with most of the fields that are signed."""
    return (
        f"From: Alice <{author}>\r\nTo: {OUTSIDE}\r\nSubject: signed\r\nDate: Fri, 11 Jul 2003 21:00:37 -0700\r\n"
        f"Message-ID: <1@bench.test>\r\nMIME-Version: 1.0\r\nContent-Type: text/plain\r\n"
    ).encode() + more + b"\r\n" + body  # fmt: skip


class SigningCase(OutboundCase):
    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.keys = Keys(pathlib.Path(made.name))

    def serving(self, *, signing="", extra="", **settings):
        """A server with both keys, and the host of outside.test."""
        self.outside = self.host()
        signing = "\n[signing]\n" + signing + self.keys.section()
        settings.setdefault("networks", EVERYONE)
        return self.start(extra=route("outside.test", f"[127.0.0.1]:{self.outside.port}") + signing + extra, **settings)

    def sent(self, server, count=1):
        """What the host of outside.test received last."""
        return self.await_messages(self.outside, count, server)[-1].content

    def assert_signed(self, content, domain="bench.test", algorithms=ALGORITHMS, keys=None):
        """Verifies all signatures with dkimpy."""
        found = signatures(content)
        self.assertEqual(len(found), len(algorithms), content)
        for field, algorithm in zip(found, algorithms):
            self.assertLess(max(map(len, field.split(b"\r\n"))), 78)
            self.assertIn(f"d={domain};".encode(), field)
            self.assertIn(f"a={algorithm}-sha256;".encode(), field)
        results = dkim_verifier.verified(content, (keys or self.keys).records)
        self.assertEqual(results, [True] * len(algorithms), found)

    def assert_unsigned(self, content):
        self.assertEqual(signatures(content), [])


@unittest.skipUnless(dkim_verifier.is_installed(), "dkimpy is not installed")
class Signed(SigningCase):
    def test_mail_of_a_relay_network_has_a_signature_of_each_key(self):
        server = self.serving()
        self.send(server, OUTSIDE, message=message())
        content = self.sent(server)
        self.assert_signed(content, algorithms=("ed25519", "rsa"))
        counted = metrics(server)
        for algorithm in ALGORITHMS:
            self.assertEqual(counted[f'mailrace_dkim_signatures_total{{algorithm="{algorithm}-sha256"}}'], 1)

    def test_bodies_of_every_end_and_size_verify(self):
        server = self.serving()
        large = b"A line  of\ttext \r\n" * 200_000  # more than is kept in memory
        bodies = (b"", b"\r\n", b" \r\n\t\r\n", b"x\r\n \r\n\r\n", b"x \t y\r\n", b".\r\n..\r\n", large, large + b"\r\n \r\n")
        for count, body in enumerate(bodies, 1):
            # The client doubles dots; `send` does not.
            self.send(server, OUTSIDE, message=message(body=re.sub(rb"(?m)^\.", b"..", body)))
            self.assert_signed(self.sent(server, count), algorithms=("ed25519", "rsa"))

    def test_eight_bit_mail_is_converted_and_reaches_a_host_without_8bitmime(self):
        self.sent_eight_bit("", True)

    def test_eight_bit_mail_is_signed_as_it_is_if_that_is_wanted(self):
        self.sent_eight_bit("seven_bit = false", False)

    def sent_eight_bit(self, signing, is_converted):
        server = self.serving(signing=signing)
        if is_converted:
            self.outside.extensions.remove("8BITMIME")
        text = message(more=b"Content-Transfer-Encoding: 8bit\r\n", body="Gr\u00fc\u00dfe \r\n.\u00e4\r\n".encode())
        text = text.replace(b"text/plain", b"text/plain; charset=utf-8")
        self.send(server, OUTSIDE, message=text.replace(b"\r\n.", b"\r\n.."), mail="BODY=8BITMIME")
        content = self.sent(server)
        self.assertEqual(content.isascii(), is_converted, content)
        self.assert_signed(content, algorithms=("ed25519", "rsa"))
        parsed = email.message_from_bytes(content)
        self.assertEqual(parsed.get_payload(decode=True).decode(), "Gr\u00fc\u00dfe \r\n.\u00e4\r\n")

    def test_deep_nesting_costs_little_and_is_signed_as_it_is_beyond_a_hundred_levels(self):
        server = self.serving()
        for count, (depth, is_converted) in enumerate(((90, True), (110, False), (20_000, False)), 1):
            kind, body = b"text/plain; charset=utf-8", "Gr\u00fc\u00dfe\r\n".encode()
            nested = b'--_%d_\r\nContent-Type: multipart/mixed; boundary="_%d_"\r\n\r\n'
            opened = [nested % (level, level + 1) for level in range(depth)]
            closed = [b"\r\n--_%d_--\r\n" % level for level in range(depth, -1, -1)]
            body = b"".join([*opened, b"--_%d_\r\nContent-Type: %b\r\n\r\n%b" % (depth, kind, body), *closed])
            text = message(more=b"Content-Transfer-Encoding: 8bit\r\n", body=body)
            text = text.replace(b"text/plain\r\n", b'multipart/mixed; boundary="_0_"\r\n', 1)
            began = time.monotonic()
            self.send(server, OUTSIDE, message=text, mail="BODY=8BITMIME")
            content = self.sent(server, count)
            self.assertLess(time.monotonic() - began, 60)
            self.assertEqual(content.isascii(), is_converted, depth)
            self.assert_signed(content, algorithms=("ed25519", "rsa"))

    def test_what_is_added_or_changed_later_breaks_the_signature(self):
        server = self.serving()
        self.send(server, OUTSIDE, message=message())
        content = self.sent(server)
        for change in (
            b"From: eve@evil.test\r\n" + content,
            b"Subject: other\r\n" + content,
            b"Cc: eve@evil.test\r\n" + content,
            b"Reply-To: eve@evil.test\r\n" + content,
            b"Content-Transfer-Encoding: base64\r\n" + content,
            content.replace(b"Subject: signed", b"Subject: Signed"),
            content + b"more\r\n",
        ):
            self.assertEqual(dkim_verifier.verified(change, self.keys.records), [False, False], change[:60])
        for harmless in (
            b"Received: from x by y; Fri, 11 Jul 2003 21:00:37 -0700\r\n" + content,
            b"List-Id: <list.test>\r\n" + content,
            content.replace(b"Subject: signed", b"SUBJECT:  \r\n signed"),
            content + b"\r\n\r\n",
        ):
            self.assertEqual(dkim_verifier.verified(harmless, self.keys.records), [True, True], harmless[:60])

    def test_the_nearest_parent_signs_for_a_subdomain_and_no_other_domain_is_signed(self):
        server = self.serving()
        self.send(server, OUTSIDE, message=message("alice@news.a.bench.test"))
        self.assert_signed(self.sent(server), algorithms=("ed25519", "rsa"))
        for count, author in enumerate(("alice@other.test", "alice@notbench.test", "alice@bench.test.evil.test"), 2):
            self.send(server, OUTSIDE, message=message(author))
            self.assert_unsigned(self.sent(server, count))
        two = message().replace(b"From: Alice <alice@bench.test>", b"From: alice@bench.test, eve@evil.test")
        self.send(server, OUTSIDE, message=two)
        self.assert_unsigned(self.sent(server, 5))

    def test_mail_of_a_local_program(self):
        server = self.serving(networks=[])
        link = self.folder / "sendmail"
        link.symlink_to(server.binary)
        text = b"From: alice@bench.test\nSubject: from a program\n\nHello.\n"
        argv = [str(link), "-C", str(server.config), "-f", AUTHOR, OUTSIDE]
        subprocess.run(argv, input=text, check=True, timeout=60)
        self.assert_signed(self.sent(server), algorithms=("ed25519", "rsa"))

    def test_a_bounce_is_signed(self):
        server = self.serving()
        self.outside.script["RCPT"] = "550 5.1.1 who is that"
        self.send(server, OUTSIDE, message=message())
        (path,) = await_messages(server, "alice", 1)
        content = path.read_bytes()
        self.assertIn(b"From: \"Mail Delivery System\" <mailer-daemon@mx.bench.test>", content)
        self.assert_signed(content, algorithms=("ed25519", "rsa"))
        self.assertEqual(content.count(b"a=rsa-sha256"), 2)  # the returned message has its own

    def test_a_notice_to_a_local_program_is_signed(self):
        server = self.serving(networks=[])
        link = self.folder / "sendmail"
        link.symlink_to(server.binary)
        argv = [str(link), "-C", str(server.config), "-f", AUTHOR, "nobody@bench.test"]
        subprocess.run(argv, input=b"Subject: x\n\nHello.\n", check=True, timeout=60)
        (path,) = await_messages(server, "alice", 1)
        self.assert_signed(path.read_bytes(), algorithms=("ed25519", "rsa"))

    def test_signatures_expire_if_that_is_configured(self):
        server = self.serving(signing='expires_after = "2h"')
        self.send(server, OUTSIDE, message=message())
        for field in signatures(self.sent(server)):
            signed_at, expires_at = (int(re.search(tag + rb"=(\d+);", field)[1]) for tag in (rb"\bt", rb"\bx"))
            self.assertEqual(expires_at - signed_at, 7200)

    def test_opendkim_verifies_rsa(self):
        opendkim = shutil.which("opendkim", path=os.environ.get("PATH", "") + ":/usr/sbin")
        if not opendkim:
            self.skipTest("opendkim is not installed")
        server = self.serving()
        self.send(server, OUTSIDE, message=message(body=b"A  b\t\r\n \r\n\r\n"))
        content = self.sent(server)
        names = {name.rstrip("."): value.decode() for name, value in self.keys.records.items()}
        with tempfile.TemporaryDirectory() as at:
            at = pathlib.Path(at)
            (at / "keys").write_text("".join(f"{name} {value}\n" for name, value in names.items()))
            (at / "conf").write_text(f"TestPublicKeys {at / 'keys'}\nSyslog no\nMode v\n")
            # OpenDKIM of Debian does not know ed25519; the other signature is left.
            (rsa,) = [field for field in signatures(content) if b"a=rsa-sha256" in field]
            (at / "message").write_bytes(content.replace(signatures(content)[0], b"", 1))
            self.assertIn(rsa, (at / "message").read_bytes())
            argv = [opendkim, "-x", str(at / "conf"), "-vv", "-t", str(at / "message")]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            self.assertIn("dkim=pass (2048-bit key) header.d=bench.test", done.stdout + done.stderr)


@unittest.skipUnless(dkim_verifier.is_installed(), "dkimpy is not installed")
class OfUsers(SigningCase):
    def setUp(self):
        super().setUp()
        owners = self.folder / "owners"
        owners.write_text("alice alice@bench.test\neve eve@bench.test\n")
        table = f'\n[[table]]\nname = "owners"\ntype = "text"\npath = "{owners}"\n'
        extra = listener("submission") + LOGINS + 'senders = "owners"\n' + table
        self.server = self.serving(networks=[], extra=extra)

    def submit(self, user, author, sender):
        with smtplib.SMTP("127.0.0.1", self.server.ports["submission"]) as client:
            client.login(user, "secret")
            client.sendmail(sender, [OUTSIDE], message(author))

    def test_a_user_is_signed_for_as_the_author_that_it_may_be(self):
        self.submit("alice", AUTHOR, AUTHOR)
        self.assert_signed(self.sent(self.server), algorithms=("ed25519", "rsa"))

    def test_a_user_is_not_signed_for_as_another_author(self):
        self.submit("eve", AUTHOR, "eve@bench.test")
        self.assert_unsigned(self.sent(self.server))
        self.submit("eve", AUTHOR, "")
        self.assert_unsigned(self.sent(self.server, 2))


class Strangers(SigningCase):
    def test_mail_of_a_stranger_is_not_signed_though_an_alias_leads_outside(self):
        aliases = self.folder / "aliases"
        aliases.write_text(f"forwarded@bench.test {OUTSIDE}\n")
        table = f'\n[[table]]\nname = "aliases"\ntype = "text"\npath = "{aliases}"\n'
        server = self.serving(networks=[], aliases="aliases", extra=table)
        self.send(server, "forwarded@bench.test", sender="eve@evil.test", message=message())
        self.assert_unsigned(self.sent(server))
        self.assertEqual(metrics(server)['mailrace_dkim_signatures_total{algorithm="rsa-sha256"}'], 0)

    def test_whose_mail_is_signed_can_be_chosen(self):
        server = self.serving(signing='sign = ["users"]')
        self.send(server, OUTSIDE, message=message())
        self.assert_unsigned(self.sent(server))


@unittest.skipUnless(dkim_verifier.is_installed(), "dkimpy is not installed")
class OfTables(SigningCase):
    def serving_by_table(self, values):
        table = self.folder / "keys"
        table.write_text(f"tabled.test {values}\n")
        extra = f'\n[[table]]\nname = "keys"\ntype = "text"\npath = "{table}"\n'
        return self.serving(signing='table = "keys"', extra=extra)

    def test_keys_of_a_table_sign(self):
        keys = Keys(self.folder / "tabled", "tabled.test")
        (self.folder / "tabled").chmod(0o755)
        values = ", ".join(f"{algorithm}:{keys.files[algorithm]}" for algorithm in ALGORITHMS)
        server = self.serving_by_table(values)
        self.send(server, OUTSIDE, message=message("alice@tabled.test"))
        self.assert_signed(self.sent(server), "tabled.test", ("ed25519", "rsa"), keys)
        self.send(server, OUTSIDE, message=message())
        self.assert_signed(self.sent(server, 2), algorithms=("ed25519", "rsa"))

    def test_mail_whose_key_cannot_be_read_is_deferred_and_not_sent_unsigned(self):
        server = self.serving_by_table("rsa:/does/not/exist")
        with Client(server.port) as client:
            client.greet()
            reply = client.deliver(message("alice@tabled.test"), OUTSIDE, sender=AUTHOR)
            self.assertTrue(reply.is_a(451, "4.3.0"), reply)
            self.assertEqual(client.deliver(message("alice@other.test"), OUTSIDE, sender=AUTHOR).code, 250)
        self.assert_unsigned(self.sent(server))
        await_that(lambda: "/does/not/exist: unable to read the key" in server.log.read_text(), "the reason", server)
        self.assertEqual(metrics(server)["mailrace_dkim_deferred_total"], 1)


@unittest.skipUnless(dkim_verifier.is_installed(), "dkimpy is not installed")
class Reloads(SigningCase):
    def test_a_reload_reads_the_keys_again(self):
        server = self.serving()
        new = Keys(self.folder / "new")
        for algorithm in ALGORITHMS:
            kept = self.keys.files[algorithm].read_bytes()
            self.addCleanup(self.keys.files[algorithm].write_bytes, kept)
            self.keys.files[algorithm].write_bytes(new.files[algorithm].read_bytes())
        self.send(server, OUTSIDE, message=message())
        self.assert_signed(self.sent(server), algorithms=("ed25519", "rsa"))
        self.assertIn("signing keys", reload(server).stdout)
        self.send(server, OUTSIDE, message=message())
        self.assert_signed(self.sent(server, 2), algorithms=("ed25519", "rsa"), keys=new)
        self.keys.files["rsa"].write_text("nonsense")
        refused = reload(server)
        self.assertEqual(refused.returncode, 78, refused)
        self.assertIn("no private key found", refused.stdout + refused.stderr)
        self.send(server, OUTSIDE, message=message())
        self.assert_signed(self.sent(server, 3), algorithms=("ed25519", "rsa"), keys=new)

    def test_a_reload_can_add_and_remove_signing(self):
        server = self.serving()
        text = server.config.read_text()
        edit(server, self.keys.section(), "")
        self.assertEqual(reload(server).returncode, 0)
        self.send(server, OUTSIDE, message=message())
        self.assert_unsigned(self.sent(server))
        server.config.write_text(text)
        self.assertEqual(reload(server).returncode, 0)
        self.send(server, OUTSIDE, message=message())
        self.assert_signed(self.sent(server, 2), algorithms=("ed25519", "rsa"))


class Commands(SigningCase):
    def test_a_key_that_cannot_be_used_is_an_error_at_its_place(self):
        server = self.configure(extra=f'\n[[signing.key]]\ndomain = "a.test"\nselector = "s"\nfile = "{self.folder}/k"\n')
        (self.folder / "k").write_text("nonsense")
        _, said = mailrace("check", "--config", server.config, code=78)
        self.assertIn("`signing.key.file` cannot be used", said)
        self.assertIn("no private key found", said)
        _, said = mailrace("dkim", "show", "--config", server.config, code=70)
        self.assertIn("no private key found", said)

    def test_a_key_that_everyone_can_read_is_a_warning(self):
        keys = Keys(self.folder)
        server = self.configure(extra=keys.section())
        self.assertEqual(keys.files["rsa"].stat().st_mode & 0o777, 0o600)
        said, _ = mailrace("check", "--config", server.config)
        self.assertNotIn("which contains a private key", said)
        keys.files["rsa"].chmod(0o644)
        said, _ = mailrace("check", "--config", server.config)
        self.assertIn("all local users can read", said)

    def test_a_key_is_never_replaced(self):
        words = ("dkim", "generate", "a.test", "--dir", self.folder, "--algorithm", "ed25519")
        said, hint = mailrace(*words)
        self.assertRegex(said, r'^mail-ed25519\._domainkey\.a\.test\. IN TXT "v=DKIM1; k=ed25519; p=[A-Za-z0-9+/]{43}="\n$')
        self.assertIn('[[signing.key]]\ndomain = "a.test"\nselector = "mail-ed25519"\n', hint)
        before = (self.folder / "mail-ed25519.a.test.pem").read_bytes()
        _, said = mailrace(*words, code=74)
        self.assertIn("exists", said)
        self.assertEqual((self.folder / "mail-ed25519.a.test.pem").read_bytes(), before)

    def test_openssl_reads_what_was_made(self):
        for algorithm, path in self.keys.files.items():
            public = subprocess.run(["openssl", "pkey", "-in", path, "-pubout", "-outform", "DER"], capture_output=True)
            record = self.keys.records[f"{algorithm}._domainkey.bench.test."].rpartition(b"p=")[2]
            self.assertTrue(public.stdout.endswith(base64.b64decode(record)))

    def test_published_records_are_compared_with_the_keys(self):
        names = self.names()
        server = self.configure(names=names, extra=self.keys.section())
        shown, _ = mailrace("dkim", "show", "--config", server.config)
        self.assertEqual(len(re.findall(r"_domainkey\.bench\.test\. IN TXT", shown)), 2)
        check = ("dkim", "check", "bench.test", "--config", server.config)
        said, _ = mailrace(*check, code=1)
        self.assertIn("rsa._domainkey.bench.test: there is no TXT record", said)
        for name, value in self.keys.records.items():
            names.txt(name.rstrip("."), value.decode())
        said, _ = mailrace(*check)
        self.assertIn("rsa._domainkey.bench.test: fits the private key (rsa)\n", said)
        said, note = mailrace("dkim", "check", "news.bench.test", "--config", server.config)
        self.assertIn("mail of news.bench.test is signed by bench.test", note)
        other = Keys(self.folder / "other").records["rsa._domainkey.bench.test."]
        names.replace_txt("rsa._domainkey.bench.test", other.decode())
        said, _ = mailrace(*check, code=1)
        self.assertIn("belongs to another private key", said)
        self.assertIn("expected: rsa._domainkey.bench.test. IN TXT (", said)
        names.broken.add("rsa._domainkey.bench.test")
        said, _ = mailrace(*check, code=69)
        self.assertIn("the DNS does not answer", said)
        mailrace("dkim", "check", "other.test", "--config", server.config, code=1)
        mailrace("dkim", "check", "no domain", "--config", server.config, code=64)


if __name__ == "__main__":
    unittest.main()
