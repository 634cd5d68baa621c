"""Bulk mail does not delay single messages: one message to 200,000 recipients, then 1,000 to the
same domains.

The next hops delay each message, so that the bulk mail is still leaving when the single messages
arrive. A message counts as delivered when the sink has recorded it, which may be 0.2 s later.
"""

import dataclasses
import smtplib
import time

import drain
import report
from peers import machine
from peers.outbound import Hops

from . import Scenario

RECIPIENTS, DOMAINS, SINGLES = 200_000, 20_000, 1000
SINGLE_SECONDS_MAX = 2.0
HOPS = Hops(1000, "*.h{}.test", ("* message delay 500ms",))
_DOMAINS_PER_HOP = DOMAINS // HOPS.count
_SECONDS_MAX = 600
_TEXT = "Subject: {}\r\n\r\n" + "The news of this week.\r\n" * 40
_DISK_OCTETS = 200 << 20

NOTES = (
    f"{DOMAINS:,} domains, {_DOMAINS_PER_HOP} at each of {HOPS.count:,} next hops, which are addresses of 127.0.0.0/8; "
    "each delays a message by half a second. No DNS is used.",
    "The single messages have a different sender and are sent one after the other on one connection after the bulk mail is "
    "accepted; each goes to a different next hop.",
    "The client is Python's smtplib. The time is from its last 250 until the last single message is in the record of the sink.",
)


@dataclasses.dataclass(frozen=True)
class Round:
    """The figures of one round."""

    seconds: float  # from the 250 of the last single message until all were delivered
    left: int  # recipients of the bulk mail that were still waiting then
    whole_seconds: float  # until the bulk mail was delivered, from its 250
    copies: int  # that arrived in total
    addresses: int  # that got a copy

    def row(self, number):
        """The round as a row of a table."""
        return {
            "round": number, "last single message delivered after, s": self.seconds,
            "recipients of the bulk mail left then": self.left, "bulk mail delivered after, s": self.whole_seconds,
            "copies": self.copies, "addresses": self.addresses,
        }  # fmt: skip


def scenario(options):
    """Runs each round on a new server."""
    recipients = [f"reader{number}@{_domain(number)}" for number in range(RECIPIENTS // options.shrink)]
    singles = [f"friend{number}@{_domain(number * _DOMAINS_PER_HOP)}" for number in range(SINGLES // options.shrink)]
    found, configuration = [], ""
    with machine.run_folder("mailing") as folder:
        machine.require_space(folder, options.pairs * _DISK_OCTETS)
        facts = machine.describe(folder)
        for number in range(options.pairs):
            machine.settle()
            one, configuration = _round(folder / str(number), recipients, singles)
            found.append(one)
            print(f"round {number + 1}/{options.pairs}  {one}", flush=True)
        return report.Report(
            "mailing", "Single messages and bulk mail", facts, folder,
            {"client": [f"one message to {len(recipients):,} recipients, then {len(singles):,} single messages"]},
            NOTES, {"mailrace": configuration}, checks=list(_checks(found, len(recipients) + len(singles))),
            tables={"Rounds": [one.row(number) for number, one in enumerate(found, 1)]},
        ).finish(options)  # fmt: skip


def _domain(number):
    """The domains of a next hop have consecutive numbers."""
    hop, place = divmod(number % DOMAINS, _DOMAINS_PER_HOP)
    return f"s{place + 1}.h{hop + 1}.test"


def _round(folder, recipients, singles):
    folder.mkdir()
    limits = f"recipients          = {RECIPIENTS}\nexpanded_recipients = {RECIPIENTS}"
    server = drain.mailrace(HOPS, limits=limits, held=False)(folder)
    try:
        server.start()
        return _send(server, recipients, singles), server.configuration()
    finally:
        server.stop()


def _send(server, recipients, singles):
    """Sends the bulk mail, then the single messages, and waits until all are delivered."""
    all_copies, friends = server.arrivals(), server.arrivals(b" friend")
    try:
        with smtplib.SMTP("127.0.0.1", server.port, timeout=_SECONDS_MAX) as client:
            _accepted(client.sendmail("news@lists.test", recipients, _TEXT.format("bulk")))
            begin = time.monotonic()
            for recipient in singles:
                _accepted(client.sendmail("anna@people.test", recipient, _TEXT.format("single")))
            last = time.monotonic()
        there = friends.wait_for(len(singles), _SECONDS_MAX)
        left = len(recipients) - round(all_copies.count_at(there) - friends.count_at(there))
        whole = all_copies.wait_for(len(recipients) + len(singles), _SECONDS_MAX)
    finally:
        all_copies.stop()
        friends.stop()
    server.sinks[0].stop()
    addresses = [line.rpartition(" ")[2] for line in server.sinks[0].record.read_text().splitlines()]
    return Round(there - last, left, whole - begin, len(addresses), len(set(addresses)))


def _accepted(refused):
    if refused:
        address, reply = next(iter(refused.items()))
        raise RuntimeError(f"{len(refused):,} recipients were refused, {address} with {reply}")


def _checks(found, count):
    slowest, left = max(one.seconds for one in found), min(one.left for one in found)
    yield (
        f"in each of {len(found)} rounds the single messages are delivered within {SINGLE_SECONDS_MAX:g} s",
        f"{slowest:.2f} s at the most",
        slowest <= SINGLE_SECONDS_MAX,
    )
    yield "the bulk mail is still leaving then", f"{left:,} or more recipients still waiting", left > 0
    each = all((one.copies, one.addresses) == (count, count) for one in found)
    yield "each recipient gets it once", f"{count:,} recipients in each round" if each else f"{found}", each


SCENARIOS = {"mailing": Scenario(scenario)}
