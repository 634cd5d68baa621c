"""Mail from local programs: the binary as sendmail, the drop folder, and the server that scans it.

    sendmail     its options and input, and the delivered message
    sessions     -bs and -bS
    programs     git send-email and mutt
    operators    mailq, newaliases, exit codes
    strangers    an unprivileged user; invalid and malicious files
    endings      a server that is down, or killed while it scans the folder
"""

import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import unittest

from harness import Mailrace, await_messages, await_that, folder, mail_files
from hosts import Host
from name_server import NameServer
from peers.mailrace import route
from test_reload import reload

STRANGER = 1  # daemon; the server itself is nobody


class InjectCase(unittest.TestCase):
    """A server, and links to the binary with the traditional names."""

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
        """Runs the binary under this name and checks its exit code."""
        argv = [str(self.folder / name), "-C", str(self.server.config), *words]
        data = text.encode() if isinstance(text, str) else text
        done = subprocess.run(argv, input=data, capture_output=True, timeout=60, **options)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return done

    def sendmail(self, *words, **options):
        return self.call("sendmail", *words, **options)

    def delivered(self, user="bob", count=1):
        return await_messages(self.server, user, count)[-1].read_bytes()

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

    def test_missing_header_fields_are_added_and_others_kept(self):
        self.sendmail("bob@bench.test", text="Subject:  odd   spaces \n\n.dot\n\xe4\nend\n.\nnot this\n")
        received = self.delivered()
        head, body = received.split(b"\r\n\r\n", 1)
        self.assertIn(b"\r\nSubject:  odd   spaces ", head)
        self.assertEqual(body, b".dot\r\n\xc3\xa4\r\nend\r\n")
        us = pwd.getpwuid(os.getuid()).pw_name.encode()
        for name in (b"From: %b@bench.test" % us, b"Date: ", b"Message-ID: <"):
            self.assertIn(b"\r\n" + name, head)
        self.assertRegex(head, rb"Received: by mx\.bench\.test \(Mailrace, from userid %d\)" % os.getuid())
        await_that(lambda: not self.dropped(), "an empty folder", self.server)

    def test_recipients_are_taken_from_the_header_and_bcc_is_removed(self):
        text = "To: Bob <bob@bench.test>,\n \"x, y\" <alice@bench.test>\nBcc: carol@bench.test\nFrom: me@x.test\n\nx\n"
        self.sendmail("-t", "root@bench.test", text=text)
        for user in ("alice", "bob", "carol", "root"):
            received = self.delivered(user)
            self.assertNotIn(b"carol", received.split(b"Received: by", 1)[1].split(b";", 1)[1])
            self.assertNotIn(b"Bcc", received)
            self.assertEqual(received.count(b"From: "), 1)

    def test_mail_of_cron_is_delivered(self):
        text = "From: root (Cron Daemon)\nTo: root\nSubject: Cron <root@host> true\n\nout\n.\nput\n"
        self.sendmail("-FCronDaemon", "-i", "-odi", "-oem", "-oi", "-t", "-f", "root", text=text)
        received = self.delivered("root")
        self.assertTrue(received.endswith(b"out\r\n.\r\nput\r\n"), received)
        self.assertTrue(received.startswith(b"Return-Path: <root@bench.test>\r\n"), received)

    def test_an_unknown_recipient_bounces_and_the_others_get_the_message(self):
        self.sendmail("-f", "alice@bench.test", "no-such-user@bench.test", "bob", text="Subject: x\n\nx\n")
        self.delivered("bob")
        notice = self.delivered("alice")
        self.assertIn(b"no-such-user@bench.test", notice)
        self.assertIn(b"Status: 5.1.1", notice)

    def test_a_message_without_valid_recipient_and_sender_is_set_aside(self):
        self.sendmail("-f", "no-such-user@bench.test", "neither@bench.test", text="Subject: x\n\nx\n")
        await_that(lambda: len(self.rejected()) == 1, "it set aside", self.server)
        self.assertIn(b"\r\nSubject: x\r\n", self.rejected()[0].read_bytes())
        line = "no valid recipient, and no notice can be sent: <neither@bench.test>"
        await_that(lambda: line in self.server.log.read_text(), "it is in the log", self.server)

    def test_a_missing_comma_loses_no_recipient_and_a_cr_starts_no_field(self):
        text = b"To: Bob <bob@bench.test> Alice <alice@bench.test>\nSubject: hi\rBcc: carol@bench.test\n\nx\n"
        self.sendmail("-t", text=text)
        for user in ("alice", "bob"):
            self.assertIn(b"\r\nSubject: hi Bcc: carol@bench.test\r\n", self.delivered(user))
        self.assertEqual(mail_files(self.server.maildir("carol") / "new"), [])
        self.sendmail("-t", text="To: Bob <bob@bench.test> Alice\n\nx\n", code=65)

    def test_a_message_that_is_too_large_is_refused(self):
        text = b"Subject: x\n\n" + b"x" * 70 + b"\n"
        done = self.sendmail("bob", text=text * 800_000, code=65)
        self.assertIn(b"limits.message", done.stderr)
        self.assertEqual(self.dropped(), [])

    def test_a_large_message_is_delivered_completely(self):
        line = b"y" * 70 + b"\n"
        self.sendmail("bob", text=b"Subject: x\n\n" + line * 60_000)
        self.assertTrue(self.delivered().endswith(line.replace(b"\n", b"\r\n") * 60_000))

    def test_many_messages_of_a_mailbox_and_of_a_maildir(self):
        mbox = self.folder / "mbox"
        one = "From x Mon\nTo: {}@bench.test\nSubject: {}\n\n>From here\n\n"
        mbox.write_text(one.format("bob", 1) + one.format("alice", 2) + "From x\nSubject: nobody\n\nx\n")
        binary = [str(self.server.binary), "inject", "--config", str(self.server.config)]
        done = subprocess.run([*binary, "--mbox", str(mbox)], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (65, b"2 accepted, 1 failed\n"), done.stderr)
        self.assertIn(b"message 3: no recipient", done.stderr)
        self.assertTrue(self.delivered("bob").endswith(b"\r\n\r\nFrom here\r\n"))
        for name in ("new/1", "cur/2:2,S"):
            path = self.folder / "md" / name
            path.parent.mkdir(parents=True)
            path.write_text("Subject: x\n\nx\n")
        done = subprocess.run([*binary, "--folder", str(self.folder / "md"), "carol"], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, b"2 accepted, 0 failed\n"), done.stderr)
        await_messages(self.server, "carol", 2)


class RecipientLimits(InjectCase):
    SERVER = {
        "users": ["alice", "bob", "carol"],
        "aliases": "patterns",
        "limits": "recipients = 2\nexpanded_recipients = 2\n",
    }

    def setUp(self):
        place = folder()
        self.addCleanup(place.cleanup)
        self.patterns = patterns = pathlib.Path(place.name) / "patterns"
        patterns.write_text(
            "/^all@bench\\.test$/ alice@bench.test, bob@bench.test, carol@bench.test\n"
            "/^postmaster@bench\\.test$/ loop@bench.test\n/^loop@bench\\.test$/ postmaster@bench.test\n"
        )
        patterns.chmod(0o644)
        table = f'\n[[table]]\nname = "patterns"\ntype = "regexp"\npath = "{patterns}"\n'
        self.SERVER = self.SERVER | {"extra": table + '\n[bounce]\nper_sender = "2/h"\n'}
        super().setUp()
        self.start()

    def test_too_many_recipients_of_an_alias_bounce_to_the_sender(self):
        self.sendmail("-f", "alice@bench.test", "all@bench.test", "bob@bench.test", text="Subject: x\n\nx\n")
        self.assertIn(b"Status: 5.5.3", self.delivered("alice"))
        self.assertIn(b"\r\nSubject: x\r\n", self.delivered("bob"))
        self.assertEqual(self.rejected(), [])

    def test_the_postmaster_gets_mail_even_with_an_alias_loop(self):
        self.sendmail("-f", "alice@bench.test", "postmaster@bench.test", text="Subject: x\n\nx\n")
        self.assertIn(b"\r\nSubject: x\r\n", self.delivered("postmaster"))
        verified = self.sendmail("-bv", "postmaster@mx.bench.test").stdout
        self.assertIn(b": deliverable: postmaster@bench.test: on this host", verified)

    def test_an_alias_loop_keeps_the_message_until_it_is_corrected(self):
        self.sendmail("-f", "alice@bench.test", "loop@bench.test", "bob@bench.test", text="Subject: x\n\nx\n")
        reason = "<loop@bench.test>: 451 4.4.6 Alias loop"
        await_that(lambda: reason in self.server.log.read_text(), "the reason in the log", self.server)
        self.assertEqual((len(self.dropped()), self.server.queued()), (1, 0))
        self.patterns.write_text("/^loop@bench\\.test$/ alice@bench.test\n")
        reload(self.server)
        for user in ("alice", "bob"):
            self.assertIn(b"\r\nSubject: x\r\n", self.delivered(user))
        await_that(lambda: not self.dropped(), "an empty folder", self.server)

    def test_the_postmaster_of_this_host_gets_bounces_like_any_sender(self):
        self.sendmail("-f", "postmaster@mx.bench.test", "no-such-user@bench.test", text="Subject: x\n\nx\n")
        self.assertIn(b"Status: 5.1.1", self.delivered("postmaster"))

    def test_a_local_user_gets_a_notice_for_every_failure(self):
        for _ in range(3):
            self.sendmail("-f", "alice@bench.test", "no-such-user@bench.test", text="Subject: x\n\nx\n")
        await_messages(self.server, "alice", 3)
        await_that(lambda: self.dropped() == [], "an empty drop", self.server)
        self.assertEqual(self.rejected(), [])


class Nul(InjectCase):
    """A NUL is treated as in mail of clients."""

    def test_a_nul_is_stripped_from_a_message(self):
        self.server.config.write_text(self.server.config.read_text() + '\n[smtp]\nnul = "strip"\n')
        self.start()
        self.sendmail("bob@bench.test", text="Subject: x\n\na\0b\n\0.c\n")
        self.assertTrue(self.delivered().endswith(b"\r\n\r\nab\r\n.c\r\n"))

    def test_a_message_with_a_nul_is_returned_to_its_sender(self):
        self.server.config.write_text(self.server.config.read_text() + '\n[smtp]\nnul = "refuse"\n')
        self.start()
        self.sendmail("-f", "alice@bench.test", "bob@bench.test", text="Subject: x\n\na\0b\n")
        notice = self.delivered("alice")
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
        self.assertTrue(self.delivered().endswith(b"\r\n\r\n.x\r\n"))

    def test_an_incomplete_batch_is_an_error(self):
        done = self.sendmail("-bS", text="MAIL FROM:<a@b>\nRCPT TO:<bob@bench.test>\nDATA\nSubject: x\n", code=65)
        self.assertIn(b"the input ends within a message", done.stderr)

    def test_a_batch_is_delivered(self):
        batch = "MAIL FROM:<alice@bench.test>\nRCPT TO:<bob@bench.test>\nRCPT TO:<@>\nDATA\nSubject: x\n\nx\n.\n"
        done = self.sendmail("-bS", text=batch, code=65)
        self.assertEqual(done.stdout, b"")
        self.assertIn(b"RCPT", done.stderr)
        self.delivered()


class Programs(InjectCase):
    def setUp(self):
        super().setUp()
        self.start()
        # Some programs can be told to add options.
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
        self.assertIn(b"Subject: [PATCH] x", self.delivered())

    @unittest.skipUnless(shutil.which("mutt"), "mutt is not installed")
    def test_mutt_sends_a_message(self):
        self.program("mutt", "-e", f'set sendmail="{self.command} -oem -oi"', "-e", "set copy=no",
                     "-s", "hello", "bob@bench.test", text=b"line\n.\nend\n")  # fmt: skip
        self.assertTrue(self.delivered().replace(b"\r\n", b"\n").endswith(b"line\n.\nend\n"))


class Operators(InjectCase):
    def test_mailq_lists_the_queue_as_sendmail_does(self):
        self.start()
        self.assertEqual(self.call("mailq").stdout, b"Mail queue is empty\n")
        self.server._queue("pause", "local")
        self.sendmail("-f", "alice@bench.test", "bob@bench.test", text="Subject: x\n\nx\n")
        await_that(lambda: self.server.queued() == 1, "one message in the queue", self.server)
        for listed in (self.call("mailq").stdout, self.sendmail("-bp").stdout):
            self.assertIn(b"  alice@bench.test\n", listed)
            self.assertIn(b" bob@bench.test\n", listed)
            self.assertIn(b"in 1 Request.", listed)

    def test_q_runs_the_queue(self):
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
        names = NameServer()
        self.addCleanup(names.stop)
        names.null_mx("takes-none.test")
        names.silent.add("silent.test")
        with open(self.server.config, "a") as config:
            config.write(route("one.test", "[127.0.0.1]:25"))
            config.write(f'\n[dns]\nservers = ["{names.target}"]\ntimeout = "1s"\nattempts = 1\n')
        self.start()
        good = self.sendmail("-bv", "bob", "Bob <bob@one.test>")
        self.assertEqual(good.stdout.decode().splitlines(), [
            "bob@bench.test: deliverable: bob@bench.test: on this host, transport maildir",
            "bob@one.test: deliverable: bob@one.test: to smtp:127.0.0.1:25, transport smtp",
        ])  # fmt: skip
        bad = self.sendmail("-bv", "nobody@bench.test", "bob@takes-none.test", "bob@bench.test", code=2).stdout
        self.assertIn(b"nobody@bench.test: undeliverable: unknown user in one of our domains", bad)
        self.assertIn(b"bob@takes-none.test: undeliverable: bob@takes-none.test: 5", bad)
        self.assertIn(b"bob@bench.test: deliverable: ", bad)
        unsure = self.sendmail("-bv", "bob@bench.test", "eve@silent.test", code=1)
        self.assertIn(b"eve@silent.test: unknown now: ", unsure.stdout)
        self.assertEqual(self.dropped(), [])

    def test_newaliases_does_nothing(self):
        self.assertIn(b"table build", self.call("newaliases").stdout)

    @unittest.skipIf(pathlib.Path("/etc/mailrace/mailrace.toml").exists(), "this machine has a configuration")
    def test_a_configuration_in_the_working_folder_is_ignored(self):
        self.start()
        shutil.copy(self.server.config, self.folder / "mailrace.toml")
        for argv in (["sendmail", "bob"], ["mailq"], ["sendmail", "-bs"]):
            done = subprocess.run([str(self.folder / argv[0]), *argv[1:]], input=b"x\n", capture_output=True,
                                  cwd=self.folder, timeout=60)  # fmt: skip
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertIn(b"/etc/mailrace/mailrace.toml", done.stderr)
        self.assertEqual(self.dropped(), [])

    def test_the_exit_code_tells_the_error(self):
        self.assertIn(b"unknown option -Z", self.sendmail("-Z", code=64).stderr)
        self.assertIn(b"mailrace serve", self.sendmail("-bd", code=64).stderr)
        self.assertIn(b"no recipients", self.sendmail(code=64).stderr)
        self.assertIn(b"not an address", self.sendmail("a b@c", text="x\n", code=65).stderr)
        self.assertIn(b"no recipient in the header", self.sendmail("-t", text="Subject: x\n\n", code=65).stderr)
        shutil.rmtree(self.server.data)
        self.server.data.write_text("no folder")
        self.assertIn(b"not accepted", self.sendmail("bob", text="x\n", code=75).stderr)


@unittest.skipUnless(os.getuid() == 0, "becomes another user")
class UnprivilegedUsers(InjectCase):
    def setUp(self):
        super().setUp()
        # Other users may not reach the binary, for instance below /root.
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

    def test_any_user_may_submit_mail_and_is_named_in_it(self):
        self.as_stranger("bob", text="Subject: x\n\nx\n")
        received = self.delivered()
        self.assertIn(b"from userid 1)", received)
        self.assertIn(b"From: daemon@bench.test\r\n", received)

    def test_no_user_may_see_or_run_the_queue(self):
        for words in (["-q"], ["-bp"], ["-bv", "bob"]):
            done = self.as_stranger(*words, code=77)
            self.assertIn(b"only the server's user and root", done.stderr)

    def test_users_cannot_read_mail_of_others(self):
        self.server.terminate()
        self.sendmail("bob", text="x\n")
        [name] = self.dropped()
        self.assertNotEqual(self.touch_as_stranger('ls "$1"', str(self.drop)), 0)
        self.assertNotEqual(self.touch_as_stranger('rm "$1"', str(name)), 0)
        self.assertNotEqual(self.touch_as_stranger('echo x >> "$1"', str(name)), 0)

    def test_a_user_who_cannot_read_the_configuration_gets_an_error(self):
        self.server.config.chmod(0o600)
        self.assertIn(b"reading the configuration", self.as_stranger("bob", text="x\n", code=77).stderr)

    def test_a_user_who_cannot_reach_the_folder_gets_an_error(self):
        self.server.data.chmod(0o700)
        self.assertIn(b"mode 711", self.as_stranger("bob", text="x\n", code=75).stderr)

    def test_a_user_cannot_create_the_folder_and_gets_an_explanation(self):
        self.server.terminate()
        shutil.rmtree(self.drop)
        self.assertIn(b"drop folder missing", self.as_stranger("bob", text="x\n", code=75).stderr)

    def test_a_file_that_cannot_be_removed_is_not_delivered_again(self):
        owner = self.drop.stat()
        os.chown(self.drop, 0, 0)
        self.drop.chmod(0o1777)  # the server may read all files here, and remove only its own
        self.sendmail("bob", text="Subject: first\n\nx\n")
        await_messages(self.server, "bob", 1)
        for number in range(2, 4):
            self.sendmail("bob", text="Subject: another\n\nx\n")
            await_messages(self.server, "bob", number)
        self.assertEqual(len(self.dropped()), 3)
        os.chown(self.drop, owner.st_uid, owner.st_gid)
        await_that(lambda: not self.dropped(), "an empty folder", self.server)
        self.sendmail("bob", text="Subject: last\n\nx\n")
        await_that(lambda: any(b"Subject: last" in path.read_bytes() for path in mail_files(self.server.maildir("bob") / "new")),
                   "the last", self.server)  # fmt: skip
        self.assertEqual(len(mail_files(self.server.maildir("bob") / "new")), 4)

    def test_invalid_files_do_no_harm_and_are_set_aside(self):
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
        self.delivered("bob")
        await_that(lambda: len(self.rejected()) >= 8, "all entries but the folder are set aside", self.server)
        left = {path.name for path in self.drop.iterdir()} - {pathlib.Path(inner).name}
        self.assertEqual(left, set(), self.server.log_tail())
        self.assertEqual(aside.read_text(), "x")
        log = self.server.log.read_text()
        self.assertIn("set aside", log)
        self.assertNotIn("\x1b", log)
        self.assertIsNone(self.server.process.poll())


class ServerStops(InjectCase):
    def leave(self, count, first=0):
        for number in range(first, first + count):
            self.sendmail("bob@bench.test", text=f"Subject: {number}\n\nx\n")

    def subjects(self):
        found = mail_files(self.server.maildir("bob") / "new")
        return {line for path in found for line in path.read_bytes().split(b"\r\n") if line.startswith(b"Subject: ")}

    def test_mail_submitted_while_the_server_is_down_is_delivered_at_the_start(self):
        self.start()
        self.server.terminate()
        told = self.sendmail("-v", "bob@bench.test", text="Subject: first\n\nx\n").stderr
        self.assertIn(b"is not running", told)
        self.leave(20)
        self.assertEqual(len(self.dropped()), 21)
        self.start()
        await_messages(self.server, "bob", 21)
        self.assertEqual(len(self.subjects()), 21)
        self.assertEqual(self.dropped(), [])

    def test_mail_submitted_before_the_first_start_is_delivered(self):
        self.leave(3)
        self.assertEqual(len(self.dropped()), 3)
        self.start()
        await_messages(self.server, "bob", 3)
        self.leave(1, first=3)
        await_messages(self.server, "bob", 4)
        self.assertEqual(self.dropped(), [])

    @unittest.skipUnless(os.getuid() == 0, "gives a folder to root")
    def test_no_mail_is_written_to_a_folder_that_does_not_belong_to_the_server(self):
        """It may be a mount point whose disk is mounted later, which would hide the mail."""
        os.chown(self.server.data, 0, 0)
        told = self.sendmail("bob@bench.test", text="Subject: x\n\nx\n", code=75).stderr
        self.assertIn(b"drop folder missing", told)
        self.assertEqual(list(self.server.data.iterdir()), [])

    def test_no_mail_is_lost_when_the_server_is_killed(self):
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
