"""Arrival times: follows the record of a sink while it is written.

The sink writes its lines, one for each copy, five times a second. A count is exact at the time of
each batch; a copy may have arrived up to 0.2 s before the time reported here, never after it.
"""

import bisect
import operator
import threading
import time

_LOOK_SECONDS = 0.01
_BATCH_SECONDS = 0.2
_MOMENT, _COUNT = operator.itemgetter(0), operator.itemgetter(1)


class Arrivals:
    """The copies that arrive until `stop`; with `having`, only those whose line contains it."""

    def __init__(self, record, having=b""):
        self._record, self._having, self._rest = open(record, "rb"), having, b""
        self._record.seek(0, 2)
        self._points = [(time.monotonic(), 0)]  # time and count for each batch; read by other threads
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def count(self):
        """The number of copies so far."""
        return self._points[-1][1]

    def wait_for(self, count, seconds_max):
        """Waits until this many have arrived, and returns the time."""
        deadline = time.monotonic() + seconds_max
        while self.count < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.count} of {count} messages arrived within {seconds_max} s")
            time.sleep(_LOOK_SECONDS)
        return self.moment(count)

    def moment(self, count):
        """The time at which this many had arrived; within a batch they are spread evenly."""
        after = bisect.bisect_left(self._points, count, key=_COUNT)
        if after == 0:
            return self._points[0][0]
        begin, end, fewer, more = self._step(after)
        return begin + (end - begin) * (count - fewer) / (more - fewer)

    def count_at(self, moment):
        """The number that had arrived at this time."""
        after = bisect.bisect_right(self._points, moment, key=_MOMENT)
        if after in (0, len(self._points)):
            return self.count if after else 0
        begin, end, fewer, more = self._step(after)
        return fewer + (more - fewer) * max(0.0, moment - begin) / (end - begin)

    def rate_of_middle(self, count):
        """Copies per second over the middle 80 % of `count`."""
        first, last = count * 0.1, count * 0.9
        return (last - first) / (self.moment(last) - self.moment(first))

    def curve(self, begin, points_max):
        """The counts so far with the seconds since `begin`, at no more than about this many times."""
        points = [(when - begin, count) for when, count in self._points if when >= begin]
        step = max(1, len(points) // points_max)
        return [(0.0, 0), *points[step - 1 : -1 : step], points[-1]] if points else [(0.0, 0)]

    def stop(self):
        """Stops following the record."""
        self._stopping.set()
        self._thread.join()
        self._record.close()

    def _step(self, number):
        """The interval of a batch, and the counts at both ends."""
        (before, fewer), (end, more) = self._points[number - 1 : number + 1]
        return max(before, end - _BATCH_SECONDS), end, fewer, more

    def _follow(self):
        while not self._stopping.wait(_LOOK_SECONDS):
            *lines, self._rest = (self._rest + self._record.read()).split(b"\n")
            if more := sum(self._having in line for line in lines):
                self._points.append((time.monotonic(), self.count + more))
