"""Which deliveries of a cluster may have come twice, and which did.

Each node delivers to a sink of its own. While parts of the cluster are killed, `RecordWatch` notes how long the records
of the sinks are at which time, and the kills. A delivery may be repeated if its outcome was not copied when its node was
killed or lost its lane. It then came within the lease before that: a node delivers only for the lease after it has sent
a record that was stored, and the outcomes before that record are stored with it. So `Doubled.repeatable` counts what
came from a node in the lease before it was killed, and before it lost a lane while it lived.
"""

import bisect
import collections
import datetime
import re
import threading
import time

_SAMPLE_SECONDS = 0.1
# The sinks write their records five times a second, and an attempt that has begun goes on.
_LAG_SECONDS = 1.0
_ELECTION_SECONDS_MAX = 60  # on a busy machine
_LOST = re.compile(r"^(\S+Z) .*a lane is no longer this node", re.M)


class RecordWatch:
    """Notes the lengths of the sinks' records while it is entered, in files in the folder of the cluster."""

    def __init__(self, folder, names):
        self._folder, self._names, self._ended = folder, names, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def note_kill(self, name):
        """A node is killed now."""
        append(self._folder / f"{name}.kills", time.time())

    def _watch(self):
        lengths = dict.fromkeys(self._names, 0)
        while not self._ended.wait(_SAMPLE_SECONDS):
            for name in self._names:
                length = record_path(self._folder, name).stat().st_size
                if length != lengths[name]:
                    append(self._folder / f"{name}.lengths", time.time(), length)
                lengths[name] = length


class Doubled:
    """What the sinks have got twice, by the runs that have sent it."""

    def __init__(self, folder, names, lease, margin):
        self.repeatable, self.unexplained = collections.Counter(), collections.Counter()
        copies = collections.defaultdict(list)
        for name in names:
            spans = spans_of(folder, name, lease, margin)
            for at, key in arrivals(folder, name):
                is_repeatable = any(begin <= at <= end for begin, end in spans)
                copies[key].append((at, is_repeatable))
                self.repeatable[key[0]] += is_repeatable
        for (run, *_), found in copies.items():
            # The last copy is the one that counts.
            self.unexplained[run] += sum(not is_repeatable for _, is_repeatable in sorted(found)[:-1])


def spans_of(folder, name, lease, margin):
    """The times in which a node may have delivered what was delivered again."""
    kills = [at for (at,) in rows(folder / f"{name}.kills")]
    spans = [(at - lease - _LAG_SECONDS, at + _LAG_SECONDS) for at in kills]
    all_kills = [at for path in folder.glob("*.kills") for (at,) in rows(path)]
    for lost in losses_of((folder / f"{name}.log").read_text(errors="replace")):
        # Others waited for the lease and the margin before they took it, and it noticed that at its next sign of life;
        # or later, if a server was killed, and the others had to elect a leader first.
        spans.append((lost - 3 * lease - margin - _LAG_SECONDS, lost + _LAG_SECONDS))
        before = (at for at in all_kills if lost - _ELECTION_SECONDS_MAX < at < lost)
        spans += [(at - lease - _LAG_SECONDS, at + lease + _LAG_SECONDS) for at in before]
    return spans


def losses_of(log):
    """When a node noticed that it had lost a lane."""
    return [datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() for at in _LOST.findall(log)]


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
