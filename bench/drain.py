"""Draining: a server holds queued mail, then it is released and timed until the mail has arrived.

Nothing leaves while the queue is filled. Then the disk is synced and the machine is idle for a few
seconds, so that only delivery is measured. At the end each message must have arrived intact and
once. The receiver is `mailrace bench sink` for all servers; it examines and records each message.
"""

import dataclasses

import pairs
from comparison import Side
from peers import exim, machine, outbound, postfix
from peers.mailrace import BINARY, Mailrace, route
from peers.postfix import Postfix

RUNNERS = 4  # the best for Exim on two cores, of 1, 2, 4, 8 and 16
NOTES = (
    "All mail is queued first and counted in the queue while nothing leaves. Mailrace's queue is paused and then "
    "resumed.",
    "Mail is delivered to `mailrace bench sink`, which checks that each message arrives intact and once.",
    "Next hops are addresses in 127.0.0.0/8, each with its own domain. No DNS is used.",
    f"Before each release the disk was synced and the machine was idle for {machine.REST_SECONDS} seconds.",
)
PEERS_NOTES = (
    "Postfix holds mail with a HOLD action and is released with `postsuper -H ALL` and `postqueue -f`; Exim holds with "
    f"`queue_only` and then gets {RUNNERS} queue runners (`-q`).",
)


@dataclasses.dataclass(frozen=True)
class Drain(Side):
    """A side whose server is an `outbound.Outbound` that holds its mail."""

    others: tuple = ()  # loads for other next hops, which are queued too
    of_middle: bool = True  # report the rate of the middle 80 %
    seconds_max: int = 900

    def for_trial(self, divisor):
        """The same side with the smaller loads of a trial."""
        others = tuple(Side(self.server, load).for_trial(divisor).load for load in self.others)
        return dataclasses.replace(super().for_trial(divisor), others=others)

    def disk_octets(self):
        """The disk space that one round needs."""
        return self.message_octets * sum(load.messages_max for load in (self.load, *self.others))

    def measure(self, server, place):
        """Fills the queue, releases it, and checks what has arrived."""
        count = self.load.count
        for load in (self.load, *self.others):
            load.run(server.port, place)
        server.server.check_kept(count + sum(load.count for load in self.others))
        machine.settle()
        figures = pairs.measure(server, lambda: server.drain(count, self.seconds_max, self.of_middle))
        server.check_arrived(count)
        return figures


def mailrace(*hops, name="mailrace", settings="", limits="", held=True, binary=BINARY):
    """Mailrace with default settings plus `settings` and `limits`, with these next hops."""

    def make(place, destinations):
        routes = "".join(route(one.domain, f"[{one.address}]:{one.port}") for one in destinations)
        return Mailrace(
            place, networks=("127.0.0.0/8",), limits=limits, extra=settings + routes, held=held, binary=binary
        )

    return lambda place: outbound.Outbound(name, place, make, *hops)


def postfix_tuned(*hops, name="postfix", settings=(), held=True):
    """Tuned Postfix with additional `settings`."""

    def make(place, destinations):
        table = place / "transports"
        table.write_text("".join(f"{one.domain} smtp:[{one.address}]:{one.port}\n" for one in destinations))
        postfix.build_table("hash", table)
        return Postfix(place, "tuned", [*hold, *postfix.relay_lines(table), *settings])

    hold = [postfix.HOLD] if held else []
    return lambda place: outbound.Outbound(name, place, make, *hops)


def exim_tuned(*hops, runners=RUNNERS, queueing="queue_only"):
    """Tuned Exim with this many queue runners."""

    def make(place, destinations):
        table = place / "routes"
        table.write_text("".join(f"{one.domain}: {one.address}::{one.port}\n" for one in destinations))
        return exim.Exim(place, exim.relay_router(table), runners, queueing)

    return lambda place: outbound.Outbound("exim", place, make, *hops)
