"""Nodes that have to identify themselves to the NATS servers, and talk TLS with them."""

import subprocess
import unittest

from cluster_case import ClusterCase
from nats_servers import NatsServers

_MESSAGES = 2
_NKEY_SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
_NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


class SecuredServers(ClusterCase):
    security = ""

    def make_servers(self):
        return NatsServers(self.folder, security=self.security)

    def settings(self, credentials):
        """Lines of [cluster] that name a file with these credentials."""
        path = self.folder / f"credentials-{len(credentials)}"
        path.write_text(credentials + "\n")
        return f'credentials_file = "{path}"\n'

    def start_refused(self, credentials, extra=""):
        """A node does not start with wrong credentials."""
        server = self.node("refused", extra=self.settings(credentials) + extra)
        argv = [str(server.binary), "--config", str(server.config), "serve"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("refuse this node", done.stderr)

    def accept(self, extra, urls=None):
        server = self.node("only", urls, extra=extra)
        server.start()
        subjects = self.fill(server, _MESSAGES)
        host = self.open_host()
        self.assertEqual(self.await_delivery(host, subjects, server), sorted(subjects))


class Token(SecuredServers):
    security = 'authorization { token: "s3cr3t" }\n'

    def test_a_node_has_the_token(self):
        self.start_refused("another")
        self.accept(self.settings("s3cr3t"))


class NKey(SecuredServers):
    security = f'authorization {{ users: [ {{ nkey: "{_NKEY}" }} ] }}\n'

    def test_a_node_signs_with_its_nkey(self):
        self.accept(self.settings(_NKEY_SEED))


class UserWithTls(SecuredServers):
    def make_servers(self):
        self.certificate, key = make_certificate(self.folder, "nats")
        security = f'tls {{ cert_file: "{self.certificate}", key_file: "{key}" }}\n'
        security += 'authorization { users: [ { user: "node", password: "pass:word" } ] }\n'
        return NatsServers(self.folder, security=security)

    def test_a_node_trusts_the_servers_and_has_a_password(self):
        tls = f'[cluster.tls]\nca_file = "{self.certificate}"\n'
        urls = [url.replace("nats://", "tls://") for url in self.nats.urls]
        self.start_refused("node:wrong", tls)
        self.accept(self.settings("node:pass:word") + tls, urls)


class ClientCertificate(SecuredServers):
    def make_servers(self):
        self.certificate, key = make_certificate(self.folder, "nats")
        self.own_certificate, self.own_key = make_certificate(self.folder, "node")
        return NatsServers(self.folder, security=f'tls {{ cert_file: "{self.certificate}", key_file: "{key}", '
                           f'ca_file: "{self.own_certificate}", verify: true }}\n')  # fmt: skip

    def test_a_node_shows_its_certificate(self):
        tls = f'[cluster.tls]\nca_file = "{self.certificate}"\n'
        urls = [url.replace("nats://", "tls://") for url in self.nats.urls]
        self.node("nobody", urls, extra=tls).start_until("waiting for the NATS servers")
        own = f'certificate_file = "{self.own_certificate}"\nkey_file = "{self.own_key}"\n'
        self.accept(tls + own, urls)


def make_certificate(folder, name):
    """A certificate that has signed itself, for this machine; returns its file and that of its key."""
    certificate, key = folder / f"{name}-cert.pem", folder / f"{name}-key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", f"/CN={name}.test", "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", certificate]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    key.chmod(0o644)  # the server gives up root
    return certificate, key


if __name__ == "__main__":
    unittest.main()
