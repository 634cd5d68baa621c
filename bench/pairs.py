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

import limits
from moving_line import MovingLine
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
    latency_seconds: dict = dataclasses.field(default_factory=dict)  # by percentile, if it was measured
    limit: str | None = None  # what limited the rate (limits.WORDS), if it is known

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

    def in_words(self):
        """The figures as a line."""
        return (
            f"{self.rate:9.0f}/s {self.cpu_per_thousand:8.4f} CPU s/1,000  load {self.load_cpu_per_thousand:8.4f}  "
            f"{self.resident_bytes / 1e6:6.1f} MB  {limits.WORDS.get(self.limit, '')}"
        )


@dataclasses.dataclass(frozen=True)
class Target:
    """A target ratio of two sides in one case, or in two; without a bound the ratio is only reported.

    All methods that measure take the cases: their labels with their rounds.
    """

    over: str  # the side in the numerator
    under: str  # the side in the denominator
    figure: str  # one of NOUNS
    least: float | None = None
    most: float | None = None
    holds: float | None = None  # a ratio that the interval must contain
    case: str = ""  # the label of the case; empty if nothing is varied
    under_case: str | None = None  # the label of the case of the denominator, if it is another one
    less: str | None = None  # a side whose figure is subtracted from the numerator

    def concerns(self, cases):
        """Whether all its sides were run."""
        has_base = self.less is None or self._has(cases, self.case, self.less)
        return has_base and self._has(cases, self.case, self.over) and self._has(cases, self._under_case, self.under)

    def ratio(self, cases):
        """The median of the ratios of all rounds."""
        return statistics.median(self._ratios(cases))

    def interval(self, cases):
        """The interval of the ratio; None with too few rounds."""
        return interval(self._ratios(cases))

    def measured(self, cases):
        """The ratio as text, with its interval if there are enough rounds."""
        return f"{self.ratio(cases):.4g}{in_words(self.interval(cases))}"

    def is_met(self, cases):
        """Whether the median is within the bounds and the interval contains the required value; None without bounds."""
        if self.bounds() is None:
            return None
        ratio = self.ratio(cases)
        low, high = self.interval(cases) or (ratio, ratio)
        held = self.holds is None or low <= self.holds <= high
        return (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most) and held

    def bounds(self):
        """The bounds as text; None if there are none."""
        bounds = [f"at least {self.least:g}"] if self.least is not None else []
        bounds += [f"at most {self.most:.4g}"] if self.most is not None else []
        bounds += [f"an interval that contains {self.holds:g}"] if self.holds is not None else []
        return " and ".join(bounds) or None

    def aim(self, unit, with_bounds=True):
        """The target as text; `unit` is the singular of what is counted."""
        over = self.over if self.less is None else f"({self.over} - {self.less})"
        sides = f"{over} / {self.under}" + (f" ({self.case})" if self.case else "")
        if self.under_case is not None:
            sides = f"{over} ({self.case}) / {self.under} ({self.under_case})"
        bounds = f": {self.bounds()}" if with_bounds and self.bounds() else ""
        return f"{NOUNS[self.figure].format(unit=unit)}, {sides}{bounds}"

    @property
    def _under_case(self):
        return self.case if self.under_case is None else self.under_case

    def _has(self, cases, case, side):
        return bool(cases.get(case)) and all(side in measured for measured in cases[case])

    def _ratios(self, cases):
        both = zip(cases[self.case], cases[self._under_case], strict=True)
        return [self._numerator(over) / getattr(under[self.under], self.figure) for over, under in both]

    def _numerator(self, measured):
        base = getattr(measured[self.less], self.figure) if self.less is not None else 0
        return getattr(measured[self.over], self.figure) - base


def measure(server, work):
    """Runs `work`, which returns a `load.LoadResult`, against a started server."""
    meter = limits.Meter(server.group)  # reading many processes takes a moment, which is not the server's
    cpu, machine = server.group.cpu_seconds(), accounting.machine_busy_seconds()
    done = work()
    machine = accounting.machine_busy_seconds() - machine
    limit = meter.limit(done)
    time.sleep(_LATE_WORK_SECONDS)
    cpu = server.group.cpu_seconds() - cpu
    resident = server.group.resident_bytes()
    return Figures(done.count, done.seconds, cpu, done.cpu_seconds, machine, resident, done.latency_seconds, limit)


def rounds(count, turns, deadline=None, ratio=None):
    """Runs `count` rounds of `turns` (name to a function of the round's number that returns Figures),
    or fewer if a further one would hardly end before the deadline. On a terminal, one moving line shows
    what runs, what is left, and what `ratio` returns for the rounds so far; elsewhere each run has a line.
    """
    found, longest, left, so_far = [], 0.0, count * len(turns), ""
    with MovingLine() as line:
        for number in range(count):
            begin = time.monotonic()
            if found and deadline is not None and begin + longest > deadline:
                line.clear()
                print(f"no time for another round after {len(found)} of {count}", flush=True)
                break
            names = list(turns) if number % 2 == 0 else list(reversed(turns))
            measured = {}
            for name in names:
                words, left = name if isinstance(name, str) else " ".join(part for part in name if part), left - 1
                line.show(f"round {number + 1} of at most {count}, {words}, runs left at most: {left}{so_far}")
                figures = measured[name] = turns[name](number)
                if not line.is_shown:
                    print(f"round {number + 1}/{count}  {words:14} {figures.in_words()}", flush=True)
            longest = max(longest, time.monotonic() - begin)
            found.append(measured)
            so_far = f"; {text}" if ratio is not None and (text := ratio(found)) else ""
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
