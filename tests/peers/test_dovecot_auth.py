"""Logins that Dovecot's authentication server checks: a real one, and one that fails in every way.

Needs root for the real one, as Dovecot does.
"""

import base64
import os
import pathlib
import signal
import socket
import subprocess
import threading
import unittest

from harness import Client, await_that
from outbound import OutboundCase

_DOVECOT = """\
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/dovecot.log
ssl = no
protocols =
default_internal_user = nobody
default_login_user = nobody
default_internal_group = {group}
first_valid_uid = 0
auth_failure_delay = 0
auth_default_realm = bench.test
passdb {{
  driver = passwd-file
  args = scheme=PLAIN username_format=%n {home}/users
}}
userdb {{
  driver = static
  args = uid=nobody gid={group} home=/tmp
}}
service anvil {{
  chroot =
}}
service auth {{
  unix_listener {home}/auth {{
    mode = 0666
  }}
}}
"""
_AUTH = """
[auth]
dovecot = "unix:{}"
clear_text = true
remember = "0s"
"""
_LISTENER = '\n[[listener]]\nprotocol = "submission"\naddress = "127.0.0.1:0"\ntls = "none"\n'


def login(server, user, password):
    """The reply to a login."""
    words = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
    with Client(server.ports["submission"]) as client:
        client.greet()
        return client.say(f"AUTH PLAIN {words}").code


class RealDovecot(OutboundCase):
    """Dovecot knows alice."""

    def setUp(self):
        super().setUp()
        if not os.path.exists("/usr/lib/dovecot/auth") or os.geteuid() != 0:
            self.skipTest("dovecot is not installed, or this is not root")
        self.home = pathlib.Path(self.folder) / "dovecot"
        self.home.mkdir()
        self.home.chmod(0o755)
        (self.home / "users").write_text("alice:right horse::::::\n")
        group = subprocess.run(["id", "-gn", "nobody"], capture_output=True, text=True).stdout.strip()
        config = self.home / "dovecot.conf"
        config.write_text(_DOVECOT.format(home=self.home, group=group))
        self.begin(config)
        self.addCleanup(self.end)

    def begin(self, config):
        self.dovecot = subprocess.Popen(
            ["dovecot", "-F", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )
        await_that(lambda: (self.home / "auth").exists() or self.dovecot.poll() is not None, "dovecot", self)

    def end(self):
        # It would wait for its clients, and the server is one.
        os.killpg(self.dovecot.pid, signal.SIGKILL)
        self.dovecot.communicate(timeout=30)

    def log_tail(self):
        log = self.home / "dovecot.log"
        return log.read_text() if log.exists() else self.dovecot.communicate()[1]

    def test_dovecot_knows_who_may_log_in(self):
        server = self.start(extra=_LISTENER + _AUTH.format(self.home / "auth"))
        self.assertEqual(login(server, "alice", "right horse"), 235, self.log_tail())
        self.assertEqual(login(server, "alice", "wrong"), 535)
        self.assertEqual(login(server, "mallory", "right horse"), 535)


    def test_the_user_is_who_dovecot_says(self):
        senders = pathlib.Path(self.folder) / "senders"
        senders.write_text("alice@bench.test alice@bench.test\n")
        senders.chmod(0o644)
        table = f'\n[[table]]\nname = "senders"\ntype = "text"\npath = "{senders}"\n'
        auth = _AUTH.format(self.home / "auth") + 'senders = "senders"\n'
        server = self.start(extra=_LISTENER + table + auth)
        words = base64.b64encode(b"\0alice\0right horse").decode()
        with Client(server.ports["submission"]) as client:
            client.greet()
            self.assertEqual(client.say(f"AUTH PLAIN {words}").code, 235, self.log_tail())
            self.assertEqual(client.say("MAIL FROM:<bob@bench.test>").code, 553)
            self.assertEqual(client.say("MAIL FROM:<alice@bench.test>").code, 250)


class ScriptedDovecot(OutboundCase):
    """A server that answers each connection with given bytes."""

    def serve(self, *answers):
        path = pathlib.Path(self.folder) / "auth"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        self.addCleanup(listener.close)

        def run():
            for answer in answers:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(30)
                    try:
                        connection.sendall(answer[0])
                        said = b""
                        while b"AUTH\t" not in said:
                            said = connection.recv(4096)
                            if not said:
                                raise ConnectionError
                        connection.sendall(answer[1])
                    except (OSError, IndexError):
                        pass

        threading.Thread(target=run, daemon=True).start()
        return self.start(extra=_LISTENER + _AUTH.format(path))

    def test_a_server_that_breaks_the_protocol_gives_no_result(self):
        hello = b"VERSION\t1\t2\nMECH\tPLAIN\nDONE\n"
        wrong = [
            (b"VERSION\t2\t0\nDONE\n",),
            (b"VERSION\t1\t2\nDONE\n",),
            (b"x" * 100_000,),
            (hello, b"CONT\t1\tabc\n"),
            (hello, b"OK\tx\n"),
            (hello, b"y" * 100_000),
            (hello, b"FAIL\t1\ttemp\n"),
            (hello, b""),
        ]
        server = self.serve(*wrong, (hello, b"OK\t1\tuser=alice\n"))
        for number in range(len(wrong)):
            self.assertEqual(login(server, f"alice{number}", "secret"), 454, wrong[number])
        self.assertEqual(login(server, "alice", "secret"), 235)


if __name__ == "__main__":
    unittest.main()
