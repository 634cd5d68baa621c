"""The laboratory tells the truth: every message is known again, what is missing is missed, and a stall shows.

The source sends into the sink, into this server and into Postfix; what it says is held against what the other side kept.
"""

import json
import pathlib
import signal
import subprocess
import unittest

import harness
from harness import ServerCase, await_that, folder
from peers import postfix
from peers.mailrace import BINARY

SECONDS_MAX = 240
MILLION = 1_000_000


def bench(*argv, code=0):
    """Runs a command of the laboratory to its end, and returns what it says of itself as JSON."""
    done = subprocess.run(
        [str(BINARY), "bench", *argv, "--json"], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    if done.returncode != code:
        raise AssertionError(f"bench {' '.join(argv)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


class Sink:
    """A sink on a port of its own."""

    def __init__(self, *argv):
        self._process = subprocess.Popen(
            [str(BINARY), "bench", "sink", "--listen", "127.0.0.1:0", "--json", *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.target = self._process.stdout.readline().split()[-1]

    def end(self):
        """Ends it, and returns its summary."""
        self._process.terminate()
        output, _ = self._process.communicate(timeout=SECONDS_MAX)
        return json.loads(output)

    def stop(self):
        """Ends it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class FolderCase(unittest.TestCase):
    """Tests with a folder and sinks of their own."""

    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def sink(self, *argv):
        """A sink that ends with the test."""
        sink = Sink(*argv)
        self.addCleanup(sink.stop)
        return sink


class SourceAndSink(FolderCase):
    def test_both_sides_and_the_ledger_agree_on_every_recipient(self):
        ledger, record = self.folder / "ledger", self.folder / "record"
        sink = self.sink("--record", str(record))
        sent = bench(
            "smtp", "--target", sink.target, "--connections", "7", "--messages", "500", "--recipients", "3",
            "--users", "1000", "--size", "100..9000", "--per-connection", "1..5", "--pipelining", "--ledger", str(ledger),
        )  # fmt: skip
        self.assertEqual((sent["done"], sent["failed"], sent["parts"]), (500, 0, 1500))
        self.assertGreater(sent["connections"], 100)
        taken = sink.end()
        self.assertEqual((taken["messages"], taken["recipients"], taken["octets"]), (500, 1500, sent["octets"]))
        self.assertEqual(taken["seen"], {"sound": 1500, "damaged": 0, "doubled": 0, "foreign": 0})
        held = bench("verify", "--ledger", str(ledger), "--record", str(record))
        self.assertEqual((held["messages"], held["found"]), (500, 1500))

    def test_a_source_sends_as_many_as_it_was_told_to_at_the_rate_it_was_told(self):
        sink = self.sink()
        sent = bench("smtp", "--target", sink.target, "--connections", "5", "--rate", "100", "--duration", "3s", "--bdat")
        self.assertEqual(sent["done"], 300)
        self.assertEqual(sink.end()["messages"], 300)

    def test_refusals_are_errors_by_what_was_said(self):
        sink = self.sink("--rule", "*@lame.test rcpt reject 550 5.1.1 nobody of that name")
        sent = bench(
            "smtp", "--target", sink.target, "--messages", "40", "--recipients", "2", "--users", "1",
            "--recipient", "a@bench.test", "--recipient", "b@lame.test", code=1,
        )  # fmt: skip
        self.assertEqual((sent["done"], sent["parts"]), (40, 40))
        ((text, count),) = sent["errors"].items()
        self.assertEqual(count, 40)
        self.assertIn("RCPT: 550 5.1.1", text)

    def test_the_operator_may_end_it_and_gets_the_summary(self):
        sink = self.sink()
        ledger = self.folder / "ledger"
        ledger.touch()
        source = subprocess.Popen(
            [str(BINARY), "bench", "smtp", "--target", sink.target, "--rate", "50", "--ledger", str(ledger), "--json"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(source.kill)
        await_that(lambda: ledger.read_text().count("\t") >= 10, "ten messages in the ledger", _Mute)
        source.send_signal(signal.SIGINT)
        output, _ = source.communicate(timeout=60)
        self.assertGreaterEqual(json.loads(output)["done"], 10)
        self.assertEqual(source.returncode, 0)

    def test_a_machine_that_is_not_ours_is_put_under_no_load(self):
        done = subprocess.run(
            [str(BINARY), "bench", "smtp", "--target", "192.0.2.1:25", "--messages", "1"], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 64)
        self.assertIn("--i-own-this-target 192.0.2.1", done.stderr)


class _Mute:
    """A server that has no log."""

    @staticmethod
    def log_tail():
        return ""


class Stalls(FolderCase):
    """A server that stalls for a second in every ten."""

    SECONDS = "11s"

    def p99_ms(self, *argv):
        sink = self.sink("--rule", "* stall 1s every 10s")
        sent = bench("smtp", "--target", sink.target, "--connections", "10", "--duration", self.SECONDS, "--size", "0", *argv)
        self.assertEqual(sent["failed"], 0)
        return sent["latency"]["p99_us"] / 1000

    def test_the_open_loop_shows_the_stall(self):
        self.assertGreater(self.p99_ms("--rate", "100"), 500)

    def test_the_closed_loop_does_not(self):
        self.assertLess(self.p99_ms(), 250)


class Verify(FolderCase):
    def test_one_lost_one_doubled_and_one_damaged_are_found_among_a_million(self):
        ledger, record = self.folder / "ledger", self.folder / "record"
        run = "00000000000000ab"
        with open(ledger, "w") as out:
            out.write(f"run {run}\n")
            out.writelines(f"{n}\tuser{n % 997}@bench.test\n" for n in range(MILLION))
        with open(record, "w") as out:
            for n in range(MILLION):
                if n == 123_456:
                    continue
                state = "damaged" if n == 500_000 else "sound"
                line = f"{run} {n} {state} user{n % 997}@bench.test\n"
                out.write(line * 2 if n == 999_999 else line)
        held = bench("verify", "--ledger", str(ledger), "--record", str(record), code=1)
        self.assertEqual((held["messages"], held["lost"], held["doubled"], held["damaged"]), (MILLION, 1, 1, 1))
        numbers = {fault: [one["sequence"] for one in held["examples"][fault]] for fault in ("lost", "doubled", "damaged")}
        self.assertEqual(numbers, {"lost": [123_456], "doubled": [999_999], "damaged": [500_000]})


class Maildirs(ServerCase):
    SERVER = {"users": [f"user{n}" for n in range(1, 21)]}

    def test_what_this_server_delivers_is_what_was_sent_until_somebody_touches_it(self):
        made = folder()
        self.addCleanup(made.cleanup)
        ledger = pathlib.Path(made.name) / "ledger"
        bench(
            "smtp", "--target", f"127.0.0.1:{self.server.port}", "--connections", "5", "--messages", "200", "--users", "20",
            "--recipients", "2", "--size", "0..20000", "--pipelining", "--bdat", "--ledger", str(ledger),
        )  # fmt: skip
        look = ("verify", "--ledger", str(ledger), "--maildir", str(self.server.maildirs))
        held = bench(*look, "--wait", "30s")
        self.assertEqual((held["messages"], held["recipients"], held["found"], held["copies"]), (200, 400, 400, 400))
        letters = [path for user in self.SERVER["users"] for path in harness.letters(self.server.maildir(user) / "new")]
        big = [path for path in letters if path.stat().st_size > 2000]
        big[0].unlink()
        (big[1].parent / "copy").write_bytes(big[1].read_bytes())
        content = bytearray(big[2].read_bytes())
        content[-10] ^= 1
        big[2].write_bytes(content)
        held = bench(*look, code=1)
        self.assertEqual((held["lost"], held["doubled"], held["damaged"]), (1, 1, 1))


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
        self.postfix.start()
        self.addCleanup(self.postfix.stop)

    def test_postfix_takes_what_the_source_sends_by_every_way_that_it_offers(self):
        real = self.folder / "real.eml"
        real.write_text("Subject: real\n\n.a dot\n..two\nend")
        ways = ([], ["--pipelining"], ["--bdat", "--pipelining"], ["--starttls", "100%"], ["--corpus", str(real)])
        for way in ways:
            sent = bench(
                "smtp", "--target", f"127.0.0.1:{self.postfix.port}", "--connections", "3", "--messages", "20",
                "--per-connection", "4", "--recipient", "user@bench.test", "--sender", "sender@bench.test", *way,
            )  # fmt: skip
            self.assertEqual((sent["done"], sent["failed"]), (20, 0), way)
            self.assertEqual(sent["tls_connections"], sent["connections"] if "--starttls" in way else 0)
        self.postfix.check_kept(20 * len(ways))


if __name__ == "__main__":
    unittest.main()
