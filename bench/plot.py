"""Charts as SVG, one below the other, each with its own scales.

A chart has named curves; a name has the same colour in all charts. Vertical scales are logarithmic or
begin at zero, horizontal ones begin at zero.
"""

import dataclasses
import html
import math

_COLOURS = ("#1f6fb4", "#d2691e", "#3a8f3a", "#7d4fa3", "#b8323f", "#6b5b4d", "#c2559d", "#7a7f85")
_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT, _GAP = 720, 80, 20, 50, 150, 55
_NAMES_PER_ROW, _NAME_WIDTH, _NAME_HEIGHT = 3, 210, 18
_STEPS = (1, 2, 5, 10)
_TICKS_MOST = 5


@dataclasses.dataclass(frozen=True)
class Chart:
    """Curves in one chart."""

    title: str
    x_name: str  # the quantity, with its unit
    y_name: str
    series: dict  # name to points (x, y), by rising x
    is_logarithmic: bool = False  # the vertical axis

    def scale(self):
        """A function from a value to a position from 0 to 1, and the values to mark."""
        values = [y for points in self.series.values() for _, y in points]
        if not self.is_logarithmic:
            marks = _marks(max(values, default=0))
            return (lambda y: y / marks[-1]), marks
        positive = [y for y in values if y > 0] or [1]
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        high = max(high, low + 1)
        marks = [10.0**power for power in range(low, high + 1)]
        return (lambda y: (math.log10(max(y, marks[0])) - low) / (high - low)), marks

    def end(self):
        """The end of the horizontal axis."""
        return max((x for points in self.series.values() for x, _ in points), default=1) or 1


def svg(title, charts):
    """The text of the SVG file."""
    names = list(dict.fromkeys(name for chart in charts for name in chart.series))
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    top = _TOP + _NAME_HEIGHT * (max(0, len(names) - 1) // _NAMES_PER_ROW)
    height = top + len(charts) * (_HEIGHT + _GAP)
    body = [_text(_LEFT, 20, title, "font-weight='bold'"), *_legend(colours)]
    for number, chart in enumerate(charts):
        body += _drawn(chart, top + number * (_HEIGHT + _GAP) + 20, colours)
    style = "font-family='sans-serif' font-size='12'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' {style}>"
    return "\n".join([head, f"<rect width='{_WIDTH}' height='{height}' fill='white'/>", *body, "</svg>", ""])


def _drawn(chart, top, colours):
    (place, marks), end = chart.scale(), chart.end()

    def x(value):
        return _LEFT + value / end * (_WIDTH - _LEFT - _RIGHT)

    def y(value):
        return top + _HEIGHT * (1 - place(value))

    yield _text(_LEFT, top - 6, f"{chart.title}, {chart.y_name}")
    for mark in marks:
        line = f"x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y(mark):.1f}' y2='{y(mark):.1f}'"
        yield f"<line {line} stroke='#ddd'/>"
        yield _text(_LEFT - 6, y(mark) + 4, f"{mark:,g}", "text-anchor='end'")
    for mark in _marks(end):
        if mark <= end:
            yield _text(x(mark), top + _HEIGHT + 16, f"{mark:g}", "text-anchor='middle'")
    yield _text(_WIDTH - _RIGHT, top + _HEIGHT + 30, chart.x_name, "text-anchor='end'")
    for name, points in chart.series.items():
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        yield f"<polyline points='{path}' fill='none' stroke='{colours[name]}' stroke-width='2'/>"


def _legend(colours):
    for number, (name, colour) in enumerate(colours.items()):
        row, column = divmod(number, _NAMES_PER_ROW)
        yield _text(_LEFT + column * _NAME_WIDTH, 40 + row * _NAME_HEIGHT, name, f"fill='{colour}'")


def _text(x, y, words, more=""):
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{html.escape(words)}</text>"


def _marks(most):
    """A few round values from zero up to `most` or slightly more."""
    if most <= 0:
        return [0, 1]
    unit = 10.0 ** math.floor(math.log10(most / _TICKS_MOST))
    step = next(unit * step for step in _STEPS if unit * step * _TICKS_MOST >= most)
    return [step * number for number in range(math.ceil(most / step) + 1)]
