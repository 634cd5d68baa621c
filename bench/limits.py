"""What limited a run, from how busy the parts of the machine were in it.

The names and the rule are those of crates/compare/src/limits.rs, so that files of results mean the same: the first part
that was as good as fully busy counts, all processors before the load, since a load on a full machine competes with the
server for them. What cannot be read is left out. The disk is the one of the folder in which runs are.
"""

import collections
import os
import pathlib
import time

from peers import accounting, machine

FULL = 0.9  # gauges and the time of a run do not begin in the same instant
WORDS = {"processor": "processors", "load": "load", "thread": "one thread", "disk": "disk", "network": "network",
         "waiting": "waiting"}  # fmt: skip
_INTERFACES = pathlib.Path("/sys/class/net")
_BLOCK_DEVICES = pathlib.Path("/sys/dev/block")


class Meter:
    """The gauges from now on; `group` has the processes of the server."""

    def __init__(self, group):
        self._group = group
        self._disk = _disk_numbers(machine.bench_dir())
        self._first = self._sample()

    def limit(self, load):
        """What limited the run until now, with this load (`load.LoadResult`)."""
        first, last = self._first, self._sample()
        seconds = last["at"] - first["at"]
        busy, idle = (after - before for before, after in zip(first["processors"], last["processors"], strict=True))
        threads = (spent - first["threads"].get(thread, 0.0) for thread, spent in last["threads"].items())
        shares = {
            "processor": busy / (busy + idle) if busy + idle > 0 else None,
            "load": load.cpu_seconds / seconds / load.threads if load.threads else None,
            "thread": max(threads, default=0.0) / seconds,
            "disk": (last["disk"] - first["disk"]) / seconds if last["disk"] is not None else None,
            "network": _network_share(first["interfaces"], last["interfaces"], seconds),
        }
        return of_shares(shares)

    def _sample(self):
        return {
            "at": time.monotonic(),
            "processors": accounting.machine_busy_and_idle_seconds(),
            "threads": self._group.thread_cpu_seconds(),
            "disk": _disk_busy_seconds(self._disk),
            "interfaces": _interfaces(),
        }


def of_shares(shares):
    """The first part that was full, in the order of `WORDS`; `waiting` if none was. None if the processors are not known."""
    full = (name for name in WORDS if (shares.get(name) or 0.0) >= FULL)
    return next(full, "waiting" if shares.get("processor") is not None else None)


def usual(limits):
    """The most frequent one in words, and in how many runs it was, if not in all; of equal ones the first. None if
    nothing is known.
    """
    known = collections.Counter(limit for limit in limits if limit is not None)
    if not known:
        return None
    most = max(WORDS, key=lambda name: known[name])
    share = "" if known[most] == known.total() else f" ({known[most]} of {known.total()})"
    return WORDS[most] + share


def _disk_numbers(folder):
    """The device numbers of the disk that contains a folder, not of its partition; None if the folder is not there."""
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return None
    place = (_BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}").resolve()
    if (place / "partition").exists():
        return (place.parent / "dev").read_text().strip().split(":")
    return [str(os.major(device)), str(os.minor(device))]


def _disk_busy_seconds(numbers):
    """How long the disk had requests since the start of the machine; None if it has no counters."""
    lines = (line.split() for line in pathlib.Path("/proc/diskstats").read_text().splitlines())
    return next((int(line[12]) / 1000 for line in lines if line[:2] == numbers), None)


def _interfaces():
    """The octets that passed through each interface with a known speed in both directions, and that speed in octets."""
    found = {}
    for folder in _INTERFACES.iterdir():
        try:
            speed = int((folder / "speed").read_text())
            passed = [int((folder / "statistics" / name).read_text()) for name in ("rx_bytes", "tx_bytes")]
        except (OSError, ValueError):
            continue  # virtual ones have no speed
        if speed > 0:
            found[folder.name] = (passed, speed * 1e6 / 8)
    return found


def _network_share(first, last, seconds):
    """The use of the busiest direction of the busiest interface."""
    return max(
        (max(after - before for before, after in zip(first[name][0], passed, strict=True)) / seconds / speed
         for name, (passed, speed) in last.items() if name in first),
        default=None,
    )  # fmt: skip
