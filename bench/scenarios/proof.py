"""The limits that `mailrace bench` claims for itself.

    lab-connections   10,000 connections from one process, and the memory of each at both ends
    lab-verify        a million messages delivered by this server; then one is removed, one copied, one altered
"""

import math
import pathlib
import shutil

import report
from peers import laboratory, machine
from peers.mailrace import Mailrace

from . import Scenario

CONNECTIONS, CONNECTION_OCTETS_MAX = 10_000, 20_000
MESSAGES = 1_000_000
_MAILDIRS = 2000
_MESSAGE_DISK_OCTETS = 6000  # the blocks and inode of a small message, and its share of folders and spool
_SECONDS_MAX = 1800


def connections(options):
    """Opens all connections at the same time, each with its own messages."""
    count = math.ceil(CONNECTIONS / options.shrink)
    with machine.run_folder("lab-connections") as folder:
        facts = machine.describe(folder)
        machine.settle()
        sink = laboratory.Sink(folder)
        try:
            sink.start()
            sent = laboratory.bench(
                folder, "smtp", "--target", f"127.0.0.1:{sink.port}", "--connections", str(count),
                "--messages", str(20 * count), "--size", "1000",
            )  # fmt: skip
            peaks = {"source": sent.peak_octets, "sink": sink.resident_bytes_peak()}
        finally:
            sink.stop()
        title = f"{CONNECTIONS:,} connections from one process"
        return report.Report(
            "lab-connections", title, facts, folder, {"source": [sent.line], "sink": [sink.configuration()]},
            _CONNECTION_NOTES, checks=list(_connection_checks(count, sent.report, sink.summary(), peaks)),
        ).finish(options)  # fmt: skip


_CONNECTION_NOTES = [
    "Memory is VmHWM, the peak resident memory of the whole process.",
    "Kernel memory for sockets and their buffers is not included.",
]


def _connection_checks(count, sent, taken, peaks):
    opened, peak = sent["connections"], taken["connections_peak"]
    yield (
        "all connections are open at the same time, and every message is accepted",
        f"{opened:,} connections, {peak:,} at the same time; {sent['done']:,} messages, {sent['failed']} failed",
        (opened, peak, sent["done"], sent["failed"], taken["messages"]) == (count, count, 20 * count, 0, 20 * count),
    )
    for name, octets in peaks.items():
        each = octets / count
        aim = f"memory of the {name} for each connection: below {CONNECTION_OCTETS_MAX:,} bytes"
        yield aim, f"{each:,.0f} bytes", each < CONNECTION_OCTETS_MAX


def verify(options):
    """Delivers a million messages and changes three of them."""
    count = MESSAGES // options.shrink
    with machine.run_folder("lab-verify") as folder:
        machine.require_space(folder, count * _MESSAGE_DISK_OCTETS)
        facts = machine.describe(folder)
        server, ledger = Mailrace(folder, concurrency=400), folder / "ledger"
        try:
            server.start()
            sent = laboratory.bench(
                folder, "smtp", "--target", f"127.0.0.1:{server.port}", "--connections", "100",
                "--messages", str(count), "--size", "200", "--users", str(_MAILDIRS),
                "--recipient", "user{}@bench.test", "--pipelining", "--ledger", str(ledger),
            )  # fmt: skip
            server.wait_until_empty(_SECONDS_MAX)
        finally:
            server.stop()
        look = ("verify", "--ledger", str(ledger), "--maildir", str(server.maildirs))
        whole = laboratory.bench(folder, *look)
        _modify(server.maildirs)
        modified = laboratory.bench(folder, *look)
        checks = [
            ("unchanged: nothing is lost, doubled or damaged", _counts_text(whole),
             _faults(whole) == (0, 0, 0) and whole.code == 0),
            (f"1 lost, 1 doubled and 1 damaged among {count:,} are found", _counts_text(modified),
             _faults(modified) == (1, 1, 1) and modified.report["messages"] == count and modified.code == 1),
        ]  # fmt: skip
        notes = [
            f"The server accepted {sent.report['rate']:,.0f} messages per second.",
            f"Each check read all messages, in {whole.seconds:.0f} s and {modified.seconds:.0f} s with at most "
            f"{max(whole.peak_octets, modified.peak_octets) / 1e6:.0f} MB of memory.",
        ]
        commands = {"source": [sent.line], "verify": [whole.line]}
        title = "Finding three messages in a million"
        return report.Report(
            "lab-verify", title, facts, folder, commands, notes, {"mailrace": server.configuration()}, checks=checks
        ).finish(options)


def _faults(command):
    return tuple(command.report[fault] for fault in ("lost", "doubled", "damaged"))


def _counts_text(command):
    lost, doubled, damaged = _faults(command)
    return f"{command.report['messages']:,} messages: {lost} lost, {doubled} doubled, {damaged} damaged"


def _modify(maildirs):
    """Removes one message, copies another one, and alters the third-last byte of a third."""
    folders = sorted(path for path in pathlib.Path(maildirs, "bench.test").iterdir())
    lost, doubled, damaged = (next((folder / "new").iterdir()) for folder in (folders[0], folders[1], folders[2]))
    lost.unlink()
    shutil.copy(doubled, doubled.with_name("copy"))
    with open(damaged, "r+b") as file:
        file.seek(-3, 2)
        byte = file.read(1)
        file.seek(-3, 2)
        file.write(bytes([byte[0] ^ 1]))


SCENARIOS = {"lab-connections": Scenario(connections), "lab-verify": Scenario(verify)}
