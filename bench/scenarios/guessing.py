"""Ten thousand wrong passwords a second do not slow down incoming mail.

Mail arrives at a steady rate, well below the capacity of the server; at the same time there is

    alone       nothing else
    sessions    the sessions of the guessers, with NOOP instead of each guess: the cost of the sessions alone
    guesses     the guessers: each session from a different address, at users of whom half exist

The processors are shared by server, source and guessers, so `guesses` is compared with `sessions`.
"""

import collections
import dataclasses
import json
import statistics
import sys

import comparison
import pairs
from comparison import Comparison, Side
from peers import guesses, load, machine, people
from peers.laboratory import Source
from peers.mailrace import Mailrace

from . import Scenario

MESSAGES_PER_SECOND, GUESSES_PER_SECOND, SECONDS = 2000, 10_000, 20
USERS = 1000
MS_MAX = 50.0
PAIRS = 7
_OTHERS = {"alone": None, "sessions": "noop", "guesses": "auth"}
_RECORD_OCTETS = 8192  # for one message in the spool
_RATE_PART_MIN = 0.995  # the last sessions of a round may still run at its end
# A hash with the default parameters, of a password that is never guessed.
_STORED = (
    "{ARGON2ID}$argon2id$v=19$m=19456,t=2,p=1$YmVuY2hiZW5jaGJlbmNo$DKSFrVJuTShj3EVGXAxWwTBBYrCjUUhCTxTRYGYVVmE"
)
_AUTH = """
[[listener]]
protocol = "submission"
address  = "127.0.0.1:0"

[[table]]
name = "logins"
type = "text"
path = "{path}"

[auth]
passwords  = "logins"
clear_text = true
"""

TARGETS = (
    pairs.Target("guesses", "alone", "rate", least=0.99),
    pairs.Target("guesses", "sessions", "rate", least=0.99),
)

NOTES = (
    f"{MESSAGES_PER_SECOND:,} messages of 6,000 octets per second arrive over 100 connections (open loop), and nothing "
    f"is delivered. Guesses go to another listener of the same server, {guesses.GUESSES_PER_SESSION} in each session.",
    f"There are {USERS:,} users, with passwords hashed by argon2id with 19 MiB; a guess is for one of them, or for one "
    "that does not exist. Passwords are sent in clear text, so that no TLS is measured.",
    "The time of a message is from its scheduled time to its last reply.",
    "The CPU of the server includes the guesses: one thread with low priority computes as many hashes "
    "as it can.",
    comparison.REST_NOTE,
)


@dataclasses.dataclass(frozen=True)
class SourceWithGuesses(Source):
    """The source, and at the same time the guessers, if any."""

    other: str | None = None  # what each of their sessions sends
    server: list = dataclasses.field(default_factory=list)  # the server under measurement
    latencies: list = dataclasses.field(default_factory=list)  # per round, of messages
    counts: list = dataclasses.field(default_factory=list)  # per round, of guesses

    def other_command(self, port="PORT"):
        """The command line of the guessers."""
        words = (port, GUESSES_PER_SECOND, self.seconds, USERS, self.other)
        return [sys.executable, guesses.__file__, *map(str, words)] if self.other else []

    def run(self, port, _folder=None):
        """Sends the messages of the given time."""
        commands = [self.command(port)]
        if self.other:
            commands.append(self.other_command(self.server[-1].ports["submission"]))
        ran = load.run(*commands, seconds_max=self.seconds_max, codes=(0, 1))
        summary, *others = map(json.loads, ran.outputs)
        self.latencies.append(summary["latency"] | {"missed": summary["missed"], "failed": summary["failed"]})
        self.counts.extend(others)
        return load.LoadResult(summary["done"], self.seconds, ran.cpu_seconds, threads=ran.threads)


def scenario(options):
    """Runs all rounds."""
    with machine.run_folder("guessing") as folder:
        stored = folder / "logins"
        stored.write_text("".join(f"user{number} {_STORED}\n" for number in range(1, USERS + 1)))
        stored.chmod(0o644)
        sides = {name: _side(stored, other) for name, other in _OTHERS.items()}
        found = Comparison("Wrong passwords and mail", sides, TARGETS, NOTES).measure("guessing", folder, options)
        loads = {name: sides[name].load for name in found.rounds[0]}
        for name, one in loads.items():
            found.commands[name].extend([" ".join(one.other_command())] if one.other else [])
        found.tables = {"Medians": [_row(name, one, found.rounds) for name, one in loads.items()]}
        found.checks = list(_checks(loads))
        print("\n".join(map(str, found.tables["Medians"])))
        return found.finish(options)


def _side(stored, other):
    source = SourceWithGuesses(rate=MESSAGES_PER_SECOND, seconds=SECONDS, other=other)

    def server(place):
        source.server.append(Mailrace(place, concurrency=0, extra=_AUTH.format(path=stored)))
        return source.server[-1]

    return Side(server, source, _RECORD_OCTETS)


def _row(name, one, rounds):
    """The medians of a side."""
    row = {
        "side": name,
        **{f"{part} of a message, ms": f"{_ms(one, part):.2f}" for part in ("p50", "p99", "p999")},
        "server CPU for 1,000 messages, s": f"{pairs.median(rounds, name, 'cpu_per_thousand'):.4f}",
    }
    tried = [count["guesses"] / count["seconds"] for count in one.counts]
    row["guesses/s"] = f"{statistics.median(tried):,.0f}" if tried else ""
    row["replies to them"] = ", ".join(f"{code}: {count:,}" for code, count in sorted(_replies(one).items()))
    return row


def _ms(one, part):
    return statistics.median(latency[f"{part}_us"] for latency in one.latencies) / 1000


def _replies(one):
    counts = collections.Counter()
    for count in one.counts:
        counts.update(count["replies"])
    return counts


def _checks(loads):
    for name, one in loads.items():
        lost = sum(latency["missed"] + latency["failed"] for latency in one.latencies)
        yield f"{name}: every message is accepted on time", f"{lost:,} were not", lost == 0
        yield f"{name}: within {MS_MAX:g} ms in 99 of 100", f"p99 {_ms(one, 'p99'):.2f} ms", _ms(one, "p99") <= MS_MAX
        if one.other:
            least = min(count["guesses"] / count["seconds"] for count in one.counts)
            aim = f"{name}: at least {GUESSES_PER_SECOND:,} a second in each round"
            yield aim, f"{least:,.0f}", least >= GUESSES_PER_SECOND * _RATE_PART_MIN
            failed = collections.Counter()
            for count in one.counts:
                failed.update(count["failed"])
            yield f"{name}: every session gets its replies", ", ".join(map(str, failed.items())) or "all", not failed
    if "guesses" in loads:
        codes = set(_replies(loads["guesses"]))
        yield "guesses: each is refused or deferred", ", ".join(sorted(codes)), codes <= {"535 5.7.8", "454 4.7.0"}


SCENARIOS = {"guessing": Scenario(scenario, tuple(_OTHERS), PAIRS)}
