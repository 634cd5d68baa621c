"""Real servers as next hops: Postfix and its smtp-sink, Dovecot's LMTP, and other servers of our
own.

Needs root if the other server does; servers that are not installed are skipped.
"""

import collections
import os
import pwd
import re
import shutil
import signal
import subprocess
import unittest

from harness import await_messages, await_that, mail_files
from outbound import OutboundCase, await_event, mail_events
from peers.mailrace import route
from peers.postfix import Postfix, build_table
from peers.smtp import free_port

COUNT = 50
_STORE = """
[transport.store]
type = "lmtp"
next_hop = "{}"

[[domain]]
name = "store.test"
transport = "store"
"""
_DOVECOT = """\
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/dovecot.log
ssl = no
protocols = lmtp
mail_location = maildir:{home}/mail/%n
first_valid_uid = 0
first_valid_gid = 0
default_internal_user = {user}
default_login_user = {user}
default_internal_group = {group}
auth_username_format = %n
passdb {{
  driver = static
  args = nopassword=y
}}
userdb {{
  driver = passwd-file
  args = {home}/users
}}
service anvil {{
  chroot =
}}
service lmtp {{
  user = {user}
  unix_listener {home}/lmtp {{
    mode = 0666
  }}
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {port}
  }}
}}
"""


class Sinks(OutboundCase):
    """smtp-sink, which writes each message to a file with its envelope."""

    def sink(self, where, *argv):
        """Its dump folder; it ends with the test."""
        dump = self.folder / "dump"
        # As root it needs the user to run as; other users cannot change theirs.
        user = [] if os.geteuid() else ["-u", "root"]
        command = ["smtp-sink", *user, *argv, "-D", str(dump), where, "1024"]
        sink = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(sink.communicate)
        self.addCleanup(sink.kill)
        return dump

    def assert_arrive(self, server, dump, domain):
        for number in range(COUNT):
            self.send(server, f"user{number}@{domain}")
        await_that(lambda: len(mail_events(server, "delivered")) == COUNT, f"{COUNT} delivered", server)
        came = collections.Counter(re.findall(r"^X-Rcpt-Args: <(\S+)>", dump.read_text(), re.M))
        self.assertEqual(came, {f"user{number}@{domain}": 1 for number in range(COUNT)})

    def test_smtp_sink_gets_each_message_once(self):
        port = free_port()
        dump = self.sink(f"127.0.0.1:{port}")
        server = self.start(extra=route("one.test", f"[127.0.0.1]:{port}"), retry='first = "200ms", factor = 1.0')
        self.assert_arrive(server, dump, "one.test")

    def test_smtp_sink_gets_each_message_once_by_lmtp_over_a_unix_socket(self):
        socket = self.folder / "lmtp"
        dump = self.sink(f"unix:{socket}", "-L")
        await_that(socket.exists, "the socket", _NoLog)
        socket.chmod(0o666)
        server = self.start(extra=_STORE.format(f"unix:{socket}"), retry='first = "200ms", factor = 1.0')
        self.assert_arrive(server, dump, "store.test")


class Dovecots(OutboundCase):
    """Dovecot's mailboxes as the transport of one of our domains; it knows alice and not bob."""

    def setUp(self):
        super().setUp()
        if not os.path.exists("/usr/lib/dovecot/lmtp") or os.geteuid() != 0:
            self.skipTest("dovecot has no LMTP installed, or this is not root")
        self.home, self.port = self.folder / "dovecot", free_port()
        self.home.mkdir()
        nobody = pwd.getpwnam("nobody")
        (self.home / "users").write_text(f"alice::{nobody.pw_uid}:{nobody.pw_gid}::{self.home}/mail/alice::\n")
        (self.home / "mail").mkdir()
        shutil.chown(self.home / "mail", "nobody")
        config = self.home / "dovecot.conf"
        group = subprocess.run(["id", "-gn", "nobody"], capture_output=True, text=True).stdout.strip()
        config.write_text(_DOVECOT.format(home=self.home, user="nobody", group=group, port=self.port))
        self.dovecot = subprocess.Popen(
            ["dovecot", "-F", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(self.end)
        await_that(lambda: (self.home / "lmtp").exists() or self.dovecot.poll() is not None, "dovecot", self)

    def end(self):
        self.dovecot.send_signal(signal.SIGTERM)
        self.dovecot.communicate(timeout=30)

    def log_tail(self):
        log = self.home / "dovecot.log"
        return log.read_text() if log.exists() else ""

    def assert_delivers(self, next_hop):
        server = self.start(extra=_STORE.format(next_hop), networks=[], retry='first = "200ms", factor = 1.0')
        self.send(server, "alice@store.test", "bob@store.test", sender="alice@bench.test")
        bounced = await_event(server, "bounced", to="<bob@store.test>")
        self.assertRegex(bounced.reason, "^550 5.1.1 ")
        await_event(server, "delivered", to="<alice@store.test>", transport="store")
        (path,) = mail_files(self.home / "mail/alice/new")
        self.assertIn(b"Subject: hello", path.read_bytes())
        self.assertIn(b"Final-Recipient: rfc822; bob@store.test", await_messages(server, "alice", 1)[0].read_bytes())

    def test_dovecot_accepts_mail_over_a_unix_socket_and_refuses_one_mailbox(self):
        self.assert_delivers(f"unix:{self.home}/lmtp")

    def test_dovecot_accepts_mail_over_tcp_and_refuses_one_mailbox(self):
        self.assert_delivers(f"[127.0.0.1]:{self.port}")


class Postfixes(OutboundCase):
    def test_postfix_accepts_mail_and_delivers_it(self):
        if not shutil.which("postfix") or os.geteuid() != 0:
            self.skipTest("postfix is not installed, or this is not root")
        users, maildirs = self.folder / "users", self.folder / "postfix-mail"
        maildirs.mkdir()
        shutil.chown(maildirs, "nobody")
        users.write_text("bob@dest.test bob/\n")
        build_table("hash", users)
        nobody = pwd.getpwnam("nobody")
        lines = ["mydestination =", "virtual_mailbox_domains = dest.test", f"virtual_mailbox_base = {maildirs}",
                 f"virtual_mailbox_maps = hash:{users}", f"virtual_uid_maps = static:{nobody.pw_uid}",
                 f"virtual_gid_maps = static:{nobody.pw_gid}"]  # fmt: skip
        postfix = Postfix(self.folder / "postfix", "tuned", lines)
        self.addCleanup(postfix.stop)
        postfix.start()
        server = self.start(extra=route("dest.test", f"[127.0.0.1]:{postfix.port}"))
        self.send(server, "bob@dest.test", "nobody-here@dest.test")
        self.assertRegex(await_event(server, "delivered", to="<bob@dest.test>").reply, "^250 2.0.0 Ok: .*queued as ")
        self.assertRegex(await_event(server, "bounced", to="<nobody-here@dest.test>").reason, "^550 5.1.1 ")
        (path,) = await_that(lambda: mail_files(maildirs / "bob/new"), "a message", server)
        self.assertIn(b"Subject: hello", path.read_bytes())


class SharedDomain(OutboundCase):
    """Two of our servers share a domain; each knows which of them stores a mailbox."""

    HOSTS = {"alice": 0, "bob": 1}

    def setUp(self):
        super().setUp()
        self.zone = self.names()
        self.ports = [free_port(), free_port()]
        (self.folder / "hosts").write_text(
            "".join(f"{user}@shared.test host{n}.test:{self.ports[n]}\n" for user, n in self.HOSTS.items())
        )
        (self.folder / "users").write_text("".join(f"{user}@shared.test {user}\n" for user in self.HOSTS))
        for number in (0, 1):
            self.zone.a(f"host{number}.test", "127.0.0.1")
        self.servers = [self.shared_server(number) for number in (0, 1)]

    def shared_server(self, number):
        table = '\n[[table]]\nname = "{0}"\ntype = "text"\npath = "{1}/{0}"\n'
        extra = "".join(table.format(name, self.folder) for name in ("hosts", "users"))
        extra += '\n[[domain]]\nname = "shared.test"\nmailboxes = "users"\nhosts = "hosts"\ntransport = "maildir"\n'
        server = self.start(
            f"host{number}", names=self.zone, hostname=f"host{number}.test", extra=extra, networks=[],
            retry='first = "200ms", factor = 1.0, jitter = 0.0', address=f"127.0.0.1:{self.ports[number]}",
        )  # fmt: skip
        return server

    def stored(self, number, user):
        return mail_files(self.servers[number].maildir(user, "shared.test") / "new")

    def test_each_stores_its_own_mailboxes_and_forwards_the_others(self):
        for entrance in self.servers:
            self.send(entrance, "alice@shared.test", "bob@shared.test", sender="stranger@client.test")
        for user, home in self.HOSTS.items():
            await_messages(self.servers[home], user, 2, domain="shared.test")
            self.assertEqual(self.stored(1 - home, user), [])
        self.assertEqual(await_event(self.servers[0], "delivered", to="<bob@shared.test>").transport, "smtp")
        self.assertEqual(await_event(self.servers[0], "delivered", to="<alice@shared.test>").transport, "maildir")

    def test_mail_waits_for_the_server_that_is_down(self):
        self.servers[1].terminate()
        self.send(self.servers[0], "bob@shared.test", sender="stranger@client.test")
        self.assertRegex(await_event(self.servers[0], "deferred", to="<bob@shared.test>").reason, r"^451 4\.4\.1 ")
        self.servers[1].start()
        await_that(lambda: self.stored(1, "bob"), "a message for bob", self.servers[0])


class _NoLog:
    """A server without a log."""

    @staticmethod
    def log_tail():
        return ""


if __name__ == "__main__":
    unittest.main()
