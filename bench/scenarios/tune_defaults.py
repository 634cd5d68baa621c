"""Whether the defaults are the best values on this machine: `mailrace tune search` finds the two best other values of
each parameter, and `mailrace tune measure` asks in pairs, until the intervals decide, whether they gain 5 % over the
default.

Both run servers of their own. The first says where the best value lies, but its values were chosen by looking at
earlier runs; so only the second one's intervals count. A value that is the default in effect is the value in force of
the search, and so never another one. `sessions` is left out: it is a number of clients, not a setting with a default.
"""

import contextlib
import dataclasses
import json
import subprocess

import report
from peers import machine, people, slapd
from peers.mailrace import BINARY

from . import Scenario

_GAIN_MAX_PERCENT = 5
_RUN = "1s"  # how long the load of each run lasts
_OTHERS = 2  # values that are compared with the default
_ROUNDS_MAX, _MEASURE_SECONDS_MAX = 200, 600  # of a measurement
_SECONDS_MAX = 1800  # of one search or measurement, with its last runs
_DIRECTORY_USERS, _DIRECTORY_USERS_MIN = 100_000, 1000
_DIRECTORY_CONFIG = f"""\
allow_root = true

[[domain]]
name      = "{people.DOMAIN}"
mailboxes = "directory"

[[table]]
name   = "directory"
type   = "ldap"
url    = "{{url}}"
base   = "{people.PEOPLE}"
filter = "(mail={{{{key}}}})"
result = "mail"
batch  = 64
"""
_DECIDED = (0, 1)  # the exit codes that come with a result: decided, and not decided or cut short
_NOTES = (
    f"The search ends after 100 runs or ten minutes, a measurement after {_ROUNDS_MAX} rounds or {_MEASURE_SECONDS_MAX // 60} "
    "minutes.",
    "The interval of a measurement holds the true ratio with 95 %, although it was looked at after every round.",
    "A measurement goes on until its interval is below 1.05, and the value no reason to change the default, or above it. "
    "Where the interval contains 1.05 in the end, the machine was too noisy to decide.",
    "Default 0 of `threads` is half the number of processors.",
    "`lookup` asks one slapd (mdb, indexed) on the same processors for recipients out of 100,000 in random order. The "
    "server of each run starts with an empty cache.",
)


@dataclasses.dataclass(frozen=True)
class Searched:
    """A parameter of `tune search`, the knob of `tune measure` that it stands for, and a load."""

    parameter: str
    knob: str
    scenario: str

    @property
    def name(self):
        """The heading of its table."""
        return f"{self.parameter} with {self.scenario}"


SEARCHED = (
    Searched("threads", "threads", "accept-many"),
    Searched("threads", "threads", "accept-one"),
    Searched("threads", "threads", "read-http"),
    Searched("concurrency", "queue.local.concurrency", "deliver-maildir"),
    Searched("concurrency", "transport.smtp.connections", "relay"),
    Searched("batch", "table.directory.batch", "lookup"),
)


def scenario(options):
    """Searches and measures each parameter once."""
    with machine.run_folder("tune-defaults") as folder:
        facts = machine.describe(folder)
        searched = [one for one in SEARCHED if options.sides is None or one.scenario in options.sides]
        found = []
        for one in searched:
            with _asked(one, folder, options.shrink) as inputs:
                found.append(_Found(one, folder, options.shrink, inputs))
        return report.Report(
            "tune-defaults", "The defaults against the best values", facts, folder,
            {one.searched.name: one.commands for one in found}, list(_NOTES),
            checks=[check for one in found for check in one.checks()], tables={one.searched.name: one.rows() for one in found},
            question="Are the defaults the best values on this machine?", answer=_answer,
        ).finish(options)  # fmt: skip


@contextlib.contextmanager
def _asked(searched, folder, shrink):
    """Runs what the server of a scenario asks; gives the options of `mailrace tune` that it needs, before and after the
    command.
    """
    if searched.scenario != "lookup":
        yield (), ()
        return
    users = max(_DIRECTORY_USERS_MIN, _DIRECTORY_USERS // shrink)
    directory = slapd.Slapd(folder, users)
    configuration, addresses = folder / "lookup.toml", folder / "addresses"
    configuration.write_text(_DIRECTORY_CONFIG.format(url=directory.url))
    people.write_shuffled(addresses, users)
    try:
        directory.start()
        yield ("--config", str(configuration)), ("--recipients-from", str(addresses))
    finally:
        directory.stop()


class _Found:
    """The curve of one parameter, and the comparison of its best value with the default."""

    def __init__(self, searched, folder, shrink, inputs):
        self.searched, self.commands, self._folder = searched, [], folder
        self._before_command, self._after_command = inputs
        self._curve = self._tune("search", searched.parameter, "--runs-max", str(max(12, 100 // shrink)))
        measured = self._tune(
            "measure", searched.knob, "--values", ",".join(self._best_others()),
            "--gain-min", str(_GAIN_MAX_PERCENT), "--rounds-max", str(max(3, _ROUNDS_MAX // shrink)),
            "--time-max", f"{max(30, _MEASURE_SECONDS_MAX // shrink)}s",
        )  # fmt: skip
        self._default, self._rounds, self._trusted = measured["before"], measured["rounds"], measured["trusted"]
        self._others = measured["values"]

    def checks(self):
        """Whether each of the best other values is at most 5 % better than the default."""
        for other in self._others:
            interval, value = other["interval"], other["value"]
            aim = f"{self.searched.name}: {value} gives at most 1.05 of the rate of the default, {self._default}"
            if other["verdict"] == "fails":
                yield aim, "its runs fail", True
                continue
            between = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
            measured = f"{other['ratio']:.3f}{between} in at most {self._rounds} rounds"
            if not self._trusted:
                yield aim, f"{measured}; the negative control showed an effect", False
            else:
                yield aim, measured, interval is not None and interval[1] <= 1 + _GAIN_MAX_PERCENT / 100

    def rows(self):
        """The curve."""
        return [
            {
                self.searched.parameter: one["value"],
                f"{self._curve['result']['unit']}s a second, median": round(one["rate"]),
                "interval": "{:,.0f} to {:,.0f}".format(*one["interval"]) if one["interval"] else "too few runs",
                "runs": one["runs"],
                "": self._mark(one["value"]),
            }
            for one in self._curve["values"]
        ]

    def _best_others(self):
        others = [one for one in self._curve["values"] if one["value"] != self._curve["in_force"]["value"]]
        return [str(one["value"]) for one in sorted(others, key=lambda one: -one["rate"])[:_OTHERS]]

    def _mark(self, value):
        marks = {"knee": "enough", "in_force": "default"}
        return ", ".join(word for key, word in marks.items() if self._curve[key]["value"] == value)

    def _tune(self, command, *arguments):
        runs = ["--run", _RUN, "--scenario", self.searched.scenario, "--folder", str(self._folder), "--json"]
        line = [str(BINARY), *self._before_command, "tune", command, *arguments, *runs, *self._after_command]
        self.commands.append(" ".join(line))
        print(self.commands[-1], flush=True)
        result = json.loads(_output(line))
        print(result["result"]["answer"], flush=True)
        return result


def _output(line):
    """What the command prints. If the run is ended, the command is ended by a signal, so that its server is not left."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, **streams) as process:
        try:
            output, errors = process.communicate(timeout=_SECONDS_MAX)
        except BaseException:
            process.terminate()
            raise
    if process.returncode not in _DECIDED:
        raise RuntimeError(f"{line} ended with {process.returncode}: {errors}")
    return output


def _answer(found):
    met = sum(is_met for _, _, is_met in found.checks)
    return f"Of {len(found.checks)} values, the two best others with each load, {met} were shown to gain at most 5 %."


SCENARIOS = {"tune-defaults": Scenario(scenario, tuple(one.scenario for one in SEARCHED), pairs=3, quick_shrink=10)}
