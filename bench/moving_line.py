"""One moving line on a terminal, as that of `mailrace bench compare`: what runs, what is left, the ratio so far.

It is on standard error, and only if that is a terminal. It is gone at the end, also after a failure.
"""

import os
import sys
import time

_CLEAR = "\r\x1b[K"
_COLUMNS_UNKNOWN = 80


class MovingLine:
    """The line; a context manager."""

    def __init__(self):
        self.is_shown = sys.stderr.isatty()
        self._begun = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.clear()

    def show(self, text):
        """Draws the line anew, with the time since the beginning."""
        if self.is_shown:
            minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS_UNKNOWN
            line = f"[{minutes // 60:02}:{minutes % 60:02}:{seconds:02}] {text}"
            self._write(_CLEAR + line[: columns - 1])

    def clear(self):
        """Removes it, so that something else can be printed in its place."""
        if self.is_shown:
            self._write(_CLEAR)

    def _write(self, text):
        print(text, end="", file=sys.stderr, flush=True)
