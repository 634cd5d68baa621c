"""bench/cluster: a round of kills, and its ledger: which messages may come twice, by the records of the sinks."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import harness  # noqa: F401  finds the modules of bench
from doubled import Doubled, record_path, rows, runs
from peers import nats
from peers.mailrace import BINARY, ROOT

_NAMES = ("mx1", "mx2")
_LEASE = 3
_LOST = '1970-01-01T00:05:00.000Z error message="another node owns a lane of this node; the server stops: start it again"'


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

    def kill(self, at, *leases):
        """Kills mx1; `leases` are when it was asked, and when it had sent a record that was stored."""
        (self.folder / "mx1.kills").write_text(f"{at}\n")
        (self.folder / "mx1.leases").write_text("".join(f"{asked} {sent}\n" for asked, sent in leases))

    def count(self):
        found = Doubled(self.folder, _NAMES, _LEASE)
        return found.repeatable["0a"], found.unexplained["0a"]

    def test_a_copy_since_the_last_stored_record_before_a_kill_may_come_again_from_another_node(self):
        self.kill(100.0, (98.0, 97.9), (99.8, 99.5), (100.2, 100.1))
        self.arrive("mx1", 98.0, 1)
        self.arrive("mx1", 98.7, 2)
        self.arrive("mx2", 104.0, 2)
        self.assertEqual(self.count(), (1, 0))

    def test_a_copy_before_that_or_of_another_node_may_not(self):
        self.kill(100.0, (99.8, 99.5))
        self.arrive("mx1", 98.0, 1)
        self.arrive("mx2", 99.0, 2)
        self.arrive("mx2", 105.0, 1)
        self.arrive("mx2", 106.0, 2)
        self.assertEqual(self.count(), (0, 2))

    def test_a_copy_may_not_come_again_before_the_lease_is_over_or_the_node_is_started_again(self):
        self.kill(100.0, (99.8, 99.5))
        self.arrive("mx1", 99.6, 1)
        self.arrive("mx1", 99.7, 2)
        self.arrive("mx1", 99.9, 2)
        self.arrive("mx1", 99.9, 3)
        self.arrive("mx1", 101.5, 3)
        self.arrive("mx2", 102.0, 1)
        repeatable, unexplained = self.count()
        self.assertEqual((repeatable, unexplained), (4, 2))

    def test_where_the_lease_is_not_known_it_may_have_been_a_whole_one(self):
        self.kill(100.0)
        self.arrive("mx1", 95.0, 1)
        self.arrive("mx1", 97.0, 2)
        self.assertEqual(self.count(), (1, 0))

    def test_a_node_that_lost_a_lane_while_it_lived_may_have_repeated_deliveries(self):
        (self.folder / "mx1.log").write_text(f"{_LOST} lane=a-0\n")
        (self.folder / "mx1.leases").write_text("290.0 289.8\n")
        self.arrive("mx1", 292.0, 1)
        self.arrive("mx2", 294.0, 1)
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
        self.assertEqual(total[-1], "0", "came twice, and may not")
        # What the nodes said of their leases.
        folder = pathlib.Path(self.environment["MAILRACE_CLUSTER_DIR"])
        for name in ("mx1", "mx2", "mx3"):
            self.assertTrue(rows(folder / f"{name}.leases"), name)


if __name__ == "__main__":
    unittest.main()
