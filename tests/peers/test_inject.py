"""Mail from programs on this machine: the binary by the name of sendmail, the folder where it leaves mail, and the server
that empties it.

    sendmail     what programs say to it, and what comes out at the other end
    sessions     -bs and -bS
    programs     git send-email and mutt
    operators    mailq, newaliases, exit codes
    strangers    an unprivileged user; files that are no messages, or are there to do harm
    endings      a server that does not run, or is killed while it empties the folder
"""

import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import unittest

from harness import Mailrace, await_letters, await_that, folder, letters
from hosts import Host
from names import Names
from peers.mailrace import route

STRANGER = 1  # daemon; the server itself is nobody


class InjectCase(unittest.TestCase):
    """A server of its own, and links to the binary by the old names."""

    SERVER = {"users": ["alice", "bob", "carol", "root", "daemon"]}

    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        self.server = Mailrace(self.folder, **self.SERVER)
        self.addCleanup(self.server.stop)
        for name in ("sendmail", "mailq", "newaliases"):
            (self.folder / name).symlink_to(self.server.binary)

    def start(self):
        self.server.start()
        return self.server

    def call(self, name, *words, text="", code=0, **options):
        """Calls the binary by this name, and returns what it did, after a look at its exit code."""
        argv = [str(self.folder / name), "-C", str(self.server.config), *words]
        data = text.encode() if isinstance(text, str) else text
        done = subprocess.run(argv, input=data, capture_output=True, timeout=60, **options)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return done

    def sendmail(self, *words, **options):
        return self.call("sendmail", *words, **options)

    def letter(self, user="bob", count=1):
        return await_letters(self.server, user, count)[-1].read_bytes()

    @property
    def drop(self):
        return self.server.data / "drop"

    def dropped(self):
        return sorted(self.drop.glob("m-*"))

    def rejected(self):
        return sorted((self.server.data / "drop-rejected").iterdir())


class Sendmail(InjectCase):
    def setUp(self):
        super().setUp()
        self.start()

    def test_a_message_gets_what_it_lacks_and_keeps_what_it_has(self):
        self.sendmail("bob@bench.test", text="Subject:  odd   spaces \n\n.dot\n\xe4\nend\n.\nnot this\n")
        letter = self.letter()
        head, body = letter.split(b"\r\n\r\n", 1)
        self.assertIn(b"\r\nSubject:  odd   spaces ", head)
        self.assertEqual(body, b".dot\r\n\xc3\xa4\r\nend\r\n")
        us = pwd.getpwuid(os.getuid()).pw_name.encode()
        for name in (b"From: %b@bench.test" % us, b"Date: ", b"Message-ID: <"):
            self.assertIn(b"\r\n" + name, head)
        self.assertRegex(head, rb"Received: by mx\.bench\.test \(Mailrace, from userid %d\)" % os.getuid())
        await_that(lambda: not self.dropped(), "an empty folder", self.server)

    def test_recipients_are_taken_from_the_header_and_some_stay_unseen(self):
        text = "To: Bob <bob@bench.test>,\n \"x, y\" <alice@bench.test>\nBcc: carol@bench.test\nFrom: me@x.test\n\nx\n"
        self.sendmail("-t", "root@bench.test", text=text)
        for user in ("alice", "bob", "carol", "root"):
            letter = self.letter(user)
            self.assertNotIn(b"carol", letter.split(b"Received: by", 1)[1].split(b";", 1)[1])
            self.assertNotIn(b"Bcc", letter)
            self.assertEqual(letter.count(b"From: "), 1)

    def test_cron_speaks_to_it(self):
        text = "From: root (Cron Daemon)\nTo: root\nSubject: Cron <root@host> true\n\nout\n.\nput\n"
        self.sendmail("-FCronDaemon", "-i", "-odi", "-oem", "-oi", "-t", "-f", "root", text=text)
        letter = self.letter("root")
        self.assertTrue(letter.endswith(b"out\r\n.\r\nput\r\n"), letter)
        self.assertTrue(letter.startswith(b"Return-Path: <root@bench.test>\r\n"), letter)

    def test_whoever_is_not_here_is_told_of_to_the_sender_and_the_others_get_it(self):
        self.sendmail("-f", "alice@bench.test", "no-such-user@bench.test", "bob", text="Subject: x\n\nx\n")
        self.letter("bob")
        notice = self.letter("alice")
        self.assertIn(b"no-such-user@bench.test", notice)
        self.assertIn(b"Status: 5.1.1", notice)

    def test_what_nobody_gets_and_nobody_is_told_of_is_set_aside(self):
        self.sendmail("-f", "no-such-user@bench.test", "neither@bench.test", text="Subject: x\n\nx\n")
        await_that(lambda: len(self.rejected()) == 1, "it set aside", self.server)
        self.assertIn(b"\r\nSubject: x\r\n", self.rejected()[0].read_bytes())
        self.assertIn("nobody is told: <neither@bench.test>", self.server.log.read_text())

    def test_a_forgotten_comma_loses_nobody_and_a_return_makes_no_field(self):
        text = b"To: Bob <bob@bench.test> Alice <alice@bench.test>\nSubject: hi\rBcc: carol@bench.test\n\nx\n"
        self.sendmail("-t", text=text)
        for user in ("alice", "bob"):
            self.assertIn(b"\r\nSubject: hi Bcc: carol@bench.test\r\n", self.letter(user))
        self.assertEqual(letters(self.server.maildir("carol") / "new"), [])
        self.sendmail("-t", text="To: Bob <bob@bench.test> Alice\n\nx\n", code=65)

    def test_a_message_that_is_too_large_is_refused_whole(self):
        text = b"Subject: x\n\n" + b"x" * 70 + b"\n"
        done = self.sendmail("bob", text=text * 800_000, code=65)
        self.assertIn(b"limits.message", done.stderr)
        self.assertEqual(self.dropped(), [])

    def test_a_large_message_comes_whole(self):
        line = b"y" * 70 + b"\n"
        self.sendmail("bob", text=b"Subject: x\n\n" + line * 60_000)
        self.assertTrue(self.letter().endswith(line.replace(b"\n", b"\r\n") * 60_000))

    def test_many_messages_of_a_mailbox_and_of_a_maildir(self):
        mbox = self.folder / "mbox"
        one = "From x Mon\nTo: {}@bench.test\nSubject: {}\n\n>From here\n\n"
        mbox.write_text(one.format("bob", 1) + one.format("alice", 2) + "From x\nSubject: nobody\n\nx\n")
        binary = [str(self.server.binary), "inject", "--config", str(self.server.config)]
        done = subprocess.run([*binary, "--mbox", str(mbox)], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (65, b"2 accepted, 1 failed\n"), done.stderr)
        self.assertIn(b"message 3: no recipient", done.stderr)
        self.assertTrue(self.letter("bob").endswith(b"\r\n\r\nFrom here\r\n"))
        for name in ("new/1", "cur/2:2,S"):
            path = self.folder / "md" / name
            path.parent.mkdir(parents=True)
            path.write_text("Subject: x\n\nx\n")
        done = subprocess.run([*binary, "--folder", str(self.folder / "md"), "carol"], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, b"2 accepted, 0 failed\n"), done.stderr)
        await_letters(self.server, "carol", 2)


class Bounds(InjectCase):
    SERVER = {
        "users": ["alice", "bob", "carol"],
        "aliases": "patterns",
        "limits": "recipients = 2\nexpanded_recipients = 2\n",
    }

    def setUp(self):
        place = folder()
        self.addCleanup(place.cleanup)
        patterns = pathlib.Path(place.name) / "patterns"
        patterns.write_text(
            "/^all@bench\\.test$/ alice@bench.test, bob@bench.test, carol@bench.test\n"
            "/^postmaster@bench\\.test$/ loop@bench.test\n/^loop@bench\\.test$/ postmaster@bench.test\n"
        )
        patterns.chmod(0o644)
        table = f'\n[[table]]\nname = "patterns"\ntype = "regexp"\npath = "{patterns}"\n'
        self.SERVER = self.SERVER | {"extra": table + '\n[bounce]\nper_sender = "2/h"\n'}
        super().setUp()
        self.start()

    def test_too_many_behind_an_alias_are_told_of_to_the_sender(self):
        self.sendmail("-f", "alice@bench.test", "all@bench.test", "bob@bench.test", text="Subject: x\n\nx\n")
        self.assertIn(b"Status: 5.5.3", self.letter("alice"))
        self.assertIn(b"\r\nSubject: x\r\n", self.letter("bob"))
        self.assertEqual(self.rejected(), [])

    def test_the_postmaster_gets_his_mail_where_his_aliases_lead_nowhere(self):
        self.sendmail("-f", "alice@bench.test", "postmaster@bench.test", text="Subject: x\n\nx\n")
        self.assertIn(b"\r\nSubject: x\r\n", self.letter("postmaster"))
        verified = self.sendmail("-bv", "postmaster@mx.bench.test").stdout
        self.assertIn(b": deliverable: postmaster@bench.test: mailbox here", verified)

    def test_the_postmaster_of_this_host_is_told_like_every_other_sender(self):
        self.sendmail("-f", "postmaster@mx.bench.test", "no-such-user@bench.test", text="Subject: x\n\nx\n")
        self.assertIn(b"Status: 5.1.1", self.letter("postmaster"))

    def test_a_user_of_this_machine_is_told_of_every_failure(self):
        for _ in range(3):
            self.sendmail("-f", "alice@bench.test", "no-such-user@bench.test", text="Subject: x\n\nx\n")
        await_letters(self.server, "alice", 3)
        await_that(lambda: self.dropped() == [], "an empty drop", self.server)
        self.assertEqual(self.rejected(), [])


class Nul(InjectCase):
    """What is done about a NUL is the same as for clients."""

    def test_a_nul_is_stripped_from_a_message(self):
        self.server.config.write_text(self.server.config.read_text() + '\n[smtp]\nnul = "strip"\n')
        self.start()
        self.sendmail("bob@bench.test", text="Subject: x\n\na\0b\n\0.c\n")
        self.assertTrue(self.letter().endswith(b"\r\n\r\nab\r\n.c\r\n"))

    def test_a_message_with_a_nul_is_returned_to_its_sender(self):
        self.server.config.write_text(self.server.config.read_text() + '\n[smtp]\nnul = "refuse"\n')
        self.start()
        self.sendmail("-f", "alice@bench.test", "bob@bench.test", text="Subject: x\n\na\0b\n")
        notice = self.letter("alice")
        self.assertIn(b"The message contains NUL", notice)
        self.assertIn(b"\r\n\r\nab\r\n", notice)
        self.assertNotIn(b"\0", notice)


class Sessions(InjectCase):
    def setUp(self):
        super().setUp()
        self.start()

    def test_smtp_on_the_standard_input(self):
        commands = "EHLO me\r\nMAIL FROM:<alice@bench.test>\r\nRCPT TO:<bob@bench.test>\r\nDATA\r\nSubject: x\r\n\r\n..x\r\n.\r\nQUIT\r\n"
        done = self.sendmail("-bs", text=commands)
        self.assertEqual([line[:3] for line in done.stdout.splitlines() if line[3:4] == b" "],
                         [b"220", b"250", b"250", b"250", b"354", b"250", b"221"])  # fmt: skip
        self.assertTrue(self.letter().endswith(b"\r\n\r\n.x\r\n"))

    def test_a_batch_that_ends_too_early(self):
        done = self.sendmail("-bS", text="MAIL FROM:<a@b>\nRCPT TO:<bob@bench.test>\nDATA\nSubject: x\n", code=65)
        self.assertIn(b"the input ends within a message", done.stderr)

    def test_a_batch_of_commands(self):
        batch = "MAIL FROM:<alice@bench.test>\nRCPT TO:<bob@bench.test>\nRCPT TO:<@>\nDATA\nSubject: x\n\nx\n.\n"
        done = self.sendmail("-bS", text=batch, code=65)
        self.assertEqual(done.stdout, b"")
        self.assertIn(b"RCPT", done.stderr)
        self.letter()


class Programs(InjectCase):
    def setUp(self):
        super().setUp()
        self.start()
        # Programs can be told to call it with more words.
        self.command = f"{self.folder / 'sendmail'} -C {self.server.config}"
        self.environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "EMAIL": "alice@bench.test",
                            "GIT_AUTHOR_NAME": "Alice", "GIT_COMMITTER_NAME": "Alice"}  # fmt: skip

    def program(self, *argv, text=b""):
        done = subprocess.run(argv, input=text, capture_output=True, timeout=60, cwd=self.folder, env=self.environment)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr).decode())

    @unittest.skipUnless(pathlib.Path("/usr/lib/git-core/git-send-email").exists(), "git-email is not installed")
    def test_git_sends_a_patch(self):
        patch = self.folder / "0001-x.patch"
        patch.write_text("From 0123 Mon Sep 17 00:00:00 2001\nFrom: Alice <alice@bench.test>\nSubject: [PATCH] x\n\n---\n")
        self.program("git", "init", "-q")
        self.program("git", "send-email", "--quiet", "--confirm=never", "--from=alice@bench.test", "--to=bob@bench.test",
                     f"--sendmail-cmd={self.command}", str(patch))  # fmt: skip
        self.assertIn(b"Subject: [PATCH] x", self.letter())

    @unittest.skipUnless(shutil.which("mutt"), "mutt is not installed")
    def test_mutt_sends_a_letter(self):
        self.program("mutt", "-e", f'set sendmail="{self.command} -oem -oi"', "-e", "set copy=no",
                     "-s", "hello", "bob@bench.test", text=b"line\n.\nend\n")  # fmt: skip
        self.assertTrue(self.letter().replace(b"\r\n", b"\n").endswith(b"line\n.\nend\n"))


class Operators(InjectCase):
    def test_the_queue_is_listed_as_it_always_was(self):
        self.start()
        self.assertEqual(self.call("mailq").stdout, b"Mail queue is empty\n")
        self.server._queue("pause", "local")
        self.sendmail("-f", "alice@bench.test", "bob@bench.test", text="Subject: x\n\nx\n")
        await_that(lambda: self.server.queued() == 1, "one in the queue", self.server)
        for listed in (self.call("mailq").stdout, self.sendmail("-bp").stdout):
            self.assertIn(b"  alice@bench.test\n", listed)
            self.assertIn(b" bob@bench.test\n", listed)
            self.assertIn(b"in 1 Request.", listed)

    def test_the_queue_is_run_at_once(self):
        host = Host(script={"RCPT": "450 4.2.1 later"})
        self.addCleanup(host.stop)
        with open(self.server.config, "a") as config:
            config.write(route("one.test", f"[127.0.0.1]:{host.port}") + route("two.test", f"[127.0.0.1]:{host.port}"))
        self.start()
        self.sendmail("-f", "alice@bench.test", "bob@one.test", "carol@two.test", text="Subject: x\n\nx\n")
        await_that(lambda: self.waiting() == 2, "two that wait", self.server)
        host.script.clear()
        self.assertIn(b"1 to be retried now", self.sendmail("-qRone.test", "-v").stderr)
        await_that(lambda: self.server.queued() == 1, "one in the queue", self.server)
        self.assertIn(b"recipients are not allowed with -q", self.sendmail("-q", "bob", code=64).stderr)
        done = self.sendmail("-q")
        self.assertEqual((done.stdout, done.stderr), (b"", b""))
        await_that(lambda: self.server.queued() == 0, "an empty queue", self.server)
        self.server.terminate()
        self.assertIn(b"cannot connect to the server at", self.sendmail("-q", code=69).stderr)

    def waiting(self):
        return int(self.server._queue("list", "--count", "--state", "waiting"))

    def test_addresses_are_verified(self):
        names = Names()
        self.addCleanup(names.stop)
        names.null_mx("takes-none.test")
        names.silent.add("silent.test")
        with open(self.server.config, "a") as config:
            config.write(route("one.test", "[127.0.0.1]:25"))
            config.write(f'\n[dns]\nservers = ["{names.target}"]\ntimeout = "1s"\nattempts = 1\n')
        self.start()
        good = self.sendmail("-bv", "bob", "Bob <bob@one.test>")
        self.assertEqual(good.stdout.decode().splitlines(), [
            "bob@bench.test: deliverable: bob@bench.test: local mailbox, transport maildir",
            "bob@one.test: deliverable: bob@one.test: to smtp:127.0.0.1:25, transport smtp",
        ])  # fmt: skip
        bad = self.sendmail("-bv", "nobody@bench.test", "bob@takes-none.test", "bob@bench.test", code=2).stdout
        self.assertIn(b"nobody@bench.test: undeliverable: unknown: ", bad)
        self.assertIn(b"bob@takes-none.test: undeliverable: bob@takes-none.test: 5", bad)
        self.assertIn(b"bob@bench.test: deliverable: ", bad)
        unsure = self.sendmail("-bv", "bob@bench.test", "eve@silent.test", code=1)
        self.assertIn(b"eve@silent.test: unknown now: ", unsure.stdout)
        self.assertEqual(self.dropped(), [])

    def test_aliases_need_nothing(self):
        self.assertIn(b"table build", self.call("newaliases").stdout)

    @unittest.skipIf(pathlib.Path("/etc/mailrace/mailrace.toml").exists(), "there is a configuration of this machine")
    def test_a_configuration_in_the_working_folder_is_not_looked_at(self):
        self.start()
        shutil.copy(self.server.config, self.folder / "mailrace.toml")
        for argv in (["sendmail", "bob"], ["mailq"], ["sendmail", "-bs"]):
            done = subprocess.run([str(self.folder / argv[0]), *argv[1:]], input=b"x\n", capture_output=True,
                                  cwd=self.folder, timeout=60)  # fmt: skip
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertIn(b"/etc/mailrace/mailrace.toml", done.stderr)
        self.assertEqual(self.dropped(), [])

    def test_what_is_wrong_is_told_by_the_exit_code(self):
        self.assertIn(b"unknown option -Z", self.sendmail("-Z", code=64).stderr)
        self.assertIn(b"mailrace serve", self.sendmail("-bd", code=64).stderr)
        self.assertIn(b"no recipients", self.sendmail(code=64).stderr)
        self.assertIn(b"not an address", self.sendmail("a b@c", text="x\n", code=65).stderr)
        self.assertIn(b"no recipient in the header", self.sendmail("-t", text="Subject: x\n\n", code=65).stderr)
        shutil.rmtree(self.server.data)
        self.server.data.write_text("no folder")
        self.assertIn(b"not accepted", self.sendmail("bob", text="x\n", code=75).stderr)


@unittest.skipUnless(os.getuid() == 0, "becomes another user")
class Strangers(InjectCase):
    def setUp(self):
        super().setUp()
        # The way to the binary may be closed to others, as it is below /root.
        for name in ("sendmail", "mailq"):
            (self.folder / name).unlink()
            shutil.copy(self.server.binary, self.folder / name)
        self.start()
        self.server.config.chmod(0o644)

    def as_stranger(self, *words, **options):
        return self.sendmail(*words, user=STRANGER, group=STRANGER, extra_groups=[], **options)

    def touch_as_stranger(self, script, *words):
        done = subprocess.run(["sh", "-c", script, "sh", *words], user=STRANGER, group=STRANGER, extra_groups=[],
                              cwd=self.folder, capture_output=True, timeout=60)  # fmt: skip
        return done.returncode

    def test_any_user_may_leave_mail_and_is_named_in_it(self):
        self.as_stranger("bob", text="Subject: x\n\nx\n")
        letter = self.letter()
        self.assertIn(b"from userid 1)", letter)
        self.assertIn(b"From: daemon@bench.test\r\n", letter)

    def test_no_user_may_see_or_run_the_queue(self):
        for words in (["-q"], ["-bp"], ["-bv", "bob"]):
            done = self.as_stranger(*words, code=77)
            self.assertIn(b"only the server's user and root", done.stderr)

    def test_nobody_sees_what_others_left(self):
        self.server.terminate()
        self.sendmail("bob", text="x\n")
        [name] = self.dropped()
        self.assertNotEqual(self.touch_as_stranger('ls "$1"', str(self.drop)), 0)
        self.assertNotEqual(self.touch_as_stranger('rm "$1"', str(name)), 0)
        self.assertNotEqual(self.touch_as_stranger('echo x >> "$1"', str(name)), 0)

    def test_a_user_who_may_not_read_the_configuration_is_told(self):
        self.server.config.chmod(0o600)
        self.assertIn(b"reading the configuration", self.as_stranger("bob", text="x\n", code=77).stderr)

    def test_a_user_who_may_not_reach_the_folder_is_told(self):
        self.server.data.chmod(0o700)
        self.assertIn(b"mode 711", self.as_stranger("bob", text="x\n", code=75).stderr)

    def test_a_user_cannot_make_the_folder_and_is_told_who_does(self):
        self.server.terminate()
        shutil.rmtree(self.drop)
        self.assertIn(b"drop folder missing", self.as_stranger("bob", text="x\n", code=75).stderr)

    def test_what_cannot_be_removed_is_not_delivered_again(self):
        owner = self.drop.stat()
        os.chown(self.drop, 0, 0)
        self.drop.chmod(0o1777)  # of what lies there the server may read all, and remove only its own
        self.sendmail("bob", text="Subject: first\n\nx\n")
        await_letters(self.server, "bob", 1)
        for number in range(2, 4):
            self.sendmail("bob", text="Subject: another\n\nx\n")
            await_letters(self.server, "bob", number)
        self.assertEqual(len(self.dropped()), 3)
        os.chown(self.drop, owner.st_uid, owner.st_gid)
        await_that(lambda: not self.dropped(), "an empty folder", self.server)
        self.sendmail("bob", text="Subject: last\n\nx\n")
        await_that(lambda: any(b"Subject: last" in path.read_bytes() for path in letters(self.server.maildir("bob") / "new")),
                   "the last", self.server)  # fmt: skip
        self.assertEqual(len(letters(self.server.maildir("bob") / "new")), 4)

    def test_what_is_no_message_does_no_harm_and_is_set_aside(self):
        secret = "0123456789abcdef0123456789abcdef"
        (self.folder / "secret").write_text("of root")
        names = [f"m-{number:016x}-{secret}" for number in range(6)]
        link, pipe, torn, inner, hard, big = (str(self.drop / name) for name in names)
        plain = self.folder / "plain"
        plain.write_text("mailrace drop 1 00000000 0\n")
        aside = self.server.data / "aside"  # on the same file system
        aside.write_text("x")
        os.link(aside, hard)
        for script, path in [('ln -s /etc/passwd "$1"', link), ('mkfifo "$1"', pipe), ('mkdir "$1"', inner),
                             ('printf "mailrace drop 1 00000000 3\\nxyz" > "$1"', torn),
                             ('truncate -s 90G "$1"', big),
                             ('echo x > "$1"', str(self.drop / "\n\x1b[31m")), ('touch "$1"', str(self.drop / ".x"))]:  # fmt: skip
            self.assertEqual(self.touch_as_stranger(script, path), 0, script)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.drop / "s"))
        self.as_stranger("bob", text="Subject: after all that\n\nx\n")
        self.letter("bob")
        await_that(lambda: len(self.rejected()) >= 8, "all but the folder set aside", self.server)
        left = {path.name for path in self.drop.iterdir()} - {pathlib.Path(inner).name}
        self.assertEqual(left, set(), self.server.log_tail())
        self.assertEqual(aside.read_text(), "x")
        log = self.server.log.read_text()
        self.assertIn("set aside", log)
        self.assertNotIn("\x1b", log)
        self.assertIsNone(self.server.process.poll())


class Endings(InjectCase):
    def leave(self, count, first=0):
        for number in range(first, first + count):
            self.sendmail("bob@bench.test", text=f"Subject: {number}\n\nx\n")

    def subjects(self):
        found = letters(self.server.maildir("bob") / "new")
        return {line for path in found for line in path.read_bytes().split(b"\r\n") if line.startswith(b"Subject: ")}

    def test_what_was_left_while_it_did_not_run_is_delivered_when_it_does(self):
        self.start()
        self.server.terminate()
        told = self.sendmail("-v", "bob@bench.test", text="Subject: first\n\nx\n").stderr
        self.assertIn(b"is not running", told)
        self.leave(20)
        self.assertEqual(len(self.dropped()), 21)
        self.start()
        await_letters(self.server, "bob", 21)
        self.assertEqual(len(self.subjects()), 21)
        self.assertEqual(self.dropped(), [])

    def test_what_was_left_before_the_first_start_is_delivered_at_it(self):
        self.leave(3)
        self.assertEqual(len(self.dropped()), 3)
        self.start()
        await_letters(self.server, "bob", 3)
        self.leave(1, first=3)
        await_letters(self.server, "bob", 4)
        self.assertEqual(self.dropped(), [])

    def test_nothing_is_left_in_a_folder_that_is_not_the_servers(self):
        """It may be a mount point whose disk comes later: what is in it would be gone."""
        os.chown(self.server.data, 0, 0)
        told = self.sendmail("bob@bench.test", text="Subject: x\n\nx\n", code=75).stderr
        self.assertIn(b"drop folder missing", told)
        self.assertEqual(list(self.server.data.iterdir()), [])

    def test_none_is_lost_when_the_server_is_killed_in_the_middle(self):
        self.start()
        self.server.terminate()
        self.leave(60)
        for left in (50, 35, 15):
            self.start()
            await_that(lambda left=left: len(self.dropped()) <= left, "some taken", self.server)
            self.server.process.send_signal(signal.SIGKILL)
            self.server.process.wait()
        self.start()
        await_that(lambda: len(self.subjects()) == 60, "all of them", self.server)
        await_that(lambda: not self.dropped(), "an empty folder", self.server)


if __name__ == "__main__":
    unittest.main()
