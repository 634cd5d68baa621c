"""Exim, and this server with what the import makes of its configuration, get the same mail in many set-ups: nothing is
accepted or relayed that Exim refused, and every other difference is told or meant.
"""

import unittest

from equivalence_case import EquivalenceCase


class EximImportEquivalence(EquivalenceCase):
    def test_mail_is_treated_as_by_exim_in_all_setups(self):
        self.check_all_setups("exim")


if __name__ == "__main__":
    unittest.main()
