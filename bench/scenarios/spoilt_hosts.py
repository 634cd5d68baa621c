"""What spoilt hosts cost: the same server on a sound host and on one on which `mailrace tune check` finds something.

    spoilt-hosts        few connections may wait (somaxconn 16), the spool is mounted with sync and atime, the scheduler
                        does not fit the disk, or the disk reads far ahead
    spoilt-files        the server may open few files: 600; and it does not start with 64
    spoilt-scheduler    the scheduler again, on a disk as fast as memory: alone, and while a backup reads it

    sound               the value that `tune check` wants
    spoilt              the other one

All of it happens in namespaces for the network, mounts and processes, and on a loop device of the run. Only the values
of that device are the machine's; the guard puts them back even if the run is killed. Needs root.
"""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import time

import comparison
import pairs
from comparison import Case, Comparison, NullServer, Side
from peers import load, machine
from peers.laboratory import Files, Source, latency_seconds
from peers.mailrace import Mailrace
from tuned_host import TunedHost, run_in_namespaces

from . import Scenario

SOUND, SPOILT = "sound", "spoilt"
PAIRS = 6
_SOUND_DEVICE = {"rotational": "0", "scheduler": "none", "read_ahead_kb": "128"}
_TIMEOUT_SECONDS = 5
_EMPTY_SECONDS_MAX = 300
_MESSAGE_DISK_OCTETS = 20_000
_BACKUP_OCTETS = 512 << 20

QUEUE, MOUNT_MAIL, MOUNT_FILES, SCHEDULER, READ_AHEAD = (
    "500 clients at once, somaxconn 4096 and 16",
    "mail to Maildirs, mounted async,noatime and sync,strictatime",
    "small files, mounted async,noatime and sync,strictatime",
    "mail to Maildirs, scheduler none and bfq",
    "mail to Maildirs, read-ahead 128 and 8,192 KiB",
)
FILES_ENOUGH, FILES_FEW, FILES_TOO_FEW = 4096, 600, 64
FILES = f"500 clients at once, {FILES_ENOUGH:,} and {FILES_FEW} open files"
ALONE, WITH_BACKUP = "mail to Maildirs, scheduler none and bfq", "the same while a backup reads the disk"
_CLIENTS_NOTE = (
    f"500 clients: each sends one message on each connection, and gives up after {_TIMEOUT_SECONDS} s without a reply. The "
    "rate counts the messages that were answered 250; the others are in the checks."
)
NOTES = (
    _CLIENTS_NOTE,
    "Mail to Maildirs: messages of 6,000 bytes over 50 connections to 100 Maildirs, until the queue is empty. Spool and "
    "Maildirs are on one ext4 on a loop device, whose file is on the disk of the machine.",
    "Small files: `mailrace bench files`, 300 transactions on 100 files, without syncs of its own.",
    "The unit differs between the cases: messages, and transactions.",
    comparison.REST_NOTE,
)

FILES_NOTES = (
    _CLIENTS_NOTE,
    "The limit is that of the process (RLIMIT_NOFILE), by prlimit. The server admits as many sessions as it allows, and "
    "refuses the other clients with 421.",
    comparison.REST_NOTE,
)

SCHEDULER_NOTES = (
    "Messages of 6,000 bytes over 50 connections to 100 Maildirs, until the queue is empty. Spool and Maildirs are on one "
    "ext4 on a loop device, whose file is in memory, so that no other disk adds its noise; it is marked as an SSD.",
    f"The backup is dd, which reads a file of {_BACKUP_OCTETS >> 20} MiB again and again, past the page cache.",
    comparison.REST_NOTE,
)


@dataclasses.dataclass(frozen=True)
class HostSide(Side):
    """A side whose host is set as it wants before each run."""

    set_host: object = None  # called without arguments
    answered: list = dataclasses.field(default_factory=list)  # per round: messages, and how many were answered 250

    def create(self, place):
        """Sets the host, then as others."""
        self.set_host()
        return super().create(place)


@dataclasses.dataclass(frozen=True)
class BurstSide(HostSide):
    """Clients that may remain without an answer."""

    def measure(self, server, place):
        """Runs the load, and counts the messages without a 250."""
        figures = pairs.measure(server, lambda: self.load.run(server.port, place))
        self.answered.append((self.load.count, figures.messages))
        if (held := server.queued()) < figures.messages:
            raise RuntimeError(f"{held} messages are queued, {figures.messages} were answered 250")
        return figures


@dataclasses.dataclass(frozen=True)
class DeliverySide(HostSide):
    """Until everything is delivered."""

    def measure(self, server, place):
        """Runs the load until the queue is empty, and counts the messages in the Maildirs."""

        def until_empty():
            begin = time.monotonic()
            done = self.load.run(server.port, place)
            server.wait_until_empty(_EMPTY_SECONDS_MAX)
            return dataclasses.replace(done, seconds=time.monotonic() - begin)

        figures = pairs.measure(server, until_empty)
        found = sum(1 for path in server.maildirs.glob("*/*/new/*") if path.is_file())
        if found != self.load.count:
            raise RuntimeError(f"{found} messages were delivered, {self.load.count} were sent")
        return figures


@dataclasses.dataclass(frozen=True)
class BackupSide(DeliverySide):
    """The same while another program reads the disk."""

    def measure(self, server, place):
        """Runs the load beside it."""
        with _backup(place / "backup"):
            return super().measure(server, place)


@contextlib.contextmanager
def _backup(file):
    """Reads a file from the disk until the end."""
    machine.run("dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={_BACKUP_OCTETS >> 20}", "conv=fsync")
    read_once = f"dd if={file} of=/dev/null bs=1M iflag=direct status=none"
    reader = subprocess.Popen(["sh", "-c", f"while {read_once}; do :; done"], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(reader.pid, signal.SIGKILL)
        reader.wait()


class LimitedMailrace(Mailrace):
    """A server that may open so many files."""

    def __init__(self, place, files):
        super().__init__(place, concurrency=0, limits="backlog = 4096")
        self._files = files

    def start(self, wrapper=()):
        """Starts it with the limit."""
        return super().start((*wrapper, "prlimit", f"--nofile={self._files}"))


@dataclasses.dataclass(frozen=True)
class PatientSource(Source):
    """Clients that give up one by one."""

    def command(self, port="PORT"):
        """The command line."""
        return [*super().command(port), "--timeout", f"{_TIMEOUT_SECONDS}s"]

    def run(self, port, _folder=None):
        """Sends all messages; some may fail."""
        ran = load.run(self.command(port), seconds_max=self.seconds_max, codes=(0, 1))
        summary = json.loads(ran.outputs[0])
        return load.LoadResult(summary["done"], ran.seconds, ran.cpu_seconds, latency_seconds(summary), ran.threads)


_BURST = PatientSource(5000, sessions=500, reuse=False)


def scenario(options):
    """Runs all rounds, in namespaces of their own."""
    return run_in_namespaces(options, "ext4", _run, _Host)


def files_scenario(options):
    """A limit on the open files of the server, also in namespaces."""
    return run_in_namespaces(options, "ext4", _run_files, _Host)


def scheduler_scenario(options):
    """The same, on a disk in memory."""
    return run_in_namespaces(options, "memory", _run_scheduler, _Host)


def _run(options, host, folder):
    cases = _cases(host)
    compared = Comparison(
        "Sound and spoilt hosts", {}, tuple(_targets()), NOTES, unit="operation",
        question="What does it cost if the host is not as `mailrace tune check` wants it?", answer=_answer,
        case_name="host", cases=cases,
    )  # fmt: skip
    found = compared.measure("spoilt-hosts", folder, options)
    found.checks = list(_checks(cases[0], "without an answer"))
    return found.finish(options)


def _run_files(options, host, folder):
    sides = {name: BurstSide(functools.partial(LimitedMailrace, files=files), _BURST, _MESSAGE_DISK_OCTETS, set_host=host.sound)
             for name, files in ((SOUND, FILES_ENOUGH), (SPOILT, FILES_FEW))}  # fmt: skip
    case = Case(FILES, sides)
    compared = Comparison(
        "A server that may open few files", {},
        tuple(pairs.Target(SPOILT, SOUND, figure, case=FILES) for figure in ("rate", "cpu_per_thousand")),
        FILES_NOTES, question="What do clients get if the server may open few files?", answer=_files_answer,
        case_name="host", cases=(case,),
    )  # fmt: skip
    found = compared.measure("spoilt-files", folder, options)
    found.checks = [*_checks(case, "refused"), _refuses_to_start(folder / "too-few")]
    return found.finish(options)


def _refuses_to_start(place):
    """Whether a server that may open almost no files says so instead of serving."""
    aim = f"with {FILES_TOO_FEW} open files the server does not start, and says why"
    server = LimitedMailrace(place, FILES_TOO_FEW)
    try:
        server.start()
    except RuntimeError as refused:
        reason = next((line for line in str(refused).splitlines() if "RLIMIT_NOFILE" in line), str(refused))
        return aim, reason, "RLIMIT_NOFILE" in reason
    else:
        return aim, "it starts", False
    finally:
        server.stop()


def _run_scheduler(options, host, folder):
    source = Source(20_000, sessions=50, recipient="user{}@bench.test", users=100)
    sides = {ALONE: DeliverySide, WITH_BACKUP: BackupSide}
    compared = Comparison(
        "A scheduler that does not fit the disk", {},
        tuple(pairs.Target(SPOILT, SOUND, figure, case=label) for label in sides for figure in ("rate", "cpu_per_thousand")),
        SCHEDULER_NOTES, question="What does the scheduler bfq cost on an SSD?", answer=_scheduler_answer, case_name="disk",
        cases=tuple(Case(label, _both(host, functools.partial(side, _delivering, source, _MESSAGE_DISK_OCTETS), scheduler="bfq"))
                    for label, side in sides.items()),
    )  # fmt: skip
    return compared.measure("spoilt-scheduler", folder, options).finish(options)


class _Host(TunedHost):
    """What of the host is varied. At the end it is as before."""

    def __init__(self, place):
        super().__init__(place, device_values=_SOUND_DEVICE)

    def sound(self, **other):
        """Sets everything as it is wanted, except for what is given."""
        self.set_sysctls({"net.core.somaxconn": str(other.get("somaxconn", 4096))})
        self.remount(other.get("mount", "async,noatime"))
        self.set_device({name: other.get(name, value) for name, value in _SOUND_DEVICE.items()})


def _both(host, side, **spoilt):
    return {SOUND: side(set_host=host.sound), SPOILT: side(set_host=functools.partial(host.sound, **spoilt))}


def _cases(host):
    both = functools.partial(_both, host)

    def mail(count):
        source = Source(count, sessions=50, recipient="user{}@bench.test", users=100)
        return functools.partial(DeliverySide, _delivering, source, _MESSAGE_DISK_OCTETS)

    burst = functools.partial(BurstSide, _held, _BURST, _MESSAGE_DISK_OCTETS)
    files = functools.partial(HostSide, NullServer, Files(300, 100))
    return (
        Case(QUEUE, both(burst, somaxconn=16)),
        Case(MOUNT_MAIL, both(mail(1000), mount="sync,strictatime")),
        Case(MOUNT_FILES, both(files, mount="sync,strictatime")),
        Case(SCHEDULER, both(mail(5000), scheduler="bfq")),
        Case(READ_AHEAD, both(mail(5000), read_ahead_kb="8192")),
    )


def _held(place):
    return Mailrace(place, concurrency=0, limits="backlog = 4096")


def _delivering(place):
    return Mailrace(place)


def _targets():
    for label in (QUEUE, MOUNT_MAIL, MOUNT_FILES, SCHEDULER, READ_AHEAD):
        yield pairs.Target(SPOILT, SOUND, "rate", case=label)
        if label != MOUNT_FILES:
            yield pairs.Target(SPOILT, SOUND, "cpu_per_thousand", case=label)


def _checks(case, how):
    """Whether clients failed in this way on the spoilt host alone."""
    for name, side in case.sides.items():
        if side.answered:
            sent, answered = (sum(counts) for counts in zip(*side.answered, strict=True))
            text = f"{sent - answered:,} of {sent:,} {how}"
            aim, is_met = ("some clients", sent > answered) if name == SPOILT else ("no client", sent == answered)
            yield f"{case.label}, {name}: {aim} {how}", text, is_met


def _answer(found):
    return _rates(found, (QUEUE, MOUNT_FILES, MOUNT_MAIL, SCHEDULER, READ_AHEAD))


def _files_answer(found):
    return _rates(found, (FILES,))


def _scheduler_answer(found):
    return _rates(found, (ALONE, WITH_BACKUP))


def _rates(found, labels):
    parts = []
    for label in labels:
        if ratio := found.ratio(SPOILT, SOUND, "rate", case=label):
            interval = pairs.in_words(found.interval(SPOILT, SOUND, "rate", case=label))
            parts.append(f"{label}: {ratio:.3g}{interval} times the rate")
    return f"{'; '.join(parts)}." if parts else None


SCENARIOS = {
    "spoilt-hosts": Scenario(scenario, (SOUND, SPOILT), PAIRS),
    "spoilt-files": Scenario(files_scenario, (SOUND, SPOILT), PAIRS),
    "spoilt-scheduler": Scenario(scheduler_scenario, (SOUND, SPOILT), PAIRS),
}
