"""Maildir quotas: replies to clients, deferred and bounced mail, and the same counts as Dovecot.

    at RCPT        452 or 552 if the mailbox has no space for the declared size
    at delivery    accepted mail waits until there is space, or bounces
    maildirsize    is trusted, recounted, and written as Dovecot does
"""

import grp
import os
import pwd
import subprocess
import unittest

from harness import Client, await_messages, await_that, mail_files
from outbound import OutboundCase, await_event, mail_events, metrics, text_message
from test_dovecot import CONFIG
from test_reload import edit, reload

MAILDIR = 'type = "maildir"\n'
DOVECOT = CONFIG + """\
mail_plugins = quota
plugin {{
  quota = maildir:User quota
  quota_rule = *:bytes={octets}:messages={messages}
}}
"""


class Quotas(OutboundCase):
    """A server with a quota for each test."""

    def serve(self, quota, extra="", **settings):
        """A server whose Maildirs have these additional settings."""
        server = self.configure(extra=extra, **settings)
        text = server.config.read_text()
        server.config.write_text(text.replace(MAILDIR, f"{MAILDIR}{quota}\n", 1))
        server.start()
        return server

    def rcpt(self, server, user, size=""):
        """The reply to RCPT, or to MAIL if that is refused."""
        with Client(server.port) as client:
            client.greet()
            assert client.say(f"MAIL FROM:<sender@client.test>{size and f' SIZE={size}'}").code == 250
            return client.say(f"RCPT TO:<{user}@bench.test>")

    def await_reply(self, server, code, user, size=""):
        """Waits for this reply to RCPT: an earlier result is cached for some seconds."""

        def told():
            reply = self.rcpt(server, user, size)
            return reply if reply.code == code else None

        return await_that(told, f"{code} for {user}", server)

    def maildirsize(self, server, user):
        return server.maildir(user) / "maildirsize"

    def write_maildirsize(self, server, user, text):
        """Writes the file as another program of the same user would."""
        path = self.maildirsize(server, user)
        path.write_text(text)
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)

    def sum_of(self, server, user):
        """(bytes, messages) according to the file."""
        lines = self.maildirsize(server, user).read_text().splitlines()[1:]
        return tuple(map(sum, zip(*(map(int, line.split()) for line in lines), strict=True)))

    def held(self, server, user):
        """(bytes, messages) of the files."""
        sizes = [path.stat().st_size for part in ("new", "cur") for path in (server.maildir(user) / part).iterdir()]
        return sum(sizes), len(sizes)

    def test_a_reload_applies_a_new_quota_and_refuses_one_without_its_table(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        self.assertEqual(self.rcpt(server, "bob", 5000).code, 452)
        edit(server, 'bytes = "4KiB"', 'bytes = "8KiB"')
        ended = reload(server)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(self.rcpt(server, "bob", 5000).code, 250)
        self.assertEqual(self.rcpt(server, "bob", 9000).code, 452)
        edit(server, 'quota = { bytes = "8KiB" }', 'quota_table = "nowhere"')
        self.assertIn("nowhere", reload(server).stderr)
        self.assertEqual(self.rcpt(server, "bob", 9000).code, 452)
        edit(server, 'quota_table = "nowhere"\n', "")
        self.assertEqual(reload(server).returncode, 0)
        self.assertEqual(self.rcpt(server, "bob", 9000).code, 250)

    def test_a_message_that_does_not_fit_is_refused_by_its_declared_size(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        reply = self.rcpt(server, "bob", 5000)
        self.assertEqual(str(reply), "452 4.2.2 <bob@bench.test>: Mailbox full")
        self.assertEqual(self.rcpt(server, "bob", 1000).code, 250)
        self.assertEqual(self.rcpt(server, "bob").code, 250)
        self.assertEqual(metrics(server)['mailrace_refusals_total{want="mailbox"}'], 1)

    def test_a_mailbox_is_full_by_bytes_until_its_user_deletes_mail(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        self.send(server, "bob@bench.test", mail="SIZE=200")
        self.send(server, "bob@bench.test", message=text_message(body=("x" * 70 + "\r\n") * 40))
        first, second = await_messages(server, "bob", 2)
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))
        self.await_reply(server, 452, "bob", 3000)
        large = max(first, second, key=lambda path: path.stat().st_size)
        size = large.stat().st_size
        large.unlink()
        with open(self.maildirsize(server, "bob"), "a") as file:
            file.write(f"-{size} -1\n")
        self.await_reply(server, 250, "bob", 3000)

    def test_a_mailbox_is_full_by_messages_and_refuses_permanently_if_configured(self):
        server = self.serve('quota = { messages = 2 }\nquota_full = "refuse"')
        for _ in range(2):
            self.send(server, "bob@bench.test")
        await_messages(server, "bob", 2)
        self.assertEqual(self.await_reply(server, 552, "bob").text, "5.2.2 <bob@bench.test>: Mailbox full")
        self.assertEqual(self.rcpt(server, "alice").code, 250)
        argv = [str(server.binary), "explain", "bob@bench.test", "--config", str(server.config)]
        told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        octets, _ = self.held(server, "bob")
        self.assertIn(f"  quota: 2C; the mailbox holds {octets} bytes in 2 messages\n", told)

    def test_a_table_has_quotas_of_single_mailboxes(self):
        path = self.folder / "quotas"
        path.write_text("alice@bench.test 1KiB\nbob@bench.test 0\ncarol@bench.test 100000S,1C\n")
        path.chmod(0o644)
        table = f'\n[[table]]\nname = "quotas"\ntype = "text"\npath = "{path}"\n'
        server = self.serve('quota = { bytes = 10000 }\nquota_table = "quotas"', extra=table)
        told = {user: (self.rcpt(server, user, 2000).code, self.rcpt(server, user, 50000).code)
                for user in ("alice", "bob", "carol", "postmaster")}  # fmt: skip
        self.assertEqual(told, {"alice": (452, 452), "bob": (250, 250), "carol": (250, 250), "postmaster": (250, 452)})
        self.send(server, "carol@bench.test")
        self.send(server, "bob@bench.test")
        await_messages(server, "carol", 1)
        self.await_reply(server, 452, "carol")
        await_messages(server, "bob", 1)
        self.assertFalse(self.maildirsize(server, "bob").exists(), "a mailbox without a limit is not counted")
        self.assertTrue(self.maildirsize(server, "carol").read_text().startswith("100000S,1C\n"))

    def test_a_full_mailbox_is_recounted(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        self.send(server, "bob@bench.test")
        await_messages(server, "bob", 1)
        self.write_maildirsize(server, "bob", "4096S\n3000 1\n3000 1\n")
        counted = "4096S\n{} {}\n".format(*self.held(server, "bob"))

        def is_counted():
            return self.rcpt(server, "bob", 3500).code == 250 and self.maildirsize(server, "bob").read_text() == counted

        await_that(is_counted, "the count of the files", server)

    def test_a_recount_is_trusted_for_15_minutes(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        self.send(server, "bob@bench.test")
        await_messages(server, "bob", 1)
        self.write_maildirsize(server, "bob", "4096S\n4096 1\n")
        self.await_reply(server, 452, "bob")
        old = self.maildirsize(server, "bob").stat().st_mtime - 16 * 60
        os.utime(self.maildirsize(server, "bob"), (old, old))
        self.await_reply(server, 250, "bob")

    def test_mail_for_a_full_mailbox_waits_until_there_is_space(self):
        server = self.serve('quota = { bytes = "8KiB" }', retry_first="500ms")
        large = text_message(body=("x" * 70 + "\r\n") * 70)
        self.send(server, "bob@bench.test", message=large)
        (first,) = await_messages(server, "bob", 1)
        # No size is declared, so RCPT is accepted.
        identity = self.send(server, "bob@bench.test", "alice@bench.test", message=large)
        event = await_event(server, "deferred", to="<bob@bench.test>")
        self.assertIn("452 4.2.2", event.reason)
        await_messages(server, "alice", 1)
        size = first.stat().st_size
        first.unlink()
        with open(self.maildirsize(server, "bob"), "a") as file:
            file.write(f"-{size} -1\n")
        (second,) = await_messages(server, "bob", 1)
        self.assertIn(identity, second.name)
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))
        # A smaller message fits.
        self.send(server, "bob@bench.test")
        await_messages(server, "bob", 2)
        server.wait_until_empty(30)

    def test_mail_for_a_full_mailbox_bounces_if_configured(self):
        server = self.serve('quota = { bytes = "4KiB" }\nquota_full = "refuse"')
        self.send(server, "bob@bench.test", message=text_message(body=("x" * 70 + "\r\n") * 70), mail="RET=HDRS")
        event = await_event(server, "bounced", to="<bob@bench.test>")
        self.assertIn("552 5.2.2", event.reason)
        (notice,) = await_messages(server, "alice", 1)
        self.assertIn(b"Status: 5.2.2", notice.read_bytes())
        self.assertEqual(mail_files(server.maildir("bob") / "new"), [])

    def test_without_a_quota_nothing_is_counted(self):
        server = self.serve("")
        self.send(server, "bob@bench.test")
        await_messages(server, "bob", 1)
        self.assertFalse(self.maildirsize(server, "bob").exists())
        self.assertEqual(self.rcpt(server, "bob", 1_000_000).code, 250)

    def test_dovecot_counts_the_same_and_its_deletions_free_space(self):
        octets, messages = 50_000, 4
        server = self.serve(f"quota = {{ bytes = {octets}, messages = {messages} }}")
        for number in range(messages):
            self.send(server, "bob@bench.test", message=text_message(body=("x" * 70 + "\r\n") * 20 * number))
        await_messages(server, "bob", messages)
        self.await_reply(server, 452, "bob")
        doveadm = self.dovecot(server, "bob", octets, messages)
        before = self.maildirsize(server, "bob").read_text()
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))

        used, held = quota(doveadm), self.held(server, "bob")
        self.assertEqual(used, {"STORAGE": (kib(held[0]), kib(octets)), "MESSAGE": (messages, messages)})
        self.assertEqual(self.maildirsize(server, "bob").read_text(), before, "Dovecot found nothing to correct")
        doveadm("quota", "recalc")
        self.assertEqual(self.sum_of(server, "bob"), held)

        doveadm("expunge", "mailbox", "INBOX", "1:2")
        await_that(lambda: self.held(server, "bob")[1] == 2, "two messages fewer", server)
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))
        self.await_reply(server, 250, "bob")
        self.send(server, "bob@bench.test")
        await_that(lambda: self.held(server, "bob")[1] == 3, "one message more", server)
        await_that(lambda: mail_events(server, "delivered", to="<bob@bench.test>")[messages:], "its outcome", server)
        self.assertEqual(quota(doveadm)["MESSAGE"], (3, messages))
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))

    def dovecot(self, server, user, octets, messages):
        """Returns a function that runs doveadm for the user's Maildir."""
        home, maildir = server.folder / "dovecot", server.maildir(user)
        home.mkdir()
        owner = maildir.stat()
        os.chown(home, owner.st_uid, owner.st_gid)
        config = server.folder / "dovecot.conf"
        config.write_text(
            DOVECOT.format(
                home=home, maildir=maildir, uid=owner.st_uid, gid=owner.st_gid, octets=octets, messages=messages,
                user=pwd.getpwuid(owner.st_uid).pw_name, group=grp.getgrgid(owner.st_gid).gr_name,
            )  # fmt: skip
        )

        def doveadm(*arguments):
            environment = os.environ | {"USER": user, "HOME": str(home)}
            argv = ["doveadm", "-c", str(config), "-f", "tab", *arguments]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("Error", done.stderr)
            return done.stdout

        return doveadm


def kib(octets):
    """In KiB, rounded as by Dovecot."""
    return (octets + 1023) // 1024


def quota(doveadm):
    """The usage and limits that Dovecot reports: STORAGE in KiB, and MESSAGE."""
    rows = (line.split("\t") for line in doveadm("quota", "get").splitlines()[1:])
    return {row[1]: (int(row[2]), int(row[3])) for row in rows}


if __name__ == "__main__":
    unittest.main()
