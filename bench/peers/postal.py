"""postal at a fixed rate: what it counts in a minute, once it has found its pace.

postal hands its threads their work every five seconds, at most 2,048 messages at a time, and so sends no more than
24,576 a minute, whatever it is asked for; several of them send more. It reports each minute of the clock as that ends:
the first is no whole one, and in the second it may still be short of its rate. It has no end of its own, and does not
always heed an interrupt, so it is killed: the server has more from it than the minute that counts.
"""

import dataclasses
import math
import time

from . import load
from .smtp import RECIPIENT, SENDER

_MINUTE_MAX = 24_576
_MINUTES = 3  # that have to end; the last of them counts
_SECONDS_SPARE = 5  # until all have written the line of the minute that counts


@dataclasses.dataclass(frozen=True)
class Postal:
    """Processes of it that share the rate and the threads evenly."""

    minute: int  # messages in one
    threads: int = 100
    kilobytes: int = 6
    per_connection: int = 5  # from 1 to this, at random

    @property
    def messages_max(self):
        """What it may send in all."""
        return self.minute * (_MINUTES + 1)

    @property
    def processes(self):
        """How many it takes for the rate."""
        return math.ceil(self.minute / _MINUTE_MAX)

    def command(self, port="PORT"):
        """The command line of one process."""
        size = str(self.kilobytes)
        return [
            "postal", "-m", size, "-M", size, "-t", str(self.threads // self.processes), "-c", str(self.per_connection),
            "-r", str(self.minute // self.processes), "-f", "sender", f"[127.0.0.1]{port}", "users",
        ]  # fmt: skip

    def run(self, port, folder):
        """Sends for some minutes, and returns what was done in the last of them."""
        (folder / "users").write_text(f"{RECIPIENT}\n")
        (folder / "sender").write_text(f"{SENDER}\n")
        now = time.time()
        end = now - now % 60 + _MINUTES * 60
        seconds = end + _SECONDS_SPARE - now
        ran = load.run_endless(*[self.command(port)] * self.processes, seconds=seconds, folder=folder)
        clock = time.strftime("%H:%M", time.localtime(end))
        return load.Done(sum(_count(output, clock) for output in ran.outputs), 60, ran.cpu_seconds)


def _count(output, minute):
    """The messages of that minute, by the line `time,messages,data(K),errors,connections,SSL connections`."""
    for line in output.splitlines():
        clock, *numbers = line.split(",")
        if clock == minute:
            messages, _data, errors, *_ = map(int, numbers)
            if errors:
                raise RuntimeError(f"postal had {errors} errors in a minute")
            return messages
    raise RuntimeError(f"postal reports no minute that ends at {minute}:\n{output}")
