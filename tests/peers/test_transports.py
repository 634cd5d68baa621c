"""Transports of type pipe, discard and error, and routes by address, sender and table.

    program     its exit status, output, time, arguments, user and process group
    discard     delivered, and nowhere to be found
    error       bounces with its reply
    routes      a list in a domain of mailboxes, by a table as Mailman 3 writes it; a relay by sender
"""

import os
import pathlib
import pwd
import stat
import time
import unittest

from harness import await_messages, await_that
from outbound import OutboundCase, await_event, mail_events, text_message

# What the program does is the local part of its recipient.
PROGRAM = r"""#!/bin/sh
out={out}
case "$3" in
  status-*) echo "what the program says"; exit "${{3#status-}}" ;;
  full) echo "4.2.2 mailbox full"; exit 1 ;;
  loud) head -c 10000000 /dev/zero | tr '\0' 'x'; exit 65 ;;
  odd) printf '\033[2J one\r\ntwo\0three \377'; exit 1 ;;
  hang) sleep 1000 & echo $! > $out/hang.pid; wait ;;
  bomb) bomb() {{ while :; do sleep 1000 & sleep 0.05; done; }}; bomb & bomb & wait ;;
  left) sleep 1000 & echo $! > $out/left.pid; exit 0 ;;
  deaf) exit 0 ;;
  *) for arg in "$@"; do printf '[%s]' "$arg"; done > $out/args.new; mv $out/args.new $out/args
     id -u > $out/uid; id -G > $out/groups; env > $out/env; pwd > $out/pwd
     cat > $out/message.new; mv $out/message.new $out/message ;;
esac
"""

PIPE = """
[transport.program]
type = "pipe"
command = ["{program}", "${{sender}}", "{marks}${{recipient}}", "${{user}}", "${{extension}}", "${{domain}}"]
{settings}

[[route]]
domain = "program.test"
transport = "program"
"""


def is_alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Programs(OutboundCase):
    """A server with a program that writes what it gets into a folder."""

    def setUp(self):
        super().setUp()
        self.out = self.folder / "out"
        self.out.mkdir()
        self.out.chmod(0o777)
        self.program = self.folder / "program"
        self.program.write_text(PROGRAM.format(out=self.out))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def serving(self, settings="", program=None, marks="to=", extra="", **named):
        user = 'user = "daemon"\n' if os.geteuid() == 0 else ""
        pipe = PIPE.format(program=program or self.program, marks=marks, settings=user + settings)
        return self.start(extra=pipe + extra, **named)

    def written(self, name, server):
        path = self.out / name
        await_that(path.exists, f"the file {name} of the program", server)
        return path.read_bytes()

    def test_a_program_gets_the_message_and_its_arguments(self):
        fields = 'fields = ["From", "Return-Path", "X-Original-To", "Delivered-To"]'
        server = self.serving(fields)
        self.send(server, "bob+tag@program.test", message=text_message(body="One.\r\n\r\n..Two.\r\n"))
        message = self.written("message", server)
        front = b"Return-Path: <alice@bench.test>\nX-Original-To: bob+tag@program.test\n"
        self.assertRegex(message, rb"\AFrom alice@bench\.test \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\n")
        self.assertIn(front + b"Delivered-To: bob+tag@program.test\nReceived: ", message)
        self.assertTrue(message.endswith(b"\n\nOne.\n\n.Two.\n"), message)
        self.assertNotIn(b"\r", message)
        args = b"[alice@bench.test][to=bob+tag@program.test][bob][tag][program.test]"
        self.assertEqual((self.out / "args").read_bytes(), args)
        event = await_event(server, "delivered", to="<bob+tag@program.test>")
        self.assertEqual(event.transport, "program")

    def test_a_program_runs_as_its_user_in_its_folder_with_an_empty_environment(self):
        server = self.serving(f'directory = "{self.out}"')
        self.send(server, "bob@program.test")
        self.written("message", server)
        user = pwd.getpwnam("daemon") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self.assertEqual(int((self.out / "uid").read_text()), user.pw_uid)
        if os.geteuid() == 0:
            self.assertEqual((self.out / "groups").read_text().split(), [str(user.pw_gid)])
        names = {line.partition("=")[0] for line in (self.out / "env").read_text().splitlines()}
        self.assertLessEqual(names, {"PATH", "PWD", "OLDPWD", "SHLVL", "_"})
        self.assertEqual((self.out / "pwd").read_text().strip(), str(self.out))

    def test_an_exit_status_says_what_becomes_of_mail(self):
        server = self.serving()
        for local, event, reply in [
            ("status-75", "deferred", "451 4.3.0 the program exited with status 75 (temporary failure)"),
            ("status-71", "deferred", "451 4.3.0 "),
            ("full", "deferred", "451 4.2.2 the program exited with status 1: mailbox full"),
            ("status-67", "bounced", "550 5.1.1 the program exited with status 67 (user unknown): what the program"),
            ("status-1", "bounced", "550 5.3.0 the program exited with status 1: what the program says"),
            ("status-255", "bounced", "550 5.3.0 the program exited with status 255"),
        ]:
            with self.subTest(local=local):
                self.send(server, f"{local}@program.test")
                self.assertIn(reply, await_event(server, event, to=f"<{local}@program.test>").reason)
        (notice, *_) = await_messages(server, "alice", 3)
        self.assertIn(b"what the program says", notice.read_bytes())

    def test_output_is_bounded_and_harmless(self):
        server = self.serving()
        self.send(server, "loud@program.test")
        loud = await_event(server, "bounced", to="<loud@program.test>")
        self.assertLess(len(loud.reason), 600)
        self.send(server, "odd@program.test")
        await_event(server, "bounced", to="<odd@program.test>")
        for notice in await_messages(server, "alice", 2):
            self.assertNotRegex(notice.read_bytes(), rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xff]")

    def test_a_program_that_reads_nothing_gets_its_mail_all_the_same(self):
        server = self.serving()
        self.send(server, "deaf@program.test", message=text_message(body="x\r\n" * 500_000))
        await_event(server, "delivered", to="<deaf@program.test>")

    def test_a_program_that_hangs_is_killed_with_its_children(self):
        server = self.serving('timeout = "1s"')
        self.send(server, "hang@program.test")
        late = await_event(server, "deferred", to="<hang@program.test>")
        self.assertIn("the program was killed after 1s", late.reason)
        pid = int((self.out / "hang.pid").read_text())
        await_that(lambda: not is_alive(pid), "the end of the child", server)

    def test_a_program_that_forks_without_end_is_killed(self):
        server = self.serving('timeout = "1s"')
        self.send(server, "bomb@program.test")
        await_event(server, "deferred", to="<bomb@program.test>")
        mark = f"{self.out}".encode()

        def is_gone():
            return not any(mark in command for command in _commands())

        await_that(is_gone, "the end of all its processes", server)

    def test_what_a_program_leaves_in_its_group_is_killed(self):
        server = self.serving()
        self.send(server, "left@program.test")
        await_event(server, "delivered", to="<left@program.test>")
        pid = int((self.out / "left.pid").read_text())
        await_that(lambda: not is_alive(pid), "the end of the child", server)

    def test_programs_end_with_the_server(self):
        for end in ("kill", "terminate"):
            with self.subTest(end=end):
                (self.out / "hang.pid").unlink(missing_ok=True)
                place = f"{end}-server"
                server = self.configure(place, extra=self.pipe_for_end())
                server.start()
                self.send(server, "hang@program.test")
                pid = int(await_that(lambda: self.pid_of_hanging(), "the program", server))
                getattr(server, end)()
                await_that(lambda pid=pid: not is_alive(pid), "the end of the child", server)

    def pipe_for_end(self):
        user = 'user = "daemon"\n' if os.geteuid() == 0 else ""
        return PIPE.format(program=self.program, marks="to=", settings=user)

    def pid_of_hanging(self):
        path = self.out / "hang.pid"
        return path.read_text().strip() if path.exists() else None

    def test_an_address_never_becomes_an_option(self):
        server = self.serving(marks="")
        self.send(server, "-oQ/tmp@program.test")
        refused = await_event(server, "bounced", to="<-oQ/tmp@program.test>")
        self.assertIn("could take this address for an option", refused.reason)
        self.assertFalse((self.out / "args").exists())

    def test_an_address_stays_in_its_argument(self):
        server = self.serving()
        odd = '"a b; touch $(id) `id` \'*"@program.test'
        self.send(server, odd)
        self.written("message", server)
        args = (self.out / "args").read_text()
        self.assertIn(f"[to={odd}]", args)
        self.assertEqual(args.count("["), 5)

    def test_a_program_that_cannot_be_started_keeps_its_mail(self):
        server = self.serving(program=self.folder / "missing")
        self.send(server, "bob@program.test")
        unstarted = await_event(server, "deferred", to="<bob@program.test>")
        self.assertIn("cannot run the program", unstarted.reason)

    def test_several_recipients_share_a_run_if_they_may(self):
        server = self.serving("recipients_max = 10")
        self.send(server, "a@program.test", "b@program.test")
        self.written("message", server)
        args = (self.out / "args").read_text()
        self.assertIn("[to=a@program.test][to=b@program.test]", args)
        await_that(lambda: len(mail_events(server, "delivered")) == 2, "two deliveries", server)

    def test_programs_of_one_transport_are_limited(self):
        server = self.serving('programs = 1\ntimeout = "1s"')
        begin = time.monotonic()
        for _ in range(3):
            self.send(server, "hang@program.test")
        await_that(lambda: len(mail_events(server, "deferred")) >= 3, "three deferrals", server)
        self.assertGreater(time.monotonic() - begin, 3)


def _commands():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


class Nowhere(OutboundCase):
    """Transports of type discard and error."""

    EXTRA = """
[transport.nowhere]
type = "discard"

[transport.gone]
type = "error"
reply = "550 5.1.6 we have moved"

[transport.later]
type = "error"
reply = "450 4.2.1 not today"

[[route]]
domain = "nowhere.test"
transport = "nowhere"

[[route]]
domain = "gone.test"
transport = "gone"

[[route]]
domain = "later.test"
transport = "later"
"""

    def test_mail_is_discarded_refused_or_waits(self):
        server = self.start(extra=self.EXTRA)
        self.send(server, "bob@nowhere.test")
        event = await_event(server, "delivered", to="<bob@nowhere.test>")
        self.assertEqual(event.transport, "nowhere")
        self.send(server, "bob@gone.test")
        self.assertEqual(await_event(server, "bounced", to="<bob@gone.test>").reason, "550 5.1.6 we have moved")
        self.send(server, "bob@later.test")
        self.assertEqual(await_event(server, "deferred", to="<bob@later.test>").reason, "450 4.2.1 not today")
        (notice,) = await_messages(server, "alice", 1)
        self.assertIn(b"5.1.6", notice.read_bytes())
        self.assertEqual(server.queued(), 1)


class Routes(OutboundCase):
    """Routes by more than the domain."""

    def table(self, name, text, kind="text"):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return f'\n[[table]]\nname = "{name}"\ntype = "{kind}"\npath = "{path}"\n'

    def test_lists_of_mailman_are_in_the_same_domain_as_mailboxes(self):
        mailman = self.host(lmtp=True)
        lines = f"announce@bench.test lmtp:[127.0.0.1]:{mailman.port}\n"
        tagged = rf"/^announce-(confirm|bounces)\+.*@bench\.test$/ lmtp:[127.0.0.1]:{mailman.port}" + "\n"
        tables = self.table("users", "bob@bench.test\nalice@bench.test\n") + self.table("untagged", lines)
        tables += self.table("tagged", tagged, "regexp")
        tables += '\n[[table]]\nname = "lists"\ntype = "chain"\ntables = ["untagged", "tagged"]\n'
        tables += '\n[[table]]\nname = "recipients"\ntype = "chain"\ntables = ["users", "lists"]\n'
        routes = '\n[transport.lmtp]\ntype = "lmtp"\n\n[[route]]\ntransports = "lists"\n'
        server = self.start(mailboxes="recipients", users=None, extra=tables + routes)
        self.send(server, "Announce@bench.test", "bob@bench.test", "announce-confirm+0123@bench.test")
        await_messages(server, "bob", 1)
        await_that(lambda: len(mail_events(server, "delivered")) == 3, "three deliveries", server)
        came = {recipient for message in mailman.accepted for recipient in message.recipients}
        self.assertEqual(came, {"TO:<announce@bench.test>", "TO:<announce-confirm+0123@bench.test>"})
        with self.assertRaisesRegex(AssertionError, "550"):
            self.send(server, "nobody@bench.test")

    def test_a_sender_has_its_own_relay(self):
        one, other, rest = self.host(), self.host(), self.host()
        relays = self.table("relays", f"carol@bench.test :[127.0.0.1]:{other.port}\n")
        routes = f"""
[[route]]
sender = "bob@bench.test"
next_hop = "[127.0.0.1]:{one.port}"

[[route]]
sender_transports = "relays"

[[route]]
domain = "*"
next_hop = "[127.0.0.1]:{rest.port}"
"""
        server = self.start(extra=relays + routes)
        for sender in ("bob", "carol", "alice"):
            self.send(server, "x@far.test", "alice@bench.test", sender=f"{sender}@bench.test")
        for host, sender in ((one, "bob"), (other, "carol"), (rest, "alice")):
            (message,) = self.await_messages(host, 1, server)
            self.assertTrue(message.sender.startswith(f"FROM:<{sender}@bench.test>"), message.sender)
            self.assertEqual(message.recipients, ["TO:<x@far.test>"])
        await_messages(server, "alice", 3)

    def test_a_table_that_names_an_unknown_transport_keeps_the_mail(self):
        routes = '\n[[route]]\ntransports = "map"\n'
        server = self.start(extra=self.table("map", "far.test uucp:gate\n") + routes)
        self.send(server, "x@far.test")
        self.assertIn("unknown transport", await_event(server, "deferred", to="<x@far.test>").reason)


if __name__ == "__main__":
    unittest.main()
