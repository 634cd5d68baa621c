"""What came when: follows the record of a sink while the sink writes it.

The sink gathers its lines, one for each copy, and writes them five times a second. So a count is exact at the moment of
each batch; a copy may have come up to that fifth of a second before the moment that is told here, and never after it.
"""

import bisect
import operator
import threading
import time

_LOOK_SECONDS = 0.01
_BATCH_SECONDS = 0.2
_MOMENT, _COUNT = operator.itemgetter(0), operator.itemgetter(1)


class Arrivals:
    """The copies that come from now on until `stop`; where `having` is given, those whose line has it."""

    def __init__(self, record, having=b""):
        self._record, self._having, self._rest = open(record, "rb"), having, b""
        self._record.seek(0, 2)
        self._points = [(time.monotonic(), 0)]  # a moment and a count for each batch; other threads may read it
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def count(self):
        """How many came so far."""
        return self._points[-1][1]

    def wait_for(self, count, seconds_max):
        """Waits until so many have come, and returns when."""
        deadline = time.monotonic() + seconds_max
        while self.count < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.count} of {count} messages came within {seconds_max} s")
            time.sleep(_LOOK_SECONDS)
        return self.moment(count)

    def moment(self, count):
        """When so many had come, which they have; those of a batch come evenly."""
        after = bisect.bisect_left(self._points, count, key=_COUNT)
        if after == 0:
            return self._points[0][0]
        begin, end, fewer, more = self._step(after)
        return begin + (end - begin) * (count - fewer) / (more - fewer)

    def count_at(self, moment):
        """How many had come by then."""
        after = bisect.bisect_right(self._points, moment, key=_MOMENT)
        if after in (0, len(self._points)):
            return self.count if after else 0
        begin, end, fewer, more = self._step(after)
        return fewer + (more - fewer) * max(0.0, moment - begin) / (end - begin)

    def rate_of_middle(self, count):
        """Copies a second over the middle 80 % of `count`."""
        first, last = count * 0.1, count * 0.9
        return (last - first) / (self.moment(last) - self.moment(first))

    def stop(self):
        """Looks no more."""
        self._stopping.set()
        self._thread.join()
        self._record.close()

    def _step(self, number):
        """The time in which a batch gathered, and the counts at both its ends."""
        (before, fewer), (end, more) = self._points[number - 1 : number + 1]
        return max(before, end - _BATCH_SECONDS), end, fewer, more

    def _follow(self):
        while not self._stopping.wait(_LOOK_SECONDS):
            *lines, self._rest = (self._rest + self._record.read()).split(b"\n")
            if more := sum(self._having in line for line in lines):
                self._points.append((time.monotonic(), self.count + more))
