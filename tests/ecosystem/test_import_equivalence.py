"""Postfix, and this server with what the import makes of its configuration, get the same mail in many set-ups: nothing is
accepted or relayed that Postfix refused, and every other difference is told or meant.
"""

import shutil
import unittest

from equivalence_case import EquivalenceCase


@unittest.skipUnless(shutil.which("postfix"), "Postfix is not installed")
class ImportEquivalence(EquivalenceCase):
    def test_mail_is_treated_as_by_postfix_in_all_setups(self):
        self.check_all_setups("postfix")


if __name__ == "__main__":
    unittest.main()
