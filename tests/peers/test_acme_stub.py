"""Certificates that the server obtains itself, from a small authority in this process: what is presented before and
after, a refused nonce, and an authority that asks for time.
"""

import datetime
import json
import pathlib
import socket
import ssl
import subprocess
import unittest

from acme_authority import NONCES_REFUSED, Authority
from harness import Client, await_that, folder
from peers.mailrace import Mailrace, listener
from peers.smtp import free_port

NAMES = ["mx.bench.test", "mail.bench.test"]
RATE_LIMITED = {"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many certificates for bench.test"}


class AcmeStub(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        at = pathlib.Path(made.name)
        (at / "authority").mkdir()
        port = free_port()
        self.authority = Authority(at / "authority", port)
        self.addCleanup(self.authority.stop)
        extra = f"""
[acme]
directory    = "{self.authority.url}/directory"
ca_file      = "{at}/authority/ca.pem"
accept_terms = true

[[certificate]]
acme = {json.dumps(NAMES)}
"""
        self.server = Mailrace(at, users=["alice"], extra=extra + listener("http", port=port))
        self.addCleanup(self.server.stop)

    def is_trusted(self):
        """Whether a client that trusts the authority accepts the certificate after STARTTLS."""
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.say("STARTTLS").code, 220)
            context = ssl.create_default_context(cafile=str(self.authority.folder / "ca.pem"))
            try:
                with context.wrap_socket(client.socket, server_hostname=NAMES[1]):
                    return True
            except ssl.SSLCertVerificationError:
                return False

    def status(self):
        argv = [str(self.server.binary), "acme", "status", "--json", "--config", str(self.server.config)]
        return json.loads(subprocess.run(argv, cwd=self.server.folder, capture_output=True, text=True, check=True).stdout)

    def test_a_certificate_is_obtained_once_and_kept(self):
        self.server.start()
        await_that(self.is_trusted, "a certificate of the authority", self.server)
        self.assertGreaterEqual(self.authority.nonces_refused, NONCES_REFUSED)
        row = self.status()
        self.assertEqual((row["names"], row["issuer"], row["failures"]), (NAMES, "CN=Stub Authority", 0))
        self.server.kill()
        self.server.start()
        self.assertTrue(self.is_trusted())
        self.assertEqual(len(self.authority.orders), 1)

    def test_an_authority_that_asks_for_time_gets_it(self):
        self.authority.fault = (429, {"Retry-After": 7200}, RATE_LIMITED)
        begin = datetime.datetime.now(datetime.timezone.utc)
        self.server.start()
        self.assertFalse(self.is_trusted(), "the placeholder")
        row = await_that(lambda: (row := self.status())["failures"] and row, "a failure", self.server)
        self.assertIn("too many certificates for bench.test", row["error"])
        self.assertGreaterEqual(datetime.datetime.fromisoformat(row["next_attempt"]) - begin, datetime.timedelta(hours=2))

    def test_a_listener_for_challenges_serves_nothing_else(self):
        self.server.start()
        with socket.create_connection(("127.0.0.1", self.server.ports["http"]), 10) as client:
            client.sendall(b"GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: mx.bench.test\r\nConnection: close\r\n\r\n")
            self.assertIn(b" 404 ", client.recv(100))


if __name__ == "__main__":
    unittest.main()
