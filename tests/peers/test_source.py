"""The source sends what it was told to: to the sink, to Postfix, and to recording servers.

Its report is compared with the counts of the other side.
"""

import mailbox
import os
import subprocess
import unittest

from laboratory import FolderCase, bench
from peers import postfix
from peers.mailrace import BINARY

REAL = [
    b"From: a@bench.test\nSubject: dots\n\n.a dot\n..two\n.\n",
    b"From: b@bench.test\nSubject: eight bits\n\nna\xc3\xafve \xff\xfe\n",
    b"From: c@bench.test\nSubject: from lines\n\nFrom here on\n>From there on\n",
    b"From: d@bench.test\nSubject: no body\n\n",
]


class SourceAndSink(FolderCase):
    def test_both_sides_and_the_ledger_agree_on_every_recipient(self):
        ledger, record = self.folder / "ledger", self.folder / "record"
        sink = self.sink("--record", str(record))
        sent = bench(
            "smtp", "--target", sink.target, "--connections", 7, "--messages", 500, "--recipients", 3, "--users", 1000,
            "--size", "100..9000", "--per-connection", "1..5", "--pipelining", "--ledger", ledger,
        )  # fmt: skip
        self.assertEqual((sent["done"], sent["failed"], sent["parts"]), (500, 0, 1500))
        self.assertGreater(sent["connections"], 100)
        taken = sink.end()
        self.assertEqual((taken["messages"], taken["recipients"], taken["octets"]), (500, 1500, sent["octets"]))
        self.assertEqual(taken["seen"], {"sound": 1500, "damaged": 0, "doubled": 0, "foreign": 0})
        held = bench("verify", "--ledger", ledger, "--record", record)
        self.assertEqual((held["messages"], held["found"]), (500, 1500))

    def test_a_source_sends_the_requested_number_at_the_requested_rate(self):
        sink = self.sink()
        target = ("--target", sink.target, "--connections", 5)
        sent = bench("smtp", *target, "--rate", 100, "--messages", 300, "--bdat")
        self.assertEqual((sent["done"], sent["missed"]), (300, 0))
        self.assertGreater(sent["seconds"], 2.9)
        self.assertEqual(sink.end()["messages"], 300)

    def test_refusals_are_counted_by_their_text(self):
        sink = self.sink("--rule", "*@lame.test rcpt reject 550 5.1.1 nobody of that name")
        sent = bench(
            "smtp", "--target", sink.target, "--messages", 40, "--recipients", 2, "--users", 1,
            "--recipient", "a@bench.test", "--recipient", "b@lame.test", code=1,
        )  # fmt: skip
        self.assertEqual((sent["done"], sent["parts"]), (40, 40))
        ((text, count),) = sent["errors"].items()
        self.assertEqual(count, 40)
        self.assertIn("RCPT: 550 5.1.1", text)

    def test_lmtp_has_a_reply_for_each_recipient(self):
        sink = self.sink("--lmtp", "--verify")
        sent = bench("smtp", "--lmtp", "--target", sink.target, "--messages", 50, "--recipients", 2)
        self.assertEqual((sent["done"], sent["parts"], sent["errors"]), (50, 100, {}))
        self.assertEqual(sink.end()["seen"], {"sound": 100, "damaged": 0, "doubled": 0, "foreign": 0})
        sink = self.sink("--lmtp", "--rule", "* message reject")
        sent = bench("smtp", "--lmtp", "--target", sink.target, "--messages", 50, "--recipients", 2, code=1)
        self.assertEqual((sent["failed"], sent["parts"], sum(sent["errors"].values())), (50, 0, 100))

    def test_recipients_come_from_a_file(self):
        people = [f"{name}@{domain}.test" for domain in ("one", "two", "three") for name in ("a", "b")]
        listed = self.folder / "people"
        listed.write_text("".join(f"{person}\n" for person in people))
        sink = self.sink()
        envelope = ("--recipients", len(people), "--recipients-from", listed)
        bench("smtp", "--target", sink.target, "--messages", 60, *envelope)
        self.assertEqual(sink.end()["domains"], {"one.test": 120, "two.test": 120, "three.test": 120})

    def test_another_machine_needs_the_ownership_option(self):
        command = [str(BINARY), "bench", "smtp", "--target", "192.0.2.1:25", "--messages", "1"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 64)
        self.assertIn("--i-own-this-target 192.0.2.1", done.stderr)


class Corpora(FolderCase):
    """Real messages are sent unchanged after a stamp."""

    def assert_sound(self, corpus):
        """Checks that the corpus arrives intact, several times and with each protocol variant."""
        for way in ([], ["--bdat"], ["--lmtp", "--pipelining"]):
            sink = self.sink("--verify", *(["--lmtp"] if "--lmtp" in way else []))
            count = 5 * len(REAL)
            sent = bench("smtp", "--target", sink.target, "--messages", count, "--corpus", corpus, *way)
            taken = sink.end()
            self.assertEqual((taken["messages"], taken["octets"]), (count, sent["octets"]), way)
            self.assertEqual(taken["seen"], {"sound": count, "damaged": 0, "doubled": 0, "foreign": 0}, way)

    def test_an_mbox(self):
        box = mailbox.mbox(self.folder / "mbox")
        for message in REAL:
            box.add(message)
        box.close()
        self.assert_sound(self.folder / "mbox")

    def test_a_maildir(self):
        box = mailbox.Maildir(self.folder / "maildir")
        for message in REAL:
            box.add(message)
        self.assert_sound(self.folder / "maildir")

    def test_a_folder_of_files(self):
        for number, message in enumerate(REAL):
            (self.folder / f"{number}.eml").write_bytes(message)
        self.assert_sound(self.folder)


class Endpoints(FolderCase):
    """Targets, local addresses and logins."""

    def test_every_target_is_used_from_every_local_address_with_every_sender(self):
        servers = [self.scripted(), self.scripted()]
        targets = [word for server in servers for word in ("--target", server.target)]
        sent = bench(
            "smtp", *targets, "--messages", 40, "--connections", 4, "--per-connection", 1, "--local", "127.0.0.1",
            "--local", "127.0.0.2", "--sender", "a{}@bench.test", "--sender", "<>", "--users", 2,
        )  # fmt: skip
        self.assertEqual((sent["done"], sent["connections"]), (40, 40))
        self.assertEqual(sorted(number for server in servers for number in server.accepted), list(range(40)))
        for server in servers:
            self.assertEqual(server.clients, {"127.0.0.1", "127.0.0.2"})
        senders = set().union(*(server.senders for server in servers))
        self.assertEqual(senders, {"a1@bench.test", "a2@bench.test", ""})

    def test_the_source_logs_in(self):
        server = self.scripted(extensions=["AUTH PLAIN"], password="right")
        sent = bench("smtp", "--target", server.target, "--connections", 1, "--messages", 3, "--auth", "alice:right")
        self.assertEqual((sent["done"], server.accepted), (3, [0, 1, 2]))

    def test_a_wrong_password_is_an_error_with_the_text_of_the_server(self):
        server = self.scripted(extensions=["AUTH PLAIN"], password="right")
        sent = bench("smtp", "--target", server.target, "--messages", 1, "--auth", "alice:wrong", code=1)
        self.assertEqual((sent["done"], sent["failed"], server.begun), (0, 1, []))
        ((text, _),) = sent["errors"].items()
        self.assertIn("535 5.7.8 who are you", text)


class Stalls(FolderCase):
    """A server that stalls for one second in every ten."""

    SECONDS = "11s"

    def p99_ms(self, *argv):
        sink = self.sink("--rule", "* stall 1s every 10s")
        target = ("--target", sink.target, "--connections", 10)
        sent = bench("smtp", *target, "--duration", self.SECONDS, "--size", 0, *argv)
        self.assertEqual(sent["failed"], 0)
        return sent["latency"]["p99_us"] / 1000

    def test_the_open_loop_shows_the_stall(self):
        self.assertGreater(self.p99_ms("--rate", 100), 500)

    def test_the_closed_loop_does_not(self):
        self.assertLess(self.p99_ms(), 250)


@unittest.skipUnless(os.geteuid() == 0, "starting Postfix needs root")
class Postfix(FolderCase):
    def setUp(self):
        super().setUp()
        key, certificate = self.folder / "key", self.folder / "certificate"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=bench.test",
             "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True,
        )  # fmt: skip
        lines = [postfix.HOLD, "smtpd_tls_security_level = may", f"smtpd_tls_key_file = {key}"]
        self.postfix = postfix.Postfix(self.folder, "tuned", [*lines, f"smtpd_tls_cert_file = {certificate}"])
        self.addCleanup(self.postfix.stop)
        self.postfix.start()

    def send(self, count, *way):
        """Sends this many messages to it; returns the report."""
        return bench(
            "smtp", "--target", f"127.0.0.1:{self.postfix.port}", "--connections", 3, "--messages", count,
            "--recipient", "user@bench.test", "--sender", "sender@bench.test", *way,
        )  # fmt: skip

    def test_postfix_accepts_messages_with_each_extension_that_it_offers(self):
        real = self.folder / "real.eml"
        real.write_text("Subject: real\n\n.a dot\n..two\nend")
        ways = ([], ["--pipelining"], ["--bdat", "--pipelining"], ["--starttls", "100%"], ["--corpus", real])
        for way in ways:
            sent = self.send(20, "--per-connection", 4, *way)
            self.assertEqual((sent["done"], sent["failed"]), (20, 0), way)
            self.assertEqual(sent["tls_connections"], sent["connections"] if "--starttls" in way else 0)
        self.postfix.check_kept(20 * len(ways))

    def test_a_share_of_the_connections_is_secured(self):
        sent = self.send(60, "--per-connection", 1, "--starttls", "50%")
        self.assertEqual((sent["done"], sent["connections"]), (60, 60))
        # Connections are drawn independently: fewer than 10 or more than 50 of 60 occurs once in 10
        # million runs.
        self.assertGreaterEqual(sent["tls_connections"], 10)
        self.assertLessEqual(sent["tls_connections"], 50)


if __name__ == "__main__":
    unittest.main()
