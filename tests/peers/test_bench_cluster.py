"""bench/cluster: a round of kills, and its ledger: which messages may come twice, by the records of the sinks."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import harness  # noqa: F401  finds the modules of bench
from doubled import Doubled, record_path, runs
from peers import nats
from peers.mailrace import BINARY, ROOT

_NAMES = ("mx1", "mx2")
_LEASE, _MARGIN = 3, 1
_LOST = '1970-01-01T00:05:00.000Z error message="a lane is no longer this node\'s: the server ends" lane=a-0'


class DoubledMessages(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        for name in _NAMES:
            (self.folder / f"{name}.log").write_text("")
            record_path(self.folder, name).write_text("")

    def arrive(self, name, at, sequence):
        with open(record_path(self.folder, name), "a") as record:
            record.write(f"0a {sequence} sound user@far.example\n")
        with open(self.folder / f"{name}.lengths", "a") as lengths:
            lengths.write(f"{at:.3f} {record_path(self.folder, name).stat().st_size}\n")

    def count(self):
        found = Doubled(self.folder, _NAMES, _LEASE, _MARGIN)
        return found.repeatable["0a"], found.unexplained["0a"]

    def test_a_copy_in_the_lease_before_a_kill_may_come_again_from_another_node(self):
        (self.folder / "mx1.kills").write_text("100.0\n")
        self.arrive("mx1", 90.0, 1)
        self.arrive("mx1", 98.0, 2)
        self.arrive("mx2", 105.0, 2)
        self.assertEqual(self.count(), (1, 0))

    def test_a_copy_long_before_the_kill_or_of_another_node_may_not(self):
        (self.folder / "mx1.kills").write_text("100.0\n")
        self.arrive("mx1", 90.0, 1)
        self.arrive("mx2", 99.0, 2)
        self.arrive("mx2", 105.0, 1)
        self.arrive("mx2", 106.0, 2)
        self.assertEqual(self.count(), (0, 2))

    def test_a_node_that_lost_a_lane_while_it_lived_may_have_repeated_deliveries(self):
        (self.folder / "mx1.log").write_text(f"{_LOST}\n")
        self.arrive("mx1", 292.0, 1)
        self.arrive("mx2", 301.0, 1)
        self.assertEqual(self.count(), (1, 0))

    def test_a_ledger_names_its_runs(self):
        (self.folder / "ledger").write_text("run 0a\n1\tuser@far.example\nrun 0b\n")
        self.assertEqual(runs(self.folder / "ledger"), ["0a", "0b"])


@unittest.skipUnless(nats.is_installed(), "nats-server is missing")
class Rounds(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.environment = {**os.environ, "MAILRACE_CLUSTER_DIR": f"{made.name}/cluster", "MAILRACE_BIN": str(BINARY)}
        self.addCleanup(self.run_cluster, "stop")

    def run_cluster(self, *words):
        done = subprocess.run([ROOT / "bench/cluster", *words], env=self.environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_a_round_of_kills_loses_nothing(self):
        self.run_cluster("start")
        self.assertIn("its disk thrown away", self.run_cluster("kill", "--rounds", "1"))
        header, *_, total = (line.split() for line in self.run_cluster("ledger").splitlines())
        self.assertEqual((header[:3], total[0], total[2]), (["round", "250", "missing"], "all", "0"))
        self.assertGreater(int(total[1]), 0)


if __name__ == "__main__":
    unittest.main()
