"""Draws a bar chart (SVG) of a result: the messages per second of each side, fastest first.

The chart is drawn from results/NAME.json alone, so it shows only what was measured.
"""

import html
import json
import statistics

_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _GAP, _BOTTOM = 720, 90, 110, 58, 34, 14, 34
_OURS, _OTHERS = "#1f6fb4", "#b8c2cc"
_NAMES = {"mailrace": "Mailrace", "postfix": "Postfix", "exim": "Exim"}


def draw(results, name):
    """Writes results/NAME.svg from results/NAME.json; returns the file's path."""
    facts = json.loads((results / f"{name}.json").read_text())
    path = results / f"{name}.svg"
    path.write_text(_svg(facts))
    return path


def _svg(facts):
    rates = _rates(facts["cases"][0]["rounds"])
    height = _TOP + len(rates) * (_BAR + _GAP) + _BOTTOM
    body = [
        _text(20, 26, "Messages accepted per second, each on disk before its 250", "font-weight='bold' font-size='15'"),
        _text(20, 45, facts["notes"][0].split(";")[0], "fill='#555'"),
    ]
    for number, (side, rate) in enumerate(rates):
        body += _bar(side, rate, rate / rates[0][1], _TOP + number * (_BAR + _GAP))
    machine = {fact["name"]: fact["value"] for fact in facts["machine"]}
    source = f"{machine['processor'].split(',')[-2].strip()}, {machine['file system'].split(' on ')[0]}; {facts['command']}"
    body.append(_text(20, height - 12, source, "fill='#777' font-size='11'"))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}'"
    return "\n".join([f"{head} font-family='sans-serif' font-size='13'>",
                      f"<rect width='{_WIDTH}' height='{height}' fill='white'/>", *body, "</svg>", ""])  # fmt: skip


def _rates(rounds):
    """Pairs of system and messages per second, fastest first."""
    rates = {side: statistics.median(r[side]["count"] / r[side]["seconds"] for r in rounds) for side in rounds[0]}
    return sorted(rates.items(), key=lambda pair: -pair[1])


def _bar(side, rate, share, top):
    width = share * (_WIDTH - _LEFT - _RIGHT)
    middle = top + _BAR / 2 + 5
    yield _text(_LEFT - 8, middle, _NAMES.get(side, side), "text-anchor='end'")
    colour = _OURS if side == "mailrace" else _OTHERS
    yield f"<rect x='{_LEFT}' y='{top}' width='{width:.1f}' height='{_BAR}' rx='3' fill='{colour}'/>"
    yield _text(_LEFT + width + 8, middle, f"{rate:,.0f}", "font-weight='bold'")


def _text(x, y, words, more=""):
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{html.escape(words)}</text>"
