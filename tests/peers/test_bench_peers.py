"""The servers that bench/run starts: what they are given depends on what they know. And its guard: what a run has changed
is put back, also if it is killed. And what its smaller runs still contain.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

from harness import Mailrace  # makes the modules of bench known
import tuned_host
from peers import gauge_calls, guard, postfix
from peers.laboratory import Source
from scenarios import exim_mass_mail, postfix_ldap

REFUSES = "#!/bin/sh\nexit 78\n"
TAKES = "#!/bin/sh\nexit 0\n"
SECONDS_MAX = 60
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


class TunedHosts(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.sysctls = pathlib.Path(made.name)
        for name, text in (("dirty_ratio", "20\n"), ("dirty_bytes", "0\n"), ("swappiness", "0\n")):
            (self.sysctls / "vm").mkdir(exist_ok=True)
            (self.sysctls / "vm" / name).write_text(text)

    def test_the_value_in_force_of_a_pair_is_put_back_and_a_0_of_others(self):
        names = ("vm.dirty_ratio", "vm.dirty_bytes", "vm.swappiness", "vm.unknown")
        with unittest.mock.patch("tuned_host._SYSCTLS", self.sysctls), unittest.mock.patch("peers.guard.remember") as remember:
            with tuned_host.TunedHost(self.sysctls, machine_sysctls=names) as host:
                host.set_sysctls({"vm.dirty_bytes": "1048576", "vm.swappiness": "10"})
        remembered = {path.name: value for (path, value), _ in remember.call_args_list}
        self.assertEqual(remembered, {"dirty_ratio": "20", "swappiness": "0"})
        self.assertEqual((self.sysctls / "vm/swappiness").read_text(), "0")
        self.assertEqual((self.sysctls / "vm/dirty_ratio").read_text(), "20", "by which the kernel sets the other one to 0")


@unittest.skipUnless(gauge_calls.is_installed(), "cc is not installed")
class GaugeCalls(unittest.TestCase):
    def test_the_load_average_is_read_for_each_connection(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder).chmod(0o755)
            server = gauge_calls.CallingMailrace(pathlib.Path(folder) / "server", concurrency=0)
            self.addCleanup(server.stop)
            server.start()
            Source(20, sessions=2, reuse=False).run(server.port)
            server.check_kept(20)
            Source(20, sessions=2).run(server.port)
            with self.assertRaisesRegex(RuntimeError, r"was read 2\d times for 40 connections"):
                server.check_kept(40)
            server.stop()


class SmallerRuns(unittest.TestCase):
    def test_a_small_run_with_a_directory_still_has_each_number(self):
        loads = postfix_ldap._loads(is_small=True)
        self.assertEqual(len(loads), 3)
        self.assertEqual({load.addresses for load in loads}, set(postfix_ldap.ADDRESSES))
        self.assertEqual({load.connections for load in loads}, set(postfix_ldap.CONNECTIONS))
        [equal] = [load for load in loads if load.is_equal]
        self.assertEqual(equal.count("postfix-ldap"), equal.count("mailrace-ldap"))
        self.assertIn("4,400 messages to each", equal.label(shrink=50))

    def test_an_hour_is_divided_with_its_mail_and_its_best_five_minutes(self):
        whole = exim_mass_mail._sides(400)["exim"]
        small = whole.for_trial(60)
        self.assertEqual((whole.seconds_max, small.seconds_max), (3600, 60))
        mail = [sum(one.count for one in (side.load, *side.others)) for side in (whole, small)]
        self.assertAlmostEqual(mail[0] / 60, mail[1], delta=3)
        curve = [(0.0, 0), (24.0, 240), (30.0, 540), (60.0, 840)]
        drain = exim_mass_mail.Delivered(curve, 2000, 1900, 840, 0, 0, 1160)
        self.assertEqual((drain.best_seconds, drain.best), (5.0, 250.0))

    def test_no_drain_is_too_short_to_mean_something(self):
        least = exim_mass_mail._sides(900)["exim"].for_trial(100_000)
        self.assertEqual(least.seconds_max, 10)
        self.assertGreaterEqual(sum(one.count for one in (least.load, *least.others)), 1999)


if __name__ == "__main__":
    unittest.main()
