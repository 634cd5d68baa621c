"""Daemons of Debian's packages beside the server: each has a folder of its own, runs as the user that its package makes
for it, and ends with its class of tests.
"""

import contextlib
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time

from harness import Client, folder
from outbound import OutboundCase, text_message

# The client of most tests, for whom the loopback address speaks.
CLIENT = "192.0.2.10"
STRANGERS = """
[smtp]
xclient_from = ["127.0.0.1"]
"""
_START_SECONDS_MAX = 90.0
_STOP_SECONDS_MAX = 30.0


class Daemon:
    """A process in the foreground, with its log."""

    def __init__(self, home, argv, user=None, **environment):
        self.name = pathlib.Path(argv[0]).name
        self.log = home / f"{self.name}.log"
        other = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                list(map(str, argv)), cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {"HOME": str(home)} | environment, start_new_session=True, **other,
            )  # fmt: skip

    def await_that(self, probe, what):
        """Waits until `probe` returns a true value, and returns it."""
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not (found := probe()):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError(f"{self.name} has not {what}:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)
        return found

    def await_port(self, port):
        """Waits until it listens."""
        return self.await_that(lambda: _listens(port), f"opened port {port}")

    def stop(self):
        """Ends it with all that it has started."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS_MAX)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class DaemonCase(OutboundCase):
    """Tests of a server with daemons beside it, which are started once for all tests of a class."""

    @classmethod
    def make_home(cls, user=None):
        """A new folder that belongs to a user."""
        made = folder()
        cls.addClassCleanup(made.cleanup)
        home = pathlib.Path(made.name)
        if user:
            shutil.chown(home, user, pwd.getpwnam(user).pw_gid)
        return home

    @classmethod
    def start_daemon(cls, home, argv, *, port=None, user=None, **environment):
        """A daemon that has opened its port."""
        daemon = Daemon(home, argv, user, **environment)
        cls.addClassCleanup(daemon.stop)
        if port:
            daemon.await_port(port)
        return daemon

    def serve(self, extra, **settings):
        """A running server, to which the tests are strangers."""
        settings = {"networks": (), "names": self.names()} | settings
        return self.start(extra=STRANGERS + extra, **settings)

    def deliver(self, server, message, *recipients, client=CLIENT, sender="sender@client.test"):
        """Sends a message as this client; returns the reply that decides."""
        with Client(server.port) as connection:
            connection.read()
            connection.say(f"XCLIENT ADDR={client} PORT=4321")
            connection.say("EHLO mail.client.test")
            return connection.deliver(message, *(recipients or ["alice@bench.test"]), sender=sender)


def can_run(*programs):
    """Whether all of them are installed, and can run as the users of their packages."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return os.geteuid() == 0 and all(shutil.which(program, path=path) for program in programs)


def header(path):
    """The fields of a delivered message by name in lower case, each unfolded, the last of several."""
    head = path.read_text(errors="replace").replace("\r\n", "\n").partition("\n\n")[0]
    fields = (field.partition(":") for field in re.sub(r"\n[ \t]+", " ", head).split("\n"))
    return {name.lower(): value.strip() for name, _, value in fields}


def spam(subject="GTUBE", text="XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"):
    """What every spam filter takes for spam."""
    return whole_message(subject, f"{text}\r\n")


def whole_message(subject, body="Hello.\r\n"):
    """A message with the fields that no spam filter misses."""
    fields = b"To: alice@bench.test\r\nDate: %s\r\nMessage-ID: <%x@client.test>\r\n" % (
        time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime()).encode(),
        time.monotonic_ns(),
    )
    return fields + text_message(subject, body, sender="Sender <sender@client.test>")


def _listens(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False
