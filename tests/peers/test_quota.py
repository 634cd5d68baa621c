"""Quotas of Maildirs: clients are told, mail waits or fails, and Dovecot counts the same.

    at RCPT        452 or 552 when the mailbox has no room for what the client declares
    at delivery    mail that was taken waits until there is room, or fails
    maildirsize    what it says is believed, counted anew, and written as Dovecot reads and writes it
"""

import grp
import os
import pwd
import subprocess
import unittest

from harness import Client, await_letters, await_that, letters
from outbound import OutboundCase, await_fact, facts, metrics, text_message
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
    """One server with a quota, for each test."""

    def serve(self, quota, extra="", **settings):
        """A server whose Maildirs have these settings beside the usual."""
        server = self.configure(extra=extra, **settings)
        text = server.config.read_text()
        server.config.write_text(text.replace(MAILDIR, f"{MAILDIR}{quota}\n", 1))
        server.start()
        return server

    def rcpt(self, server, user, size=""):
        """The reply to RCPT, and to MAIL where that is refused."""
        with Client(server.port) as client:
            client.greet()
            assert client.say(f"MAIL FROM:<sender@client.test>{size and f' SIZE={size}'}").code == 250
            return client.say(f"RCPT TO:<{user}@bench.test>")

    def await_reply(self, server, code, user, size=""):
        """Waits until that is the reply to RCPT: what was found out before counts for some seconds."""

        def told():
            reply = self.rcpt(server, user, size)
            return reply if reply.code == code else None

        return await_that(told, f"{code} for {user}", server)

    def maildirsize(self, server, user):
        return server.maildir(user) / "maildirsize"

    def write_maildirsize(self, server, user, text):
        """As another program of the same user would."""
        path = self.maildirsize(server, user)
        path.write_text(text)
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)

    def sum_of(self, server, user):
        """(bytes, messages) by the file."""
        lines = self.maildirsize(server, user).read_text().splitlines()[1:]
        return tuple(map(sum, zip(*(map(int, line.split()) for line in lines), strict=True)))

    def held(self, server, user):
        """(bytes, messages) of the files."""
        sizes = [path.stat().st_size for part in ("new", "cur") for path in (server.maildir(user) / part).iterdir()]
        return sum(sizes), len(sizes)

    def test_another_quota_is_taken_up_by_a_reload_and_one_without_its_table_is_not(self):
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

    def test_a_mailbox_is_full_by_bytes_and_has_room_again_when_its_user_deletes(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        self.send(server, "bob@bench.test", mail="SIZE=200")
        self.send(server, "bob@bench.test", message=text_message(body=("x" * 70 + "\r\n") * 40))
        first, second = await_letters(server, "bob", 2)
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))
        self.await_reply(server, 452, "bob", 3000)
        large = max(first, second, key=lambda path: path.stat().st_size)
        size = large.stat().st_size
        large.unlink()
        with open(self.maildirsize(server, "bob"), "a") as file:
            file.write(f"-{size} -1\n")
        self.await_reply(server, 250, "bob", 3000)

    def test_a_mailbox_is_full_by_messages_and_refuses_for_good_where_that_is_set(self):
        server = self.serve('quota = { messages = 2 }\nquota_full = "refuse"')
        for _ in range(2):
            self.send(server, "bob@bench.test")
        await_letters(server, "bob", 2)
        self.assertEqual(self.await_reply(server, 552, "bob").text, "5.2.2 <bob@bench.test>: Mailbox full")
        self.assertEqual(self.rcpt(server, "alice").code, 250)
        argv = [str(server.binary), "explain", "bob@bench.test", "--config", str(server.config)]
        told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        octets, _ = self.held(server, "bob")
        self.assertIn(f"  quota: 2C; the mailbox holds {octets} bytes in 2 messages\n", told)

    def test_a_table_says_what_single_mailboxes_may_hold(self):
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
        await_letters(server, "carol", 1)
        self.await_reply(server, 452, "carol")
        await_letters(server, "bob", 1)
        self.assertFalse(self.maildirsize(server, "bob").exists(), "nothing counts a mailbox without a limit")
        self.assertTrue(self.maildirsize(server, "carol").read_text().startswith("100000S,1C\n"))

    def test_what_says_that_there_is_no_room_is_counted_anew(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        self.send(server, "bob@bench.test")
        await_letters(server, "bob", 1)
        self.write_maildirsize(server, "bob", "4096S\n3000 1\n3000 1\n")
        counted = "4096S\n{} {}\n".format(*self.held(server, "bob"))

        def is_counted():
            return self.rcpt(server, "bob", 3500).code == 250 and self.maildirsize(server, "bob").read_text() == counted

        await_that(is_counted, "what the files say", server)

    def test_what_counting_says_is_believed_for_a_quarter_of_an_hour(self):
        server = self.serve('quota = { bytes = "4KiB" }')
        self.send(server, "bob@bench.test")
        await_letters(server, "bob", 1)
        self.write_maildirsize(server, "bob", "4096S\n4096 1\n")
        self.await_reply(server, 452, "bob")
        old = self.maildirsize(server, "bob").stat().st_mtime - 16 * 60
        os.utime(self.maildirsize(server, "bob"), (old, old))
        self.await_reply(server, 250, "bob")

    def test_mail_for_a_full_mailbox_waits_until_there_is_room(self):
        server = self.serve('quota = { bytes = "8KiB" }', retry_first="500ms")
        large = text_message(body=("x" * 70 + "\r\n") * 70)
        self.send(server, "bob@bench.test", message=large)
        (first,) = await_letters(server, "bob", 1)
        # Nothing is declared, so there is room for it by all that is known.
        identity = self.send(server, "bob@bench.test", "alice@bench.test", message=large)
        fact = await_fact(server, "deferred", to="<bob@bench.test>")
        self.assertIn("452 4.2.2", fact.reason)
        await_letters(server, "alice", 1)
        size = first.stat().st_size
        first.unlink()
        with open(self.maildirsize(server, "bob"), "a") as file:
            file.write(f"-{size} -1\n")
        (second,) = await_letters(server, "bob", 1)
        self.assertIn(identity, second.name)
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))
        # A smaller one finds room beside it.
        self.send(server, "bob@bench.test")
        await_letters(server, "bob", 2)
        server.wait_until_empty(30)

    def test_mail_for_a_full_mailbox_fails_where_that_is_set(self):
        server = self.serve('quota = { bytes = "4KiB" }\nquota_full = "refuse"')
        self.send(server, "bob@bench.test", message=text_message(body=("x" * 70 + "\r\n") * 70), mail="RET=HDRS")
        fact = await_fact(server, "bounced", to="<bob@bench.test>")
        self.assertIn("552 5.2.2", fact.reason)
        (notice,) = await_letters(server, "alice", 1)
        self.assertIn(b"Status: 5.2.2", notice.read_bytes())
        self.assertEqual(letters(server.maildir("bob") / "new"), [])

    def test_without_a_quota_nothing_is_counted(self):
        server = self.serve("")
        self.send(server, "bob@bench.test")
        await_letters(server, "bob", 1)
        self.assertFalse(self.maildirsize(server, "bob").exists())
        self.assertEqual(self.rcpt(server, "bob", 1_000_000).code, 250)

    def test_dovecot_counts_the_same_and_what_it_deletes_makes_room(self):
        octets, messages = 50_000, 4
        server = self.serve(f"quota = {{ bytes = {octets}, messages = {messages} }}")
        for number in range(messages):
            self.send(server, "bob@bench.test", message=text_message(body=("x" * 70 + "\r\n") * 20 * number))
        await_letters(server, "bob", messages)
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
        await_that(lambda: self.held(server, "bob")[1] == 2, "two letters fewer", server)
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))
        self.await_reply(server, 250, "bob")
        self.send(server, "bob@bench.test")
        await_that(lambda: self.held(server, "bob")[1] == 3, "one letter more", server)
        await_that(lambda: facts(server, "delivered", to="<bob@bench.test>")[messages:], "its outcome", server)
        self.assertEqual(quota(doveadm)["MESSAGE"], (3, messages))
        self.assertEqual(self.sum_of(server, "bob"), self.held(server, "bob"))

    def dovecot(self, server, user, octets, messages):
        """A way to ask Dovecot about the user's Maildir."""
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
    """As Dovecot rounds them."""
    return (octets + 1023) // 1024


def quota(doveadm):
    """What Dovecot says is used, and may be: by STORAGE, in KiB, and by MESSAGE."""
    rows = (line.split("\t") for line in doveadm("quota", "get").splitlines()[1:])
    return {row[1]: (int(row[2]), int(row[3])) for row in rows}


if __name__ == "__main__":
    unittest.main()
