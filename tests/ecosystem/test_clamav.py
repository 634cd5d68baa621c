"""clamd with a hand-made signature, and its milter: a virus is refused or held, other mail is marked as clean."""

import unittest

from daemons import DaemonCase, header, installed, whole_message
from harness import await_messages, await_that
from outbound import mail_events
from peers.smtp import free_port
from recipes import recipe

USER = "clamav"
EICAR = "X5O!P%@AP[4\\PZX54(P^)7CC)7}" + "$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
SIGNATURE = f"Hand-Made-Test:0:*:{EICAR[27:].encode().hex()}\n"


@unittest.skipUnless(installed("clamd", "clamav-milter"), "clamav-daemon and clamav-milter are not installed")
class ClamAV(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.make_home(USER)
        (database := cls.home / "database").mkdir()
        (database / "test.ndb").write_text(SIGNATURE)
        cls.scanner = free_port()
        texts = {"TCPSocket             3310": f"TCPSocket {cls.scanner}", "/var/lib/clamav": str(database)}
        texts["127.0.0.1:3310"] = f"127.0.0.1:{cls.scanner}"
        cls.recipe = recipe("ClamAV").with_texts(texts)
        (configuration := cls.home / "clamd.conf").write_text(cls.recipe.files["/etc/clamav/clamd.conf"])
        cls.start_daemon(cls.home, ["clamd", "-c", configuration], port=cls.scanner)

    def serve_with(self, **texts):
        """A server with a milter with these settings."""
        port = free_port()
        texts = {f"{name}            ": f"{name} {value}\n#" for name, value in texts.items()}
        made = self.recipe.with_texts({"7357": str(port)} | texts)
        (configuration := self.home / f"milter-{port}.conf").write_text(made.files["/etc/clamav/clamav-milter.conf"])
        self.start_daemon(self.home, ["clamav-milter", "-c", configuration], port=port)
        return self.serve(made.toml)

    def test_a_virus_is_refused_with_its_name(self):
        server = self.serve_with()
        reply = self.deliver(server, whole_message("virus", f"{EICAR}\r\n"))
        self.assertTrue(reply.is_a(550, "5.7.1"), reply)
        self.assertIn("infected: Hand-Made-Test", str(reply))
        self.assertEqual(self.deliver(server, whole_message("fine")).code, 250)
        fields = header(await_messages(server, "alice", 1)[0])
        self.assertEqual(fields["x-virus-status"], "Clean")
        self.assertIn("clamav-milter", fields["x-virus-scanned"])

    def test_a_virus_in_an_attachment_is_found(self):
        server = self.serve_with()
        part = "--b\r\nContent-Type: application/octet-stream; name=a\r\nContent-Disposition: attachment\r\n\r\n"
        message = b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n'
        message += whole_message("parts", f"{part}{EICAR}\r\n--b--\r\n")
        self.assertEqual(self.deliver(server, message).code, 550)

    def test_a_virus_is_held(self):
        server = self.serve_with(OnInfected="Quarantine")
        self.assertEqual(self.deliver(server, whole_message("virus", f"{EICAR}\r\n")).code, 250)
        await_that(lambda: mail_events(server, "held"), "a held message", server)
        server._queue("release", "--all")
        self.assertEqual(header(await_messages(server, "alice", 1)[0])["x-virus-status"].split()[0], "Infected")


if __name__ == "__main__":
    unittest.main()
