"""Draining: a server is given mail to hold; then it is released, and timed where the mail arrives.

While it fills nothing leaves. Then the disk is synced and the machine rests, so that what is measured is leaving alone.
In the end each message must have arrived, whole and once. The same sink receives from all: `mailrace bench sink`, which
examines and records what comes.
"""

import dataclasses

import pairs
from contest import Side
from peers import exim, machine, outbound, postfix
from peers.mailrace import Mailrace, route
from peers.postfix import Postfix

RUNNERS = 4  # Exim's best number of them on two cores, of 1, 2, 4, 8 and 16 that were tried
NOTES = (
    "All mail is queued first, while nothing leaves, and counted in the queue. Mailrace's queue is paused, and resumed "
    "then.",
    "What leaves goes to `mailrace bench sink`, which examines what comes: each message came whole, and once.",
    "Next hops are addresses of 127.0.0.0/8, each with a domain of its own. No DNS is asked.",
    f"Before each release the disk was synced and the machine rested for {machine.REST_SECONDS} seconds.",
)
PEERS_NOTES = (
    "Postfix holds by a HOLD action, and is released by `postsuper -H ALL` and `postqueue -f`; Exim by `queue_only`, "
    f"and then gets {RUNNERS} runners (`-q`).",
)


@dataclasses.dataclass(frozen=True)
class Drain(Side):
    """One side, whose server is an `outbound.Outbound` that holds what it gets."""

    others: tuple = ()  # loads that are queued too, for other next hops than those that are measured
    of_middle: bool = True  # the rate is that of the middle 80 %
    seconds_max: int = 900

    def shrunk(self, divisor):
        """It with the loads of a trial."""
        others = tuple(Side(self.server, load).shrunk(divisor).load for load in self.others)
        return dataclasses.replace(super().shrunk(divisor), others=others)

    def disk_octets(self):
        """What it takes on the disk in one round."""
        return self.message_octets * sum(load.messages_max for load in (self.load, *self.others))

    def measure(self, server, place):
        """Fills it, releases it, and looks at what has arrived."""
        count = self.load.count
        for load in (self.load, *self.others):
            load.run(server.port, place)
        server.server.check_kept(count + sum(load.count for load in self.others))
        machine.settle()
        figures = pairs.measure(server, lambda: server.drain(count, self.seconds_max, self.of_middle))
        server.check_arrived(count)
        return figures


def mailrace(*hops, name="mailrace", settings="", limits="", held=True):
    """Mailrace with its own defaults, but for further `settings` and `limits`, before such next hops."""

    def make(place, destinations):
        routes = "".join(route(one.domain, f"[{one.address}]:{one.port}") for one in destinations)
        return Mailrace(place, networks=("127.0.0.0/8",), limits=limits, extra=settings + routes, held=held)

    return lambda place: outbound.Outbound(name, place, make, *hops)


def postfix_tuned(*hops, name="postfix", settings=(), held=True):
    """Postfix, tuned, with further `settings`."""

    def make(place, destinations):
        table = place / "transports"
        table.write_text("".join(f"{one.domain} smtp:[{one.address}]:{one.port}\n" for one in destinations))
        postfix.build_table("hash", table)
        return Postfix(place, "tuned", [*hold, *postfix.relay_lines(table), *settings])

    hold = [postfix.HOLD] if held else []
    return lambda place: outbound.Outbound(name, place, make, *hops)


def exim_tuned(hops):
    """Exim, tuned."""

    def make(place, destinations):
        table = place / "routes"
        table.write_text("".join(f"{one.domain}: {one.address}\n" for one in destinations))
        return exim.Exim(place, exim.relay_router(table, destinations[0].port), RUNNERS)

    return lambda place: outbound.Outbound("exim", place, make, hops)
