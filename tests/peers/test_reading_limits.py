"""Clients that read cannot keep mail out, and the operator sees what they do."""

import poplib
import unittest

from harness import WAIT_SECONDS_MAX, Client, Mailrace, await_messages, await_that, make_message
from laboratory import FolderCase
from outbound import metrics
from peers.dovecot import PASSWORD
from peers.mailrace import LOGINS, listener
from peers.smtp import free_port

USER = "alice@bench.test"


class ReadingLimits(FolderCase):
    def setUp(self):
        super().setUp()
        backend = f'\n[proxy]\nlocal_pop3 = "127.0.0.1:{free_port()}"\n'
        readers = listener("pop3", 'tls = "none"') + listener("pop3-proxy", 'tls = "none"')
        self.server = Mailrace(
            self.folder, users=["alice"], limits="reading_sessions = 2", extra=readers + LOGINS + backend
        )
        self.addCleanup(self.server.stop)
        self.server.start()

    def log_in(self, protocol):
        """A session of a user."""
        session = poplib.POP3("127.0.0.1", self.server.ports[protocol], timeout=WAIT_SECONDS_MAX)
        self.addCleanup(session.close)
        session.user(USER)
        session.pass_(PASSWORD)
        return session

    def deliver(self):
        """One message comes in."""
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("x"), USER).code, 250)

    def test_mail_comes_in_while_all_reading_sessions_are_taken(self):
        readers = [poplib.POP3("127.0.0.1", self.server.ports["pop3"], timeout=WAIT_SECONDS_MAX) for _ in range(2)]
        with self.assertRaisesRegex(poplib.error_proto, r"-ERR \[SYS/TEMP\]"):
            poplib.POP3("127.0.0.1", self.server.ports["pop3"], timeout=WAIT_SECONDS_MAX)
        self.assertEqual(metrics(self.server)["mailrace_reading_sessions"], 2)
        self.deliver()
        for reader in readers:
            reader.quit()
        is_free = lambda: metrics(self.server)["mailrace_reading_sessions"] == 0
        await_that(is_free, "the sessions have ended", self.server)

    def test_what_clients_read_is_counted(self):
        self.deliver()
        await_messages(self.server, "alice", 1)
        session = self.log_in("pop3")
        session.retr(1)
        session.top(1, 0)
        session.quit()
        self.assertEqual(metrics(self.server)["mailrace_pop3_messages_total"], 2)
        with self.assertRaisesRegex(poplib.error_proto, r"-ERR \[SYS/TEMP\]"):
            self.log_in("pop3-proxy")
        counted = metrics(self.server)
        self.assertEqual(counted['mailrace_proxy_logins_total{result="unavailable"}'], 1)
        self.assertEqual(counted["mailrace_proxy_backends_down"], 1)


if __name__ == "__main__":
    unittest.main()
