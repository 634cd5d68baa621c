"""The servers that bench/run starts: what they are given depends on what they know."""

import os
import pathlib
import subprocess
import tempfile
import unittest

from harness import Mailrace
from peers import postfix

REFUSES = "#!/bin/sh\nexit 78\n"
TAKES = "#!/bin/sh\nexit 0\n"


class Senders(unittest.TestCase):
    def written(self, script):
        """The configuration for this binary."""
        with tempfile.TemporaryDirectory() as folder:
            (binary := pathlib.Path(folder) / "binary").write_text(script)
            binary.chmod(0o755)
            return Mailrace(pathlib.Path(folder), binary=binary).configuration()

    def test_a_binary_that_checks_senders_is_told_not_to(self):
        self.assertIn("[sender_auth]", self.written(TAKES))

    def test_an_older_binary_is_not_given_a_section_that_it_refuses(self):
        self.assertNotIn("[sender_auth]", self.written(REFUSES))

    def test_a_binary_that_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(RuntimeError, "gone is missing: run `make`"):
            Mailrace(pathlib.Path(folder), binary=pathlib.Path(folder) / "gone")


@unittest.skipUnless(os.geteuid() == 0, "starting Postfix needs root")
class Namespaces(unittest.TestCase):
    def test_postfix_sees_files_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            (own := pathlib.Path(folder) / "resolv.conf").write_text("nameserver 127.0.0.5\n")
            server = postfix.Postfix(pathlib.Path(folder), files={"/etc/resolv.conf": own})
            self.addCleanup(server.stop)
            argv = [*server.namespace(), "cat", "/etc/resolv.conf"]
            seen = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout
            self.assertEqual(seen, "nameserver 127.0.0.5\n")
        self.assertNotIn("127.0.0.5", pathlib.Path("/etc/resolv.conf").read_text())


if __name__ == "__main__":
    unittest.main()
