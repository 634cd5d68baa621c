"""Delivery to 2,000 Maildirs, from the first connection until the queue is empty.

Ten processes of smtp-source send one message each to the same 2,000 recipients (`-N` numbers the
recipients from 1), so both servers get the same load and every Maildir the same number of messages.
All Maildirs exist before, so that creating folders is not measured. At the end the messages are
counted.
"""

import dataclasses
import functools
import os
import shutil
import time

import comparison
import pairs
from comparison import Comparison, Side
from peers import postfix
from peers.mailrace import BINARY, Mailrace
from peers.smtp import Load

USERS, SOURCES = 2000, 10
_EMPTY_SECONDS_MAX = 600
_MESSAGE_DISK_OCTETS = 20_000  # a message, its queue record, and its share of the folders

TARGETS = (
    pairs.Target("mailrace", "postfix", "rate", least=8),
    pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 10),
)
NOTES = (
    f"{SOURCES} processes of smtp-source with {100 // SOURCES} sessions each; each sends one message to each user.",
    "The time is from the first connection until the queue is empty; both queues are checked every 50 ms.",
    "All Maildirs exist before. The messages in all new/ folders were counted afterwards.",
)


@dataclasses.dataclass(frozen=True)
class MaildirSide(Side):
    """A side whose server delivers to Maildirs. `server` gets the folder, that of the Maildirs, and the
    names of the users, to each of whom each source sends one message.
    """

    def for_trial(self, divisor):
        """The same side with fewer users."""
        trial = super().for_trial(divisor)
        whole = trial.load.count - trial.load.count % trial.load.sources
        return dataclasses.replace(trial, load=dataclasses.replace(trial.load, count=whole))

    def create(self, place):
        """A server and its Maildirs."""
        maildirs, names = place / "mail", _users(self.load)
        _make_maildirs(maildirs / "bench.test", names)
        return self.server(place, maildirs, names)

    def measure(self, server, place):
        """Runs the load until the queue is empty, and counts the messages in the Maildirs."""
        figures = pairs.measure(server, lambda: _until_empty(server, place, self.load))
        new = (place / "mail/bench.test" / name / "new" for name in _users(self.load))
        if (found := sum(len(os.listdir(folder)) for folder in new)) != self.load.count:
            raise RuntimeError(f"{found} messages were delivered, {self.load.count} were sent")
        return figures


def mailrace_side(users, binary=BINARY):
    """Mailrace with this many users."""
    return _side(functools.partial(_mailrace, binary=binary), users)


def _side(server, users):
    return MaildirSide(server, Load(users * SOURCES, sources=SOURCES, numbered=True), _MESSAGE_DISK_OCTETS)


def _mailrace(place, maildirs, names, binary):
    return Mailrace(place, users=names, maildirs=maildirs, binary=binary)


def _postfix(place, maildirs, names):
    table = place / "users"
    table.write_text("".join(f"{name}@bench.test bench.test/{name}/\n" for name in names))
    postfix.build_table("hash", table)
    return postfix.Postfix(place, "tuned", postfix.maildir_lines(maildirs, f"hash:{table}"))


def _users(load):
    return [f"{number}user" for number in range(1, load.count // load.sources + 1)]


def _until_empty(server, place, load):
    begin = time.monotonic()
    done = load.run(server.port, place)
    server.wait_until_empty(_EMPTY_SECONDS_MAX)
    return dataclasses.replace(done, seconds=time.monotonic() - begin)


def _make_maildirs(parent, names):
    for name in names:
        for part in ("tmp", "new", "cur"):
            (parent / name / part).mkdir(parents=True)
    if os.geteuid() == 0:
        for folder, _, _ in os.walk(parent.parent):
            shutil.chown(folder, "nobody", "nogroup")


MAILDIR = Comparison(
    f"Delivering to {USERS:,} Maildirs",
    {"postfix": _side(_postfix, USERS), "mailrace": mailrace_side(USERS)},
    TARGETS,
    NOTES,
)

SCENARIOS = comparison.scenarios({"maildir": MAILDIR})
