"""What Prometheus, its own tool, and the parser of its Python client make of the metrics of a running server, and what the
tool says of the rules in the package. The parser is in the virtual environment of `bench/peers/install ecosystem`.
"""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import unittest
import urllib.parse
import urllib.request

from harness import WAIT_SECONDS_MAX, await_that
from test_api import ApiCase, run
from test_openapi import PROGRAMS, program

RULES = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "prometheus"
# Prints the families of the metrics on standard input, which must be OpenMetrics in every detail.
PARSE = """
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(sys.stdin.read()))
for family in families:
    print(family.name, family.type, len(family.samples))
"""
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

    @unittest.skipUnless((PROGRAMS / "python").exists(), "prometheus_client is not installed in target/peers/python")
    def test_an_independent_parser_reads_all_that_the_api_shows(self):
        self.defer_two()
        text = self.get("/metrics").decode()
        families = [line.split() for line in program("python", "-c", PARSE, cwd=self.server.folder, text=text).splitlines()]
        found = {name: (kind, int(samples)) for name, kind, samples in families}
        self.assertEqual(len(found), text.count("# TYPE "))
        hop = f'next_hop="smtp:127.0.0.1:{self.hop.port}"'
        self.assertIn(f"mailrace_next_hop_recipients{{{hop}}} 2\n", text)
        # The recipients were refused, not the next hop.
        self.assertIn(f"mailrace_next_hop_error_code{{{hop}}} 0\n", text)
        self.assertIn('mailrace_transport_recipients_total{transport="smtp",outcome="deferred"} 2\n', text)
        self.assertRegex(text, r'mailrace_listener_messages_total\{protocol="smtp",address="[^"]+",verdict="accepted"\} 2\n')
        self.assertEqual(found["mailrace_listener_recipients"], ("counter", 3 * found["mailrace_listener_sessions"][1]))

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
    def test_prometheus_scrapes_the_metrics(self):
        self.defer_two()
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        folder = self.server.folder
        (folder / "token").write_text(self.reader)
        (folder / "prometheus.yml").write_text(
            "scrape_configs:\n- job_name: mailrace\n  scrape_interval: 1s\n  scrape_timeout: 1s\n"
            f"  authorization: {{ credentials_file: {folder}/token }}\n"
            f"  static_configs: [{{ targets: ['127.0.0.1:{self.port}'] }}]\n"
        )
        argv = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", f"--web.listen-address=127.0.0.1:{port}"]
        with open(folder / "prometheus.log", "wb") as log:
            scraper = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
        self.addCleanup(lambda: (scraper.terminate(), scraper.wait()))

        def value(query):
            """The only value of a query; None: there is none yet."""
            url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
            try:
                result = json.load(urllib.request.urlopen(url, timeout=WAIT_SECONDS_MAX))["data"]["result"]
            except OSError:
                return None
            return float(result[0]["value"][1]) if len(result) == 1 else None

        await_that(lambda: value('mailrace_transport_recipients_total{outcome="deferred"}') == 2, "a scrape", self.server)
        self.assertEqual(value("up"), 1)
        self.assertEqual(value('sum(mailrace_listener_messages_total{verdict="accepted"})'), 2)

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
