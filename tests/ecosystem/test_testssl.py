"""testssl.sh finds nothing above LOW in our TLS, with STARTTLS and with implicit TLS."""

import json
import pathlib
import shutil
import subprocess
import unittest

from harness import ServerCase, folder
from test_tls import TlsMailrace, listener, section

HOST = "mx.bench.test"
CHECKS = ("--protocols", "--std", "--fs", "--server-preference", "--server-defaults", "--vulnerable")
FINE = {"OK", "INFO", "LOW", "DEBUG"}
# Checks that testssl.sh cannot do because something is not installed; other tests cover them, or
# they do not concern the server.
NOT_LOOKED_AT = {"engine_problem", "sessionresumption_ticket", "sessionresumption_ID"}
SECONDS_MAX = 900


def openssl(*words, at):
    subprocess.run(["openssl", *words], cwd=at, check=True, capture_output=True)


def issue_chain(at):
    """A certificate and its authority, as a public authority issues them."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-days", "400", "-subj", "/CN=Bench Authority", "-keyout", "ca.key", "-out", "ca.pem",
            at=at)  # fmt: skip
    openssl("req", *key, "-subj", f"/CN={HOST}", "-keyout", "mx.key", "-out", "mx.csr", at=at)
    (at / "mx.ext").write_text(
        f"subjectAltName=DNS:{HOST}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
        "crlDistributionPoints=URI:http://127.0.0.1:9/revoked\n"
    )
    openssl("x509", "-req", "-in", "mx.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "90",
            "-extfile", "mx.ext", "-out", "mx.pem", at=at)  # fmt: skip
    (at / "mx.key").chmod(0o644)
    return at / "ca.pem", at / "mx.pem", at / "mx.key"


@unittest.skipUnless(shutil.which("testssl"), "testssl.sh is not installed")
class Testssl(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        at = pathlib.Path(cls.folder.name)
        cls.authority, *files = issue_chain(at)
        extra = "".join(listener("smtp", tls) for tls in ("required", "implicit"))
        cls.server = TlsMailrace(at, extra=extra + section(*files))
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def findings(self, where, *options):
        said = pathlib.Path(self.folder.name) / f"{where}.json"
        argv = [
            "testssl", "--quiet", "--color", "0", "--nodns", "none", "--warnings", "off", "--ip", "127.0.0.1", *CHECKS,
            "--add-ca", self.authority, "--jsonfile", said, *options, f"{HOST}:{self.server.at[where]}",
        ]  # fmt: skip
        done = subprocess.run(list(map(str, argv)), stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS_MAX)
        self.assertTrue(said.exists(), done.stdout.decode(errors="replace"))
        return json.loads(said.read_text())

    def assert_fine(self, findings):
        self.assertIn("TLS1_3", {one["id"] for one in findings}, "the versions were not checked")
        self.assertIn("cipher_order", {one["id"] for one in findings}, "the ciphers were not checked")
        bad = [one for one in findings if one["severity"] not in FINE and one["id"] not in NOT_LOOKED_AT]
        self.assertEqual([f"{one['severity']} {one['id']}: {one['finding']}" for one in bad], [])

    def test_testssl_finds_nothing_with_starttls(self):
        self.assert_fine(self.findings("starttls", "--starttls", "smtp"))

    def test_testssl_finds_nothing_with_implicit_tls(self):
        self.assert_fine(self.findings("implicit"))
