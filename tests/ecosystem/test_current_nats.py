"""The tests of clusters with a current nats-server, which `bench/peers/install ecosystem` builds where Go is installed.
In `make test` they run with Debian's.
"""

import os
import subprocess
import sys
import unittest

import harness  # noqa: F401  finds the modules of bench
from peers.mailrace import ROOT
from peers.nats import CURRENT

_SECONDS_MAX = 1200
_MODULES = (
    "test_cluster", "test_cluster_adoption", "test_cluster_local", "test_cluster_operators", "test_cluster_rates",
    "test_cluster_security", "test_cluster_slots", "test_cluster_start",
)  # fmt: skip


@unittest.skipUnless(os.access(CURRENT, os.X_OK), "no current nats-server: it needs Go, and then bench/peers/install ecosystem")
class CurrentNats(unittest.TestCase):
    def run_with_it(self, argv, place):
        environment = {**os.environ, "MAILRACE_NATS_SERVER": str(CURRENT)}
        done = subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")

    def test_nodes_of_a_cluster(self):
        self.run_with_it([sys.executable, "-m", "unittest", *_MODULES], ROOT / "tests/peers")

    def test_streams_and_lanes(self):
        self.run_with_it(["cargo", "test", "--quiet", "--workspace", "--test", "jetstream"], ROOT)


if __name__ == "__main__":
    unittest.main()
