"""What the TLS of mail is proved with: certificates of an authority, and a signed zone that a real Unbound
validates.
"""

import hashlib
import shutil
import socket
import ssl
import struct
import subprocess

from harness import await_that
from peers.smtp import free_port

_UNBOUND = """
server:
  directory: "{folder}"
  chroot: ""
  username: ""
  pidfile: "{folder}/pid"
  use-syslog: no
  interface: {address}@{port}
  do-ip6: no
  module-config: "validator iterator"
  trust-anchor-file: "{folder}/{key}.key"
  local-zone: "test." nodefault
  do-not-query-localhost: no
remote-control:
  control-enable: no
auth-zone:
  name: "{domain}"
  zonefile: "{folder}/signed"
  for-downstream: no
  for-upstream: yes
  fallback-enabled: no
"""


def can_sign_zones():
    """Whether the programs are installed."""
    return all(map(shutil.which, ("unbound", "dnssec-signzone", "dnssec-keygen")))


class Authority:
    """Makes certificates with openssl(1)."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.file = folder / "ca.pem"
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                      folder / "ca.key", "-out", self.file, "-subj", f"/CN=authority {folder.name}", "-days", "3")  # fmt: skip

    def issue(self, name):
        """The key and the certificate for this name, in one file; always the same."""
        both = self.folder / f"{name}.pem"
        if both.exists():
            return both
        request, certificate, key = (self.folder / f"{name}.{end}" for end in ("csr", "crt", "key"))
        self._openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                      "-out", request, "-subj", "/CN=x", "-addext", f"subjectAltName=DNS:{name}")  # fmt: skip
        self._openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.folder / "ca.key", "-days", "2",
                      "-copy_extensions", "copy", "-out", certificate)  # fmt: skip
        both.write_text(key.read_text() + certificate.read_text())
        return both

    def context(self, name):
        """What a TLS server needs that has a certificate for this name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(name))
        return context

    def key_digest(self, both):
        """The SHA-256 digest of the public key, as in a TLSA record 3 1 1."""
        pem = self._openssl("x509", "-in", both, "-noout", "-pubkey")
        return hashlib.sha256(self._openssl("pkey", "-pubin", "-outform", "DER", given=pem)).digest()

    @staticmethod
    def _openssl(*argv, given=None):
        return subprocess.run(["openssl", *argv], input=given, capture_output=True, check=True, timeout=60).stdout


class Unbound:
    """A validating resolver with a signed zone, whose key is its only trust anchor."""

    def __init__(self, folder, domain, records, address="127.0.0.1", port=None):
        self.folder, self.domain, self.address = folder, domain, address
        folder.mkdir()
        folder.chmod(0o755)
        self.port = port or free_port()
        self.target = f"{address}:{self.port}"
        lines = [f"$ORIGIN {domain}.", "$TTL 60", "@ SOA ns dns 1 3600 600 86400 60", "@ NS ns", "ns A 127.0.0.1", *records]
        (folder / "zone").write_text("\n".join(lines) + "\n")
        self.key = self._run("dnssec-keygen", "-a", "ECDSAP256SHA256", "-f", "KSK", domain).strip()
        self._run("dnssec-signzone", "-z", "-S", "-o", domain, "-f", "signed", "zone")
        self._process = None

    def tamper(self, text, other):
        """Changes the signed zone without signing it again."""
        signed = self.folder / "signed"
        before = signed.read_text()
        # dnssec-signzone folds long data.
        changed = before.replace(text, other)
        if changed == before:
            raise AssertionError(f"no {text} in\n{before}")
        signed.write_text(changed)

    def start(self):
        """Returns when it answers."""
        config = self.folder / "unbound.conf"
        config.write_text(_UNBOUND.format(
            folder=self.folder, address=self.address, port=self.port, domain=self.domain, key=self.key
        ))
        with (self.folder / "log").open("w") as log:
            self._process = subprocess.Popen(["unbound", "-d", "-c", str(config)], stdout=log, stderr=log)
        await_that(self._answers, "unbound", self)

    def _answers(self):
        query = struct.pack("!6H", 7, 0x0120, 1, 0, 0, 0)
        query += b"".join(bytes([len(label)]) + label.encode() for label in self.domain.split(".")) + b"\0"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(1)
            try:
                client.sendto(query + struct.pack("!2H", 15, 1), (self.address, self.port))
                return client.recv(4096)[3] & 0x2F == 0x20  # authentic, and no error
            except OSError:
                return False

    def log_tail(self):
        """The end of its log, for messages of failed tests."""
        return (self.folder / "log").read_text()[-2000:]

    def stop(self):
        """Ends it."""
        if self._process:
            self._process.terminate()
            self._process.wait(timeout=30)

    def _run(self, *argv):
        return subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=True, timeout=60).stdout
