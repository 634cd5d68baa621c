"""Relaying: messages arrive and leave at the same time, to one next hop, compared with Postfix.

The time is from the first connection of the load until the last message has arrived at the sink, so
that accepting, queueing, sending and removing all count, and the disk is used by all of them.
"""

import dataclasses
import time

import comparison
import drain
import pairs
from comparison import Comparison
from drain import Drain
from peers import load
from peers.laboratory import Source
from peers.outbound import Hops

from .accept import MESSAGE_DISK_OCTETS

COUNTS = {"mailrace": 100_000, "postfix": 10_000}
_RECIPIENT = "user@d1.test"


@dataclasses.dataclass(frozen=True)
class Passing(Drain):
    """A side whose server does not hold mail."""

    def measure(self, server, place):
        """Sends all messages and waits until they have arrived."""
        figures = pairs.measure(server, lambda: self._pass(server, place))
        server.check_arrived(self.load.count)
        return figures

    def _pass(self, server, place):
        sink, arrivals = server.sinks[0], server.arrivals()
        cpu, begin = sink.group.cpu_seconds(), time.monotonic()
        try:
            sent = self.load.run(server.port, place)
            seconds = arrivals.wait_for(self.load.count, self.seconds_max) - begin
        finally:
            arrivals.stop()
        return load.LoadResult(self.load.count, seconds, sent.cpu_seconds + sink.group.cpu_seconds() - cpu)


def _side(server, name):
    return Passing(server, Source(COUNTS[name], recipient=_RECIPIENT, users=1), MESSAGE_DISK_OCTETS)


PASSING = Comparison(
    "Passing through",
    {
        "postfix": _side(drain.postfix_tuned(Hops(1), held=False), "postfix"),
        "mailrace": _side(drain.mailrace(Hops(1), held=False), "mailrace"),
    },
    (
        pairs.Target("mailrace", "postfix", "rate", least=8),
        pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 10),
    ),
    (
        "100 sessions, 6,000 bytes, one recipient. Mail is delivered to `mailrace bench sink`, which checks that each "
        "message arrives intact and once. No DNS is used.",
        comparison.REST_NOTE,
        "The CPU of the load is that of the source and the sink.",
    ),
)

SCENARIOS = comparison.scenarios({"passing": PASSING})
