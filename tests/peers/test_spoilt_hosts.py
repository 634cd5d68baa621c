"""`mailrace tune` on hosts that are really spoilt: few open files, a short queue of connections, a synchronous mount, a
scheduler that hurts, a control group that is too small. Each is found, is worse, is mended, and is put back exactly as
it was; a sound host has no finding that is sure. `tune apply` and `tune revert` run for real, and are killed.

Needs root, namespaces, loop devices and ext4. Nothing outside the namespaces and the loop device is changed.
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest

from harness import folder
from peers.mailrace import BINARY
from spoilt_host import SpoiltHost, Unavailable, children

CPU_SECONDS_MAX = 0.2  # a check
FILES_ENOUGH = 1 << 17
START_SECONDS_MAX = 60
CONNECTIONS, SHORT_QUEUE, MEASURED_QUEUE, LONG_QUEUE = 300, 16, 2048, 4096
CONFIG = """\
hostname = "mx.bench.test"
data_dir = "{spool}/data"
user     = "nobody"

[dns]
servers = ["127.0.0.1:53"]

[spool]
segment        = "16MiB"
spare_segments = 2
space_min      = "16MiB"

[transport.maildir]
path = "{spool}/mail/{{domain}}/{{local}}"

[[listener]]
protocol = "smtp"
address  = "127.0.0.1:0"
"""
UNIT = "/etc/systemd/system/mailrace.service"
DROP_IN = f"{UNIT}.d/60-mailrace.conf"
SYSCTLS = "/etc/sysctl.d/60-mailrace.conf"
SOMAXCONN = "/proc/sys/net/core/somaxconn"
JOURNAL = "/var/lib/mailrace-tune/journal.json"
# Values of the network namespace that are wrong, so that applying them has many steps.
SPOILT_NETWORK = {
    "net/core/somaxconn": SHORT_QUEUE,
    "net/ipv4/tcp_max_syn_backlog": 64,
    "net/ipv4/tcp_syncookies": 0,
    "net/ipv4/ip_local_port_range": "32768 40000",
    "net/ipv4/tcp_tw_reuse": 0,
    "net/ipv4/tcp_max_tw_buckets": 2048,
    "net/ipv4/tcp_rmem": "4096 131072 131072",
}
KILLS, KILL_SECONDS_MAX = 8, 300
RUNS_OF_FILES = 5


@unittest.skipUnless(os.geteuid() == 0, "needs root, to make namespaces and mount a file system")
class SpoiltHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [name for name in ("unshare", "nsenter", "mkfs.ext4", "ip", "prlimit") if not shutil.which(name)]
        if missing:
            raise unittest.SkipTest(f"not installed: {', '.join(missing)}")
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.outside = pathlib.Path(SOMAXCONN).read_text()
        try:
            cls.host = SpoiltHost(made.name)
        except Unavailable as why:
            raise unittest.SkipTest(f"namespaces or loop devices cannot be used: {why}") from None
        cls.addClassCleanup(cls.check_nothing_is_left)
        cls.config = "/etc/mailrace/mailrace.toml"
        cls.host.write(cls.config, CONFIG.format(spool=cls.host.spool))
        # A sound host to begin with, whatever this machine is: only what the tests can set.
        cls.host.write(SOMAXCONN, LONG_QUEUE)
        cls.host.write(cls.host.queue("rotational"), 0)
        cls.host.write(cls.host.queue("read_ahead_kb"), 128)
        cls.host.write(UNIT, f"[Service]\nLimitNOFILE={FILES_ENOUGH}\n")

    @classmethod
    def check_nothing_is_left(cls):
        place = str(cls.host.folder)
        cls.host.end()
        assert pathlib.Path(SOMAXCONN).read_text() == cls.outside
        assert place not in pathlib.Path("/proc/self/mounts").read_text()
        assert not pathlib.Path("/sys/block", cls.host.disk).exists(), "the loop device is left"

    def setUp(self):
        self.before = self.host.state()
        self.addCleanup(self.check_as_before)

    def check_as_before(self):
        """Whatever a test has spoilt and mended, everything is as it was."""
        now = self.host.state()
        different = {name for name in self.before.keys() | now.keys() if self.before.get(name) != now.get(name)}
        self.assertEqual(different, set())

    def spoil(self, name, text):
        """Writes a file or a value, and puts back what was there when the test ends."""
        former = self.host.read(name)
        self.host.write(name, text)
        if former is None:
            self.addCleanup(self.host.run, "rm", "-f", name)
        else:
            self.addCleanup(self.host.write, name, former.strip() if name.startswith(("/proc", "/sys")) else former)

    def spoil_choice(self, name, word):
        """The same for a file that shows all choices, the present one in brackets."""
        former = re.search(r"\[(.+?)\]", self.host.read(name))[1]
        self.host.write(name, word)
        self.addCleanup(self.host.write, name, former)

    def tune(self, *argv, code=0, seconds_max=60):
        """Runs a command of `mailrace tune`."""
        return self.host.run(BINARY, "--config", self.config, "tune", *argv, code=code, seconds_max=seconds_max)

    def check(self, *options):
        """The results of a check."""
        return json.loads(self.tune("check", "--json", *options, code=None).stdout)["results"]

    def findings(self):
        """The findings of a check: how sure, and the value, by the names of the knobs."""
        return {result["name"]: (result["sure"], result["value"]) for result in self.check()}

    def applied(self, knob):
        """Applies a knob; returns what is left of the findings then."""
        self.assertIn("nothing is changed: add --yes", self.tune("apply", knob).stdout)
        self.tune("apply", knob, "--yes")
        return self.findings()

    def serve(self, files=None, wrapper=()):
        """Starts the server, with a limit on open files; returns its port. It ends with the test."""
        limit = ["prlimit", f"--nofile={files}"] if files else []
        line = self.host.command(*wrapper, *limit, BINARY, "--config", self.config, "serve")
        log = self.host.folder / "server.log"
        with open(log, "wb") as said:
            server = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self.addCleanup(self.stop, server)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (listens := re.search(rb"listening protocol=smtp address=[\d.]+:(\d+)", log.read_bytes())):
            if server.poll() is not None or time.monotonic() > deadline:
                self.fail(f"the server does not start: {log.read_text()}")
            time.sleep(0.02)
        return int(listens[1])

    def stop(self, server):
        """Ends the server, and removes its data."""
        if server.poll() is None:
            os.kill(children(server.pid)[0], signal.SIGTERM)  # nsenter waits for it
            server.wait(60)
        self.host.run("rm", "-rf", self.host.spool / "data", self.host.spool / "mail")

    def adaptive(self):
        """What the running server has adapted: values by name."""
        line = self.host.run(BINARY, "--config", self.config, "status", "--json").stdout
        return {value["name"]: value for value in json.loads(line)["adapts"]}

    def test_a_sound_host_has_no_finding_that_is_sure_and_a_check_is_cheap(self):
        spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # noqa: E731
        begin = spent()
        self.host.run(BINARY, "--version")
        starting, begin = spent() - begin, spent()
        findings = self.findings()
        # A slow machine takes longer for all of it.
        self.assertLess(spent() - begin, max(CPU_SECONDS_MAX, 10 * starting))
        self.assertEqual({name: found for name, found in findings.items() if found[0] == "sure"}, {})

    def test_64_open_files_are_found_and_the_server_does_not_start(self):
        self.spoil(UNIT, "[Service]\nLimitNOFILE=64\n")
        self.assertEqual(self.findings()["nofile"], ("sure", "64"))
        refused = self.host.run("prlimit", "--nofile=64", BINARY, "--config", self.config, "serve", code=None)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("the system allows 64 open files (RLIMIT_NOFILE)", refused.stderr)
        self.assertNotIn("nofile", self.applied("nofile"))
        limit = int(re.search(r"LimitNOFILE=(\d+)", self.host.read(DROP_IN))[1])
        self.serve(files=limit)
        [seen] = [result for result in self.check("--all") if result["name"] == "nofile"]
        self.assertEqual((seen["verdict"], seen["value"]), ("well", str(limit)), "of the running server")
        self.assertEqual(self.adaptive()["limits.sessions"]["value"], 10_000)
        self.tune("revert", "--yes")
        self.assertIsNone(self.host.read(DROP_IN))

    def test_a_server_with_few_open_files_serves_fewer_clients_and_says_so(self):
        self.spoil(self.config, self.host.read(self.config) + "\n[limits]\nsessions_per_client = 1000\n")
        port = self.serve(files=600)
        self.assertEqual(self.findings()["nofile"], ("sure", "600"))
        sessions = self.adaptive()["limits.sessions"]
        self.assertLess(sessions["value"], 300)
        self.assertEqual(sessions["highest"], 10_000)
        self.assertIn("RLIMIT_NOFILE", sessions["why"])
        # Each connection is open for several messages, and so at the same time as all others.
        load = ["bench", "smtp", "--target", f"127.0.0.1:{port}", "--connections", "400", "--messages", "2000", "--json"]
        report = json.loads(self.host.run(BINARY, *load, code=None).stdout)
        self.assertGreater(report["failed"], 0, "more clients than files")

    def test_a_setting_that_can_be_changed_live_is_reloaded_by_the_running_server(self):
        knob = ["apply", "limits.sessions=200"]
        self.assertRegex(self.tune(*knob).stdout, r"afterwards:\n  mailrace reload\n")
        self.serve()
        said = self.tune(*knob, "--yes").stdout
        self.assertNotIn("afterwards", said)
        self.assertIn(f"{self.config}: [limits]", said)
        self.assertEqual(self.adaptive()["limits.sessions"]["highest"], 200)
        self.assertIn("[limits]", self.tune("revert", "--yes").stdout)
        self.assertEqual(self.adaptive()["limits.sessions"]["highest"], 10_000)

    def test_without_a_server_that_answers_the_operator_reloads(self):
        self.assertIn("run `mailrace reload` there", self.tune("apply", "limits.body_memory=64MiB", "--yes").stdout)
        self.assertIn("run `mailrace reload` there", self.tune("revert", "--yes").stdout)

    def test_a_short_queue_of_connections_loses_clients(self):
        self.spoil(SOMAXCONN, SHORT_QUEUE)
        self.assertEqual(self.findings()["net.core.somaxconn"], ("sure", str(SHORT_QUEUE)))
        knob = ["net.core.somaxconn", "--before", LONG_QUEUE, "--values", SHORT_QUEUE, "--yes"]
        load = ["--scenario", "accept-one", "--sessions", CONNECTIONS, "--run", "400ms", "--timeout", "10s"]
        bounds = ["--rounds-max", 20, "--time-max", "5m", "--folder", self.host.spool, "--json"]
        words = ["measure", *knob, *load, *bounds]
        measure = lambda: json.loads(self.tune(*words, code=None, seconds_max=400).stdout)  # noqa: E731
        found = measure()
        if not found["trusted"]:  # by chance, the control of one measurement in a hundred shows an effect
            found = measure()
        self.assertIn(found["values"][0]["verdict"], ("fails", "worse"), found["values"])
        self.assertTrue(found["trusted"], found)
        self.assertEqual(self.host.read(SOMAXCONN).strip(), str(SHORT_QUEUE), "the measurement puts it back")
        self.assertNotIn("net.core.somaxconn", self.applied("net.core.somaxconn"))
        self.assertEqual(self.host.read(SOMAXCONN).strip(), "1024")
        self.assertIn("net.core.somaxconn = 1024\n", self.host.read(SYSCTLS))
        self.tune("revert", "--yes")
        self.assertEqual(self.host.read(SOMAXCONN).strip(), str(SHORT_QUEUE))
        self.assertIsNone(self.host.read(SYSCTLS))

    def test_a_measurement_puts_its_value_back_whatever_ends_it(self):
        measuring = ["measure", "net.core.somaxconn", "--values", MEASURED_QUEUE, *self.short_runs(rounds=40)]
        is_measured = lambda: self.host.read(SOMAXCONN).strip() == str(MEASURED_QUEUE)  # noqa: E731
        self.kill_when(measuring, is_measured, signal.SIGTERM)
        self.assertEqual(self.host.read(SOMAXCONN).strip(), str(LONG_QUEUE), "by itself")
        # The servers of killed measurements go on.
        self.addCleanup(self.host.run, "sh", "-c", "kill -KILL -1", code=None)
        for command in (["revert", "--yes"], ["apply", "net.core.somaxconn", "--yes"]):
            self.kill_while(measuring, is_measured)
            self.assertIn("or was killed", self.tune("check", code=None).stderr)
            self.tune(*command)
            self.assertEqual(self.host.read(SOMAXCONN).strip(), str(LONG_QUEUE), command)
            self.assertNotIn("or was killed", self.tune("check", code=None).stderr)

    def test_a_scheduler_is_measured_and_everything_that_it_changes_is_put_back(self):
        before, offered = self.host.read(self.host.queue("scheduler")), {"mq-deadline", "bfq", "kyber"}
        other = next((word for word in before.split() if word in offered), None)  # the present one is in brackets
        if other is None:
            self.skipTest(f"this kernel has no other scheduler: {before}")
        measuring = ["measure", "disk.scheduler.ssd", "--values", other, *self.short_runs(rounds=1)]
        refused = self.tune(*measuring, code=64)
        self.assertIn("every program on this machine", refused.stderr, "a disk is not that of a namespace")
        self.tune(*measuring, "--whole-machine", code=1)
        self.assertEqual(self.host.read(self.host.queue("scheduler")), before)

    def short_runs(self, rounds):
        """The options of a measurement with short runs."""
        load = ["--scenario", "accept-one", "--sessions", 10, "--run", "200ms", "--folder", self.host.spool]
        return [*load, "--rounds-max", rounds, "--yes"]

    def test_a_synchronous_mount_with_access_times_is_slow(self):
        sound = self.rate_of_files()
        self.host.remount("sync,strictatime")
        self.addCleanup(self.host.remount, "async,noatime")
        found = self.findings()
        self.assertEqual(found["mount.sync"], ("sure", "sync"))
        self.assertEqual(found["mount.atime"], ("sure", "strictatime"))
        self.assertLess(self.rate_of_files(), sound / 3)
        shown = self.tune("apply", "mount.sync", code=1).stdout
        self.assertIn(f"mount -o remount,async {self.host.spool}", shown, "it is advice only")
        self.host.remount("async,noatime")
        found = self.findings()
        self.assertNotIn("mount.sync", found)
        self.assertNotIn("mount.atime", found)

    def rate_of_files(self):
        """Small files created and removed in a second, in the folder of the spool: in the run that other programs disturbed
        least.
        """
        load = ["bench", "files", "--folder", self.host.spool, "--files", 20, "--transactions", 60, "--json"]
        reports = [json.loads(self.host.run(BINARY, *load).stdout) for _ in range(RUNS_OF_FILES)]
        return max(report["transactions"]["per_second"] for report in reports)

    def test_a_scheduler_that_hurts_and_too_much_read_ahead_are_mended_at_once(self):
        scheduler, read_ahead = self.host.queue("scheduler"), self.host.queue("read_ahead_kb")
        if "bfq" not in self.host.read(scheduler):
            self.skipTest("this kernel has no bfq")
        requests = self.host.queue("nr_requests")
        self.addCleanup(self.host.write, requests, self.host.read(requests).strip())  # the scheduler changes it
        self.spoil_choice(scheduler, "bfq")
        self.spoil(read_ahead, 8192)
        found = self.findings()
        self.assertEqual(found["disk.scheduler.ssd"], ("likely", "bfq"))
        self.assertEqual(found["disk.read_ahead"], ("depends", "8192"))
        self.tune("apply", "disk.scheduler.ssd", "disk.read_ahead", "--yes")
        found = self.findings()
        self.assertNotIn("disk.scheduler.ssd", found)
        self.assertNotIn("disk.read_ahead", found)
        self.assertNotIn("[bfq]", self.host.read(scheduler))
        self.tune("revert", "--yes")
        self.assertIn("[bfq]", self.host.read(scheduler))
        self.assertEqual(self.host.read(read_ahead).strip(), "8192")

    def test_a_control_group_that_is_too_small_is_found_until_its_limit_is_raised(self):
        group, memory, unlimited = make_group()
        if group is None:
            self.skipTest("no control group with a memory limit can be created")
        self.addCleanup(remove_group, group)
        memory.write_text(str(96 << 20))
        self.serve(wrapper=["sh", "-c", f'echo $$ >"{group}/cgroup.procs" && exec "$@"', "sh"])
        self.assertEqual(self.findings()["cgroup.memory"][0], "sure")
        memory.write_text(unlimited)
        self.assertNotIn("cgroup.memory", self.findings())

    def test_whenever_apply_or_revert_is_killed_revert_puts_everything_back(self):
        for name, value in SPOILT_NETWORK.items():
            self.spoil(f"/proc/sys/{name}", value)
        self.spoil(UNIT, "[Service]\nLimitNOFILE=64\n")
        self.spoil(self.config, self.host.read(self.config) + "\n[limits]\nsessions = 20 # few\n")
        spoilt = self.host.state()
        knobs = [name.replace("/", ".") for name in SPOILT_NETWORK] + ["nofile", "limits.sessions"]
        interrupted, deadline = 0, time.monotonic() + KILL_SECONDS_MAX
        for number in itertools.count():
            if number >= KILLS and (interrupted or time.monotonic() > deadline):
                break
            self.kill_when(["apply", *knobs, "--yes"], self.moment(number))
            if '"is_finished": false' in (self.host.read(JOURNAL) or ""):
                interrupted += 1
                self.assertIn("was interrupted", self.tune("apply", *knobs, "--yes", code=1).stderr)
            if number % 2:
                self.kill_when(["revert", "--yes"], lambda: self.host.path(SYSCTLS).exists() is False)
            self.tune("revert", "--yes")
            self.assertEqual(self.host.state(), spoilt, f"kill {number}")
        self.assertGreater(interrupted, 0, "no kill came in time")
        self.tune("apply", *knobs, "--yes")
        self.assertIn("sessions = 100 # few", self.host.read(self.config))
        self.tune("revert", "--yes")
        self.assertEqual(self.host.state(), spoilt)

    def moment(self, number):
        """When a command is killed: as soon as a file is there, or after some time."""
        files, number = [JOURNAL, SYSCTLS, DROP_IN], number % KILLS
        if number < len(files):
            return self.host.path(files[number]).exists
        begin = time.monotonic()
        return lambda: time.monotonic() - begin > 0.03 * number

    def kill_while(self, words, is_so):
        """Kills a command of `mailrace tune` while this is so, and still is afterwards: nothing could change it back."""
        deadline = time.monotonic() + KILL_SECONDS_MAX
        self.kill_when(words, is_so)
        while not is_so():  # the kill was late
            self.assertLess(time.monotonic(), deadline, "no kill came in time")
            self.kill_when(words, is_so)

    def kill_when(self, words, has_come, number=signal.SIGKILL):
        """Ends a command of `mailrace tune` by a signal when a moment has come, if it still runs."""
        line = self.host.command(BINARY, "--config", self.config, "tune", *words)
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not has_come():
            pass  # a moment is shorter than any sleep
        if process.poll() is None and (running := children(process.pid)):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(running[0], number)
        process.wait(60)


def make_group():
    """A new control group: its folder, the file of its limit on memory, and what is written for no limit."""
    root, name = pathlib.Path("/sys/fs/cgroup"), f"mailrace-test-{os.getpid()}"
    first, second = root / "memory", root
    try:
        if (first / "memory.limit_in_bytes").exists():
            (first / name).mkdir()
            return first / name, first / name / "memory.limit_in_bytes", "-1"
        (second / name).mkdir()
        if (second / name / "memory.max").exists():
            return second / name, second / name / "memory.max", "max"
        (second / name).rmdir()
    except OSError:
        pass
    return None, None, None


def remove_group(group):
    """Removes the group, which takes a moment after its last process."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()
