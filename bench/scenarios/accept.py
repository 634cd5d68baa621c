"""Accepting into a durable, held queue: Mailrace, Postfix, and smtp-sink, which keeps nothing, as the yardstick.

Both servers sync before their 250 and deliver nothing: Mailrace holds by `concurrency = 0`, Postfix by a HOLD action.
After each run the number of messages held is compared with the number sent.
"""

import dataclasses

import pairs
import report
from peers import machine, postfix
from peers.mailrace import Mailrace
from peers.smtp import Load, Sink

_MESSAGE_DISK_OCTETS = 9000  # of 6,000 bytes, with its header, file system blocks and segments


@dataclasses.dataclass(frozen=True)
class Plan:
    """One way of sending, and what it aims at."""

    title: str
    reuse: bool
    postfix: int  # messages
    mailrace: int
    sink: int
    targets: tuple


MANY = Plan(
    "Accepting: many messages a connection",
    reuse=True,
    postfix=10_000,
    mailrace=100_000,
    sink=100_000,
    targets=(
        pairs.Target("mailrace", "postfix", "rate", least=10),
        pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 20),
        pairs.Target("mailrace", "sink", "rate", least=0.8),
    ),
)

ONE = Plan(
    "Accepting: one message a connection",
    reuse=False,
    postfix=10_000,
    mailrace=40_000,
    sink=40_000,
    targets=(
        pairs.Target("mailrace", "postfix", "rate", least=5),
        pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 12),
    ),
)


NOTES = [
    "100 sessions, 6,000 bytes, one recipient; every message was counted in the queue afterwards.",
    f"Before each run the disk was synced and the machine rested for {machine.REST_SECONDS} seconds.",
    "Mailrace logs a line for each message; the tuned Postfix logs nothing.",
]


def measure(plan, folder, options):
    """The rounds of `plan` below `folder`, the commands that made them, and the servers' configurations."""
    counts = {"postfix": plan.postfix, "mailrace": plan.mailrace, "sink": plan.sink}
    loads = {side: Load(max(100, count // options.shrink), reuse=plan.reuse) for side, count in counts.items()}
    machine.require_space(folder, options.pairs * _MESSAGE_DISK_OCTETS * (loads["postfix"].count + loads["mailrace"].count))
    configurations = {}

    def side(name):
        def run(number):
            place = folder / f"{number}-{name}"
            place.mkdir()
            machine.settle()
            server = _server(name, place)
            server.start()
            try:
                figures = pairs.measure(server, lambda: loads[name].run(server.port))
                server.check_kept(loads[name].count)
                configurations[name] = server.configuration()
            finally:
                server.stop()
            return figures

        return run

    found = pairs.rounds(options.pairs, {name: side(name) for name in counts}, options.sides)
    commands = {name: [" ".join(loads[name].command("PORT"))] for name in found[0]}
    return found, commands, configurations


def _server(name, place):
    match name:
        case "postfix":
            return postfix.Postfix(place, "tuned", [postfix.HOLD])
        case "mailrace":
            return Mailrace(place, concurrency=0)
        case _:
            return Sink(place)


def _scenario(name, plan):
    def run(options):
        with machine.run_folder(name) as folder:
            facts = machine.describe(folder)
            found, commands, configurations = measure(plan, folder, options)
            return report.Report(
                name, plan.title, facts, folder, commands, NOTES, configurations, rounds=found,
                targets=plan.targets,
            ).finish(options)  # fmt: skip

    return run


SCENARIOS = {"accept-many": _scenario("accept-many", MANY), "accept-one": _scenario("accept-one", ONE)}
