"""Paired runs: the sides alternate within a round, so that drift of the machine affects all of
them.

Only ratios within one round are meaningful; a result is the median of the ratios of the rounds. The
order of the sides is reversed in every other round. With enough rounds, the report has an interval
that contains the true median with at least 95 % confidence, derived from the order of the ratios
(binomial distribution). CPU time is read one second after the last reply, so that work that a
server does after its 250 is included.
"""

import dataclasses
import math
import random
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
_CHANCE_OUTSIDE_MAX = 0.05  # that the true median is outside the interval
_RESAMPLES = 10_000


@dataclasses.dataclass
class Figures:
    """The figures of one side in one round."""

    messages: int  # or requests, or transactions
    seconds: float
    cpu_seconds: float  # of the server
    load_cpu_seconds: float  # of the load
    machine_cpu_seconds: float  # of the whole machine
    resident_bytes: int

    @property
    def rate(self):
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu_per_thousand(self):
        """CPU seconds of the server per thousand messages."""
        return self.cpu_seconds / self.messages * 1000

    @property
    def load_cpu_per_thousand(self):
        """CPU seconds of the load per thousand messages."""
        return self.load_cpu_seconds / self.messages * 1000


@dataclasses.dataclass(frozen=True)
class Target:
    """A target ratio of two sides."""

    over: str  # the side in the numerator
    under: str  # the side in the denominator
    figure: str  # one of NOUNS
    least: float | None = None
    most: float | None = None
    holds: float | None = None  # a ratio that the interval must contain

    def concerns(self, rounds):
        """Whether both sides were run."""
        return all({self.over, self.under} <= set(r) for r in rounds)

    def ratio(self, rounds):
        """The median of the ratios of all rounds."""
        return statistics.median(self._ratios(rounds))

    def measured(self, rounds):
        """The ratio as text, with its interval if there are enough rounds."""
        return f"{self.ratio(rounds):.4g}{in_words(interval(self._ratios(rounds)))}"

    def _ratios(self, rounds):
        return [getattr(r[self.over], self.figure) / getattr(r[self.under], self.figure) for r in rounds]

    def is_met(self, rounds):
        """Whether the median is within the bounds and the interval contains the required value."""
        ratio = self.ratio(rounds)
        low, high = interval(self._ratios(rounds)) or (ratio, ratio)
        held = self.holds is None or low <= self.holds <= high
        return (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most) and held

    def aim(self, unit):
        """The target as text; `unit` is the singular of what is counted."""
        bounds = [f"at least {self.least:g}"] if self.least is not None else []
        bounds += [f"at most {self.most:.4g}"] if self.most is not None else []
        bounds += [f"an interval that contains {self.holds:g}"] if self.holds is not None else []
        return f"{NOUNS[self.figure].format(unit=unit)}, {self.over} / {self.under}: {' and '.join(bounds)}"


def measure(server, work):
    """Runs `work`, which returns a `load.LoadResult`, against a started server."""
    cpu, machine = server.group.cpu_seconds(), accounting.machine_busy_seconds()
    done = work()
    machine = accounting.machine_busy_seconds() - machine
    time.sleep(_LATE_WORK_SECONDS)
    cpu = server.group.cpu_seconds() - cpu
    resident = server.group.resident_bytes()
    return Figures(done.count, done.seconds, cpu, done.cpu_seconds, machine, resident)


def rounds(count, sides, chosen=None):
    """Runs `count` rounds of `sides` (name to a function of the round's number that returns
    Figures), or of those chosen.
    """
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
    """The median of one side's figure over the rounds."""
    return statistics.median(getattr(measured[side], figure) for measured in found)


def interval(values):
    """The two values between which the true median lies (binomial distribution); None for too few."""
    count = len(values)
    chances = (2 * sum(math.comb(count, below) for below in range(rank)) / 2**count for rank in range(1, count))
    rank = sum(chance <= _CHANCE_OUTSIDE_MAX for chance in chances)
    found = sorted(values)
    return (found[rank - 1], found[-rank]) if rank else None


def bootstrap_interval(values):
    """The two values between which the true median lies with 95 % confidence: the middle 95 % of the
    medians of random samples of the values (percentile bootstrap). The same values give the same interval.
    """
    draw = random.Random(_RESAMPLES)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    outside = round(_RESAMPLES * _CHANCE_OUTSIDE_MAX / 2)
    return medians[outside], medians[-1 - outside]


def in_words(bounds):
    """An interval as text, to follow a figure."""
    return f" ({bounds[0]:.4g} to {bounds[1]:.4g})" if bounds else ""
