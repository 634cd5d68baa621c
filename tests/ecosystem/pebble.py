"""Pebble, the test authority of Let's Encrypt: a real server of ACME, which refuses some good nonces and
reuses some authorizations by chance. Its DNS says that every name is 127.0.0.1.

It is a program in Go, at a fixed version, which `bench/peers/install ecosystem` builds where Go is
installed.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import time

from peers.smtp import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
_START_SECONDS_MAX = 30.0


def program(name):
    """The path of a program of pebble, or None."""
    built = ROOT / "target/peers/pebble" / name
    return str(built) if built.exists() else shutil.which(name)


IS_INSTALLED = all(map(program, ("pebble", "pebble-challtestsrv")))
WHY_NOT = "pebble is not installed: it needs Go, and then bench/peers/install ecosystem"


def _openssl(*words, at):
    subprocess.run(["openssl", *words], cwd=at, check=True, capture_output=True)


def _issue_server_certificate(at):
    """The certificate of the authority's own server, and who vouches for it."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl("req", "-x509", *key, "-days", "30", "-subj", "/CN=Pebble's own", "-keyout", "ca.key", "-out", "ca.pem", at=at)
    _openssl("req", *key, "-subj", "/CN=localhost", "-keyout", "pebble.key", "-out", "pebble.csr", at=at)
    (at / "pebble.ext").write_text("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")
    _openssl("x509", "-req", "-in", "pebble.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
             "-extfile", "pebble.ext", "-out", "pebble.pem", at=at)  # fmt: skip
    return at / "ca.pem"


class Pebble:
    """The authority, with a DNS server of its own. It forgets everything when it is stopped."""

    def __init__(self, at, *, life=7776000, environment=None, blocked=()):
        self.folder = at / "pebble"
        self.folder.mkdir(mode=0o755)
        self.ca_file = _issue_server_certificate(self.folder)
        self.http_port, self.tls_port, self.port = free_port(), free_port(), free_port()
        self.log = self.folder / "pebble.log"
        self._management, self._dns = free_port(), free_port()
        self._environment = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", **(environment or {})}
        self._processes = []
        self._config = self.folder / "config.json"
        self._config.write_text(json.dumps({"pebble": {
            "listenAddress": f"127.0.0.1:{self.port}", "managementListenAddress": f"127.0.0.1:{self._management}",
            "certificate": str(self.folder / "pebble.pem"), "privateKey": str(self.folder / "pebble.key"),
            "httpPort": self.http_port, "tlsPort": self.tls_port, "externalAccountBindingRequired": False,
            "domainBlocklist": list(blocked), "retryAfter": {"authz": 1, "order": 1}, "keyAlgorithm": "ecdsa",
            "profiles": {"default": {"description": "all", "validityPeriod": life}},
        }}))  # fmt: skip

    @property
    def directory(self):
        """The address for clients."""
        return f"https://localhost:{self.port}/dir"

    def start(self):
        """Starts both programs, and waits until the authority answers."""
        dns = [program("pebble-challtestsrv"), "-dnsserver", f"127.0.0.1:{self._dns}", "-defaultIPv4", "127.0.0.1",
               "-defaultIPv6", "", "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "",
               "-management", f"127.0.0.1:{free_port()}"]  # fmt: skip
        authority = [program("pebble"), "-config", str(self._config), "-dnsserver", f"127.0.0.1:{self._dns}"]
        with open(self.log, "ab") as log:
            for argv in (dns, authority):
                self._processes.append(
                    subprocess.Popen(argv, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=log))  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                    raise RuntimeError(f"pebble is not ready:\n{self.log.read_text(errors='replace')[-2000:]}") from None
                time.sleep(0.05)

    def stop(self):
        """Ends both; what was issued is forgotten."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes = []
