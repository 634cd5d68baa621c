"""OpenDKIM as a milter, with the configuration of the documents: it signs mail of this machine, and verifies that of
others, also what this server has signed itself.
"""

import pathlib
import unittest

import dkim_verifier
from daemons import DaemonCase, can_run, header
from harness import await_messages, folder
from outbound import EVERYONE
from peers.mailrace import route
from recipes import recipe
from test_dkim_signing import Keys, message, signatures


@unittest.skipUnless(can_run("opendkim") and dkim_verifier.is_installed(), "OpenDKIM or dkimpy is not installed, or we are not root")
class OpenDkim(DaemonCase):
    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.keys = Keys(pathlib.Path(made.name))
        cls.home = cls.make_home("opendkim")
        key = cls.home / "mail.private"
        key.write_bytes(cls.keys.files["rsa"].read_bytes())
        key.chmod(0o644)
        path = cls.home / "opendkim.sock"
        # The server of the tests is in no group.
        texts = {"/run/opendkim/opendkim.sock": str(path), "UMask                 007": "UMask 000"}
        texts |= {"/etc/dkimkeys/mail.private": str(key), "example.org\nSelector": "bench.test\nSelector"}
        texts |= {"Selector              mail": "Selector rsa", "mx.example.org": "mx.bench.test"}
        cls.recipe = recipe("OpenDKIM").with_texts(texts)
        records = "".join(f"{name.rstrip('.')} {text.decode()}\n" for name, text in cls.keys.records.items() if name[:3] == "rsa")
        (cls.home / "keys").write_text(records)
        (configuration := cls.home / "opendkim.conf").write_text(
            f"{cls.recipe.files['/etc/opendkim.conf']}RequireSafeKeys no\nTestDNSData file:{cls.home / 'keys'}\n"
        )
        daemon = cls.start_daemon(cls.home, ["opendkim", "-f", "-x", configuration])
        daemon.await_that(path.exists, "made its socket")

    def signed_by_us(self):
        """What this server has signed for another one."""
        far = self.host()
        settings = f"\n[signing]\n{self.keys.section('rsa')}" + route("outside.test", f"[127.0.0.1]:{far.port}")
        server = self.start("signer", networks=EVERYONE, extra=settings)
        self.send(server, "bob@outside.test", message=message())
        return self.await_messages(far, 1, server)[0].content

    def test_our_signature_is_verified(self):
        content = self.signed_by_us()
        server = self.serve(self.recipe.toml)
        self.assertEqual(self.deliver(server, content).code, 250)
        result = header(await_messages(server, "alice", 1)[0])["authentication-results"]
        self.assertRegex(result, r"^mx\.bench\.test;\s+dkim=pass .*header\.d=bench\.test")

    def test_a_message_that_was_changed_is_refused(self):
        content = self.signed_by_us().replace(b"Hello.", b"Hello!")
        server = self.serve(self.recipe.toml)
        reply = self.deliver(server, content)
        self.assertTrue(reply.is_a(550, "5.7.0"), reply)
        self.assertIn("bad DKIM signature", str(reply))

    def test_mail_of_this_machine_is_signed(self):
        server = self.serve(self.recipe.toml, networks=EVERYONE)
        self.send(server, "alice@bench.test", message=message())
        content = await_messages(server, "alice", 1)[0].read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        self.assertEqual(len(signatures(content)), 1)
        self.assertEqual(dkim_verifier.verified(content, self.keys.records), [True])


if __name__ == "__main__":
    unittest.main()
