"""Compares servers: each side runs its load on a fresh server, in turns, and ratios are checked.

    server   start, stop (in any state), port, group (its processes), configuration, check_kept (fails unless
             the server has kept the messages)
    load     command, and run(port, folder), which returns the result and writes only into the folder;
             configuration, if it uses configuration files

Before each run the disk is synced and the machine is idle for a few seconds. After it the server
must still have the messages that it acknowledged.

A comparison may have several cases, the points of a sweep. All of them take turns within a round, so
that ratios of two cases mean something, too; and each run's folder is removed after it, since there
are many.
"""

import dataclasses
import functools
import shutil
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
    needs: tuple = ()  # peers without which it is left out: pairs of a name and a function that tells whether it is there

    def for_trial(self, divisor):
        """The same side with the smaller load of a trial: a part of the count, or of the time."""
        if self.is_minute:
            return self
        parts = ((key, least, getattr(self.load, key, None)) for key, least in _TRIAL_MIN.items())
        changes = {key: max(least, whole // divisor) for key, least, whole in parts if whole is not None}
        return dataclasses.replace(self, load=dataclasses.replace(self.load, **changes))

    def missing(self):
        """The names of the peers that it needs and that are not installed."""
        return [name for name, is_installed in self.needs if not is_installed()]

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
class Case:
    """A value of what is varied, and the sides that are compared with it."""

    label: str  # empty if nothing is varied
    sides: dict  # name to Side
    value: float | None = None  # on an axis


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The compared sides and the target ratios."""

    title: str
    sides: dict  # name to Side; empty if there are cases
    targets: tuple
    notes: tuple
    unit: str = "message"
    versions: dict = dataclasses.field(default_factory=dict)  # of peers: name to a function that returns the version
    question: str | None = None
    answer: typing.Callable | None = None  # called with the report; returns a sentence with its figures, or None
    case_name: str | None = None
    cases: tuple = ()

    def run(self, name, options):
        """Runs all rounds and writes the report; returns whether every target was met."""
        with machine.run_folder(name) as folder:
            return self.measure(name, folder, options).finish(options)

    def measure(self, name, folder, options):
        """Runs all rounds below `folder` and returns the report."""
        cases, left_out = self._cases(options)
        self._require_space(folder, cases, options.pairs)
        facts = machine.describe(folder) | {peer: version() for peer, version in self.versions.items()}
        found = report.Report(
            name, self.title, facts, folder, _commands(cases), [*self.notes, *left_out], targets=self.targets,
            unit=self.unit, case_name=self.case_name, question=self.question, answer=self.answer,
        )  # fmt: skip
        turns = {
            (case.label, name): functools.partial(self._turn, found, f"{name}-{number}" if self.cases else name, name, side)
            for number, case in enumerate(cases)
            for name, side in case.sides.items()
        }
        ratio = functools.partial(self._ratio_so_far, [case.label for case in cases])
        rounds = pairs.rounds(options.pairs, turns, options.deadline, ratio)
        found.cases = [report.Case(case.label, [_of_case(r, case.label) for r in rounds], case.value) for case in cases]
        return found

    def _ratio_so_far(self, labels, rounds):
        """The first of the target ratios whose sides are run, for the moving line; None without one."""
        by_label = {label: [_of_case(one, label) for one in rounds] for label in labels}
        target = next((target for target in self.targets if target.concerns(by_label)), None)
        return target and f"{target.aim(self.unit, with_bounds=False)}: {target.measured(by_label)}"

    def _cases(self, options):
        """The cases with the chosen sides, in the size of the run; and sentences about peers that are missing."""
        wanted, left_out = [], {}
        for case in self.cases or (Case("", self.sides),):
            chosen = {name: side for name, side in case.sides.items() if options.sides is None or name in options.sides}
            left_out |= {name: missing for name, side in chosen.items() if (missing := side.missing())}
            sides = {name: side.for_trial(options.shrink) for name, side in chosen.items() if name not in left_out}
            if sides:
                wanted.append(dataclasses.replace(case, sides=sides))
        words = [f"{name} was left out, because {' and '.join(missing)} is missing: `bench/peers/install` installs all."
                 for name, missing in left_out.items()]  # fmt: skip
        print("".join(f"{sentence}\n" for sentence in words), end="", flush=True)
        if not wanted:
            raise RuntimeError("nothing is left to measure")
        return wanted, words

    def _require_space(self, folder, cases, pairs_count):
        octets = [side.disk_octets() for case in cases for side in case.sides.values()]
        machine.require_space(folder, max(octets) if self.cases else pairs_count * sum(octets))

    def _turn(self, found, place_name, name, side, number):
        """Runs one side of one case once."""
        place = found.folder / f"{number}-{place_name}"
        place.mkdir()
        server = side.create(place)
        found.servers[name] = server.name
        try:
            machine.settle()
            server.start()
            figures = side.measure(server, place)
            # That of the first case; those of the others differ in what is varied.
            found.configurations.setdefault(name, _configuration(server, side.load, place))
        finally:
            server.stop()
        if self.cases:
            shutil.rmtree(place)
        return figures


def _commands(cases):
    """The command lines of each side."""
    commands = {}
    for case in cases:
        for name, side in case.sides.items():
            lines = commands.setdefault(name, [])
            if (line := " ".join(side.load.command())) not in lines:
                lines.append(line)
    return commands


def _configuration(server, load, place):
    """The configurations of a server and of its load, if they have one."""
    texts = [server.configuration(), load.configuration() if hasattr(load, "configuration") else ""]
    return "\n".join(text for text in texts if text).replace(str(place), "$DIR")


def _of_case(measured, label):
    """The figures of one case in a round."""
    return {side: figures for (case, side), figures in measured.items() if case == label}


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
