"""postal at a fixed rate: the messages of one minute, once it has reached the rate.

postal gives its threads work every five seconds, at most 2,048 messages at a time, so one process
sends at most 24,576 a minute; several send more. It reports each minute of the clock when it ends:
the first is incomplete, and the second may be below the rate. It does not end on its own and
sometimes ignores SIGINT, so it is killed: the server gets more messages than those of the minute
that counts.
"""

import dataclasses
import math
import time

from . import load
from .smtp import RECIPIENT, SENDER

_MINUTE_MAX = 24_576
_MINUTES = 3  # that must end; the last one counts
_SECONDS_SPARE = 5  # until all processes have written the line of that minute


@dataclasses.dataclass(frozen=True)
class Postal:
    """Processes that share the rate and the threads evenly."""

    minute: int  # messages per minute
    threads: int = 100
    kilobytes: int = 6
    per_connection: int = 5  # a random number from 1 to this

    @property
    def messages_max(self):
        """The most messages that it sends."""
        return self.minute * (_MINUTES + 1)

    @property
    def processes(self):
        """The number of processes for the rate."""
        return math.ceil(self.minute / _MINUTE_MAX)

    def command(self, port="PORT"):
        """The command line of one process."""
        size = str(self.kilobytes)
        return [
            "postal", "-m", size, "-M", size, "-t", str(self.threads // self.processes), "-c", str(self.per_connection),
            "-r", str(self.minute // self.processes), "-f", "sender", f"[127.0.0.1]{port}", "users",
        ]  # fmt: skip

    def run(self, port, folder):
        """Sends for some minutes, and returns the result of the last one."""
        (folder / "users").write_text(f"{RECIPIENT}\n")
        (folder / "sender").write_text(f"{SENDER}\n")
        now = time.time()
        end = now - now % 60 + _MINUTES * 60
        seconds = end + _SECONDS_SPARE - now
        ran = load.run_endless(*[self.command(port)] * self.processes, seconds=seconds, folder=folder)
        clock = time.strftime("%H:%M", time.localtime(end))
        return load.LoadResult(sum(_count(output, clock) for output in ran.outputs), 60, ran.cpu_seconds, threads=ran.threads)


def _count(output, minute):
    """The messages of that minute, from the line `time,messages,data(K),errors,connections,SSL
    connections`.
    """
    for line in output.splitlines():
        clock, *numbers = line.split(",")
        if clock == minute:
            messages, _data, errors, *_ = map(int, numbers)
            if errors:
                raise RuntimeError(f"postal had {errors} errors in a minute")
            return messages
    raise RuntimeError(f"postal has no line for the minute that ends at {minute}:\n{output}")
