"""Dovecot reads delivered mail and confirms the sizes in the file names."""

import grp
import os
import pwd
import shutil
import subprocess
import unittest

from harness import Client, ServerCase, make_message

CONFIG = """\
base_dir = {home}/run
state_dir = {home}/state
mail_home = {home}
mail_location = maildir:{maildir}:INDEX={home}/index
mail_uid = {uid}
mail_gid = {gid}
first_valid_uid = 0
first_valid_gid = 0
default_internal_user = {user}
default_login_user = {user}
default_internal_group = {group}
ssl = no
log_path = {home}/dovecot.log
"""

MESSAGES = [
    make_message("small"),
    make_message("empty body", ""),
    make_message("dots", ".\r\n..\r\n.x\r\n"),
    make_message("eight bits", "gr\u00fc\u00dfe\r\n" * 20),
    make_message("long", ("x" * 990 + "\r\n") * 500),
]


class Dovecot(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with Client(cls.server.port) as client:
            client.greet()
            for message in MESSAGES:
                reply = client.deliver(message, "alice@bench.test")
                assert reply.code == 250, reply
        cls.server.wait_until_empty(30)
        cls.home = cls.server.folder / "dovecot"
        cls.home.mkdir()
        maildir = cls.server.maildir("alice")
        owner = maildir.stat()
        os.chown(cls.home, owner.st_uid, owner.st_gid)
        user, group = pwd.getpwuid(owner.st_uid).pw_name, grp.getgrgid(owner.st_gid).gr_name
        cls.config = cls.server.folder / "dovecot.conf"
        cls.config.write_text(
            CONFIG.format(
                home=cls.home, maildir=maildir, uid=owner.st_uid, gid=owner.st_gid, user=user, group=group
            )  # fmt: skip
        )

    def doveadm(self, *arguments):
        environment = os.environ | {"USER": "alice", "HOME": str(self.home)}
        command = ["doveadm", "-c", str(self.config), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        log = self.home / "dovecot.log"
        self.assertNotIn("Error", done.stderr + (log.read_text() if log.exists() else ""))
        return done.stdout

    def sizes(self, *settings):
        """(size, size with CRLF) of every message, from Dovecot."""
        query = ["-f", "tab", "fetch", "size.physical size.virtual", "mailbox", "INBOX", "all"]
        return sorted(tuple(map(int, line.split("\t"))) for line in self.doveadm(*settings, *query).splitlines()[1:])

    def test_dovecot_counts_the_sizes_in_the_file_names(self):
        by_name = self.sizes()
        # Without its index, and configured not to trust names, Dovecot counts the bytes.
        shutil.rmtree(self.home / "index")
        by_bytes = self.sizes("-o", "maildir_broken_filename_sizes=yes")
        self.assertEqual(len(by_name), len(MESSAGES))
        self.assertEqual(by_name, by_bytes)
        paths = [path for part in ("new", "cur") for path in (self.server.maildir("alice") / part).iterdir()]
        self.assertEqual([size for size, _ in by_name], sorted(path.stat().st_size for path in paths))

    def test_dovecot_reads_the_body_that_was_sent(self):
        text = self.doveadm("fetch", "text", "mailbox", "INBOX", "header", "subject", "dots")
        self.assertIn("\n.\n..\n.x\n", text.replace("\r\n", "\n"))


if __name__ == "__main__":
    unittest.main()
