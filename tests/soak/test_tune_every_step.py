"""The kills of `mailrace tune apply` and `revert` in tests/peers, also before each write, sync and change of a mode."""

import unittest

import test_tune_kills


class EveryStep(test_tune_kills.Kills):
    CALLS = (*test_tune_kills.Kills.CALLS, "write", "fsync", "fdatasync", "chmod", "fchmod", "fchmodat", "fchown")


if __name__ == "__main__":
    unittest.main()
