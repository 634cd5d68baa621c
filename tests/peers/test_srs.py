"""Senders of forwarded mail (SRS), between two servers and with scripted hosts.

    forwarded   mail of strangers that an alias sends to another domain; all else keeps its sender
    returned    bounces of the next host, and of a further forwarder (also Mail::SRS), to the original sender
    refused     forged, changed and expired addresses, and any mail that is not a bounce
    operated    explain, check, metrics, secrets replaced by a reload
"""

import hashlib
import hmac
import os
import shutil
import subprocess
import time
import unittest

from harness import Client, await_messages, await_that
from outbound import EVERYONE, OutboundCase, metrics, text_message
from peers.mailrace import route
from test_reload import edit, reload

SECRET, OLDER = "of the year 2026, 0123456789", "of the year 2025, 9876543210"
DIGITS = "abcdefghijklmnopqrstuvwxyz234567"
ALIASES = """
/^away@bench\\.test$/ bob@far.test
/^both@bench\\.test$/ alice@bench.test, bob@far.test, carol@far.test
"""


def has_mail_srs():
    """Whether there is an independent implementation."""
    return subprocess.run(["perl", "-MMail::SRS", "-e", "1"], capture_output=True).returncode == 0


def made_by(secret, sender, days_ago=0):
    """What the server makes of a sender, by the rules that docs/sender-auth.md names."""
    local, domain = sender.split("@")
    day = int(time.time()) // 86400 - days_ago
    parts = [part.lower().encode() for part in (domain, local)]
    text = b"0" + day.to_bytes(8) + b"".join(len(part).to_bytes(8) + part for part in parts)
    bits = int.from_bytes(hmac.digest(secret.encode(), text, hashlib.sha256)[:5])
    code = "".join(DIGITS[bits >> 5 * place & 31] for place in range(8))
    return f"SRS0={code}={DIGITS[day >> 5 & 31]}{DIGITS[day & 31]}={domain}={local}@srs.test"


def path(argument):
    """The address in an argument of MAIL or RCPT, without its parameters."""
    return argument.partition("<")[2].partition(">")[0]


class SrsCase(OutboundCase):
    def secret_file(self, name, content):
        """A file that the server can read and nobody else."""
        file = self.folder / name
        file.write_text(content + "\n")
        file.chmod(0o600)
        if os.geteuid() == 0:
            self.folder.chmod(0o755)
            shutil.chown(file, "nobody")
        return file

    def forwarding(self, *, far=None, srs="", networks=(), extra=""):
        """A server that forwards some mail to far.test, and the host of the senders."""
        self.far, self.home = self.host(), self.host()
        patterns = self.folder / "patterns"
        patterns.write_text(ALIASES)
        patterns.chmod(0o644)
        secret = self.secret_file("secret", SECRET)
        extra += f'\n[[table]]\nname = "patterns"\ntype = "regexp"\npath = "{patterns}"\n'
        extra += f'\n[srs]\nsecret_file = "{secret}"\ndomain = "srs.test"\n{srs}'
        extra += route("far.test", f"[127.0.0.1]:{far or self.far.port}")
        extra += "".join(route(domain, f"[127.0.0.1]:{self.home.port}") for domain in ("home.test", "other.test"))
        return self.start("forwarder", extra=extra, networks=networks, aliases="patterns")

    def reply_to(self, server, recipient, sender=""):
        """The reply to RCPT."""
        with Client(server.port) as client:
            client.greet()
            self.assertEqual(client.say(f"MAIL FROM:<{sender}>").code, 250)
            return client.say(f"RCPT TO:<{recipient}>")

    def forwarded_sender(self, server, sender, mail=""):
        """The sender with which the next host gets a message."""
        before = len(self.far.accepted)
        self.send(server, "away@bench.test", sender=sender, mail=mail)
        return path(self.await_messages(self.far, before + 1, server)[-1].sender)


class Forwarded(SrsCase):
    def test_a_strangers_sender_is_rewritten_and_the_rest_of_the_envelope_stays(self):
        server = self.forwarding()
        message = "Subject: ü\r\n\r\ngrün\r\n".encode()
        self.send(server, "away@bench.test", sender="Carol@home.test", mail="BODY=8BITMIME", message=message)
        (received,) = self.await_messages(self.far, 1, server)
        self.assertEqual(path(received.sender), made_by(SECRET, "Carol@home.test"))
        self.assertIn("BODY=8BITMIME", received.sender)
        self.assertIn(f"SIZE={len(received.content)}", received.sender)
        self.assertEqual([path(to) for to in received.recipients], ["bob@far.test"])
        self.assertTrue(received.content.endswith(message))
        self.assertEqual(metrics(server)['mailrace_srs_total{result="rewritten"}'], 1)

    def test_a_message_for_here_and_elsewhere_keeps_its_sender_here(self):
        server = self.forwarding()
        self.send(server, "both@bench.test", sender="carol@home.test")
        (local,) = await_messages(server, "alice", 1)
        self.assertTrue(local.read_bytes().startswith(b"Return-Path: <carol@home.test>\r\n"))
        (received,) = self.await_messages(self.far, 1, server)
        self.assertEqual(path(received.sender), made_by(SECRET, "carol@home.test"))
        self.assertEqual([path(to) for to in received.recipients], ["bob@far.test", "carol@far.test"])

    def test_other_senders_stay(self):
        server = self.forwarding(srs='exempt = ["partner.test"]\n')
        for sender in ("", "alice@bench.test", "root@srs.test", "eve@partner.test"):
            self.assertEqual(self.forwarded_sender(server, sender), sender)
        self.assertEqual(self.forwarded_sender(server, "eve@home.test"), made_by(SECRET, "eve@home.test"))

    def test_a_sender_that_is_too_long_stays(self):
        server = self.forwarding()
        fits, long = "x" * 37 + "@home.test", "x" * 38 + "@home.test"
        self.assertEqual(self.forwarded_sender(server, fits), made_by(SECRET, fits))
        self.assertEqual(self.forwarded_sender(server, long), long)
        self.assertEqual(metrics(server)['mailrace_srs_total{result="too_long"}'], 1)

    def test_a_sender_beyond_ascii_is_rewritten_where_it_can_be_sent(self):
        server = self.forwarding()
        sender = "jürgen@müller.test"
        self.assertEqual(self.forwarded_sender(server, sender, mail="SMTPUTF8"), made_by(SECRET, sender))

    def test_relay_networks_keep_their_senders(self):
        server = self.forwarding(networks=EVERYONE)
        self.assertEqual(self.forwarded_sender(server, "carol@home.test"), "carol@home.test")

    def test_a_local_program_keeps_its_sender(self):
        server = self.forwarding()
        argv = [str(server.binary), "inject", "--config", str(server.config), "-f", "carol@home.test"]
        subprocess.run([*argv, "away@bench.test"], input=b"Subject: x\n\nx\n", check=True, timeout=60)
        (received,) = self.await_messages(self.far, 1, server)
        self.assertEqual(path(received.sender), "carol@home.test")


class Returned(SrsCase):
    def test_a_bounce_comes_back_through_two_servers(self):
        """The second one forwards too, to a host that refuses: its bounce goes to the first."""
        refusing = self.host(script={"RCPT": "550 5.1.1 who is that"})
        aliases = self.folder / "far-aliases"
        aliases.write_text("/^bob@far\\.test$/ x@gone.test\n")
        aliases.chmod(0o644)
        extra = f'\n[[table]]\nname = "patterns"\ntype = "regexp"\npath = "{aliases}"\n'
        extra += '\n[[domain]]\nname = "far.test"\naliases = "patterns"\n'
        extra += route("gone.test", f"[127.0.0.1]:{refusing.port}")
        far = self.start("far", extra=extra + route("srs.test", "[127.0.0.1]:1"), networks=[], hostname="mx.far.test")
        server = self.forwarding(far=far.port)
        edit(far, '"[127.0.0.1]:1"', f'"[127.0.0.1]:{server.port}"')
        self.assertEqual(reload(far).returncode, 0)
        self.send(server, "away@bench.test", sender="carol@home.test")
        (bounce,) = self.await_messages(self.home, 1, server)
        self.assertEqual((path(bounce.sender), [path(to) for to in bounce.recipients]), ("", ["carol@home.test"]))
        self.assertIn(b"550 5.1.1 who is that", bounce.content)
        self.assertIn(made_by(SECRET, "carol@home.test").encode(), bounce.content)
        await_that(lambda: server.queued() + far.queued() == 0, "empty queues", server)

    def test_our_own_notice_goes_to_the_original_sender(self):
        server = self.forwarding()
        self.far.script["RCPT"] = "550 5.1.1 who is that"
        self.send(server, "away@bench.test", sender="carol@home.test")
        (bounce,) = self.await_messages(self.home, 1, server)
        self.assertEqual((path(bounce.sender), [path(to) for to in bounce.recipients]), ("", ["carol@home.test"]))
        self.assertNotIn(b"SRS0", bounce.content)

    def test_our_own_notice_to_a_rewritten_sender_of_ours_goes_to_the_original_one(self):
        """The message came back from another forwarder, which had kept the sender."""
        server = self.forwarding()
        self.far.script["RCPT"] = "550 5.1.1 who is that"
        self.send(server, "away@bench.test", sender=made_by(SECRET, "carol@home.test"))
        (bounce,) = self.await_messages(self.home, 1, server)
        self.assertEqual([path(to) for to in bounce.recipients], ["carol@home.test"])

    def test_a_rewritten_sender_of_another_host_is_wrapped_and_returns_there(self):
        server = self.forwarding()
        theirs = "SRS0=ABCD=EF=a.test=Bob@other.test"
        ours = self.forwarded_sender(server, theirs)
        self.assertRegex(ours, r"^SRS1=[a-z2-7]{10}=other\.test==ABCD=EF=a\.test=Bob@srs\.test$")
        self.assertTrue(self.reply_to(server, ours.replace("other", "0ther")).is_a(550, "5.1.1"))
        self.send(server, ours, sender="")
        (bounce,) = self.await_messages(self.home, 1, server)
        self.assertEqual([path(to) for to in bounce.recipients], [theirs])
        further = "SRS1=abcdefghij=other.test==ABCD=EF=a.test=Bob@third.test"
        self.assertEqual(self.forwarded_sender(server, further), ours, "the chain does not grow")

    def test_a_host_on_the_way_may_change_the_case(self):
        server = self.forwarding()
        self.send(server, made_by(SECRET, "carol@home.test").upper(), sender="")
        (bounce,) = self.await_messages(self.home, 1, server)
        self.assertEqual([path(to) for to in bounce.recipients], ["CAROL@home.test"])


@unittest.skipUnless(has_mail_srs(), "Mail::SRS is not installed")
class WithMailSrs(SrsCase):
    """Between this server and a forwarder that rewrites with Mail::SRS. Its codes are others than ours, as those of any
    two forwarders are: neither reads the other's, and each finds its own again behind them.
    """

    def perl(self, action, *words):
        """What Mail::SRS makes of an address."""
        program = f'print Mail::SRS->new(Secret => ["its own secret"])->{action}(@ARGV)'
        argv = ["perl", "-MMail::SRS", "-e", program, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout

    def returned_to(self, server, address):
        """Where a bounce to this address goes."""
        before = len(self.home.accepted)
        self.send(server, address, sender="")
        (to,) = self.await_messages(self.home, before + 1, server)[-1].recipients
        return path(to)

    def test_a_bounce_finds_its_way_back_through_both(self):
        server = self.forwarding()
        theirs = self.perl("forward", "Bob@home.test", "other.test")
        ours = self.forwarded_sender(server, theirs)
        self.assertTrue(theirs.startswith("SRS0=") and ours.startswith("SRS1="), (theirs, ours))
        returned = self.returned_to(server, ours)
        self.assertEqual((returned, self.perl("reverse", returned)), (theirs, "Bob@home.test"))

    def test_a_bounce_finds_its_way_back_the_other_way_round(self):
        server = self.forwarding()
        ours = self.forwarded_sender(server, "Carol@home.test")
        theirs = self.perl("forward", ours, "other.test")
        self.assertTrue(ours.startswith("SRS0=") and theirs.startswith("SRS1="), (ours, theirs))
        returned = self.perl("reverse", theirs)
        self.assertEqual((returned, self.returned_to(server, returned)), (ours, "Carol@home.test"))
        # A third one keeps the chain as short as it is, for both.
        self.assertTrue(self.forwarded_sender(server, theirs).endswith("==" + ours.partition("@")[0][5:] + "@srs.test"))


class Refused(SrsCase):
    def test_forged_and_expired_addresses(self):
        server = self.forwarding(srs="days = 3\n")
        good = made_by(SECRET, "carol@home.test")
        self.assertEqual(self.reply_to(server, good).code, 250)
        self.assertEqual(self.reply_to(server, made_by(SECRET, "carol@home.test", days_ago=3)).code, 250)
        for recipient, text in (
            (good.replace("carol", "eve"), "not an SRS address of this host"),
            (good.replace("home.test", "victim.test"), "not an SRS address of this host"),
            (made_by("another secret, as long as ours", "carol@home.test"), "not an SRS address of this host"),
            ("SRS0=x@srs.test", "not an SRS address of this host"),
            ("SRS1=aaaaaaaaaa=home.test==a=b=c=d@srs.test", "SRS address"),
            (made_by(SECRET, "carol@home.test", days_ago=4), "the SRS address has expired"),
            (made_by(SECRET, "carol@home.test", days_ago=1024), "not an SRS address of this host"),
        ):
            reply = self.reply_to(server, recipient)
            self.assertTrue(reply.is_a(550, "5.1.1"), f"{recipient}: {reply}")
            self.assertIn(text, reply.text, recipient)
        for recipient in ("carol@srs.test", good.replace("srs.test", "elsewhere.test")):
            self.assertTrue(self.reply_to(server, recipient).is_a(550, "5.7.1"), recipient)
        counted = metrics(server)
        self.assertEqual(counted['mailrace_srs_total{result="returned"}'], 2)
        self.assertGreaterEqual(counted['mailrace_srs_total{result="forged"}'], 5)
        self.assertGreaterEqual(counted['mailrace_srs_total{result="expired"}'], 1)

    def test_only_bounces_return_whoever_the_client_is(self):
        server = self.forwarding(networks=EVERYONE)
        reply = self.reply_to(server, made_by(SECRET, "carol@home.test"), sender="eve@other.test")
        self.assertTrue(reply.is_a(550, "5.7.1"), reply)
        self.assertIn("only for bounces", reply.text)

    def test_nothing_returns_into_the_domain_of_the_rewritten_senders(self):
        server = self.forwarding()
        wrapped = made_by(SECRET, "SRS0=aaaaaaaa=aa=victim.test=eve@srs.test")
        self.assertTrue(self.reply_to(server, wrapped).is_a(550, "5.1.1"))


class Operated(SrsCase):
    def command(self, server, *words):
        argv = [str(server.binary), *map(str, words), "--config", str(server.config)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    def test_the_first_secret_signs_and_all_verify_after_a_reload(self):
        server = self.forwarding()
        old = made_by(SECRET, "carol@home.test")
        self.secret_file("secret", OLDER)
        self.assertIn("secrets of SRS", reload(server).stdout)
        self.assertTrue(self.reply_to(server, old).is_a(550, "5.1.1"))
        self.assertEqual(self.forwarded_sender(server, "carol@home.test"), made_by(OLDER, "carol@home.test"))
        second = self.secret_file("second", SECRET)
        edit(server, "secret_file = ", f'secret_file = ["{second}", ')
        edit(server, '\ndomain = "srs.test"', ']\ndomain = "srs.test"')
        self.assertEqual(reload(server).returncode, 0)
        self.assertEqual(self.reply_to(server, made_by(OLDER, "carol@home.test")).code, 250)
        self.assertEqual(self.forwarded_sender(server, "carol@home.test"), old)

    def test_explain_says_what_becomes_of_senders(self):
        server = self.forwarding()
        told = self.command(server, "explain", "away@bench.test", "--sender", "carol@home.test").stdout
        self.assertIn("sender in other domains: an SRS address in srs.test, if a stranger sends it", told)
        told = self.command(server, "explain", "away@bench.test", "--sender", "alice@bench.test").stdout
        self.assertNotIn("sender in other domains", told)
        told = self.command(server, "explain", made_by(SECRET, "carol@home.test")).stdout
        self.assertIn("the sender of forwarded mail (SRS), only for bounces", told)
        self.assertIn("\ncarol@home.test\n", told)
        told = self.command(server, "explain", "SRS0=x=y=home.test=eve@srs.test").stdout
        self.assertIn("not an SRS address of this host", told)

    def test_a_secret_that_cannot_be_used_is_told_at_its_place(self):
        server = self.forwarding()
        self.assertIn("srs.test", self.command(server, "check").stdout)
        secret = self.secret_file("secret", "short")
        for words in (("check",), ("reload",)):
            done = self.command(server, *words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("`srs.secret_file` cannot be used", done.stdout + done.stderr)
            self.assertIn("fewer than 16 octets", done.stdout + done.stderr)
        self.secret_file("secret", SECRET)
        secret.chmod(0o644)
        self.assertRegex(self.command(server, "check").stdout + self.command(server, "check").stderr,
                         "all local users can read .*/secret, which contains a secret of SRS")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
