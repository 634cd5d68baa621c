"""wrk: fetches one page on persistent connections at full speed."""

import dataclasses
import re
import subprocess

from . import load

_SECONDS_SPARE = 60  # until it must have ended
_DONE = re.compile(r"(\d+) requests in ([\d.]+)(ms|s|m)\b")
_SECONDS = {"ms": 1e-3, "s": 1, "m": 60}
_COMPLAINT = re.compile(r"(?:Socket errors|Non-2xx).*")


def version():
    """Its version, or that it is not installed."""
    try:
        return subprocess.run(["wrk", "-v"], capture_output=True, text=True, timeout=20).stdout.split()[1]
    except OSError:
        return "not installed"


@dataclasses.dataclass(frozen=True)
class Wrk:
    """One thread of wrk."""

    page: str
    sessions: int = 100
    seconds: int = 10

    def command(self, port="PORT"):
        """The command line."""
        return ["wrk", "-t1", f"-c{self.sessions}", f"-d{self.seconds}s", f"http://127.0.0.1:{port}/{self.page}"]

    def run(self, port, _folder=None):
        """Fetches until the time is over; count and time are those that it reports."""
        ran = load.run(self.command(port), seconds_max=self.seconds + _SECONDS_SPARE)
        output = ran.outputs[0]
        if complaint := _COMPLAINT.search(output):
            raise RuntimeError(f"wrk: {complaint[0]}")
        count, time, unit = _DONE.search(output).groups()
        return load.LoadResult(int(count), float(time) * _SECONDS[unit], ran.cpu_seconds, threads=ran.threads)
