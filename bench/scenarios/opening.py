"""Opening large mailboxes.

    open-maildrop    POP3 logins to a mailbox of 100,000 messages, compared with listing and stat-ing its files

A login is timed from PASS to its reply. The mailbox was opened before, so that its files are in the
caches of the kernel, and its unique ids are stored. The list is that of `find`, which asks for the
size of each file.
"""

import dataclasses
import poplib
import time

import comparison
import pairs
from comparison import NullServer
from peers import load, machine
from peers.dovecot import PASSWORD

from .reading import Reading, ReadingSide, make_maildirs, pop3_mailrace

MESSAGES, MESSAGE_OCTETS = 100_000, 300
_TIMES = 20
_USER = "user1@bench.test"
_SECONDS_MAX = 600


@dataclasses.dataclass(frozen=True)
class OpenMaildrop:
    """Logs in several times, one after another."""

    times: int

    def command(self):
        """What it does, in words."""
        return ["USER", _USER, "PASS", PASSWORD, "STAT", "QUIT", f"({self.times} times)"]

    def run(self, port, _folder=None):
        """Logs in; the messages of the mailbox are counted, and the time of PASS."""
        cpu, seconds = time.process_time(), 0.0
        for _ in range(self.times):
            client = poplib.POP3("127.0.0.1", port, timeout=_SECONDS_MAX)
            client.user(_USER)
            begin = time.monotonic()
            client.pass_(PASSWORD)
            seconds += time.monotonic() - begin
            if (found := client.stat()[0]) != MESSAGES:
                raise RuntimeError(f"the mailbox has {found} messages, expected {MESSAGES}")
            client.quit()
        return load.LoadResult(self.times * MESSAGES, seconds, time.process_time() - cpu)


@dataclasses.dataclass(frozen=True)
class ListFiles:
    """Lists the files several times, and asks for the size of each; none is as large."""

    times: int

    def command(self, folder="DIR"):
        """The command line."""
        return ["find", *[f"{folder}/mail/bench.test/user1"] * self.times, "-type", "f", "-size", "+1M"]

    def run(self, _port, folder):
        """Lists."""
        ran = load.run(self.command(folder.parent), seconds_max=_SECONDS_MAX)
        return load.LoadResult(self.times * MESSAGES, ran.seconds, ran.cpu_seconds, threads=ran.threads)


def _maildir(folder):
    make_maildirs(folder / "mail", 1, MESSAGES, "\r\n", octets=MESSAGE_OCTETS)


OPENING = Reading(
    f"Opening a mailbox of {MESSAGES:,} messages",
    {
        "find": ReadingSide(NullServer, ListFiles(_TIMES), warm=ListFiles(1)),
        "mailrace": ReadingSide(pop3_mailrace, OpenMaildrop(_TIMES), warm=OpenMaildrop(1)),
    },
    (pairs.Target("mailrace", "find", "rate", least=0.5),),
    (
        f"A Maildir with {MESSAGES:,} messages of about {MESSAGE_OCTETS} bytes in cur/, whose names have their sizes.",
        f"Mailrace: {_TIMES} logins by POP3, one after another, each timed from PASS to its reply. find: lists the Maildir "
        f"{_TIMES} times in one process and stats each file. The rate is that of messages.",
        comparison.REST_NOTE,
    ),
    versions={"find": machine.package("findutils")},
    prepare=_maildir,
)

SCENARIOS = comparison.scenarios({"open-maildrop": OPENING})
