"""`mailrace bench compare` with the ready files in examples/compare, as a trial of one round: servers
that are not installed are left out. Afterwards no process and no file of it is left.
"""

import json
import os
import pathlib
import shutil
import subprocess
import time
import tomllib
import unittest

from harness import folder
from peers.mailrace import BINARY, ROOT

FILES = ROOT / "examples/compare"
# Exim is only unpacked, since it cannot be installed beside Postfix; Debian installs servers in /usr/sbin.
PATH = f"{os.environ['PATH']}:/usr/sbin:{ROOT}/target/peers/exim/usr/sbin"
SECONDS_MAX = 300


QUICK_SECONDS = 12
# Two systems that do nothing, and a load that takes its count of milliseconds.
DONE = '{"done": {count}, "seconds": 0.1, "latency": {"p50_us": 1, "p90_us": 2, "p99_us": 3, "p999_us": 4, "max_us": 5}}'
IDLE = "\n".join(
    f"""
[[system]]
name  = "{name}"
start = "echo ready; exec sleep 60"
ready = {{ log = "ready" }}
""" for name in ("one", "two")
)  # fmt: skip
TINY = f"""\
[compare]
name  = "tiny"
title = "Two programs that do nothing"
{IDLE}
[[scenario]]
name  = "nothing"
load  = '''sleep $(echo {{count}} | sed 's/...$/.&/'); echo '{DONE}' '''
count = 1000
"""


class Compare(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def compare(self, file, *argv, code=0):
        """Runs the command without pauses; returns its results and its standard error."""
        work, output = self.folder / "work", self.folder / "results"
        hasty = self.folder / file.name
        hasty.write_text(file.read_text().replace("[compare]", '[compare]\nrest = "0s"', 1))
        line = [str(BINARY), "bench", "compare", str(hasty), "--folder", str(work), "--output", str(output), "--json", *argv]
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX, env=os.environ | {"PATH": PATH}
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        results = [json.loads(text) for text in done.stdout.splitlines()]
        for result in results:
            self.assertEqual(json.loads((output / f"{result['name']}.json").read_text()), result)
        self.assertEqual(list(work.glob("*")), [])
        self.assertEqual(self.left_processes(), [])
        return results, done.stderr

    def left_processes(self):
        """Command lines that name the folder of the test."""
        lines = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        return [line for line in lines if str(self.folder) in line]

    def assert_all_ran(self, name, result):
        """Each system of a ready file that is installed was measured, and has a plausible run."""
        declared = tomllib.loads((FILES / name).read_text())["system"]
        installed = {system["name"] for system in declared if is_runnable(system)}
        self.assertEqual(self.systems(result), installed)
        left_out = [note for note in result["notes"] if "is left out" in note]
        self.assertEqual(len(installed) + len(left_out), len(declared))

    def systems(self, result):
        """The names of the measured systems; each has a plausible run."""
        [case, *_] = result["cases"]
        [measured] = case["rounds"]
        for name, run in measured.items():
            self.assertGreater(run["count"], 0, name)
            self.assertGreater(run["cpu_seconds"], 0, name)
            self.assertGreater(run["machine_cpu_seconds"], 0, name)
            self.assertIn("limit", run, name)
        for system in result["systems"]:
            self.assertTrue(system.get("version"), system)
            self.assertTrue(system.get("configuration"), system)
        return set(measured)

    def test_servers_accept_mail_and_what_is_not_installed_is_left_out(self):
        results, told = self.compare(FILES / "accept.toml", "--scenario", "accept-many", "--rounds", "1", "--shrink", "100")
        [result] = results
        self.assert_all_ran("accept.toml", result)
        self.assertIn("accept-many: round 1", told)
        self.assertTrue(result["is_trial"])

    def test_mail_is_delivered_by_mailrace_and_postfix(self):
        [result], _ = self.compare(FILES / "deliver.toml", "--rounds", "1", "--shrink", "100")
        self.assert_all_ran("deliver.toml", result)

    def test_mailboxes_are_read_from_mailrace_and_dovecot(self):
        # The kernel may count CPU in ticks, which fewer sessions do not fill.
        [result], _ = self.compare(FILES / "read.toml", "--rounds", "1", "--shrink", "20")
        self.assert_all_ran("read.toml", result)

    def test_pages_are_served_for_each_number_of_connections(self):
        [result], _ = self.compare(FILES / "pages.toml", "--rounds", "1", "--shrink", "100")
        self.assertEqual([case["label"] for case in result["cases"]], ["10", "100"])
        self.assert_all_ran("pages.toml", result)

    def test_a_quick_look_ends_with_its_time_and_says_that_it_is_reduced(self):
        (self.folder / "own").mkdir()
        file = self.folder / "own/tiny.toml"
        file.write_text(TINY)
        begin = time.monotonic()
        [result], _ = self.compare(file, "--rounds", "99", f"--quick={QUICK_SECONDS}s")
        # All rounds would take twice as long, since each of two runs rests for a second.
        self.assertLess(time.monotonic() - begin, 99)
        self.assertTrue(result["is_trial"])
        [case] = result["cases"]
        rounds = case["rounds"]
        self.assertLess(len(rounds), QUICK_SECONDS, "each of two runs rests for a second")
        self.assertEqual(rounds[0]["one"]["count"], 100, "a tenth")
        self.assertIn("every count or time divided by 10", result["reduced"])
        self.assertIn(f"the time, 12 s, over after {len(rounds)} of at most 99 rounds", result["reduced"])

    def test_an_aim_that_is_missed_is_exit_code_1_and_an_error_in_the_file_65(self):
        (self.folder / "own").mkdir()
        file = self.folder / "own/aim.toml"
        text = (FILES / "pages.toml").read_text().replace('figure = "cpu_per_thousand"', 'figure = "rate"\nat_least = 1e9')
        file.write_text(text.replace("values     = [10, 100]", "values = [10]"))
        if subprocess.run(["sh", "-c", "command -v nginx || test -x /usr/sbin/nginx"], capture_output=True).returncode:
            self.skipTest("nginx is not installed")
        results, _ = self.compare(file, "--rounds", "1", "--shrink", "100", code=1)
        self.assertFalse(results[0]["comparisons"][0]["is_met"])
        file.write_text(text.replace("at_least", "at_last"))
        _, told = self.compare(file, code=65)
        self.assertIn("aim.toml:", told)


def is_runnable(system):
    """Whether this machine has what a system needs."""
    has_rights = os.geteuid() == 0 or not system.get("needs_root")
    return has_rights and all(shutil.which(program, path=PATH) for program in system.get("needs", []))


if __name__ == "__main__":
    unittest.main()
