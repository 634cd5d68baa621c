"""Writes a result: results/NAME.json for programs, results/NAME.md for people, and charts as SVG.

The JSON is a file of results as crates/compare/src/result.rs describes it, so that `mailrace bench
report` shows it. The page for people has everything needed to judge a figure and to repeat the
measurement: the command, date, machine, kernel, file system, versions, loads, all rounds, medians and
ratios with their targets. Results of trials go to target/bench instead of results.
The folder depends on the machine: MAILRACE_BENCH_DIR names one on the file system in question.
"""

import dataclasses
import datetime
import json
import pathlib
import time
import typing

import limits
import plot
from pairs import Target, median
from peers.mailrace import BINARY, ROOT

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
TRIALS = ROOT / "target/bench"
FORMAT = 1  # of the JSON
_FIGURES = ("rate", "cpu_per_thousand", "load_cpu_per_thousand")  # of `Figure` there; other ratios, and those of differences, become checks
_SMALLER_NOTE = (
    "The notes state the usual counts and times. Those of this result were divided as its first line says, but no further "
    "than a run needs to mean something."
)
_DATE = "%Y-%m-%d %H:%M UTC"  # as `machine.describe` writes it
_FACT_OF_SERVER = {"smbd": "samba"}  # where the name of the version among the machine's facts differs


@dataclasses.dataclass(frozen=True)
class Case:
    """The rounds of one value of what is varied."""

    label: str  # empty if nothing is varied
    rounds: list  # each maps sides to their figures
    value: float | None = None  # on an axis


@dataclasses.dataclass
class Report:
    """The result of one scenario."""

    name: str
    title: str
    machine: dict
    folder: pathlib.Path  # of the run; written as $DIR
    commands: dict  # side to command lines
    notes: list
    configurations: dict = dataclasses.field(default_factory=dict)  # side, or another server, to its configuration
    cases: list = dataclasses.field(default_factory=list)
    targets: list = dataclasses.field(default_factory=list)
    checks: list = dataclasses.field(default_factory=list)  # (sentence, value as text, whether it is met)
    unit: str = "message"  # singular of what is counted
    case_name: str | None = None  # what differs between the cases
    tables: dict = dataclasses.field(default_factory=dict)  # title to rows; a row maps names to figures
    charts: list = dataclasses.field(default_factory=list)  # of plot.Chart
    servers: dict = dataclasses.field(default_factory=dict)  # side to the name of its server, if that is another one
    question: str | None = None
    answer: typing.Callable | None = None  # called with the finished report; returns a sentence, or None

    @property
    def rounds(self):
        """The rounds of the first case, which is the only one if nothing is varied."""
        return self.cases[0].rounds if self.cases else []

    @property
    def case_rounds(self):
        """The rounds of each case by its label."""
        return {case.label: case.rounds for case in self.cases}

    def ratio(self, *target, **case):
        """The median ratio of a `pairs.Target` of these arguments; None if its sides were not run."""
        wanted = Target(*target, **case)
        return wanted.ratio(self.case_rounds) if wanted.concerns(self.case_rounds) else None

    def interval(self, *target, **case):
        """The interval of such a ratio; None if there is none."""
        wanted = Target(*target, **case)
        return wanted.interval(self.case_rounds) if wanted.concerns(self.case_rounds) else None

    def median(self, side, figure, case=""):
        """The median of a side's figure; None if it was not run."""
        rounds = self.case_rounds.get(case)
        return median(rounds, side, figure) if rounds and side in rounds[0] else None

    def finish(self, options):
        """Writes the files and prints the results; returns whether every target was met."""
        if options.note:
            self.notes.insert(0, options.note)
        if options.publish:
            self.title += f", with {options.smaller}"
            self.notes.insert(0, _SMALLER_NOTE)
        answer = self.answer(self) if self.answer else None
        print("\n".join(self._verdict_lines()))
        if answer:
            print(f"\n{self.question} {answer}")
        folder = RESULTS if options.whole else TRIALS
        self._write(folder, options, answer)
        if not options.whole:
            print(f"This was a trial: its results are in {folder.relative_to(ROOT)}.")
        return all(met is not False for _, _, met in self._verdicts())

    def _write(self, folder, options, answer):
        folder.mkdir(parents=True, exist_ok=True)
        name = self.name + options.suffix
        facts = json.dumps(self.facts(options, answer), indent=1)
        (folder / f"{name}.json").write_text(self._clean(facts + "\n"))
        (folder / f"{name}.md").write_text(self._clean("\n".join(self._lines(name, options.command, answer)) + "\n"))
        if self.charts:
            (folder / f"{name}.svg").write_text(plot.svg(self.title, self.charts))

    def facts(self, options, answer=None):
        """The file of results (crates/compare/src/result.rs)."""
        comparisons, others = [], []
        for target in self._targets():
            (comparisons if target.figure in _FIGURES and target.less is None else others).append(target)
        facts = {
            "format": FORMAT,
            "name": self.name + options.suffix,
            "title": self.title,
            "question": self.question,
            "answer": answer,
            "command": options.command,
            "started": _rfc3339(self.machine["date"]),
            "seconds": round(time.monotonic() - options.begun, 1),
            "is_trial": not options.whole,
            "reduced": options.smaller,
            "machine": [{"name": key, "value": value} for key, value in self.machine.items() if key != "date"],
            "unit": self.unit,
            "case_name": self.case_name,
            "systems": [self._system(name) for name in self._system_names()],
            "cases": [_without_none(label=case.label, value=case.value, rounds=[_runs(r) for r in case.rounds])
                      for case in self.cases],
            "comparisons": [self._comparison(target) for target in comparisons],
            "checks": [_without_none(aim=aim, measured=measured, is_met=met)
                       for aim, measured, met in [*map(self._verdict, others), *self.checks]],
            "charts": [_chart(chart) for chart in self.charts],
            "tables": [_table(title, rows) for title, rows in self.tables.items()],
            "notes": list(self.notes),
        }  # fmt: skip
        return _without_none(**facts)

    def _targets(self):
        """The targets whose sides were run."""
        return [target for target in self.targets if target.concerns(self.case_rounds)]

    def _comparison(self, target):
        return _without_none(
            figure=target.figure, over=target.over, under=target.under, case=target.case, under_case=target.under_case,
            ratio=target.ratio(self.case_rounds), interval=target.interval(self.case_rounds), aim=target.bounds(),
            is_met=target.is_met(self.case_rounds),
        )  # fmt: skip

    def _system_names(self):
        """The sides, then what else has commands, then what else has a configuration."""
        sides = [side for case in self.cases for measured in case.rounds for side in measured]
        return dict.fromkeys((*sides, *self.commands, *(name for name, text in self.configurations.items() if text)))

    def _system(self, name):
        return _without_none(
            name=name, version=self._version(name), commands=self.commands.get(name, []),
            configuration=self.configurations.get(name) or None,
        )  # fmt: skip

    def _version(self, name):
        """The version of a side such as `postfix` or `postfix-hash`, or else of its server, if it is among the facts."""
        facts = {key.lower(): text for key, text in self.machine.items() if not text.startswith("not ")}
        programs = [server.partition("-")[0] for server in (name, self.servers.get(name, name))]
        return next((facts[known] for program in programs if (known := _FACT_OF_SERVER.get(program, program)) in facts), None)

    def _lines(self, name, command, answer):
        yield f"# {self.title}\n"
        if self.question:
            yield f"**{self.question}** {answer or ''}".rstrip() + "\n"
        yield f"Written by `{command}`. Absolute figures depend on the machine; the ratios are the result.\n"
        yield "| | |\n|---|---|"
        yield from (f"| {key} | {value} |" for key, value in self.machine.items())
        yield ""
        yield from self._verdict_lines()
        if self.charts:
            yield f"\n![{self.title}]({name}.svg)"
        if self.cases:
            yield from self._round_lines()
        for title, rows in self.tables.items():
            yield f"\n## {title}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}"
            yield from (f"| {' | '.join(_cell(value) for value in row.values())} |" for row in rows)
        yield "\n## Commands\n\n```"
        yield from (f"{side}: {line}" for side, lines in self.commands.items() for line in lines)
        yield "```"
        for text, names in self._distinct_configurations().items():
            yield f"\n## Configuration of {', '.join(names)}\n\n```\n{text}\n```"
        if self.notes:
            yield "\n## Notes\n"
            yield from (f"- {note}" for note in self.notes)

    def _distinct_configurations(self):
        """The configurations, with the names of all that have the same one."""
        texts = {}
        for name, text in self.configurations.items():
            if text:
                texts.setdefault(text.strip(), []).append(name)
        return texts

    def _verdict(self, target):
        return target.aim(self.unit), target.measured(self.case_rounds), target.is_met(self.case_rounds)

    def _verdicts(self):
        """What was aimed at, what was measured, and whether it is met; None for ratios without an aim."""
        return [*map(self._verdict, self._targets()), *self.checks]

    def _verdict_lines(self):
        words = {True: "met", False: "**missed**", None: ""}
        yield "| target | measured | |\n|---|---|---|"
        for aim, value, met in self._verdicts():
            yield f"| {aim} | {value} | {words[met]} |"

    def _round_lines(self):
        case_head = f" {self.case_name} |" if self.case_name else ""
        yield "\n## Rounds\n"
        yield (
            f"CPU is user plus system time in seconds per 1,000 {self.unit}s; that of the machine includes server and load. "
            f"The limit is what was busy for {limits.FULL:.0%} of the run or more: all processors, all threads of the load, one "
            "thread of the server, the disk, or the network; if nothing was, the server waited.\n"
        )
        yield (
            f"| round |{case_head} side | {self.unit}s | {self.unit}s/s | server CPU | load CPU | machine CPU | RSS, MB "
            f"| limit |\n|---|{'---|' if case_head else ''}---|---|---|---|---|---|---|---|"
        )
        for case in self.cases:
            label = f" {case.label} |" if case_head else ""
            for number, measured in enumerate(case.rounds, 1):
                for side, f in measured.items():
                    yield (
                        f"| {number} |{label} {side} | {f.messages:,} | {f.rate:,.0f} | {f.cpu_per_thousand:.4f} "
                        f"| {f.load_cpu_per_thousand:.4f} | {f.machine_cpu_seconds / f.messages * 1000:.4f} "
                        f"| {f.resident_bytes / 1e6:.1f} | {limits.WORDS.get(f.limit, '')} |"
                    )
            for side in case.rounds[0]:
                rate, cpu, load = (median(case.rounds, side, figure) for figure in _FIGURES)
                limit = limits.usual(measured[side].limit for measured in case.rounds) or ""
                yield f"| median |{label} {side} | | {rate:,.0f} | {cpu:.4f} | {load:.4f} | | | {limit} |"

    def _clean(self, text):
        """Without the paths of this machine."""
        return text.replace(str(self.folder), "$DIR").replace(str(BINARY), "mailrace").replace(f"{ROOT}/", "")


def _rfc3339(date):
    return datetime.datetime.strptime(date, _DATE).strftime("%Y-%m-%dT%H:%M:00Z")


def _without_none(**facts):
    return {key: value for key, value in facts.items() if value is not None}


def _runs(measured):
    return {side: _run(figures) for side, figures in measured.items()}


def _run(figures):
    run = {
        "count": figures.messages,
        "seconds": figures.seconds,
        "cpu_seconds": figures.cpu_seconds,
        "load_cpu_seconds": figures.load_cpu_seconds,
        "machine_cpu_seconds": figures.machine_cpu_seconds,
        "resident_bytes": figures.resident_bytes,
    }
    run |= {"limit": figures.limit} if figures.limit else {}
    return run | ({"latency_seconds": figures.latency_seconds} if figures.latency_seconds else {})


def _chart(chart):
    series = [{"name": name, "points": points} for name, points in chart.series.items()]
    return {"title": chart.title, "x_name": chart.x_name, "y_name": chart.y_name, "series": series}


def _table(title, rows):
    """The table with more decimals than the page for people."""
    cells = [[_exact(value) if isinstance(value, float) else _cell(value) for value in row.values()] for row in rows]
    return {"title": title, "columns": list(rows[0]), "rows": cells}


def _exact(value):
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _cell(value):
    return value if isinstance(value, str) else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
