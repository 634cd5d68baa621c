"""A server and its next hops: many addresses in 127.0.0.0/8, served by a few sinks.

Each next hop has its own address and domain, so that whatever a server tracks per next hop
(connections, concurrency, failures) is separate for each. No DNS is used.
"""

import dataclasses
import time

from . import load
from .arrivals import Arrivals
from .laboratory import Sink
from .mailrace import ROUTE

_ADDRESSES_PER_NET = 250


@dataclasses.dataclass(frozen=True)
class Hops:
    """Next hops of one sink with its rules; {} in their domains stands for a number from 1."""

    count: int
    domain: str = "d{}.test"
    rules: tuple = ()


@dataclasses.dataclass(frozen=True)
class Destination:
    """A domain and its next hop."""

    domain: str
    address: str
    port: int


class Outbound:
    """A server with its sinks. `make` gets a folder and the destinations, and returns a server that
    is not started.

    The first sink records its mail.
    """

    def __init__(self, name, folder, make, *hops):
        self.name = name
        self.sinks = [Sink(folder, everywhere=True, records=not number, rules=one.rules)
                      for number, one in enumerate(hops)]  # fmt: skip
        self.server = make(folder, list(_destinations(hops, self.sinks)))

    @property
    def port(self):
        """The SMTP port of the server."""
        return self.server.port

    @property
    def group(self):
        """The processes of the server."""
        return self.server.group

    def start(self):
        """Starts the sinks, then the server."""
        for sink in self.sinks:
            sink.start()
        self.server.start()

    def stop(self):
        """Ends all of them in any state."""
        for one in (self.server, *self.sinks):
            one.stop()

    def arrivals(self, having=b""):
        """The mail that arrives at the first sink from now on."""
        return Arrivals(self.sinks[0].record, having)

    def drain(self, count, seconds_max, of_middle):
        """Releases held mail and waits until `count` messages have arrived at the first sink. The
        time is from the release to the last one, or that of all messages at the rate `of_middle`.
        """
        sink, arrivals = self.sinks[0], self.arrivals()
        cpu, begin = sink.group.cpu_seconds(), time.monotonic()
        try:
            self.server.release()
            seconds = arrivals.wait_for(count, seconds_max) - begin
            seconds = count / arrivals.rate_of_middle(count) if of_middle else seconds
            return load.LoadResult(count, seconds, sink.group.cpu_seconds() - cpu)
        finally:
            arrivals.stop()

    def check_arrived(self, count):
        """Ends the first sink and fails unless each of `count` messages arrived intact and once."""
        self.sinks[0].stop()
        summary = self.sinks[0].summary()
        found = {"recipients": summary["recipients"]} | summary["seen"]
        if found != {"recipients": count, "sound": count, "damaged": 0, "doubled": 0, "foreign": 0}:
            raise RuntimeError(f"expected {count} messages at the sink: {found}")

    def configuration(self):
        """The configuration of the server, with one of its similar routes, and the command lines of
        the sinks.
        """
        before, *routes = self.server.configuration().split(ROUTE)
        more = f"\n# and {len(routes) - 1:,} more like it\n" if len(routes) > 1 else ""
        text = ROUTE.join([before, *routes[:1]]) + more
        return text + "".join(f"\n# sink: {sink.configuration()}" for sink in self.sinks)


def _destinations(hops, sinks):
    number = 0
    for one, sink in zip(hops, sinks, strict=True):
        for place in range(1, one.count + 1):
            net, host = divmod(number, _ADDRESSES_PER_NET)
            yield Destination(one.domain.format(place), f"127.0.{net + 1}.{host + 1}", sink.port)
            number += 1
