"""Mass mail through Exim, Postfix and Mailrace: does it help to have more than 400 deliveries at the same
time?

    exim-mass-mail    messages of 6 KB are queued, each for one recipient at one of 500 domains, then drained through 400 and
                      through 900 runners for an hour, of which the best five minutes are reported

A runner is a queue runner of Exim, a process of Postfix's default_process_limit, a slot of Mailrace's
queue. Each next hop delays each message a little, as a network does. One domain in twenty is lame: half
of them greet after 30 seconds, the others never. Only the mail for the others is timed. As much is queued
as lasts for the hour; `--shrink` divides the hour, the five minutes and the queue alike.
"""

import bisect
import dataclasses
import statistics
import time

import comparison
import drain
import pairs
from comparison import Comparison
from drain import Drain
from peers import exim, load, machine, postfix
from peers.laboratory import Source
from peers.outbound import Hops
from plot import Chart

from . import Scenario
from .accept import MESSAGE_DISK_OCTETS

SIDES = ("exim", "postfix", "mailrace")
RUNNERS = (400, 900)
# What each sends in a second at the most, so that the queue lasts for the time, but is no larger than it has to be.
RATES_MAX = {"exim": 300, "postfix": 700, "mailrace": 7000}
DOMAINS, LAME_DOMAINS = 500, 25
DELAY_MS = 100
GOOD = Hops(DOMAINS - LAME_DOMAINS, rules=(f"* message delay {DELAY_MS}ms",))
SLOW = Hops(LAME_DOMAINS // 2, "slow{}.test", ("* connect delay 30s",))
MUTE = Hops(LAME_DOMAINS - LAME_DOMAINS // 2, "mute{}.test", ("* connect delay 1h",))
PAIRS = 6
NO_MORE = 1.05  # an interval of the ratio of the rates up to this is no more
_HOUR, _HOUR_LEAST = 3600, 10  # seconds of a drain, and of the shortest one
_COUNT_MIN = 2000  # in a smaller queue the runners only get in each other's way
_BEST_PART = 1 / 12  # five minutes of an hour
_CURVE_POINTS = 100
_NAMES = {"exim": "Exim", "postfix": "Postfix", "mailrace": "Mailrace"}
_NEEDS = {"exim": (("exim", exim.is_installed),), "postfix": (("postfix", postfix.is_installed),), "mailrace": ()}

NOTES = (
    f"{DOMAINS} domains, each with a next hop of its own: addresses in 127.0.0.0/8, without DNS. {GOOD.count} of them delay "
    f"each message by {DELAY_MS} ms; {SLOW.count} greet after 30 seconds, {MUTE.count} never. As much mail goes to each. It "
    "is queued in three parts: for the first kind, the second and the third, within each at random.",
    "All mail is queued first and counted. The counts differ with the rates, so that the queues last: for each second of the "
    f"drain {RATES_MAX['mailrace']:,} messages for Mailrace, {RATES_MAX['postfix']:,} for Postfix, {RATES_MAX['exim']:,} for "
    f"Exim, but {_COUNT_MIN:,} at least. A drain takes an hour from the release, or until the last message for the domains "
    "that are not lame.",
    "Exim: split_spool_directory, and as many queue runners (`-q`) as given, started at the same time. Postfix: as many "
    "processes of each kind. Mailrace: as many slots in its queue; its queue for slow and silent domains, which takes them from it after some failures, has slots of "
    "its own (default 75). All have their usual timeouts.",
    "The best five minutes are those of the hour with the most messages. Where the hour was divided, or the queue was empty "
    "earlier, they are the best twelfth of the drain; the table has their seconds.",
    "Afterwards the messages at the next hops and in the queue of the stopped server were counted. One that was on its way "
    "then is in both counts.",
    f"Before each release the disk was synced and the machine was idle for {machine.REST_SECONDS} seconds.",
)


@dataclasses.dataclass(frozen=True)
class Delivered:
    """What became of the mail in one run."""

    curve: list  # seconds since the release, messages
    queued: int  # messages that were queued
    good: int  # of them, for domains that are not lame
    arrived: int  # at these, until the server was stopped
    faulty: int  # damaged or doubled
    elsewhere: int  # at lame domains, until then
    left: int  # in the queue after the server was stopped

    @property
    def in_time(self):
        """Messages that arrived before the time was over."""
        return self.curve[-1][1]

    @property
    def hourly(self):
        """Messages an hour."""
        return self.in_time / self.curve[-1][0] * 3600

    @property
    def best_seconds(self):
        """The length of the best part: five minutes of an hour."""
        return self.curve[-1][0] * _BEST_PART

    @property
    def best(self):
        """Messages in the best part of the time."""
        return best_rate(self.curve, self.best_seconds) * self.best_seconds

    @property
    def is_whole(self):
        """Whether no message was lost, and none that arrived was damaged or doubled. What was on its way when the server was
        stopped can be both at a next hop and in the queue.
        """
        return self.faulty == 0 and self.arrived + self.elsewhere + self.left >= self.queued


@dataclasses.dataclass(frozen=True)
class MassSide(Drain):
    """A side that keeps what became of the mail."""

    delivered: list = dataclasses.field(default_factory=list)  # per round

    def for_trial(self, divisor):
        """The same side with less mail, in the same proportions, and less time."""
        seconds_max = max(_HOUR_LEAST, self.seconds_max // divisor)
        divisor = max(1, min(divisor, (self.load.count + sum(one.count for one in self.others)) / _COUNT_MIN))
        good, *others = [dataclasses.replace(one, count=int(one.count / divisor)) for one in (self.load, *self.others)]
        return dataclasses.replace(self, load=good, others=tuple(others), seconds_max=seconds_max)

    def measure(self, server, place):
        """Fills the queue, releases it, and counts what has become of the mail."""
        queued = self.load.count + sum(one.count for one in self.others)
        for one in (self.load, *self.others):
            one.run(server.port, place)
        server.server.check_kept(queued)
        machine.settle()
        curve = []
        figures = pairs.measure(server, lambda: self._drain(server, curve))
        server.server.stop()
        for sink in server.sinks:
            sink.stop()
        left = server.server.queued_when_stopped()
        first, *lame = [sink.summary() for sink in server.sinks]
        faulty = first["recipients"] - first["seen"]["sound"]
        elsewhere = sum(summary["recipients"] for summary in lame)
        self.delivered.append(
            Delivered(curve, queued, self.load.count, first["seen"]["sound"], faulty, elsewhere, left)
        )
        return figures

    def _drain(self, server, curve):
        """Releases the mail, and returns how much arrived before the time was over; fills the curve."""
        sink, arrivals = server.sinks[0], server.arrivals()
        cpu, begin = sink.group.cpu_seconds(), time.monotonic()
        try:
            server.server.release()
            while arrivals.count < self.load.count and time.monotonic() < begin + self.seconds_max:
                time.sleep(0.05)
        finally:
            arrivals.stop()
        if not (count := arrivals.count):
            raise RuntimeError(f"{server.name}: no message arrived within {self.seconds_max} s")
        curve.extend(arrivals.curve(begin, _CURVE_POINTS))
        if count < self.load.count:  # nothing more came until the time was over
            curve.append((self.seconds_max, count))
        return load.LoadResult(count, curve[-1][0], sink.group.cpu_seconds() - cpu)


def best_rate(curve, seconds):
    """The highest rate over this many seconds, from points of time and count."""
    times = [when for when, _ in curve]

    def count_at(when):
        after = min(bisect.bisect_left(times, when), len(curve) - 1)
        (begin, fewer), (end, more) = curve[max(0, after - 1)], curve[after]
        return more if end <= when or end == begin else fewer + (more - fewer) * (when - begin) / (end - begin)

    begins = [when for when in times if when + seconds <= times[-1]]
    return max(((count_at(when + seconds) - count_at(when)) / seconds for when in begins), default=curve[-1][1] / times[-1])


def scenario(options):
    """Runs all rounds."""
    cases = tuple(comparison.Case(str(runners), _sides(runners), runners) for runners in RUNNERS)
    compared = Comparison(
        "Mass mail with 400 and with 900 runners",
        {},
        tuple(_targets()),
        NOTES,
        versions={"Exim": exim.version},
        question="How much mail leaves in an hour, and do 900 runners send more of it than 400?",
        answer=_answer,
        case_name="runners",
        cases=cases,
    )
    with machine.run_folder("exim-mass-mail") as folder:
        found = compared.measure("exim-mass-mail", folder, options)
        every = {(case.label, name): side.delivered for case in cases for name, side in case.sides.items()}
        delivered = {key: runs for key, runs in every.items() if runs}
        found.checks = list(_checks(delivered))
        found.tables["Messages an hour"] = [_row(label, name, runs) for (label, name), runs in delivered.items()]
        found.charts = [_chart(delivered)]
        return found.finish(options)


def _sides(runners):
    slots = f'\n[[queue]]\nname = "standard"\nconcurrency = {runners}\n'
    processes = [f"default_process_limit = {runners}", "initial_destination_concurrency = 5"]
    hops = (GOOD, SLOW, MUTE)
    servers = {
        "exim": drain.exim_tuned(*hops, runners=runners),
        "postfix": drain.postfix_tuned(*hops, settings=processes),
        "mailrace": drain.mailrace(*hops, settings=slots),
    }
    return {name: _side(name, server, hops) for name, server in servers.items()}


def _side(name, server, hops):
    good, *lame = [
        Source(RATES_MAX[name] * _HOUR * one.count // DOMAINS, recipient=f"user@{one.domain}", users=one.count) for one in hops
    ]
    octets = MESSAGE_DISK_OCTETS * (2 if name == "exim" else 1)  # there a message is two files
    return MassSide(server, good, octets, others=tuple(lame), needs=_NEEDS[name], seconds_max=_HOUR)


def _targets():
    few, many = map(str, RUNNERS)
    for name in SIDES:
        yield pairs.Target(name, name, "rate", case=many, under_case=few)
    for label in (few, many):
        for peer in ("exim", "postfix"):
            yield pairs.Target("mailrace", peer, "rate", case=label)
            yield pairs.Target("mailrace", peer, "cpu_per_thousand", case=label)


def _checks(delivered):
    for (label, name), runs in delivered.items():
        queued, found = sum(run.queued for run in runs), sum(run.arrived + run.elsewhere + run.left for run in runs)
        faulty = sum(run.faulty for run in runs)
        text = f"{found:,} at a next hop or in the queue of {queued:,}, {faulty:,} damaged or doubled"
        yield f"{name}, {label} runners: no message is lost, damaged or doubled", text, all(run.is_whole for run in runs)
        in_time, good = sum(run.in_time for run in runs), sum(run.good for run in runs)
        lasting = sum(run.in_time < run.good for run in runs)
        text = f"in {lasting} of {len(runs)} drains; {in_time:,} of {good:,} delivered"
        yield f"{name}, {label} runners: the mail for domains that are not lame lasts until the time is over", text, None


def _row(label, name, runs):
    return {
        "system": name,
        "runners": label,
        "messages an hour": round(statistics.median(run.hourly for run in runs)),
        "messages in the best five minutes, or part of them": round(statistics.median(run.best for run in runs)),
        "seconds of these": statistics.median(run.best_seconds for run in runs),
        "the best as messages an hour": round(statistics.median(run.best / run.best_seconds * 3600 for run in runs)),
        "seconds of the drain": statistics.median(run.curve[-1][0] for run in runs),
    }


def _chart(delivered):
    """The first round."""
    series = {f"{name}, {label} runners": runs[0].curve for (label, name), runs in delivered.items()}
    return Chart("Delivered", "seconds since the release", "messages", series)


def _answer(found):
    few, many = map(str, RUNNERS)
    parts = []
    for name in SIDES:
        rates = {"over": name, "under": name, "figure": "rate", "case": many, "under_case": few}
        rate, ratio = found.median(name, "rate", few), found.ratio(**rates)
        if ratio is not None:
            hourly = f"{rate * 3600:,.0f} an hour with {few}"
            more = _more(found.interval(**rates))
            parts.append(f"{_NAMES[name]} sends {hourly} and {ratio:.2f} times that with {many}, {more}")
    return f"{'; '.join(parts)}." if parts else None


def _more(interval):
    """What the interval of the ratio of the rates decides."""
    low, high = interval or (0, 2 * NO_MORE)
    if low > 1:
        return "so more"
    return "so no more" if high <= NO_MORE else "which decides nothing"


SCENARIOS = {"exim-mass-mail": Scenario(scenario, SIDES, PAIRS, quick_shrink=360)}
