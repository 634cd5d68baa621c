"""What Prometheus' own tool says of the metrics of a running server, and of the rules in the package."""

import json
import pathlib
import re
import shutil
import subprocess
import unittest

from harness import WAIT_SECONDS_MAX
from test_api import ApiCase, run

RULES = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "prometheus"
_METRIC = re.compile(r"\bmailrace_[a-z_]+")


def promtool(*words, text=None):
    """What promtool prints; it must find nothing wrong."""
    done = subprocess.run(["promtool", *map(str, words)], input=text, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout + done.stderr


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
class Prometheus(ApiCase):
    def test_the_rules_are_valid_and_fire_when_they_should(self):
        self.assertIn("SUCCESS", promtool("check", "rules", RULES / "mailrace.rules.yml"))
        self.assertIn("SUCCESS", promtool("test", "rules", RULES / "mailrace.rules.test.yml"))

    def test_the_metrics_are_well_formed(self):
        self.defer_two()
        # The tool reads the older format, which `mailrace status` prints.
        self.assertEqual(promtool("check", "metrics", text=run(self.server, "status")).strip(), "")

    def test_rules_and_dashboard_use_metrics_that_exist(self):
        self.defer_two()
        known = set(_METRIC.findall(self.get("/metrics").decode()))
        dashboard = json.loads((RULES / "grafana-dashboard.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        used = set(_METRIC.findall(" ".join(expressions) + (RULES / "mailrace.rules.yml").read_text()))
        self.assertGreater(len(used), 10)
        self.assertEqual(used - known, set())


if __name__ == "__main__":
    unittest.main()
