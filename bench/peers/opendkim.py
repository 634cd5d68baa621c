"""A private OpenDKIM beside a private Postfix: the reference for mail that is signed while it is accepted."""

import shutil
import socket
import subprocess
import time

from .postfix import HOLD, Postfix
from .smtp import free_port

_START_SECONDS_MAX = 20.0
CONFIGURATION = """\
Socket inet:{port}@127.0.0.1
Domain {domain}
Selector {selector}
KeyFile {key}
Mode s
Canonicalization relaxed/relaxed
SignatureAlgorithm rsa-sha256
OversignHeaders From
InternalHosts 127.0.0.0/8
RequireSafeKeys no
Background no
Syslog no
"""


def is_installed():
    """Whether it is installed."""
    return shutil.which("opendkim") is not None


def version():
    """Its version, or that it is not installed."""
    if not is_installed():
        return "not installed"
    shown = subprocess.run(["opendkim", "-V"], capture_output=True, text=True, timeout=20)
    return (shown.stdout + shown.stderr).split("\n", 1)[0].rpartition("v")[2].strip()


class SigningPostfix(Postfix):
    """A tuned Postfix that queues all mail, and signs it through OpenDKIM. The CPU of both counts.

    key: a function that returns the domain, the selector and the file of an RSA key in a folder
    """

    name = "postfix-opendkim"

    def __init__(self, folder, key):
        self._milter_port, self._milter, self._folder = free_port(), None, folder
        milter = f"inet:127.0.0.1:{self._milter_port}"
        super().__init__(folder, "tuned", [HOLD, f"smtpd_milters = {milter}", "milter_default_action = tempfail"])
        self._key = key

    def start(self):
        """Starts OpenDKIM, and then Postfix."""
        domain, selector, path = self._key(self._folder)
        names = {"port": self._milter_port, "domain": domain, "selector": selector, "key": path}
        configuration = self._folder / "opendkim.conf"
        configuration.write_text(CONFIGURATION.format(**names))
        argv = self.group.command(["opendkim", "-f", "-x", str(configuration)])
        with open(self._folder / "opendkim.log", "wb") as log:
            self._milter = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._milter.pid)
        self._await_milter()
        super().start()

    def stop(self):
        """Ends both, in any state."""
        super().stop()
        if self._milter is not None:
            self._milter.wait(10)

    def configuration(self):
        """The configurations of both, for a report."""
        return f"{super().configuration()}# opendkim.conf\n{(self._folder / 'opendkim.conf').read_text()}"

    def _await_milter(self):
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self._milter_port), timeout=5):
                    return
            except OSError:
                if time.monotonic() > deadline or self._milter.poll() is not None:
                    log = (self._folder / "opendkim.log").read_text()
                    raise RuntimeError(f"OpenDKIM does not listen:\n{log}") from None
            time.sleep(0.05)
