"""What a limit by load average costs: Exim reads the gauge by a call at each decision, Mailrace samples
it.

    exim-loadavg    accepting and draining, each without limits and with limits that never stop anything

    exim            no limits by load
    exim-limits     accepting: `queue_only_load`, read for each connection; draining: `deliver_queue_load_max`, read for each
                    message
    mailrace        no limits by load
    mailrace-calls  accepting: the same, but the load average is read by a call for each connection (peers/gauge_calls.py)
    mailrace-limits all limits of [load], sampled

Exim queues on both sides: without limits by `queue_only`, with them because the load is always above
`queue_only_load`. What one look at the gauge costs, by each way, is measured by `mailrace bench load`.
"""

import functools
import statistics

import comparison
import drain
import instructions
import pairs
from comparison import Comparison, Side
from drain import Drain
from peers import callgrind, exim, gauge_calls, laboratory, machine
from peers.exim import Exim
from peers.gauge_calls import CallingMailrace
from peers.laboratory import Source
from peers.mailrace import BINARY, Mailrace
from peers.outbound import Hops

from . import Scenario
from .accept import MESSAGE_DISK_OCTETS

SIDES = ("exim", "exim-limits", "mailrace", "mailrace-calls", "mailrace-limits")
ACCEPTING, DRAINING = "accepting", "draining"
ACCEPTED = {"exim": 5000, "mailrace": 40_000}
DRAINED = {"exim": 3000, "mailrace": 200_000}
RATIO_MAX = 1.02
PAIRS = 9
_READINGS, _READINGS_MIN = 200_000, 2000
_COUNTS = 3  # counts of instructions, whose median is compared
_COUNTED_SHRINK_MAX = 100  # in a smaller trial counting would take longer than all the rest
_EXIM = (("exim", exim.is_installed),)
_CALLS = (("a C compiler (cc)", gauge_calls.is_installed),)
_QUEUE_ONLY_LOAD = "queue_only_load = 0.001"
_DELIVER_LOAD = "queue_only\ndeliver_queue_load_max = 1000"
_LIMITS = """
[load]
queue_only_above  = 1000.0
no_delivery_above = 1000.0
refuse_above      = 1000.0
cpu_pressure      = 100.0
io_pressure       = 100.0
memory_pressure   = 100.0
memory_min        = "1MiB"
"""

NOTES = (
    "Accepting: 100 sessions, one message of 6,000 bytes on each connection, so that there is one decision for each. All of "
    "them were counted in the queue afterwards. Draining: all mail is queued first, then goes to `mailrace bench sink`, which "
    "checks that each message arrives intact and once.",
    f"Exim has {drain.RUNNERS} queue runners. Its limits: `{_QUEUE_ONLY_LOAD}` instead of `queue_only`, so that it reads the "
    "load average for each connection and always queues; `deliver_queue_load_max = 1000`, which it reads for each message and "
    "never reaches.",
    "Mailrace samples all gauges once a second, with limits that are never reached. It has no setting that reads one for each "
    "connection: in `mailrace-calls` a library does, which is loaded before the C library. It counts its readings; there was "
    "one for each connection.",
    instructions.NOTE,
    comparison.REST_NOTE,
)


def scenario(options):
    """Runs all rounds, and measures the looks themselves."""
    compared = Comparison(
        "What a limit by load average costs",
        {},
        tuple(target for label in (ACCEPTING, DRAINING) for target in _targets(label)),
        NOTES,
        versions={"Exim": exim.version},
        question="What does a limit by load average cost, if the gauge is read for each decision, and if it is sampled?",
        answer=_answer,
        case_name="work",
        cases=(comparison.Case(ACCEPTING, _accepting()), comparison.Case(DRAINING, _draining())),
    )
    with machine.run_folder("exim-loadavg") as folder:
        found = compared.measure("exim-loadavg", folder, options)
        connection = found.median("mailrace", "cpu_per_thousand", ACCEPTING)
        readings = max(_READINGS_MIN, _READINGS // options.shrink)
        found.tables["A look at the load average"] = list(_looks(folder, readings, connection))
        is_counted = options.whole or options.shrink <= _COUNTED_SHRINK_MAX
        if callgrind.is_installed() and options.sides is None and not options.quick and is_counted:
            found.checks.append(_instructions_check(folder, _COUNTS if options.whole else 1))
        return found.finish(options)


def _accepting():
    def side(server, count, octets, needs=()):
        return Side(server, Source(count, reuse=False), octets, needs=needs)

    ours, theirs = ACCEPTED["mailrace"], ACCEPTED["exim"]
    return {
        "exim": side(Exim, theirs, 2 * MESSAGE_DISK_OCTETS, _EXIM),  # a message is two files
        "exim-limits": side(functools.partial(Exim, queueing=_QUEUE_ONLY_LOAD), theirs, 2 * MESSAGE_DISK_OCTETS, _EXIM),
        "mailrace": side(_mailrace, ours, MESSAGE_DISK_OCTETS),
        "mailrace-calls": side(functools.partial(CallingMailrace, concurrency=0), ours, MESSAGE_DISK_OCTETS, _CALLS),
        "mailrace-limits": side(functools.partial(_mailrace, extra=_LIMITS), ours, MESSAGE_DISK_OCTETS),
    }


def _mailrace(place, extra="", binary=BINARY):
    return Mailrace(place, concurrency=0, extra=extra, binary=binary)


def _draining():
    def side(server, name, octets, needs=()):
        return Drain(server, Source(DRAINED[name], recipient="user@d1.test"), octets, needs=needs)

    limited = drain.exim_tuned(Hops(1), queueing=_DELIVER_LOAD)
    return {
        "exim": side(drain.exim_tuned(Hops(1)), "exim", 2 * MESSAGE_DISK_OCTETS, _EXIM),
        "exim-limits": side(limited, "exim", 2 * MESSAGE_DISK_OCTETS, _EXIM),
        "mailrace": side(drain.mailrace(Hops(1)), "mailrace", MESSAGE_DISK_OCTETS),
        "mailrace-limits": side(drain.mailrace(Hops(1), settings=_LIMITS), "mailrace", MESSAGE_DISK_OCTETS),
    }


def _targets(label):
    yield pairs.Target("mailrace-limits", "mailrace", "cpu_per_thousand", most=RATIO_MAX, case=label)
    yield pairs.Target("exim-limits", "exim", "cpu_per_thousand", case=label)
    yield pairs.Target("mailrace-calls", "mailrace", "cpu_per_thousand", case=label)


def _looks(folder, readings, connection_cpu):
    """What one look costs by each way, also as a part of Mailrace's CPU for a connection with a message."""
    measured = laboratory.bench(folder, "load", "--readings", str(readings)).report
    for way in measured["ways"]:
        part = way["cpu_ns_per_reading"] / 1e9 / (connection_cpu / 1000) if connection_cpu else None
        row = {"way": way["way"], "ns": round(way["ns_per_reading"]), "ns of CPU": round(way["cpu_ns_per_reading"])}
        yield row | {"part of Mailrace's CPU for a connection": f"{part:.2%}" if part is not None else ""}


def _instructions_check(folder, counts):
    """The instructions for a message on a connection of its own, with limits and without."""
    script = callgrind.wrapped(BINARY, folder / "counted")
    medians = []
    for name, extra in (("limits", _LIMITS), ("off", "")):
        side = Side(functools.partial(_mailrace, extra=extra, binary=script), Source(1, reuse=False))
        places = (folder / f"instructions-{name}-{number}" for number in range(counts))
        medians.append(statistics.median(instructions.of_a_message(side, place) for place in places))
    limits, off = medians
    aim = f"instructions per message, mailrace-limits / mailrace ({ACCEPTING}): at most {RATIO_MAX:g}"
    return aim, f"{limits / off:.4f} ({limits:,.0f} / {off:,.0f})", limits / off <= RATIO_MAX


def _answer(found):
    words = {"mailrace": "Mailrace, which samples the gauge", "exim": "Exim, which reads it for each decision"}
    parts = []
    for side, name in words.items():
        ratios = {label: found.ratio(f"{side}-limits", side, "cpu_per_thousand", case=label) for label in (ACCEPTING, DRAINING)}
        if None not in ratios.values():
            parts.append(f"{name}, " + " and ".join(f"{ratio:.3f} {label}" for label, ratio in ratios.items()))
    if calls := found.ratio("mailrace-calls", "mailrace", "cpu_per_thousand", case=ACCEPTING):
        parts.append(f"Mailrace with a reading for each connection, {calls:.3f} {ACCEPTING}")
    return f"With limits a message takes this part of the CPU without them: in {'; in '.join(parts)}." if parts else None


SCENARIOS = {"exim-loadavg": Scenario(scenario, SIDES, PAIRS)}
