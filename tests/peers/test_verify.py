"""Lost mail is found: one lost, one doubled and one damaged message, and messages lost in a crash."""

import pathlib
import shlex
import unittest

import harness
from harness import Mailrace, ServerCase, folder
from laboratory import FolderCase, bench
from peers.smtp import free_port

MILLION = 1_000_000


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
        held = bench("verify", "--ledger", ledger, "--record", record, code=1)
        self.assertEqual((held["messages"], held["lost"], held["doubled"], held["damaged"]), (MILLION, 1, 1, 1))
        examples = held["examples"]
        numbers = {fault: [one["sequence"] for one in examples[fault]] for fault in ("lost", "doubled", "damaged")}
        self.assertEqual(numbers, {"lost": [123_456], "doubled": [999_999], "damaged": [500_000]})


class Maildirs(ServerCase):
    SERVER = {"users": [f"user{n}" for n in range(1, 21)]}

    def test_delivered_mail_is_sound_until_it_is_modified(self):
        made = folder()
        self.addCleanup(made.cleanup)
        ledger = pathlib.Path(made.name) / "ledger"
        bench(
            "smtp", "--target", f"127.0.0.1:{self.server.port}", "--connections", 5, "--messages", 200, "--users", 20,
            "--recipients", 2, "--size", "0..20000", "--pipelining", "--bdat", "--ledger", ledger,
        )  # fmt: skip
        look = ("verify", "--ledger", ledger, "--maildir", self.server.maildirs)
        held = bench(*look, "--wait", "30s")
        self.assertEqual((held["messages"], held["recipients"], held["found"], held["copies"]), (200, 400, 400, 400))
        users = self.SERVER["users"]
        messages = [path for user in users for path in harness.mail_files(self.server.maildir(user) / "new")]
        big = [path for path in messages if path.stat().st_size > 2000]
        big[0].unlink()
        (big[1].parent / "copy").write_bytes(big[1].read_bytes())
        content = bytearray(big[2].read_bytes())
        content[-10] ^= 1
        big[2].write_bytes(content)
        held = bench(*look, code=1)
        self.assertEqual((held["lost"], held["doubled"], held["damaged"]), (1, 1, 1))


class Crash(FolderCase):
    def test_this_server_loses_no_acknowledged_mail_in_bench_crash(self):
        users = [f"user{n}" for n in range(1, 11)]
        server, port = Mailrace(self.folder, users=users, retry_first="1s"), free_port()
        self.addCleanup(server.stop)
        text = server.config.read_text()
        server.config.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        outcome = bench(
            "crash", "--start", shlex.join([str(server.binary), "serve", "--config", str(server.config)]),
            "--server-log", server.log, "--ready", f"127.0.0.1:{port}", "--maildir", server.maildirs, "--rounds", 2,
            "--load-min", "200ms", "--load-max", "600ms", "--connections", 5, "--users", 10,
            "--ledger", self.folder / "ledger",
        )  # fmt: skip
        rounds, held = outcome["rounds"], outcome["held"]
        self.assertEqual(len(rounds), 2)
        self.assertGreater(held["messages"], 0)
        self.assertEqual(held["messages"], sum(one["acknowledged"] for one in rounds))
        self.assertEqual((held["lost"], held["damaged"]), (0, 0))


if __name__ == "__main__":
    unittest.main()
