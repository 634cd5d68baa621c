"""Intake keeps its rate while the queue grows: for ten minutes, four messages arrive for each one
that may leave.

Mailrace limits delivery with its rate for a next hop. Postfix has no rate per second; there the
sink delays each message. Each server gets a load that it can sustain, minute by minute, in an open
loop: a short delay raises the 99th percentile of that minute, and messages that never started are
missed.
"""

import dataclasses

import drain
import report
from peers import laboratory, machine
from peers.outbound import Hops
from plot import Chart

from . import Scenario

MINUTES, OCTETS = 10, 2000
WITHIN = 0.05  # how much worse the last minute may be than the first
_NEXT_HOP_CONNECTIONS = 20  # Postfix's default
_MINUTE_SECONDS, _MINUTE_SECONDS_MIN = 60, 3


@dataclasses.dataclass(frozen=True)
class OfferedLoad:
    """The load of a server in messages per second: arriving, and allowed to leave."""

    server: object  # called with a folder; returns what to start
    coming: int
    leaving: int
    message_disk_octets: int


@dataclasses.dataclass(frozen=True)
class Minute:
    """The figures of one minute."""

    number: int
    offered: int
    accepted: int
    p99_ms: float
    left: int  # arrived at the next hop
    waiting: int  # in the queue at the end

    def __str__(self):
        return (
            f"minute {self.number}  {self.accepted:,} of {self.offered:,} accepted, p99 {self.p99_ms:.2f} ms, "
            f"{self.left:,} left, {self.waiting:,} wait"
        )

    def row(self, server):
        """The minute as a row of a table."""
        return {
            "server": server, "minute": self.number, "offered": self.offered, "accepted": self.accepted,
            "p99, ms": self.p99_ms, "left": self.left, "waiting at its end": self.waiting,
        }  # fmt: skip


def _mailrace(leaving):
    settings = f'\n[transport.smtp]\nrate = "{leaving}/s"\n'
    return drain.mailrace(Hops(1), settings=settings, held=False)


def _postfix(leaving):
    pause = round(1000 * _NEXT_HOP_CONNECTIONS / leaving)
    return drain.postfix_tuned(Hops(1, rules=(f"* message delay {pause}ms",)), held=False)


OFFERED_LOADS = {
    "mailrace": OfferedLoad(_mailrace(1250), 5000, 1250, 3000),
    "postfix": OfferedLoad(_postfix(125), 500, 125, 8000),
}
NOTES = (
    "Messages of 2,000 bytes over 100 connections, one next hop. Each minute is a separate run of `bench smtp "
    "--rate`; p99 is from the scheduled time of a message to its 250; missed messages count with their "
    "waiting time.",
    "The waiting messages are those accepted and not yet at the sink at the end of the minute.",
    f"Postfix delivers over {_NEXT_HOP_CONNECTIONS} connections, and its sink delays each message, so "
    f"that at most {OFFERED_LOADS['postfix'].leaving} per second leave.",
    "There is one round: the minutes are compared.",
)


def scenario(options):
    """Runs both servers, one after the other."""
    seconds = max(_MINUTE_SECONDS_MIN, _MINUTE_SECONDS // options.shrink)
    loads = {name: rates for name, rates in OFFERED_LOADS.items() if options.sides is None or name in options.sides}
    found, configurations, commands = {}, {}, {}
    with machine.run_folder("collapse") as folder:
        octets = sum(rates.coming * rates.message_disk_octets for rates in loads.values())
        machine.require_space(folder, octets * seconds * MINUTES)
        facts = machine.describe(folder)
        for name, rates in loads.items():
            machine.settle()
            (folder / name).mkdir()
            server = rates.server(folder / name)
            try:
                server.start()
                found[name], commands[name] = _minutes(folder / name, server, rates, seconds)
                configurations[name] = server.configuration()
            finally:
                server.stop()
        return report.Report(
            "collapse", "Ten minutes with more mail than may leave", facts, folder, commands, NOTES, configurations,
            checks=list(_checks(found.get("mailrace"))), charts=_charts(found),
            tables={"Minutes": [minute.row(name) for name, minutes in found.items() for minute in minutes]},
        ).finish(options)  # fmt: skip


def _minutes(folder, server, rates, seconds):
    """Runs the load minute by minute; returns the minutes and the command."""
    minutes, accepted, left, arrivals = [], 0, 0, server.arrivals()
    try:
        for number in range(1, MINUTES + 1):
            load = laboratory.bench(
                folder, "smtp", "--target", f"127.0.0.1:{server.port}", "--connections", "100",
                "--rate", str(rates.coming), "--duration", f"{seconds}s", "--size", str(OCTETS),
                "--recipient", "user@d1.test", "--seed", str(number),
            )  # fmt: skip
            accepted, before, left = accepted + load.report["done"], left, arrivals.count
            p99 = load.report["latency"]["p99_us"] / 1000
            offered, waiting = rates.coming * seconds, accepted - left
            minutes.append(Minute(number, offered, load.report["done"], p99, left - before, waiting))
            print(f"{server.name:10} {minutes[-1]}", flush=True)
    finally:
        arrivals.stop()
    return minutes, [f"{MINUTES} x {load.line}".replace(str(server.port), "PORT")]


def _checks(minutes):
    if minutes is None:
        return  # a trial of the other side
    first, last = minutes[0], minutes[-1]
    accepted, offered = sum(minute.accepted for minute in minutes), sum(minute.offered for minute in minutes)
    yield "all offered messages are accepted", f"{accepted:,} of {offered:,}", accepted == offered
    rate, p99 = last.accepted / first.accepted, last.p99_ms / first.p99_ms
    yield f"rate, last minute / first: at least {1 - WITHIN:g}", f"{rate:.4g}", rate >= 1 - WITHIN
    words = f"{p99:.4g} ({last.p99_ms:.2f} ms / {first.p99_ms:.2f} ms)"
    yield f"p99, last minute / first: at most {1 + WITHIN:g}", words, p99 <= 1 + WITHIN


def _charts(found):
    def series(value):
        return {
            f"{name}, {OFFERED_LOADS[name].coming:,} a second": [(minute.number, value(minute)) for minute in minutes]
            for name, minutes in found.items()
        }

    return [
        Chart("Accepted", "minute", "per cent of what was offered", series(lambda m: 100 * m.accepted / m.offered)),
        Chart("Until the 250", "minute", "99th percentile, ms", series(lambda m: m.p99_ms), is_logarithmic=True),
        Chart("In the queue", "minute", "messages that wait", series(lambda m: m.waiting)),
    ]


SCENARIOS = {"collapse": Scenario(scenario, tuple(OFFERED_LOADS))}
