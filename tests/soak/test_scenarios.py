"""The scenarios of bench/run that ask what operators reported, each as small as it can be: every side that is installed
runs once, and the file of results is what docs/result.schema.json describes, and what `mailrace bench report` shows.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from harness import folder
from peers.mailrace import BINARY, ROOT

SECONDS_MAX = 400
PYTHON = ROOT / "target/peers/python/bin/python"  # with jsonschema
SCHEMA = ROOT / "docs/result.schema.json"
VALIDATE = "import json, jsonschema, sys; jsonschema.validate(*[json.load(open(path)) for path in sys.argv[1:]])"
SHRINK = 10_000


@unittest.skipUnless(os.geteuid() == 0, "starting Postfix and Exim, and making namespaces, needs root")
class Scenarios(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def result(self, name):
        """Runs a scenario; returns its result."""
        environment = os.environ | {"MAILRACE_BENCH_REST": "0"}
        line = [sys.executable, ROOT / "bench/run", name, "--pairs", "1", "--shrink", str(SHRINK)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS_MAX, env=environment)
        self.assertIn(done.returncode, (0, 1), f"{name}: {done.stdout}{done.stderr}")  # 1: a target of a trial is missed
        path = ROOT / f"target/bench/{name}.json"
        result = json.loads(path.read_text())
        if PYTHON.exists():
            checked = subprocess.run([PYTHON, "-c", VALIDATE, path, SCHEMA], capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stderr)
        page = self.folder / "page.html"
        shown = subprocess.run([BINARY, "bench", "report", path, "--output", page], capture_output=True, text=True)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn(result["title"], page.read_text())
        return result

    def assert_complete(self, name):
        """Every side was run, or is named as left out, and each run says what limited it."""
        result = self.result(name)
        listed = subprocess.run([sys.executable, "-c", SIDES, name], capture_output=True, text=True, check=True)
        runs = [each for case in result["cases"] for measured in case["rounds"] for each in measured.items()]
        left_out = {note.split(" was left out")[0] for note in result["notes"] if " was left out" in note}
        self.assertEqual({side for side, _ in runs} | left_out, set(json.loads(listed.stdout)))
        for side, run in runs:
            self.assertGreater(run["count"], 0, side)
            self.assertIn("limit", run, side)
        self.assertTrue(result["is_trial"])

    def test_exim_loadavg(self):
        self.assert_complete("exim-loadavg")

    def test_exim_mass_mail(self):
        self.assert_complete("exim-mass-mail")

    def test_samba_sendfile(self):
        self.assert_complete("samba-sendfile")

    def test_freebsd_tuned(self):
        before = machine_values()
        self.assert_complete("freebsd-tuned")
        self.assertEqual(machine_values(), before, "the values of the whole machine are put back")

    def test_postfix_ldap(self):
        self.assert_complete("postfix-ldap")


# Prints the sides of a scenario.
SIDES = f"""
import importlib, json, sys
sys.path.insert(0, {str(ROOT / "bench")!r})
module = importlib.import_module("scenarios." + sys.argv[1].replace("-", "_"))
print(json.dumps(module.SCENARIOS[sys.argv[1]].sides))
"""


def machine_values():
    """The sysctls of memory, which are those of the whole machine."""
    paths = pathlib.Path("/proc/sys/vm").glob("dirty_*")
    named = [pathlib.Path("/proc/sys/vm") / name for name in ("vfs_cache_pressure", "swappiness")]
    return {str(path): path.read_text() for path in (*paths, *named)}


if __name__ == "__main__":
    unittest.main()
