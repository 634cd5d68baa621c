"""Many clients that read slowly, beside one that reads fast.

    read-slow    5,000 clients that fetch a file of 500 MB by HTTP and read 1,000 bytes of it a second

The fast client fetches the same file with curl, without the others and beside them. Its rate is
compared, and the memory of the server when it is done.
"""

import dataclasses
import statistics

import comparison
import pairs
from peers import machine, slow_readers
from peers.download import Curl
from peers.slow_readers import SlowReaders

from .reading import FILE_OCTETS, Reading, ReadingSide, http_mailrace, make_file

READERS, READER_OCTETS_A_SECOND = 5000, 1000
READER_MEMORY_MAX = 16_384
_TIMES = 20  # that the fast client fetches the file
_OPEN_FILES = 2 * READERS + 500  # a socket and a file for each


@dataclasses.dataclass
class SlowFigures(pairs.Figures):
    """The figures of one side in one round."""

    kernel_bytes: int = 0  # of all TCP sockets of the machine

    def row(self, number, side):
        """The memory as a row of a table."""
        memory = {"server, MB": self.resident_bytes / 1e6, "TCP sockets of the machine, MB": self.kernel_bytes / 1e6}
        return {"round": number, "side": side} | memory


@dataclasses.dataclass(frozen=True)
class SlowSide(ReadingSide):
    """A side with slow readers."""

    readers: int = 0

    def for_trial(self, divisor):
        """Also with fewer of them."""
        return dataclasses.replace(super().for_trial(divisor), readers=self.readers // divisor)

    def measure(self, server, place):
        """Warms the caches, connects the slow readers, and runs the load."""
        self.warm.run(server.port, place)
        with SlowReaders(server.port, "/file", self.readers, READER_OCTETS_A_SECOND) as others:
            figures = pairs.measure(server, lambda: self.load.run(server.port, place))
            kernel = slow_readers.kernel_socket_octets()
            others.check()
        return SlowFigures(**vars(figures), kernel_bytes=kernel)


@dataclasses.dataclass(frozen=True)
class SlowReading(Reading):
    """Also checks the memory of each slow reader, and shows that of the kernel."""

    def measure(self, name, folder, options):
        """Runs all rounds and adds the check."""
        machine.require_open_files(_OPEN_FILES)
        found = super().measure(name, folder, options)
        found.tables["Memory at the end"] = [
            figures.row(number, side) for number, measured in enumerate(found.rounds, 1) for side, figures in measured.items()
        ]
        readers = READERS // options.shrink
        if all({"alone", "beside"} <= set(measured) for measured in found.rounds):
            added = [measured["beside"].resident_bytes - measured["alone"].resident_bytes for measured in found.rounds]
            each = statistics.median(added) / readers
            aim = f"memory of the server for each of {readers:,} slow readers: below {READER_MEMORY_MAX:,} bytes"
            found.checks.append((aim, f"{each:,.0f} bytes", each < READER_MEMORY_MAX))
        return found


def _side(readers):
    fast = Curl(1, _TIMES, FILE_OCTETS)
    return SlowSide(http_mailrace, fast, warm=dataclasses.replace(fast, times=1), readers=readers)


SLOW = SlowReading(
    f"{READERS:,} slow readers beside a fast one",
    {"alone": _side(0), "beside": _side(READERS)},
    (pairs.Target("beside", "alone", "rate", least=0.9),),
    (
        f"Both sides are Mailrace. The fast client is curl, which fetches a file of {FILE_OCTETS // 1_000_000} MB {_TIMES} times "
        "on one connection. Figures per thousand are per GB.",
        f"Each slow reader fetches the same file and reads {READER_OCTETS_A_SECOND:,} bytes a second. All of them are still "
        "connected at the end. They announce segments of 1,460 bytes, so that the kernel gives the server's sockets the "
        "buffers that they have on a network: on loopback they would have megabytes each, and together more than tcp_mem "
        "allows.",
        "Memory is VmRSS at the end: what a server without slow readers has is subtracted. The kernel's memory for sockets is "
        "not included: mostly pages of the file, which it counts for each socket that they wait for, and keeps once.",
        f"The server and this load need {_OPEN_FILES:,} open files each (ulimit -n).",
        comparison.REST_NOTE,
    ),
    unit="MB",
    prepare=make_file(FILE_OCTETS),
)

SCENARIOS = comparison.scenarios({"read-slow": SLOW})
