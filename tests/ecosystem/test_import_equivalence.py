"""Postfix, and this server with what the import makes of its configuration, get the same mail in many set-ups: nothing is
accepted or relayed that Postfix refused, and every other difference is told or meant.

Needs root, namespaces, Postfix and Unbound. `bench/run import-equivalence` writes the same as a page.
"""

import os
import shutil
import unittest

import harness  # noqa: F401  makes `bench` importable
from equivalence import comparison, run, setup


@unittest.skipUnless(os.geteuid() == 0, "namespaces and Postfix need root")
@unittest.skipUnless(shutil.which("postfix") and shutil.which("unbound"), "Postfix or Unbound is not installed")
class ImportEquivalence(unittest.TestCase):
    def test_mail_is_treated_as_by_postfix_in_all_setups(self):
        for name in setup.names():
            with self.subTest(name):
                result = run.in_namespaces(name)
                self.assertEqual(result.failure, "")
                wrong = [one for one in result.compared if one.kind in (comparison.DIFFERS, comparison.LETS_IN)]
                self.assertEqual([f"{one.probe}: {one.postfix} | {one.mailrace}" for one in wrong], [])


if __name__ == "__main__":
    unittest.main()
