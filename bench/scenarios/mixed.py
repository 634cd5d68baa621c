"""Mail that comes in while others read theirs.

    accept-while-reading    messages are accepted, mailboxes are read by POP3, and both at once

Each is one side of a round, on a new server. Both loads together must cost hardly more CPU than each
of them alone: the sum is compared.
"""

import dataclasses
import statistics

import comparison
import pairs
from peers.laboratory import ReadMail, Source, Together
from peers.mailrace import LOGINS, Mailrace

from .accept import MESSAGE_DISK_OCTETS
from .reading import Reading, ReadingSide, make_maildirs, secured

ACCEPTED, SESSIONS = 100_000, 5000  # of about the same CPU with their load
MAILBOXES, MESSAGES = 1000, 50
RATIO_MAX = 1.05


@dataclasses.dataclass(frozen=True)
class MixedSide(ReadingSide):
    """A side with loads of several protocols."""

    def for_trial(self, divisor):
        """The same side with a part of each load."""
        loads = {name: dataclasses.replace(one, count=one.count // divisor) for name, one in self.load.loads.items()}
        return dataclasses.replace(self, load=dataclasses.replace(self.load, loads=loads))

    def measure(self, server, place):
        """Warms the caches, runs the loads, and checks that the accepted messages were kept."""
        self.warm.run(server.ports["pop3"], place)
        figures = pairs.measure(server, lambda: self.load.run(server.ports, place))
        server.check_kept(self.load.messages_max)
        return figures


@dataclasses.dataclass(frozen=True)
class Mixed(Reading):
    """Also compares the CPU of both loads at once with the sum of each alone."""

    def measure(self, name, folder, options):
        """Runs all rounds and adds the check."""
        found = super().measure(name, folder, options)
        if all(set(self.sides) <= set(measured) for measured in found.rounds):
            ratios = [_ratio(measured) for measured in found.rounds]
            ratio = statistics.median(ratios)
            text = f"{ratio:.4g}{pairs.in_words(pairs.interval(ratios))}"
            aim = f"CPU of both at once / the sum of each alone: at most {RATIO_MAX:g}"
            found.checks.append((aim, text, ratio <= RATIO_MAX))
        return found


def _ratio(measured):
    cpu = {side: figures.cpu_seconds for side, figures in measured.items()}
    return cpu["both"] / (cpu["accepting"] + cpu["reading"])


def _mailrace(place):
    extra = secured(place, "pop3", secure=False) + LOGINS
    return Mailrace(place, concurrency=0, maildirs=place.parent / "mail", extra=extra)


def _maildirs(folder):
    make_maildirs(folder / "mail", MAILBOXES, MESSAGES, "\r\n")


def _side(*protocols):
    loads = {"smtp": Source(ACCEPTED), "pop3": ReadMail(SESSIONS, users=MAILBOXES, messages=MESSAGES)}
    warm = dataclasses.replace(loads["pop3"], count=MAILBOXES)
    chosen = Together({protocol: loads[protocol] for protocol in protocols})
    return MixedSide(_mailrace, chosen, MESSAGE_DISK_OCTETS, warm=warm)


MIXED = Mixed(
    "Accepting mail while mailboxes are read",
    {"accepting": _side("smtp"), "reading": _side("pop3"), "both": _side("smtp", "pop3")},
    (),
    (
        f"Accepting: {ACCEPTED:,} messages of 6,000 bytes over 100 connections into the queue, which is held; afterwards all "
        "of them were counted there. "
        f"Reading: {SESSIONS:,} POP3 sessions over 10 connections, each of which logs in, fetches {MESSAGES} messages of 6,000 "
        f"bytes and quits; {MAILBOXES:,} mailboxes.",
        "Messages are those accepted and those fetched, so only the CPU seconds can be compared, not the figures for each.",
        "All mailboxes were read once before each measurement, on all sides.",
        comparison.REST_NOTE,
    ),
    prepare=_maildirs,
)

SCENARIOS = comparison.scenarios({"accept-while-reading": MIXED})
