"""What relaxed durability gains, and what a second lane on the same disk costs: the knobs spool.durability and
spool.lanes.

    commit     a sync before each 250, one lane: the defaults
    relaxed    a 250 does not wait for its sync
    two-lanes  a sync before each 250, with two lanes on one disk

Nothing is delivered. After each run the queued messages are counted. The server is never killed, so `relaxed` loses none.
"""

import functools

import comparison
import pairs
from comparison import Case, Comparison, Side
from peers.laboratory import Source
from peers.mailrace import Mailrace

from . import Scenario
from .accept import MESSAGE_DISK_OCTETS

PAIRS = 6  # fewer have no interval
COMMIT, RELAXED, TWO_LANES = "commit", "relaxed", "two-lanes"
_SPOOLS = {
    COMMIT: "",
    RELAXED: '\n[spool]\ndurability = "relaxed"\n',
    TWO_LANES: '\n[spool]\nlanes = ["{data_dir}/spool", "{data_dir}/spool-2"]\n',
}
_LOADS = {
    "100 connections, many messages on each": Source(60_000),
    "100 connections, one message on each": Source(30_000, reuse=False),
    "1 connection, many messages": Source(4_000, sessions=1),
}

NOTES = (
    "6,000 bytes, one recipient; nothing is delivered. Afterwards all messages were counted in the queue.",
    comparison.REST_NOTE,
    "`relaxed` syncs every second, whatever was answered with 250: a power failure loses up to that much.",
    "Both lanes of `two-lanes` are on one disk, which does their syncs one after the other.",
)


def _server(place, spool):
    return Mailrace(place, concurrency=0, extra=_SPOOLS[spool])


def _case(label, load):
    sides = {name: Side(functools.partial(_server, spool=name), load, MESSAGE_DISK_OCTETS) for name in _SPOOLS}
    return Case(label, sides)


def _answer(found):
    parts = []
    for label in _LOADS:
        for side in (RELAXED, TWO_LANES):
            if ratio := found.ratio(side, COMMIT, "rate", case=label):
                interval = pairs.in_words(found.interval(side, COMMIT, "rate", case=label))
                parts.append(f"{label}: {side} {ratio:.3g}{interval} times the rate")
    return f"{'; '.join(parts)}." if parts else None


_DURABILITY = Comparison(
    "Syncs before each 250, relaxed durability, and two lanes on a disk", {},
    tuple(pairs.Target(side, COMMIT, figure, case=label)
          for label in _LOADS for side in (RELAXED, TWO_LANES) for figure in ("rate", "cpu_per_thousand")),
    NOTES, question="What does a sync before each 250 cost, and what a second lane on the same disk?", answer=_answer,
    case_name="load", cases=tuple(_case(label, load) for label, load in _LOADS.items()),
)  # fmt: skip

SCENARIOS = {"durability": Scenario(functools.partial(_DURABILITY.run, "durability"), tuple(_SPOOLS), PAIRS)}
