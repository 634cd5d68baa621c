"""Measurements show one moving line on a terminal: what runs, what is left, and the ratio so far. The terminal is a pty."""

import fcntl
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import unittest

from harness import folder
from peers.mailrace import BINARY, ROOT

SECONDS_MAX = 120
ROWS, COLUMNS = 40, 200
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
DONE = '{"done": 10, "seconds": 0.1, "latency": {"p50_us": 1, "p90_us": 2, "p99_us": 3, "p999_us": 4, "max_us": 5}}'
SYSTEM = """
[[system]]
name  = "{name}"
start = "echo ready; exec sleep 60"
ready = {{ log = "ready" }}
"""
COMPARISON = f"""\
[compare]
name  = "tiny"
title = "Two programs that do nothing"
rest  = "0s"
{SYSTEM.format(name="one")}{SYSTEM.format(name="two")}
[[scenario]]
name  = "nothing"
load  = '''sleep 0.3; echo '{DONE}' '''
"""


class TerminalLine(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def shown(self, *argv, codes):
        """What a program writes to the terminal that is its standard error: without control characters, but each time that
        the line is drawn is a line.
        """
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        octets = []
        reader = threading.Thread(target=read_all, args=(ours, octets), daemon=True)
        reader.start()
        environment = os.environ | {"TERM": "xterm", "MAILRACE_BENCH_REST": "0", "MAILRACE_BENCH_DIR": str(self.folder)}
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, cwd=self.folder,
            env=environment, text=True, timeout=SECONDS_MAX,
        )  # fmt: skip
        os.close(theirs)
        reader.join(SECONDS_MAX)
        os.close(ours)
        text = b"".join(octets).decode()
        self.assertIn(done.returncode, codes, done.stdout + text)
        return [line.strip() for line in CONTROL.sub("\n", text).split("\n") if line.strip()]

    def assert_shown(self, lines, pattern):
        """One of the lines has this form."""
        self.assertTrue(any(re.search(pattern, line) for line in lines), f"{pattern}: {lines}")

    def test_a_measurement_shows_what_runs_and_the_ratio_so_far(self):
        (self.folder / "mailrace.toml").write_text("allow_root = true\n")
        knob = ["tune", "measure", "limits.sessions", "--before", "100", "--values", "200"]
        bounds = ["--scenario", "accept-many", "--run", "400ms", "--sessions", "5", "--rounds-max", "2"]
        lines = self.shown(BINARY, *knob, *bounds, codes=(1,))
        self.assert_shown(lines, r"^\[00:\d\d:\d\d\] round 1 of at most 2, with 100 \(before\)$")
        self.assert_shown(lines, r"^\[00:\d\d:\d\d\] round 1 of at most 2, with 200$")
        self.assert_shown(lines, r"^\[00:\d\d:\d\d\] round 2 of at most 2, with 200; 200: \d+\.\d{3}$")
        self.assertTrue(all(line.startswith("[00:") for line in lines[:-1]), f"only the line, then the verdict: {lines}")

    def test_a_search_shows_what_runs_and_the_best_so_far(self):
        (self.folder / "mailrace.toml").write_text("allow_root = true\n")
        bounds = ["--min", "2", "--max", "4", "--scenario", "accept-many", "--run", "400ms", "--runs-max", "3"]
        lines = self.shown(BINARY, "tune", "search", "sessions", *bounds, codes=(1,))
        self.assert_shown(lines, r"^\[00:\d\d:\d\d\] run 1 of at most 3, with 2$")
        self.assert_shown(lines, r"^\[00:\d\d:\d\d\] run 2 of at most 3, with 4; so far 2 gave \d+ a second$")
        self.assert_shown(lines, r"^\[00:\d\d:\d\d\] run 3 of at most 3, with [24]; so far [24] gave \d+ a second$")
        self.assertTrue(all(line.startswith("[00:") for line in lines[:-1]), f"only the line, then the verdict: {lines}")

    def test_paired_runs_show_what_runs_what_is_left_and_the_ratio_so_far(self):
        run = [sys.executable, ROOT / "bench/run", "accept-many", "--pairs", "2", "--shrink", "1000", "--sides", "mailrace,sink"]
        lines = self.shown(*run, codes=(0, 1))  # whether the aim is met does not matter
        begin = r"^\[00:\d\d:\d\d\] round "
        self.assert_shown(lines, begin + r"1 of at most 2, mailrace, runs left at most: 3$")
        self.assert_shown(lines, begin + r"1 of at most 2, sink, runs left at most: 2$")
        ratio = r"messages a second, mailrace / sink: [\d.e+-]+$"
        self.assert_shown(lines, begin + r"2 of at most 2, sink, runs left at most: 1; " + ratio)
        self.assert_shown(lines, begin + r"2 of at most 2, mailrace, runs left at most: 0; " + ratio)
        self.assertTrue(all(line.startswith("[00:") for line in lines), f"only the line: {lines}")

    def test_a_comparison_shows_what_runs_what_is_left_and_the_ratio_so_far(self):
        (self.folder / "tiny.toml").write_text(COMPARISON)
        lines = self.shown(BINARY, "bench", "compare", "tiny.toml", "--rounds", "2", "--output", "results", codes=(0,))
        begin = r"^\[00:\d\d:\d\d\] \S+ +nothing: round "
        self.assert_shown(lines, begin + r"1 of at most 2, one, runs left at most: \d+$")
        self.assert_shown(lines, begin + r"2 of at most 2, two, runs left at most: \d+; one / two: \d.*$")
        # What a killed comparison left, perhaps one of a test that runs beside this one, is ended and told first.
        drawn = [line for line in lines if not line.startswith("ended the processes of a killed comparison")]
        self.assertTrue(all(line.startswith("[00:") for line in drawn), f"only the line: {lines}")


def read_all(descriptor, octets):
    """Reads until the other end of the terminal is closed."""
    try:
        while read := os.read(descriptor, 4096):
            octets.append(read)
    except OSError:  # EIO says so
        pass


if __name__ == "__main__":
    unittest.main()
