"""However a message, a connection or a run ends, the report of the source is correct.

    the server closes, or sends 421     in each stage: a message is counted once, and sent at most once
    Ctrl-C                              open messages are finished; a second one aborts and counts them
    a ledger that cannot be written     ends the run with an error; it only has acknowledged messages
"""

import json
import signal
import subprocess
import unittest

from harness import await_that
from laboratory import SECONDS_MAX, FolderCase, acknowledged, bench
from peers.mailrace import BINARY

MESSAGES = 5
# Stages after which a message can be sent again, since the server has seen at most its MAIL.
UNHARMED = ("MAIL", "idle", "QUIT")
# The number of the message that fails, by stage.
HARMED = {"connect": 0, "EHLO": 0, "RCPT": 2, "DATA": 2, "content": 2, "message": 2}
SHUTDOWN = b"421 4.3.2 going down\r\n"
FILE_OCTETS_MAX = 1024  # of the ledger, by `ulimit -f` of the shell in blocks of 512 or 1,024
IO_FAILED = 74  # EX_IOERR


class Disconnects(FolderCase):
    def send(self, stage, says):
        """Sends a few messages to a server with this fault; returns the counts of server, source
        and ledger.
        """
        server = self.scripted(stage, says)
        ledger = self.folder / f"{stage}{len(says)}"
        argv = ("--target", server.target, "--connections", 1, "--messages", MESSAGES, "--ledger", ledger)
        sent = bench("smtp", *argv, code=1 if stage in HARMED else 0)
        return server, sent, acknowledged(ledger)

    def assert_honest(self, stage, says):
        """Checks that the counts of source, ledger and server agree."""
        server, sent, listed = self.send(stage, says)
        self.assertIsNone(server.stage, "the fault did not happen")
        lost = [HARMED[stage]] if stage in HARMED else []
        expected = [number for number in range(MESSAGES) if number not in lost]
        self.assertEqual(server.accepted, expected)
        self.assertEqual(listed, expected)
        self.assertEqual((sent["done"], sent["failed"]), (len(expected), len(lost)))
        self.assertEqual((sent["missed"], sent["unfinished"]), (0, 0))
        self.assertEqual(sum(sent["errors"].values()), len(lost), sent["errors"])
        self.assertEqual(sent["octets"], server.octets)
        self.assertEqual(len(server.begun), len(set(server.begun)), "a message was sent twice")
        return sent

    def test_a_server_that_disconnects_in_any_stage_is_reported_correctly(self):
        for stage in (*UNHARMED, *HARMED):
            with self.subTest(stage):
                self.assert_honest(stage, b"")

    def test_a_server_that_shuts_down_in_any_stage_is_reported_with_its_reply(self):
        for stage in (*UNHARMED, *HARMED):
            with self.subTest(stage):
                sent = self.assert_honest(stage, SHUTDOWN)
                self.assertTrue(all("421 4.3.2 going down" in text for text in sent["errors"]), sent["errors"])


class EndOfRun(FolderCase):
    def source(self, *argv):
        """A running source."""
        command = [str(BINARY), "bench", "smtp", *map(str, argv), "--json"]
        source = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(source.communicate)
        self.addCleanup(source.kill)
        return source

    def test_ctrl_c_ends_the_run_with_a_summary(self):
        ledger = self.folder / "ledger"
        ledger.touch()
        source = self.source("--target", self.sink().target, "--rate", 50, "--ledger", ledger)
        await_that(lambda: len(acknowledged(ledger)) >= 10, "ten messages in the ledger", _NoLog)
        source.send_signal(signal.SIGINT)
        output, _ = source.communicate(timeout=60)
        summary = json.loads(output)
        self.assertEqual((summary["stopped"], summary["done"]), (True, len(acknowledged(ledger))))
        self.assertEqual(source.returncode, 0)

    def test_a_second_ctrl_c_aborts_open_messages(self):
        server = self.scripted()
        server.answers.clear()
        source = self.source("--target", server.target, "--connections", 3, "--messages", 3)
        await_that(lambda: len(server.begun) == 3, "three open messages", _NoLog)
        source.send_signal(signal.SIGINT)
        with self.assertRaises(subprocess.TimeoutExpired, msg="the source did not wait for open messages"):
            source.communicate(timeout=1)
        source.send_signal(signal.SIGINT)
        output, _ = source.communicate(timeout=60)
        summary = json.loads(output)
        self.assertEqual((summary["done"], summary["unfinished"], summary["stopped"]), (0, 3, True))
        self.assertEqual(source.returncode, 1)

    def test_a_ledger_that_cannot_be_written_ends_the_run(self):
        ledger, record, count = self.folder / "ledger", self.folder / "record", 200_000
        sink = self.sink("--record", str(record))
        load = ("--messages", count, "--size", 0, "--ledger", ledger)
        command = [BINARY, "bench", "smtp", "--target", sink.target, *load]
        # Without the trap the signal would kill the source; with it the write fails (EFBIG), as on
        # a full disk.
        limited = ["sh", "-c", 'trap "" XFSZ; ulimit -f 1; exec "$@"', "sh", *map(str, command)]
        done = subprocess.run(limited, capture_output=True, text=True, timeout=SECONDS_MAX)
        self.assertEqual(done.returncode, IO_FAILED, done.stderr)
        self.assertIn("writing the ledger", done.stderr)
        self.assertIn("File too large", done.stderr)
        taken = sink.end()
        self.assertLess(taken["messages"], count)
        came = {int(line.split()[1]) for line in record.read_text().splitlines()}
        # The last line may be incomplete, and then does not count.
        whole = ledger.read_text().rpartition("\n")[0].splitlines()[1:]
        listed = {int(line.split("\t")[0]) for line in whole}
        self.assertGreater(len(listed), 0)
        self.assertLessEqual(ledger.stat().st_size, FILE_OCTETS_MAX)
        self.assertLessEqual(listed, came)


class _NoLog:
    """A server without a log."""

    @staticmethod
    def log_tail():
        return ""


if __name__ == "__main__":
    unittest.main()
