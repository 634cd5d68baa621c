"""What the laboratory promises of itself, shown on the real thing.

    lab-connections   10,000 connections from one process, and what each costs at either end
    lab-verify        a million messages delivered by this server; then one is taken away, one copied, one altered
"""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import time

import report
from peers import accounting, laboratory, machine
from peers.mailrace import BINARY, Mailrace

CONNECTIONS, CONNECTION_OCTETS_MAX = 10_000, 20_000
MESSAGES = 1_000_000
_MAILDIRS = 2000
_LETTER_DISK_OCTETS = 6000  # a small letter's blocks, its inode, its share of folders and of the spool
_WATCH_SECONDS = 0.05
_SECONDS_MAX = 1800


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the laboratory, and what it gave."""

    line: str
    report: dict
    seconds: float
    peak_octets: int
    code: int


def _bench(*argv):
    """Runs one to its end; it may find fault, but not fail."""
    begin, peak = time.monotonic(), 0
    command = [str(BINARY), "bench", *argv, "--json"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and time.monotonic() < begin + _SECONDS_MAX:
        peak = max(peak, accounting.resident_bytes(process.pid))
        time.sleep(_WATCH_SECONDS)
    process.kill()
    output, complaint = process.communicate()
    if process.returncode not in (0, 1):
        raise RuntimeError(f"`{' '.join(command)}` ended with {process.returncode}: {complaint}")
    line = " ".join(["mailrace", *command[1:]])
    return Command(line, json.loads(output), time.monotonic() - begin, peak, process.returncode)


def connections(options):
    """All connections at once, each with messages of its own."""
    count = CONNECTIONS // options.shrink
    with machine.run_folder("lab-connections") as folder:
        facts = machine.describe(folder)
        machine.settle()
        sink = laboratory.Sink(folder)
        sink.start()
        try:
            before = sink.group.resident_bytes()
            sent = _bench(
                "smtp", "--target", f"127.0.0.1:{sink.port}", "--connections", str(count), "--messages", str(20 * count),
                "--size", "1000",
            )  # fmt: skip
            grown = sink.group.resident_bytes() - before
        finally:
            sink.stop()
        found = sent.report
        checks = [
            ("all connections are there, and every message is accepted",
             f"{found['connections']:,} connections, {found['done']:,} messages, {found['failed']} failed",
             (found["connections"], found["done"], found["failed"]) == (count, 20 * count, 0)),
            (f"memory of the source for each connection: below {CONNECTION_OCTETS_MAX:,} bytes, the program itself included",
             f"{sent.peak_octets / count:,.0f} bytes", sent.peak_octets / count < CONNECTION_OCTETS_MAX),
            (f"memory of the sink for each connection: below {CONNECTION_OCTETS_MAX:,} bytes", f"{grown / count:,.0f} bytes",
             grown / count < CONNECTION_OCTETS_MAX),
        ]  # fmt: skip
        commands = {"source": [sent.line], "sink": [sink.configuration()]}
        notes = [f"The source's memory is VmRSS, read every {_WATCH_SECONDS * 1000:.0f} ms; the greatest reading counts."]
        title = f"{CONNECTIONS:,} connections from one process"
        return report.Report("lab-connections", title, facts, folder, commands, notes, checks=checks).finish(options)


def verify(options):
    """A million letters, and three of them touched."""
    count = MESSAGES // options.shrink
    with machine.run_folder("lab-verify") as folder:
        machine.require_space(folder, count * _LETTER_DISK_OCTETS)
        facts = machine.describe(folder)
        server, ledger = Mailrace(folder, concurrency=400), folder / "ledger"
        server.start()
        try:
            sent = _bench(
                "smtp", "--target", f"127.0.0.1:{server.port}", "--connections", "100", "--messages", str(count),
                "--size", "200", "--users", str(_MAILDIRS), "--recipient", "user{}@bench.test", "--pipelining",
                "--ledger", str(ledger),
            )  # fmt: skip
            server.wait_until_empty(_SECONDS_MAX)
        finally:
            server.stop()
        look = ("verify", "--ledger", str(ledger), "--maildir", str(server.maildirs))
        whole = _bench(*look)
        _touch(server.maildirs)
        touched = _bench(*look)
        checks = [
            ("as delivered: nothing is lost, doubled or damaged", _said(whole), _faults(whole) == (0, 0, 0) and whole.code == 0),
            (f"1 lost, 1 doubled and 1 damaged among {count:,} are found", _said(touched),
             _faults(touched) == (1, 1, 1) and touched.report["messages"] == count and touched.code == 1),
        ]  # fmt: skip
        notes = [
            f"The server took {sent.report['rate']:,.0f} messages a second meanwhile.",
            f"Each proof read all letters: {whole.seconds:.0f} s and {touched.seconds:.0f} s; at most "
            f"{max(whole.peak_octets, touched.peak_octets) / 1e6:.0f} MB of memory.",
        ]
        commands = {"source": [sent.line], "verify": [whole.line]}
        title = "Finding three letters in a million"
        return report.Report(
            "lab-verify", title, facts, folder, commands, notes, {"mailrace": server.configuration()}, checks=checks
        ).finish(options)


def _faults(command):
    return tuple(command.report[fault] for fault in ("lost", "doubled", "damaged"))


def _said(command):
    lost, doubled, damaged = _faults(command)
    return f"{command.report['messages']:,} messages: {lost} lost, {doubled} doubled, {damaged} damaged"


def _touch(maildirs):
    """Takes one letter away, copies another one, and alters the last byte but two of a third."""
    folders = sorted(path for path in pathlib.Path(maildirs, "bench.test").iterdir())
    lost, doubled, damaged = (next((folder / "new").iterdir()) for folder in (folders[0], folders[1], folders[2]))
    lost.unlink()
    shutil.copy(doubled, doubled.with_name("copy"))
    with open(damaged, "r+b") as letter:
        letter.seek(-3, 2)
        byte = letter.read(1)
        letter.seek(-3, 2)
        letter.write(bytes([byte[0] ^ 1]))


SCENARIOS = {"lab-connections": connections, "lab-verify": verify}
