"""Intake does not slow down as the queue grows, and a server with a long queue restarts fast.

One server holds a million messages. Then equal loads go alternately to a new server with an empty
queue and to the one with the long queue (which keeps growing, so the target is harder to reach).
Finally the server with the long queue is stopped, the page cache is dropped, and the time until it
listens again is measured.
"""

import os
import pathlib

import pairs
import report
from peers import machine
from peers.mailrace import Mailrace
from peers.smtp import Load

from . import Scenario

HELD, ROUND, WARM = 1_000_000, 200_000, 20_000
_MESSAGE_DISK_OCTETS = 6_700
_RESIDENT_GROWTH_OCTETS_MAX = 200
_LISTEN_SECONDS_MAX = 5.0

TARGETS = [
    pairs.Target("held", "empty", "cpu_per_thousand", most=1.05),
    pairs.Target("held", "empty", "rate", least=0.9),
]


def scenario(options):
    """Runs everything. Five rounds need 20 GB."""
    rounds = options.pairs
    held, warm, load = (max(1000, count // options.shrink) for count in (HELD, WARM, ROUND))
    load = Load(load)
    with machine.run_folder("flat") as folder:
        machine.require_space(folder, (held + warm + 2 * rounds * load.count) * _MESSAGE_DISK_OCTETS)
        facts = machine.describe(folder)
        server = Mailrace(folder / "held", concurrency=0)
        try:
            server.start()
            growth = _fill(server, warm, held)
            found = pairs.rounds(rounds, {"empty": _empty(folder, load), "held": _held(server, load)}, options.deadline)
            restart = _restart(server, warm + held + len(found) * load.count)
        finally:
            server.stop()
        return report.Report(
            "flat", f"A queue of {held:,} messages", facts, folder,
            dict.fromkeys(("empty", "held"), [" ".join(load.command("PORT"))]),
            [f"The long queue had {warm + held:,} messages before the first round and grew by {load.count:,} in each round."],
            dict.fromkeys(("empty", "held"), server.configuration()), servers=dict.fromkeys(("empty", "held"), "mailrace"),
            cases=[report.Case("", found)], targets=TARGETS, checks=[growth, *restart],
        ).finish(options)  # fmt: skip


def _fill(server, warm, held):
    """Memory for each queued message; a first load lets buffers and threads reach their size."""
    Load(warm).run(server.port)
    before = server.resident_bytes()
    Load(held, seconds_max=1800).run(server.port)
    server.check_kept(warm + held)
    growth = (server.resident_bytes() - before) / held
    aim = f"memory for a queued message: below {_RESIDENT_GROWTH_OCTETS_MAX} bytes"
    return aim, f"{growth:.0f} bytes", growth < _RESIDENT_GROWTH_OCTETS_MAX


def _empty(folder, load):
    def run(number):
        server = Mailrace(folder / f"{number}-empty", concurrency=0)
        try:
            server.start()
            return _measure(server, load)
        finally:
            server.stop()

    return run


def _held(server, load):
    return lambda _number: _measure(server, load)


def _measure(server, load):
    machine.settle()
    return pairs.measure(server, lambda: load.run(server.port))


def _restart(server, count):
    """Stops the server, drops the page cache, and starts the server."""
    server.terminate()
    machine.settle()
    cold = os.geteuid() == 0
    if cold:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
    seconds = server.start()
    kept = server.queued()
    cache = "cold" if cold else "WARM (not root)"
    return [
        (
            f"listening again within {_LISTEN_SECONDS_MAX:.0f} s with {count:,} queued, page cache {cache}",
            f"{seconds:.2f} s",
            cold and seconds <= _LISTEN_SECONDS_MAX,
        ),
        ("every queued message is there after the restart", f"{kept:,} of {count:,}", kept == count),
    ]


SCENARIOS = {"flat": Scenario(scenario)}
