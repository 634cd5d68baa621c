"""A server and the next hops that it delivers to: many addresses of 127.0.0.0/8, behind which are a few sinks.

Each next hop is an address of its own and has a domain of its own, so that whatever a server keeps for each next hop
(connections, concurrency, lameness) it keeps for each of them. No DNS is asked.
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
    """So many next hops that one sink plays by its rules; {} in their domains stands for a number from 1."""

    count: int
    domain: str = "d{}.test"
    rules: tuple = ()


@dataclasses.dataclass(frozen=True)
class Destination:
    """A domain, and where its mail goes."""

    domain: str
    address: str
    port: int


class Outbound:
    """A server with its sinks. `make`, given a folder and the destinations, gives a server that is not yet started.

    What comes to the first sink is recorded.
    """

    def __init__(self, name, folder, make, *hops):
        self.name = name
        self.sinks = [Sink(folder, everywhere=True, records=not number, rules=one.rules)
                      for number, one in enumerate(hops)]  # fmt: skip
        self.server = make(folder, list(_destinations(hops, self.sinks)))

    @property
    def port(self):
        """Where the server takes mail."""
        return self.server.port

    @property
    def group(self):
        """The server's processes."""
        return self.server.group

    def start(self):
        """The sinks come first."""
        for sink in self.sinks:
            sink.start()
        self.server.start()

    def stop(self):
        """Ends all of them, whatever state they are in."""
        for one in (self.server, *self.sinks):
            one.stop()

    def arrivals(self, having=b""):
        """What comes to the first sink from now on."""
        return Arrivals(self.sinks[0].record, having)

    def drain(self, count, seconds_max, of_middle):
        """Releases what is held and waits until so many messages came to the first sink. The time is that from the
        release to the last one, or what all would have taken at the rate `of_middle`."""
        sink, arrivals = self.sinks[0], self.arrivals()
        cpu, begin = sink.group.cpu_seconds(), time.monotonic()
        try:
            self.server.release()
            seconds = arrivals.wait_for(count, seconds_max) - begin
            seconds = count / arrivals.rate_of_middle(count) if of_middle else seconds
            return load.Done(count, seconds, sink.group.cpu_seconds() - cpu)
        finally:
            arrivals.stop()

    def check_arrived(self, count):
        """Ends the first sink, and complains unless each of so many messages came to it, whole and once."""
        self.sinks[0].stop()
        summary = self.sinks[0].summary()
        found = {"recipients": summary["recipients"]} | summary["seen"]
        if found != {"recipients": count, "sound": count, "damaged": 0, "doubled": 0, "foreign": 0}:
            raise RuntimeError(f"{count} messages were to arrive: {found}")

    def configuration(self):
        """The server's, with one route in the place of all that are like it, and the command lines of the sinks."""
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
