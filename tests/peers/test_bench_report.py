"""The file of results that bench/run writes: it has the form of crates/compare/tests/bench_run.json, which
a test of that crate reads.
"""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import limits  # noqa: E402
import pairs  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402
from peers import accounting, load, machine  # noqa: E402
from peers.mailrace import ROOT  # noqa: E402

EXPECTED = ROOT / "crates/compare/tests/bench_run.json"
# Half a second of one processor.
SPINNING = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
OPTIONS = types.SimpleNamespace(
    suffix="-on-ext4", command="bench/run mass --on ext4 --quick", whole=False, smaller="every count divided by 20", begun=0.0
)  # fmt: skip


def figures(seconds, latency=None, limit=None):
    """A run of 1,000 messages."""
    return pairs.Figures(1000, seconds, 2.0, 0.5, 3.0, 1_000_000, latency or {}, limit)


def made():
    """A report with everything that one can have."""
    few = [{"exim": figures(8.0 + number), "mailrace": figures(1.0)} for number in range(6)]
    many = [{"exim": figures(10.0, {"99": 0.02}, "disk"), "mailrace": figures(1.0)} for _ in few]
    facts = {"date": "2026-11-23 12:00 UTC", "processor": "one", "Exim": "4.96", "Postfix": "not installed"}
    return report.Report(
        "mass", "Mass mail", facts, pathlib.Path("/run/folder"), {"exim": ["load --target PORT"]}, ["A note."],
        {"exim": "spool = /run/folder/exim", "slapd": "loglevel 0", "mailrace": ""},
        [report.Case("400", few, 400), report.Case("900", many, 900)],
        [
            pairs.Target("mailrace", "exim", "rate", least=8, case="400"),
            pairs.Target("exim", "exim", "rate", case="900", under_case="400"),
            pairs.Target("mailrace", "exim", "messages", least=1, case="400"),
            pairs.Target("mailrace", "postfix", "rate", least=8, case="400"),
        ],
        [("nothing is lost", "12,000 of 12,000", True)],
        case_name="runners",
        tables={"Rates": [{"system": "exim", "seconds": 1.23456, "messages": 12_000}]},
        charts=[plot.Chart("Delivered", "seconds", "messages", {"exim": [(0.0, 0), (8.0, 1000)]})],
        question="How many?",
    )  # fmt: skip


class FileOfResults(unittest.TestCase):
    def test_it_has_the_form_that_the_crate_reads(self):
        facts = made().facts(OPTIONS, "That many.")
        self.assertGreater(facts["seconds"], 0)
        facts["seconds"] = 60.0
        text = made()._clean(json.dumps(facts, indent=1) + "\n")
        self.assertEqual(json.loads(text), json.loads(EXPECTED.read_text()))

    def test_a_target_of_a_side_that_was_not_run_is_left_out(self):
        found = made()
        self.assertEqual([target["over"] for target in found.facts(OPTIONS)["comparisons"]], ["mailrace", "exim"])
        self.assertIsNone(found.ratio("mailrace", "postfix", "rate", case="400"))
        self.assertIsNone(found.median("postfix", "rate", "400"))
        self.assertEqual(found.ratio("exim", "exim", "rate", case="900", under_case="400"), 1.05)

    def test_a_ratio_without_bounds_is_neither_met_nor_missed(self):
        lines = "\n".join(made()._verdict_lines())
        self.assertIn("| messages a second, mailrace / exim (400): at least 8 | 10.5 (8 to 13) | met |", lines)
        self.assertIn("| messages a second, exim (900) / exim (400) | 1.05 (0.8 to 1.3) |  |", lines)
        self.assertIn("| messages, mailrace / exim (400): at least 1 | 1 (1 to 1) | met |", lines)

    def test_a_smaller_run_that_is_kept_says_so_in_its_first_line(self):
        command = "bench/run mass --shrink 20 --publish"
        options = types.SimpleNamespace(
            suffix="", command=command, whole=True, publish=True, note="Something else ran.", smaller="only a 20th",
            begun=0.0,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("report.RESULTS", pathlib.Path(folder)):
            made().finish(options)
            page, facts = ((pathlib.Path(folder) / f"mass.{kind}").read_text() for kind in ("md", "json"))
        self.assertTrue(page.startswith("# Mass mail, with only a 20th\n"), page)
        self.assertIn(f"Written by `{command}`.", page)
        self.assertIn("only a 20th", json.loads(facts)["title"])
        self.assertIn("Something else ran.", json.loads(facts)["notes"])
        self.assertIs(json.loads(facts)["is_trial"], False)
        self.assertEqual(json.loads(facts)["reduced"], "only a 20th")


class Limits(unittest.TestCase):
    def test_the_first_part_that_is_full_is_the_limit(self):
        idle = {"processor": 0.3, "load": 0.1, "thread": 0.2, "disk": 0.5, "network": None}
        busy = dict.fromkeys(idle, 0.95)
        for shares, expected in (
            (busy, "processor"), (busy | {"processor": 0.3}, "load"), (idle | {"thread": 0.9}, "thread"),
            (idle | {"disk": 0.95, "network": 0.95}, "disk"), (idle | {"network": 0.95}, "network"), (idle, "waiting"),
            ({}, None), ({"disk": 0.95}, "disk"),
        ):  # fmt: skip
            self.assertEqual(limits.of_shares(shares), expected, shares)

    def test_the_names_are_those_of_the_format(self):
        schema = json.loads((ROOT / "docs/result.schema.json").read_text())
        self.assertEqual(set(limits.WORDS), set(schema["$defs"]["run"]["properties"]["limit"]["enum"]))

    def test_the_usual_limit_is_the_most_frequent_one(self):
        self.assertEqual(limits.usual(["disk", "disk"]), "disk")
        self.assertEqual(limits.usual(["disk", "processor", None, "processor"]), "processors (2 of 3)")
        self.assertEqual(limits.usual(["disk", "load"]), "load (1 of 2)")
        self.assertIsNone(limits.usual([None]))

    def test_a_load_whose_only_thread_is_busy_limits_a_run_on_a_machine_with_more(self):
        group = accounting.Group("nobody")
        self.addCleanup(group.end)
        begin = time.monotonic()
        meter = limits.Meter(group)
        ran = load.run([sys.executable, "-c", SPINNING], seconds_max=60)
        self.assertEqual(ran.threads, 1)
        limit = meter.limit(load.LoadResult(1, ran.seconds, ran.cpu_seconds, threads=ran.threads))
        others = {"processor", "waiting", "disk", "network"}
        # The time of the meter is between these two, and a busy machine keeps the load from a processor.
        if ran.cpu_seconds / (time.monotonic() - begin) >= limits.FULL:
            self.assertIn(limit, {"load", "processor"})
        elif ran.cpu_seconds / ran.seconds < limits.FULL:
            self.assertIn(limit, others)
        else:
            self.assertIn(limit, others | {"load"})

    def test_the_page_names_what_limited_each_run_and_what_usually_did(self):
        page = "\n".join(made()._round_lines())
        self.assertIn("| 1 | 900 | exim | 1,000 | 100 | 2.0000 | 0.5000 | 3.0000 | 1.0 | disk |", page)
        self.assertIn("| median | 900 | exim | | 100 | 2.0000 | 0.5000 | | | disk |", page)
        self.assertIn("| median | 900 | mailrace | | 1,000 | 2.0000 | 0.5000 | | |  |", page)


class Provenance(unittest.TestCase):
    def test_a_source_that_is_newer_than_the_binary_is_found(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            binary, source = folder / "mailrace", folder / "main file.rs"
            for number, path in enumerate((source, binary)):
                path.write_text("")
                os.utime(path, (1000 + number, 1000 + number))
            self.assertIsNone(machine.newer_source(binary), "no list of sources")
            listed = str(source).replace(" ", "\\ ")
            (folder / "mailrace.d").write_text(f"{binary}: {listed}\n")
            self.assertIsNone(machine.newer_source(binary))
            os.utime(source, (2000, 2000))
            self.assertEqual(machine.newer_source(binary), source)
            source.unlink()
            self.assertEqual(machine.newer_source(binary), source)


class Differences(unittest.TestCase):
    RATIO = pairs.Target("rsa", "bare", "cpu_per_thousand", most=1.15, less="off")

    def rounds(self, *sides):
        cpu = {"off": 0.04, "rsa": 0.37, "bare": 0.3}
        measured = {side: dataclasses.replace(figures(1.0), cpu_seconds=cpu[side]) for side in sides}
        return {"": [measured] * 6}

    def test_a_side_can_be_subtracted_from_the_numerator(self):
        cases = self.rounds("off", "rsa", "bare")
        self.assertAlmostEqual(self.RATIO.ratio(cases), 1.1)
        self.assertTrue(self.RATIO.is_met(cases))
        self.assertEqual(self.RATIO.aim("message"), "CPU per message, (rsa - off) / bare: at most 1.15")

    def test_the_target_needs_all_three_sides(self):
        self.assertTrue(self.RATIO.concerns(self.rounds("off", "rsa", "bare")))
        for missing in (("rsa", "bare"), ("off", "bare"), ("off", "rsa")):
            self.assertFalse(self.RATIO.concerns(self.rounds(*missing)))

    def test_the_file_has_it_as_a_check_and_not_as_a_ratio_of_two_sides(self):
        found = made()
        found.targets = [pairs.Target("exim", "exim", "rate", case="400", less="mailrace")]
        facts = found.facts(OPTIONS)
        self.assertEqual(facts["comparisons"], [])
        self.assertEqual(facts["checks"][0]["aim"], "messages a second, (exim - mailrace) / exim (400)")


class Rounds(unittest.TestCase):
    def test_no_round_begins_that_would_end_after_the_deadline(self):
        turns = {("a", "exim"): lambda _number: figures(1.0)}
        self.assertEqual(len(pairs.rounds(3, turns)), 3)
        self.assertEqual(len(pairs.rounds(3, turns, deadline=0.0)), 1)


if __name__ == "__main__":
    unittest.main()
