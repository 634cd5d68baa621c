"""What a message costs before and after a change: two binaries of Mailrace with the same loads and
configurations.

    accept-many   many messages a connection
    accept-one    one message a connection
    maildir       delivered to Maildirs
    drain-one     a queue is drained to one next hop
    directory     each recipient is looked up in an LDAP directory

`before-after` runs all of them; `before-after-directory` runs one alone, with a report of its own.

The binaries alternate, and each round gives a ratio of their CPU, corrected by that of the load: the
load is the same program with the same work on both sides, so that its CPU shows how fast the machine
was at that time. In addition, callgrind counts their
instructions, with one session, so that no batch depends on the time: the difference of two runs of
different length, so that start and end cancel out.
"""

import contextlib
import dataclasses
import functools
import hashlib
import shutil
import statistics

import comparison
import drain
import instructions
import pairs
import report
from comparison import Comparison, Side
from lookups import Users
from peers import callgrind, machine
from peers.laboratory import Source
from peers.mailrace import BINARY
from peers.outbound import Hops
from peers.smtp import Load

from . import Scenario, accept, directory, maildir

LOADS = ("accept-many", "accept-one", "maildir", "drain-one", "directory")
PAIRS = 15
BLOCKS_MAX = 4
CPU_RATIO_MAX, INSTRUCTIONS_RATIO_MAX = 1.05, 1.02
_USERS = 60_000  # in the directory
_MAILDIRS = 1000
_COUNTS = 3  # counts of instructions, whose median is compared

NOTES = (
    "`before` and `after` are two binaries with the same configurations; the loads are those of `after`. They take turns, and "
    "every other round begins with the other one. CPU is that of the server until a second after the load.",
    "Each ratio is divided by that of the load's CPU in the same round. The load is the same program with the same work for "
    "both, so this ratio is that of the machine's speed, which changes by 10 % and more from one run to the next.",
    "The interval is the middle 95 % of the medians of 10,000 random samples of the ratios (percentile bootstrap); its "
    f"upper bound must meet the target. While the target is inside the interval, {PAIRS} rounds are added, up to "
    f"{PAIRS * BLOCKS_MAX}.",
    f"{instructions.NOTE} The median of {_COUNTS} such differences. With drain-one they include accepting the messages.",
    "directory: slapd is the only other process, an empty cache, and each message to a different recipient.",
    comparison.REST_NOTE,
)


def scenario(name, loads, options):
    """Compares the binaries with each of these loads, and writes one report."""
    binaries = {"before": options.before, "after": BINARY}
    with machine.run_folder(name) as folder, _directory(folder, options) as users:
        facts = machine.describe(folder) | {side: _fingerprint(binary) for side, binary in binaries.items()}
        found = report.Report(name, "Before and after a change", facts, folder, {}, NOTES)
        chosen = {load: make for load, make in _loads(users).items() if load in (options.sides or loads)}
        for load, make in chosen.items():
            _compare_cpu(found, load, {side: make(binary) for side, binary in binaries.items()}, options)
        if callgrind.is_installed():
            scripts = {side: callgrind.wrapped(binary, folder / side) for side, binary in binaries.items()}
            for load, make in chosen.items():
                _compare_instructions(found, load, {side: make(script) for side, script in scripts.items()}, options)
        return found.finish(options)


@contextlib.contextmanager
def _directory(folder, options):
    """The users of the directory, with the list of recipients."""
    users = Users(folder / "users", max(2 * instructions.COUNTED[1], _USERS // options.shrink))
    try:
        users.make_local(("cold",))
        yield users
    finally:
        users.slapd.stop()


def _loads(users):
    """For each load, a function that returns the side of a binary."""
    accepting = accept.MESSAGE_DISK_OCTETS

    def accepted(load, binary):
        return Side(functools.partial(accept.mailrace, binary=binary), load, accepting)

    def drained(binary):
        load = Source(40_000, recipient="user@d1.test")
        return drain.Drain(drain.mailrace(Hops(1), binary=binary), load, accepting)

    return {
        "accept-many": functools.partial(accepted, Load(40_000)),
        "accept-one": functools.partial(accepted, Load(20_000, reuse=False)),
        "maildir": functools.partial(maildir.mailrace_side, _MAILDIRS),
        "drain-one": drained,
        "directory": functools.partial(directory.cold_side, users, users.count),
    }


def _compare_cpu(found, name, sides, options):
    """Adds the CPU of a load to the report."""
    rounds, ratios, (low, high) = [], [], (0, 2 * CPU_RATIO_MAX)
    while low <= CPU_RATIO_MAX < high and len(rounds) < options.pairs * BLOCKS_MAX:
        place = found.folder / name
        place.mkdir()
        one = Comparison("", sides, (), ()).measure(name, place, dataclasses.replace(options, sides=None))
        shutil.rmtree(place)
        rounds += one.rounds
        ratios = [_cpu_ratio(r) for r in rounds]
        low, high = pairs.bootstrap_interval(ratios)
    found.commands[name] = one.commands["after"]
    found.configurations |= {name: text for text in one.configurations.values()}
    found.tables[f"{name}: CPU seconds of server and load for 1,000 messages"] = [
        {
            "round": number,
            **{side: f"{r[side].cpu_per_thousand:.4f}" for side in sides},
            **{f"load of {side}": f"{r[side].load_cpu_per_thousand:.4f}" for side in sides},
            "after / before": f"{ratio:.3f}",
        }
        for number, (r, ratio) in enumerate(zip(rounds, ratios, strict=True), 1)
    ]
    found.checks.append(
        (
            f"{name}: CPU per message, after / before: upper bound at most {CPU_RATIO_MAX:g}",
            f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})",
            high <= CPU_RATIO_MAX,
        )
    )


def _cpu_ratio(measured):
    """CPU per message of `after` to that of `before` in a round, at the same speed of the machine."""
    before, after = measured["before"], measured["after"]
    speed = after.load_cpu_per_thousand / before.load_cpu_per_thousand
    return after.cpu_per_thousand / before.cpu_per_thousand / speed


def _compare_instructions(found, name, sides, options):
    """Adds the instructions for a message to the report."""
    place = found.folder / "counted"  # short, since the path of a socket has a small limit
    counts = {side: [] for side in sides}
    for number in range(_COUNTS if options.whole else 1):
        for side, one in sides.items():
            counts[side].append(instructions.of_a_message(one, place / f"{number}-{side}"))
    shutil.rmtree(place)
    medians = {side: statistics.median(counted) for side, counted in counts.items()}
    ratio = medians["after"] / medians["before"]
    row = {"load": name, **{side: f"{count:,.0f}" for side, count in medians.items()}, "after / before": f"{ratio:.4f}"}
    found.tables.setdefault("Instructions for a message", []).append(row)
    print(row, flush=True)
    found.checks.append(
        (
            f"{name}: instructions per message, after / before: at most {INSTRUCTIONS_RATIO_MAX:g}",
            f"{ratio:.4f}",
            ratio <= INSTRUCTIONS_RATIO_MAX,
        )
    )


def _fingerprint(binary):
    """Tells which binary it was, wherever it is."""
    return f"SHA-256 {hashlib.sha256(binary.read_bytes()).hexdigest()[:16]}, {binary.stat().st_size:,} bytes"


SCENARIOS = {
    "before-after": Scenario(functools.partial(scenario, "before-after", LOADS), LOADS, PAIRS),
    **{
        f"before-after-{load}": Scenario(functools.partial(scenario, f"before-after-{load}", (load,)), (load,), PAIRS)
        for load in LOADS
    },
}
