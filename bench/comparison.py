"""Compares servers: each side runs its load on a fresh server, in turns, and ratios are checked.

    server   start, stop (in any state), port, group (its processes), configuration, check_kept (fails unless
             the server has kept the messages)
    load     command, and run(port, folder), which returns the result and writes only into the folder;
             configuration, if it uses configuration files

Before each run the disk is synced and the machine is idle for a few seconds. After it the server
must still have the messages that it acknowledged.
"""

import dataclasses
import functools
import typing

import pairs
import report
from peers import accounting, machine
from scenarios import Scenario

REST_NOTE = f"Before each run the disk was synced and the machine was idle for {machine.REST_SECONDS} seconds."
_TRIAL_MIN = {"count": 100, "seconds": 2}


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the compared sides."""

    server: typing.Callable  # called with a folder; returns a server that is not started
    load: typing.Any
    message_octets: int = 0  # disk space of one message, if messages are kept
    is_minute: bool = False  # the load runs for a minute, also in a trial
    is_part: bool = False  # more messages are sent than are counted

    def for_trial(self, divisor):
        """The same side with the smaller load of a trial: a part of the count, or of the time."""
        if self.is_minute:
            return self
        parts = ((key, least, getattr(self.load, key, None)) for key, least in _TRIAL_MIN.items())
        changes = {key: max(least, whole // divisor) for key, least, whole in parts if whole is not None}
        return dataclasses.replace(self, load=dataclasses.replace(self.load, **changes))

    def disk_octets(self):
        """The disk space that one round needs."""
        return self.message_octets * self.load.messages_max if self.message_octets else 0

    def create(self, place):
        """A server in this folder, which is not started."""
        return self.server(place)

    def measure(self, server, place):
        """Runs the load on a started server and checks that the server kept the messages."""
        figures = pairs.measure(server, lambda: self.load.run(server.port, place))
        self._check_kept(server, figures.messages)
        return figures

    def _check_kept(self, server, count):
        (server.check_kept_at_least if self.is_part else server.check_kept)(count)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The compared sides and the target ratios."""

    title: str
    sides: dict  # name to Side
    targets: tuple
    notes: tuple
    unit: str = "message"
    versions: dict = dataclasses.field(default_factory=dict)  # of peers: name to a function that returns the version

    def run(self, name, options):
        """Runs all rounds and writes the report; returns whether every target was met."""
        with machine.run_folder(name) as folder:
            return self.measure(name, folder, options).finish(options)

    def measure(self, name, folder, options):
        """Runs all rounds below `folder` and returns the report."""
        sides = {name: side.for_trial(options.shrink) for name, side in self.sides.items()}
        machine.require_space(folder, options.pairs * sum(side.disk_octets() for side in sides.values()))
        facts = machine.describe(folder) | {peer: version() for peer, version in self.versions.items()}
        loads = {side: sides[side].load for side in sides}
        configurations = {side: one.configuration() for side, one in loads.items() if hasattr(one, "configuration")}
        turns = {side: _turn(side, sides[side], folder, configurations) for side in sides}
        found = pairs.rounds(options.pairs, turns, options.sides)
        commands = {side: [" ".join(sides[side].load.command())] for side in found[0]}
        return report.Report(
            name, self.title, facts, folder, commands, self.notes, configurations, rounds=found, targets=self.targets,
            unit=self.unit,
        )  # fmt: skip


class NullServer:
    """The server of loads that need none."""

    name, port = "nobody", None

    def __init__(self, _folder):
        self.group = accounting.Group("nobody")

    def start(self):
        """Does nothing."""

    def stop(self):
        """Removes its empty group."""
        self.group.end()

    def check_kept(self, _count):
        """Does nothing."""

    def configuration(self):
        """Returns an empty configuration."""
        return ""


def scenarios(comparisons):
    """The table of scenarios of a module that only has comparisons."""
    return {name: Scenario(functools.partial(it.run, name), tuple(it.sides)) for name, it in comparisons.items()}


def _turn(name, side, folder, configurations):
    def turn(number):
        place = folder / f"{number}-{name}"
        place.mkdir()
        server = side.create(place)
        try:
            machine.settle()
            server.start()
            figures = side.measure(server, place)
            configurations[server.name] = server.configuration()
        finally:
            server.stop()
        return figures

    return turn
