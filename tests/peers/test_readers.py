"""Delivered mail is read by POP3 from Dovecot and compared with the ledger."""

import json
import pathlib
import shutil
import subprocess
import unittest

from harness import WAIT_SECONDS_MAX, Mailrace, folder
from peers.dovecot import PASSWORD, Dovecot

USERS = ["user1", "user2", "user3"]
MESSAGES = 60


class Readers(unittest.TestCase):
    def setUp(self):
        home = folder()
        self.addCleanup(home.cleanup)
        self.folder = pathlib.Path(home.name)
        self.server = Mailrace(self.folder, users=USERS)
        self.addCleanup(self.server.stop)
        self.server.start()
        self.ledger = self.folder / "ledger"
        target = ["--target", f"127.0.0.1:{self.server.port}"]
        sent = self.bench("smtp", *target, "--users", 3, "--messages", MESSAGES, "--ledger", self.ledger)
        self.assertEqual(sent["done"], MESSAGES)
        self.server.wait_until_empty(WAIT_SECONDS_MAX)
        self.dovecot = Dovecot(self.folder, self.server.maildirs)
        self.addCleanup(self.dovecot.stop)
        self.dovecot.start()

    def tearDown(self):
        self.assertNotIn("Error", self.dovecot.log())

    def bench(self, *words, code=0):
        """The report of a `mailrace bench` command, which must exit with this code."""
        command = [str(self.server.binary), "bench", *map(str, words), "--json"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def read(self, *words, password=PASSWORD, code=0):
        """Reads over two connections."""
        target = ["--target", f"127.0.0.1:{self.dovecot.port}", "--connections", 2]
        return self.bench("pop3", *target, "--users", 3, "--password", password, *words, code=code)

    def verify(self, code=0):
        """Compares the mailboxes with the ledger."""
        target = ["--pop3", f"127.0.0.1:{self.dovecot.port}", "--users", 3, "--password", PASSWORD]
        return self.bench("verify", "--ledger", self.ledger, *target, code=code)

    def mail_files(self):
        """All delivered messages."""
        folders = [self.server.maildir(user) / part for user in USERS for part in ("new", "cur")]
        return sorted(path for place in folders for path in place.iterdir())

    def test_every_message_is_read_and_found_sound(self):
        report = self.read("--sessions", 9)
        self.assertEqual((report["done"], report["failed"], report["errors"]), (9, 0, {}))
        self.assertEqual(report["parts"], 3 * MESSAGES)
        self.assertEqual(report["octets"], 3 * sum(received.stat().st_size for received in self.mail_files()))
        held = self.verify()
        self.assertEqual((held["messages"], held["found"], held["lost"]), (MESSAGES, MESSAGES, 0))

    def test_a_damaged_a_lost_and_a_doubled_message_are_reported(self):
        damaged, lost, doubled, *_ = self.mail_files()
        text = bytearray(damaged.read_bytes())
        text[-3] ^= 1
        damaged.write_bytes(text)
        lost.unlink()
        copy = doubled.with_name("1.copied.twice")
        shutil.copy2(doubled, copy)
        shutil.chown(copy, doubled.stat().st_uid, doubled.stat().st_gid)
        report = self.read("--sessions", 3, code=1)
        self.assertEqual((report["done"], report["errors"]), (3, {"a message is damaged": 1}))
        held = self.verify(code=1)
        self.assertEqual((held["damaged"], held["lost"], held["doubled"]), (1, 1, 1))

    def test_what_readers_delete_is_gone_when_they_leave(self):
        report = self.read("--sessions", 3, "--retrieve", "0%", "--delete", "100%")
        self.assertEqual((report["done"], report["parts"]), (3, 0))
        self.assertEqual(self.mail_files(), [])

    def test_a_wrong_password_is_an_error_with_the_text_of_the_server(self):
        report = self.read("--sessions", 2, password="wrong", code=1)
        self.assertEqual(report["failed"], 2)
        self.assertEqual([text.split(":")[0] for text in report["errors"]], ["PASS"])


if __name__ == "__main__":
    unittest.main()
