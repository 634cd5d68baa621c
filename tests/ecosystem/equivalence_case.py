"""A server, and Mailrace with what the import makes of its configuration, get the same mail in many set-ups.

Needs root, namespaces and Unbound. `bench/run import-equivalence` writes the same as a page.
"""

import os
import shutil
import unittest

import harness  # noqa: F401  makes `bench` importable
from equivalence import comparison, run, setup


@unittest.skipUnless(os.geteuid() == 0, "namespaces and mail servers need root")
@unittest.skipUnless(shutil.which("unbound"), "Unbound is not installed")
class EquivalenceCase(unittest.TestCase):
    """The set-ups of one server."""

    def check_all_setups(self, server):
        """Fails for each difference that is neither told nor meant; a set-up without one of its servers is skipped."""
        for name in setup.names(server):
            with self.subTest(name):
                result = run.in_namespaces(setup.Setup(server, name))
                self.assertEqual(result.failure, "")
                if result.skipped:
                    self.skipTest(f"{name}: {result.skipped}")
                wrong = [one for one in result.compared if one.kind in (comparison.DIFFERS, comparison.LETS_IN)]
                self.assertEqual([f"{one.probe}: {one.original} | {one.mailrace}" for one in wrong], [])
