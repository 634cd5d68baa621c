"""Writes a result: results/NAME.json for programs, results/NAME.md for people, and plots as SVG.

A report has everything needed to judge a figure and to repeat the measurement: the command, date,
machine, kernel, file system, versions, loads, all rounds, medians and ratios with their targets.
The folder depends on the machine: MAILRACE_BENCH_DIR names one on the file system in question.
"""

import dataclasses
import json
import pathlib

from pairs import median
from peers.mailrace import ROOT

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
_MEDIANS = ("rate", "cpu_per_thousand", "load_cpu_per_thousand")


@dataclasses.dataclass
class Report:
    """The result of one scenario."""

    name: str
    title: str
    machine: dict
    folder: pathlib.Path  # of the run; written as $DIR
    commands: dict  # side to command lines
    notes: list
    configurations: dict = dataclasses.field(default_factory=dict)  # server to its configuration
    rounds: list = dataclasses.field(default_factory=list)
    targets: list = dataclasses.field(default_factory=list)
    checks: list = dataclasses.field(default_factory=list)  # (sentence, value as text, whether it is met)
    unit: str = "message"  # singular of what is counted
    tables: dict = dataclasses.field(default_factory=dict)  # title to rows; a row maps names to figures
    plots: dict = dataclasses.field(default_factory=dict)  # name to the text of an SVG file

    def finish(self, options):
        """Writes the files, unless the run was a trial, and prints the results; returns whether
        every target was met.
        """
        print("\n".join(self._verdict_lines()))
        if options.whole:
            self._write(options)
        else:
            print("This was a trial: no results were written.")
        return all(met for _, _, met in self._verdicts())

    def _write(self, options):
        RESULTS.mkdir(exist_ok=True)
        name, command = self.name + options.suffix, options.command
        (RESULTS / f"{name}.json").write_text(self._clean(json.dumps(self._facts(command), indent=1) + "\n"))
        (RESULTS / f"{name}.md").write_text(self._clean("\n".join(self._lines(command)) + "\n"))
        for name, text in self.plots.items():
            (RESULTS / f"{name}.svg").write_text(text)

    def _facts(self, command):
        return {
            "name": self.name,
            "command": command,
            "machine": self.machine,
            "commands": self.commands,
            "configurations": self.configurations,
            "notes": self.notes,
            "rounds": [{side: dataclasses.asdict(figures) for side, figures in r.items()} for r in self.rounds],
            "tables": self.tables,
            "verdicts": [{"aim": aim, "measured": value, "met": met} for aim, value, met in self._verdicts()],
        }

    def _lines(self, command):
        yield f"# {self.title}\n"
        yield f"Written by `{command}`. Absolute figures depend on the machine; the ratios are the result.\n"
        yield "| | |\n|---|---|"
        yield from (f"| {key} | {value} |" for key, value in self.machine.items())
        yield ""
        yield from self._verdict_lines()
        yield from (f"\n![{name}]({name}.svg)" for name in self.plots)
        if self.rounds:
            yield from self._round_lines()
        for title, rows in self.tables.items():
            yield f"\n## {title}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}"
            yield from (f"| {' | '.join(_cell(value) for value in row.values())} |" for row in rows)
        yield "\n## Commands\n\n```"
        yield from (f"{side}: {line}" for side, lines in self.commands.items() for line in lines)
        yield "```"
        for server, text in self.configurations.items():
            if text:
                yield f"\n## Configuration of {server}\n\n```\n{text.strip()}\n```"
        if self.notes:
            yield "\n## Notes\n"
            yield from (f"- {note}" for note in self.notes)

    def _verdicts(self):
        for target in self.targets:
            if not target.concerns(self.rounds):
                continue  # a trial of some sides
            yield target.aim(self.unit), target.measured(self.rounds), target.is_met(self.rounds)
        yield from self.checks

    def _verdict_lines(self):
        yield "| target | measured | |\n|---|---|---|"
        for aim, value, met in self._verdicts():
            yield f"| {aim} | {value} | {'met' if met else '**missed**'} |"

    def _round_lines(self):
        yield "\n## Rounds\n"
        yield f"CPU is user plus system time in seconds per 1,000 {self.unit}s; that of the machine includes server and load.\n"
        yield f"| round | side | {self.unit}s | {self.unit}s/s | server CPU | load CPU | machine CPU | RSS, MB |"
        yield "|---|---|---|---|---|---|---|---|"
        for number, measured in enumerate(self.rounds, 1):
            for side, f in measured.items():
                yield (
                    f"| {number} | {side} | {f.messages:,} | {f.rate:,.0f} | {f.cpu_per_thousand:.4f} "
                    f"| {f.load_cpu_per_thousand:.4f} | {f.machine_cpu_seconds / f.messages * 1000:.4f} "
                    f"| {f.resident_bytes / 1e6:.1f} |"
                )
        for side in self.rounds[0]:
            rate, cpu, load = (median(self.rounds, side, figure) for figure in _MEDIANS)
            yield f"| median | {side} | | {rate:,.0f} | {cpu:.4f} | {load:.4f} | | |"

    def _clean(self, text):
        return text.replace(str(self.folder), "$DIR").replace(f"{ROOT}/", "")


def _cell(value):
    return value if isinstance(value, str) else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
