"""clamd with a hand-made signature, and its milter: a virus is refused or held, other mail is marked as clean."""

import unittest

from daemons import DaemonCase, can_run, header, whole_message
from harness import await_messages, await_that
from outbound import mail_events
from recipes import recipe

USER = "clamav"
EICAR = "X5O!P%@AP[4\\PZX54(P^)7CC)7}" + "$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
SIGNATURE = f"Hand-Made-Test:0:*:{EICAR[27:].encode().hex()}\n"


@unittest.skipUnless(can_run("clamd", "clamav-milter"), "clamav-daemon and clamav-milter are not installed, or we are not root")
class ClamAV(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.make_home(USER)
        (database := cls.home / "database").mkdir()
        (database / "test.ndb").write_text(SIGNATURE)
        cls.scanner = cls.home / "clamd.ctl"
        configuration = cls.home / "clamd.conf"
        configuration.write_text(f"LocalSocket {cls.scanner}\nDatabaseDirectory {database}\nForeground yes\nUser {USER}\n")
        cls.start_daemon(cls.home, ["clamd", "-c", configuration]).await_that(cls.scanner.exists, "made its socket")

    def serve_with(self, action):
        """A server with a milter that does this with viruses."""
        name = self.id().rpartition(".")[2]
        path = self.home / f"{name}.ctl"
        texts = {"/var/run/clamav/clamav-milter.ctl": str(path), "/var/run/clamav/clamd.ctl": str(self.scanner)}
        made = recipe("ClamAV").with_texts(texts | {"OnInfected            Reject": f"OnInfected {action}"})
        content = made.files["/etc/clamav/clamav-milter.conf"]
        (configuration := self.home / f"{name}.conf").write_text(f"{content}Foreground yes\n")
        daemon = self.start_daemon(self.home, ["clamav-milter", "-c", configuration])
        daemon.await_that(path.exists, "made its socket")
        return self.serve(made.toml)

    def test_a_virus_is_refused_with_its_name(self):
        server = self.serve_with("Reject")
        reply = self.deliver(server, whole_message("virus", f"{EICAR}\r\n"))
        self.assertTrue(reply.is_a(550, "5.7.1"), reply)
        self.assertIn("infected: Hand-Made-Test", str(reply))
        self.assertEqual(self.deliver(server, whole_message("fine")).code, 250)
        fields = header(await_messages(server, "alice", 1)[0])
        self.assertEqual(fields["x-virus-status"], "Clean")
        self.assertIn("clamav-milter", fields["x-virus-scanned"])

    def test_a_virus_in_an_attachment_is_found(self):
        server = self.serve_with("Reject")
        part = "--b\r\nContent-Type: application/octet-stream; name=a\r\nContent-Disposition: attachment\r\n\r\n"
        message = b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n'
        message += whole_message("parts", f"{part}{EICAR}\r\n--b--\r\n")
        self.assertEqual(self.deliver(server, message).code, 550)

    def test_a_virus_is_held(self):
        server = self.serve_with("Quarantine")
        self.assertEqual(self.deliver(server, whole_message("virus", f"{EICAR}\r\n")).code, 250)
        await_that(lambda: mail_events(server, "held"), "a held message", server)
        server._queue("release", "--all")
        self.assertEqual(header(await_messages(server, "alice", 1)[0])["x-virus-status"].split()[0], "Infected")


if __name__ == "__main__":
    unittest.main()
