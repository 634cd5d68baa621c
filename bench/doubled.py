"""Which deliveries of a cluster may have come twice, and which did.

Each node delivers to a sink of its own. While parts of the cluster are killed, `RecordWatch` notes how long the records
of the sinks are at which time, the kills, and the leases of the nodes. A delivery may come again if its outcome was not
copied when its node was killed or lost its lane. A node has the lease since it sent the last record that was stored, and
the outcomes before that record are stored with it. So only what a node delivered since then may come again: from itself
after it was started again, or from another node when the lease is over. `Doubled.repeatable` counts what was delivered in
such a time, and `Doubled.unexplained` what came twice in any other way.
"""

import bisect
import collections
import contextlib
import dataclasses
import datetime
import itertools
import json
import re
import socket
import threading
import time

_SAMPLE_SECONDS = 0.1
# The sinks write their records five times a second, and an outcome is not sent at once on a busy machine.
_LAG_SECONDS = 1.0
_ANSWER_SECONDS_MAX = 1.0
_LOST = re.compile(r"^(\S+Z) .*another node owns a lane of this node", re.M)


class RecordWatch:
    """Notes the lengths of the sinks' records and the leases while it is entered, in files in the folder of the cluster."""

    def __init__(self, folder, names, lease):
        self._folder, self._names, self._lease = folder, names, lease
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._watch_records, daemon=True)]
        # A node that hangs holds up nothing else.
        self._threads += [threading.Thread(target=self._watch_lease, args=(name,), daemon=True) for name in names]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def note_kill(self, name):
        """A node is killed now."""
        append(self._folder / f"{name}.kills", time.time())

    def _watch_records(self):
        lengths = dict.fromkeys(self._names, 0)
        while not self._ended.wait(_SAMPLE_SECONDS):
            for name in self._names:
                length = record_path(self._folder, name).stat().st_size
                if length != lengths[name]:
                    append(self._folder / f"{name}.lengths", time.time(), length)
                lengths[name] = length

    def _watch_lease(self, name):
        while not self._ended.wait(_SAMPLE_SECONDS):
            asked, left = time.time(), None
            # It is not there between a kill and the next start.
            with contextlib.suppress(OSError, ValueError, IndexError):
                left = shortest_lease(self._folder / name / "control.sock")
            if left:
                append(self._folder / f"{name}.leases", asked, asked + left - self._lease)


@dataclasses.dataclass(frozen=True)
class End:
    """A node was killed, or noticed that it had lost a lane."""

    at: float
    # It had not sent the last record that was stored before this.
    sent: float

    def may_repeat(self, copy_at):
        """Whether the outcome of what came at this time may not have been copied."""
        return self.sent - _LAG_SECONDS <= copy_at <= self.at + _LAG_SECONDS


class Doubled:
    """What the sinks have got twice, by the runs that have sent it."""

    def __init__(self, folder, names, lease):
        self._lease = lease
        self._ends = {name: ends_of(folder, name, lease) for name in names}
        self.repeatable, self.unexplained = collections.Counter(), collections.Counter()
        copies = collections.defaultdict(list)
        for name in names:
            for at, key in arrivals(folder, name):
                copies[key].append((at, name))
                self.repeatable[key[0]] += any(end.may_repeat(at) for end in self._ends[name])
        for (run, *_), found in copies.items():
            pairs = itertools.pairwise(sorted(found))
            self.unexplained[run] += sum(not self._is_explained(*pair) for pair in pairs)

    def _is_explained(self, copy, next_copy):
        """Whether the next copy of a message may have followed this one."""
        (at, name), (next_at, next_name) = copy, next_copy
        for end in self._ends[name]:
            earliest = end.at if name == next_name else end.sent + self._lease
            if end.may_repeat(at) and next_at >= earliest:
                return True
        return False


def ends_of(folder, name, lease):
    """The ends of a node."""
    kills = [at for (at,) in rows(folder / f"{name}.kills")]
    losses = losses_of((folder / f"{name}.log").read_text(errors="replace"))
    samples = rows(folder / f"{name}.leases")

    def sent_before(end):
        # What was stored stays so: the latest time counts.
        return max((sent for at, sent in samples if at < end), default=end - lease)

    return [End(at, sent_before(at)) for at in kills + losses]


def losses_of(log):
    """When a node noticed that it had lost a lane."""
    return [datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() for at in _LOST.findall(log)]


def shortest_lease(control):
    """The seconds that the lease of each lane of a node lasts at least; 0 or None if one has none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS_MAX)
        connection.connect(str(control))
        connection.sendall(b"cluster-status\n")
        with connection.makefile() as lines:
            *lanes, _ = lines.read().splitlines()
    owned = [lane for lane in map(json.loads, lanes) if lane.get("role") in ("owner", "adopted")]
    return min((lane["lease_ms"] / 1000 for lane in owned), default=None)


def arrivals(folder, name):
    """Each message that a sink got: when it was in the record, at the latest, and (run, sequence, recipient)."""
    samples = rows(folder / f"{name}.lengths")
    times, lengths = [at for at, _ in samples], [length for _, length in samples]
    offset = 0
    with open(record_path(folder, name), "rb") as lines:
        for line in lines:
            offset += len(line)
            run, sequence, _, recipient = line.decode().split(" ", 3)
            index = bisect.bisect_left(lengths, offset)
            yield times[index] if index < len(times) else float("inf"), (run, sequence, recipient)


def record_path(folder, name):
    """The record of the sink to which a node delivers."""
    return folder / f"sink-{name}.record"


def runs(ledger):
    """The runs of a ledger, as the records of the sinks name them."""
    return [line.split()[1] for line in ledger.read_text().splitlines() if line.startswith("run ")]


def rows(path):
    """The lines of a file of numbers."""
    return [tuple(map(float, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def append(path, *numbers):
    """Adds a line to a file of numbers."""
    with open(path, "a") as file:
        file.write(" ".join(f"{number:.3f}" for number in numbers) + "\n")
