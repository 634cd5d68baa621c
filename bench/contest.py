"""A contest: each side puts its load on a fresh server of its own, in turns, and the ratios are held against aims.

    server   start, stop (in any state), port, group (its processes), configuration, check_kept: complains unless it has
             what it took
    load     command, and run(port, folder), which gives what was done; what it writes, it writes into the folder; where
             it has files to go by, configuration

Before each run the disk is synced and the machine rests; after it the server is held to what it has answered for.
"""

import dataclasses
import functools
import typing

import pairs
import report
from peers import accounting, machine
from scenarios import Scenario

REST_NOTE = f"Before each run the disk was synced and the machine rested for {machine.REST_SECONDS} seconds."
_TRIAL_MIN = {"count": 100, "seconds": 2}


@dataclasses.dataclass(frozen=True)
class Side:
    """One of those that are compared."""

    server: typing.Callable  # of a folder; gives a server that is not yet started
    load: typing.Any
    message_octets: int = 0  # that one takes on the disk, where messages are kept
    is_minute: bool = False  # the load is a minute's, in a trial too
    is_part: bool = False  # more is sent than counts

    def shrunk(self, divisor):
        """It with the load of a trial: a part of the count, or of the time."""
        if self.is_minute:
            return self
        parts = ((key, least, getattr(self.load, key, None)) for key, least in _TRIAL_MIN.items())
        changes = {key: max(least, whole // divisor) for key, least, whole in parts if whole is not None}
        return dataclasses.replace(self, load=dataclasses.replace(self.load, **changes))

    def disk_octets(self):
        """What it takes on the disk in one round."""
        return self.message_octets * self.load.messages_max if self.message_octets else 0

    def measure(self, server, place):
        """Puts the load on a server that is started, and holds it to what it has answered for."""
        figures = pairs.measure(server, lambda: self.load.run(server.port, place))
        self._check_kept(server, figures.messages)
        return figures

    def _check_kept(self, server, count):
        (server.check_kept_at_least if self.is_part else server.check_kept)(count)


@dataclasses.dataclass(frozen=True)
class Contest:
    """What is compared, and what it aims at."""

    title: str
    sides: dict  # name to Side
    targets: tuple
    notes: tuple
    unit: str = "message"
    versions: dict = dataclasses.field(default_factory=dict)  # of peers: name to a function that tells

    def run(self, name, options):
        """All rounds and the report; whether every aim was met."""
        with machine.run_folder(name) as folder:
            return self.measure(name, folder, options).finish(options)

    def measure(self, name, folder, options):
        """All rounds, below `folder`, and their report."""
        sides = {name: side.shrunk(options.shrink) for name, side in self.sides.items()}
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


class Nobody:
    """The server of loads that need none."""

    name, port = "nobody", None

    def __init__(self, _folder):
        self.group = accounting.Group("nobody")

    def start(self):
        """Nothing is to be started."""

    def stop(self):
        """Removes its empty group."""
        self.group.end()

    def check_kept(self, _count):
        """Nothing is promised."""

    def configuration(self):
        """There is none."""
        return ""


def scenarios(contests):
    """The table of scenarios of a module whose scenarios are all contests."""
    return {name: Scenario(functools.partial(it.run, name), tuple(it.sides)) for name, it in contests.items()}


def _turn(name, side, folder, configurations):
    def turn(number):
        place = folder / f"{number}-{name}"
        place.mkdir()
        machine.settle()
        server = side.server(place)
        try:
            server.start()
            figures = side.measure(server, place)
            configurations[server.name] = server.configuration()
        finally:
            server.stop()
        return figures

    return turn
