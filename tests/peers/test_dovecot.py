"""Dovecot reads what the server delivered, and finds nothing to mend in it."""

import os
import subprocess
import unittest

from harness import Client, ServerCase, letter

_CONFIG = """\
base_dir = {home}/run
state_dir = {home}/state
mail_home = {home}
mail_location = maildir:{maildir}
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
    letter("small"),
    letter("empty body", ""),
    letter("dots", ".\r\n..\r\n.x\r\n"),
    letter("eight bits", "gr\u00fc\u00dfe\r\n" * 20),
    letter("long", ("x" * 990 + "\r\n") * 500),
]


class Dovecot(ServerCase):
    def setUp(self):
        with Client(self.server.port) as client:
            client.greet()
            for message in MESSAGES:
                self.assertEqual(client.deliver(message, "alice@bench.test").code, 250)
        self.letters = {path.name: path.read_bytes() for path in self.await_letters("alice", len(MESSAGES))}

    def doveadm(self, *arguments):
        maildir, home = self.server.maildir("alice"), self.server.folder / "dovecot"
        home.mkdir(exist_ok=True)
        owner = maildir.stat()
        os.chown(home, owner.st_uid, owner.st_gid)
        config = self.server.folder / "dovecot.conf"
        import grp
        import pwd

        config.write_text(
            _CONFIG.format(
                home=home, maildir=maildir, uid=owner.st_uid, gid=owner.st_gid,
                user=pwd.getpwuid(owner.st_uid).pw_name, group=grp.getgrgid(owner.st_gid).gr_name,
            )  # fmt: skip
        )
        command = ["doveadm", "-c", str(config), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=60,
            env=os.environ | {"USER": "alice", "HOME": str(home)},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        log = home / "dovecot.log"
        self.assertNotIn("Error", done.stderr + (log.read_text() if log.exists() else ""))
        return done.stdout

    def test_dovecot_finds_every_letter_with_the_sizes_its_name_tells(self):
        table = self.doveadm("-f", "tab", "fetch", "size.physical size.virtual", "mailbox", "INBOX", "all")
        found = sorted(tuple(map(int, line.split("\t"))) for line in table.splitlines()[1:])
        crlf = [content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for content in self.letters.values()]
        self.assertEqual(found, sorted((len(a), len(b)) for a, b in zip(self.letters.values(), crlf)))
        # The sizes came from the names; with the names hidden from it, Dovecot must read the same from the bytes.
        names = [dict(part.split("=") for part in name.split(",")[1:]) for name in self.letters]
        self.assertEqual(found, sorted((int(name["S"]), int(name["W"])) for name in names))

    def test_dovecot_reads_the_body_that_was_sent(self):
        text = self.doveadm("fetch", "text", "mailbox", "INBOX", "header", "subject", "dots")
        self.assertIn("\n.\n..\n.x\n", text.replace("\r\n", "\n"))


if __name__ == "__main__":
    unittest.main()
