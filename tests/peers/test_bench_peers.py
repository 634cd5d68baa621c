"""The servers that bench/run starts: what they are given depends on what they know. And its guard: what a run has changed
is put back, also if it is killed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from harness import Mailrace
from peers import guard, postfix

REFUSES = "#!/bin/sh\nexit 78\n"
TAKES = "#!/bin/sh\nexit 0\n"
SECONDS_MAX = 20
# A run whose child changes a value, under the eyes of the guard.
RUN = """\
import pathlib, subprocess, sys, time
from peers import guard
path, waits = sys.argv[1:]
if waits == "child":
    guard.remember(path, "before")
    guard.remember(path + ".gone", "before")
    pathlib.Path(path).write_text("changed")
    time.sleep(60)
with guard.watching():
    child = subprocess.Popen([sys.executable, __file__, path, "child"], pass_fds=guard.inherited())
    while pathlib.Path(path).read_text() != "changed":
        time.sleep(0.01)
    if waits == "ends":
        child.kill()
        child.wait()
    else:
        print(child.pid, flush=True)
        time.sleep(60)
"""


class Senders(unittest.TestCase):
    def written(self, script):
        """The configuration for this binary."""
        with tempfile.TemporaryDirectory() as folder:
            (binary := pathlib.Path(folder) / "binary").write_text(script)
            binary.chmod(0o755)
            return Mailrace(pathlib.Path(folder), binary=binary).configuration()

    def test_a_binary_that_checks_senders_is_told_not_to(self):
        self.assertIn("[sender_auth]", self.written(TAKES))

    def test_an_older_binary_is_not_given_a_section_that_it_refuses(self):
        self.assertNotIn("[sender_auth]", self.written(REFUSES))

    def test_a_binary_that_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(RuntimeError, "gone is missing: run `make`"):
            Mailrace(pathlib.Path(folder), binary=pathlib.Path(folder) / "gone")


@unittest.skipUnless(os.geteuid() == 0, "starting Postfix needs root")
class Namespaces(unittest.TestCase):
    def test_postfix_sees_files_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            (own := pathlib.Path(folder) / "resolv.conf").write_text("nameserver 127.0.0.5\n")
            server = postfix.Postfix(pathlib.Path(folder), files={"/etc/resolv.conf": own})
            self.addCleanup(server.stop)
            argv = [*server.namespace(), "cat", "/etc/resolv.conf"]
            seen = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout
            self.assertEqual(seen, "nameserver 127.0.0.5\n")
        self.assertNotIn("127.0.0.5", pathlib.Path("/etc/resolv.conf").read_text())


class Guard(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.value, self.run = pathlib.Path(made.name) / "value", pathlib.Path(made.name) / "run.py"
        self.value.write_text("before")
        self.run.write_text(RUN)
        self.environment = os.environ | {"PYTHONPATH": str(pathlib.Path(guard.__file__).parents[1])}

    def test_a_value_is_as_before_when_the_run_ends(self):
        line = [sys.executable, self.run, self.value, "ends"]
        subprocess.run(line, env=self.environment, timeout=SECONDS_MAX, check=True)
        self.assertEqual(self.value.read_text(), "before")
        self.assertFalse(self.value.with_suffix(".gone").exists())

    def test_a_value_is_as_before_after_the_run_and_its_child_are_killed(self):
        line = [sys.executable, self.run, self.value, "waits"]
        run = subprocess.Popen(line, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.kill)
        child = int(run.stdout.readline())
        self.assertEqual(self.value.read_text(), "changed")
        run.kill()
        run.wait()
        os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_MAX
        while self.value.read_text() != "before" and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.value.read_text(), "before")


if __name__ == "__main__":
    unittest.main()
