"""Paired runs: the sides take turns within a round, so that what drifts on the machine drifts for both.

Only ratios within one round mean anything; a result is the median of the rounds' ratios, never a ratio of bests. The
order of the sides is turned round in every other round. Where there are rounds enough, an interval goes with it that
holds the true median with a confidence of 95 percent or more, by the order of the ratios alone. CPU is read a second
after the last reply, so that work a server puts off until after its 250 is counted too.
"""

import dataclasses
import math
import statistics
import time

from peers import accounting

NOUNS = {
    "messages": "{unit}s",
    "rate": "{unit}s a second",
    "cpu_per_thousand": "CPU per {unit}",
    "load_cpu_per_thousand": "CPU of the load per {unit}",
}
_LATE_WORK_SECONDS = 1.0
_CHANCE_OUTSIDE_MAX = 0.05  # that the true median is outside an interval


@dataclasses.dataclass
class Figures:
    """What one side did in one round."""

    messages: int  # or requests, or transactions
    seconds: float
    cpu_seconds: float  # of the server
    load_cpu_seconds: float  # of what sends
    machine_cpu_seconds: float  # of everything, load included
    resident_bytes: int

    @property
    def rate(self):
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cpu_per_thousand(self):
        """CPU seconds of the server for a thousand messages."""
        return self.cpu_seconds / self.messages * 1000

    @property
    def load_cpu_per_thousand(self):
        """CPU seconds of the load for a thousand messages."""
        return self.load_cpu_seconds / self.messages * 1000


@dataclasses.dataclass(frozen=True)
class Target:
    """A ratio of two sides that the project aims at."""

    over: str  # side above the line
    under: str  # side below the line
    figure: str  # one of NOUNS
    least: float | None = None
    most: float | None = None
    holds: float | None = None  # a ratio that the interval is to have in it

    def concerns(self, rounds):
        """Whether both its sides were run."""
        return all({self.over, self.under} <= set(r) for r in rounds)

    def ratio(self, rounds):
        """The median of the rounds' ratios."""
        return statistics.median(self._ratios(rounds))

    def measured(self, rounds):
        """It in words, with its interval where there are rounds enough."""
        return f"{self.ratio(rounds):.4g}{in_words(interval(self._ratios(rounds)))}"

    def _ratios(self, rounds):
        return [getattr(r[self.over], self.figure) / getattr(r[self.under], self.figure) for r in rounds]

    def is_met(self, rounds):
        """Whether the median reaches the aim, from either end, and the interval holds what it is to hold."""
        ratio = self.ratio(rounds)
        low, high = interval(self._ratios(rounds)) or (ratio, ratio)
        held = self.holds is None or low <= self.holds <= high
        return (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most) and held

    def aim(self, unit):
        """It in words; `unit` is one of what is counted."""
        bounds = [f"at least {self.least:g}"] if self.least is not None else []
        bounds += [f"at most {self.most:.4g}"] if self.most is not None else []
        bounds += [f"an interval that holds {self.holds:g}"] if self.holds is not None else []
        return f"{NOUNS[self.figure].format(unit=unit)}, {self.over} / {self.under}: {' and '.join(bounds)}"


def measure(server, work):
    """Runs `work`, which returns what was done (`load.Done`), against a started server."""
    cpu, machine = server.group.cpu_seconds(), accounting.machine_busy_seconds()
    done = work()
    machine = accounting.machine_busy_seconds() - machine
    time.sleep(_LATE_WORK_SECONDS)
    cpu = server.group.cpu_seconds() - cpu
    resident = server.group.resident_bytes()
    return Figures(done.count, done.seconds, cpu, done.cpu_seconds, machine, resident)


def rounds(count, sides, chosen=None):
    """`count` rounds of `sides` (name to a function of the round's number that gives Figures), or of those chosen."""
    found = []
    sides = {name: run for name, run in sides.items() if chosen is None or name in chosen}
    for number in range(count):
        names = list(sides) if number % 2 == 0 else list(reversed(sides))
        measured = {}
        for name in names:
            figures = measured[name] = sides[name](number)
            print(
                f"round {number + 1}/{count}  {name:14} {figures.rate:9.0f}/s "
                f"{figures.cpu_per_thousand:8.4f} CPU s/1,000  load {figures.load_cpu_per_thousand:8.4f}  "
                f"{figures.resident_bytes / 1e6:6.1f} MB",
                flush=True,
            )
        found.append(measured)
    return found


def median(found, side, figure):
    """The median over the rounds of one side's figure."""
    return statistics.median(getattr(measured[side], figure) for measured in found)


def interval(values):
    """Between which two of the values the true median lies, by the binomial distribution; None for too few."""
    count = len(values)
    chances = (2 * sum(math.comb(count, below) for below in range(rank)) / 2**count for rank in range(1, count))
    rank = sum(chance <= _CHANCE_OUTSIDE_MAX for chance in chances)
    found = sorted(values)
    return (found[rank - 1], found[-rank]) if rank else None


def in_words(bounds):
    """An interval as it stands behind a figure."""
    return f" ({bounds[0]:.4g} to {bounds[1]:.4g})" if bounds else ""
