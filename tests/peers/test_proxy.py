"""The proxy for IMAP and POP3 in front of Dovecot, with real mail programs."""

import poplib
import subprocess
import unittest

from harness import WAIT_SECONDS_MAX, Client, Mailrace, await_messages, await_that, make_message
from laboratory import FolderCase
from peers.dovecot import PASSWORD, Dovecot
from peers.mailrace import LOGINS, listener
from peers.smtp import free_port

USER = "alice@bench.test"
MESSAGES = [make_message("small"), make_message("dots", ".\r\n..\r\n.x\r\n"), make_message("long", ("z" * 70 + "\r\n") * 9000)]


class Proxy(FolderCase):
    def setUp(self):
        super().setUp()
        self.imap_port, self.pop3_port = free_port(), free_port()
        proxied = listener("imap-proxy", 'tls = "none"') + listener("pop3-proxy", 'tls = "none"')
        backends = f'\n[proxy]\nlocal_imap = "127.0.0.1:{self.imap_port}"\nlocal_pop3 = "127.0.0.1:{self.pop3_port}"\n'
        self.server = Mailrace(self.folder, users=["alice"], extra=proxied + LOGINS + backends)
        self.addCleanup(self.server.stop)
        self.server.start()
        with Client(self.server.port) as client:
            client.greet()
            for message in MESSAGES:
                self.assertEqual(client.deliver(message, USER).code, 250)
        await_messages(self.server, "alice", len(MESSAGES))

    def start_backend(self):
        """Dovecot, which the proxy logs in to."""
        backend = Dovecot(self.folder, self.server.maildirs, imap=True, ports=(self.pop3_port, self.imap_port))
        self.addCleanup(backend.stop)
        backend.start()
        return backend

    def curl(self, url, code=0):
        """What curl fetches as the user."""
        command = ["curl", "--silent", "--show-error", "--user", f"{USER}:{PASSWORD}", url]
        done = subprocess.run(command, capture_output=True, timeout=WAIT_SECONDS_MAX)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def stored(self):
        """The messages in the Maildir."""
        parts = (self.server.maildir("alice") / part for part in ("new", "cur"))
        return sorted(path.read_bytes() for part in parts for path in part.iterdir())

    def test_mbsync_copies_a_mailbox(self):
        self.start_backend()
        copies = self.folder / "copies"
        copies.mkdir()
        rules = self.folder / "mbsyncrc"
        rules.write_text(
            f"IMAPAccount proxy\nHost 127.0.0.1\nPort {self.server.ports['imap-proxy']}\nUser {USER}\nPass {PASSWORD}\n"
            "SSLType None\nAuthMechs LOGIN\n\nIMAPStore far\nAccount proxy\n\n"
            f"MaildirStore near\nPath {copies}/\nInbox {copies}/INBOX\n\n"
            "Channel all\nFar :far:\nNear :near:\nPatterns INBOX\nCreate Near\nSyncState *\n"
        )
        command = ["mbsync", "--config", str(rules), "all"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = [path for part in ("new", "cur") for path in (copies / "INBOX" / part).iterdir()]
        # mbsync adds a field of its own, and writes LF.
        texts = sorted(_without_tag(path.read_bytes()).replace(b"\n", b"\r\n") for path in found)
        self.assertEqual(texts, self.stored())

    def test_curl_reads_by_both_protocols(self):
        self.start_backend()
        imap = f"imap://127.0.0.1:{self.server.ports['imap-proxy']}/INBOX"
        pop3 = f"pop3://127.0.0.1:{self.server.ports['pop3-proxy']}"
        numbers = range(1, len(MESSAGES) + 1)
        self.assertEqual(sorted(self.curl(f"{imap};MAILINDEX={number}") for number in numbers), self.stored())
        self.assertEqual(sorted(self.curl(f"{pop3}/{number}") for number in numbers), self.stored())

    def test_a_backend_that_is_down_is_told_and_comes_back(self):
        login_denied = 67
        pop3 = f"pop3://127.0.0.1:{self.server.ports['pop3-proxy']}/1"
        self.curl(pop3, code=login_denied)
        self.start_backend()

        def comes_back():
            command = ["curl", "--silent", "--user", f"{USER}:{PASSWORD}", pop3]
            return subprocess.run(command, capture_output=True, timeout=WAIT_SECONDS_MAX).stdout

        self.assertIn(await_that(comes_back, "the proxy finds the backend again", self.server), self.stored())


class OwnBackend(FolderCase):
    """The proxy in front of this server's POP3, on another process."""

    def test_clients_read_what_the_backend_has(self):
        backend = Mailrace(self.folder / "backend", users=["alice"], extra=listener("pop3", 'tls = "none"') + LOGINS)
        self.addCleanup(backend.stop)
        backend.start()
        local = f'\n[proxy]\nlocal_pop3 = "127.0.0.1:{backend.ports["pop3"]}"\n'
        proxy = Mailrace(self.folder, users=["alice"], extra=listener("pop3-proxy", 'tls = "none"') + LOGINS + local)
        self.addCleanup(proxy.stop)
        proxy.start()
        with Client(backend.port) as client:
            client.greet()
            for message in MESSAGES:
                self.assertEqual(client.deliver(message, USER).code, 250)
        await_messages(backend, "alice", len(MESSAGES))
        readings = []
        for server, protocol in ((backend, "pop3"), (proxy, "pop3-proxy")):
            session = poplib.POP3("127.0.0.1", server.ports[protocol], timeout=WAIT_SECONDS_MAX)
            session.user(USER)
            session.pass_(PASSWORD)
            readings.append([session.uidl()[1], *(session.retr(number)[1] for number in range(1, len(MESSAGES) + 1))])
            session.quit()
        self.assertEqual(readings[0], readings[1])


def _without_tag(text):
    lines = text.split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(b"X-TUID:"))


if __name__ == "__main__":
    unittest.main()
