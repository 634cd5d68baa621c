"""A private smbd with one read-only share, `files`, for guests.

It is tuned for throughput: sendfile, which Samba uses only if reads are not asynchronous, no
signing, no change notices, no locks for the files of a share that nobody writes. Needs root, as smbd
acts as the guest's user.
"""

import os
import shutil
import socket
import subprocess
import time

from . import accounting, machine
from .smtp import free_port

_START_SECONDS_MAX = 30.0

_CONFIGURATION = """\
[global]
  server role = standalone server
  workgroup = BENCH
  netbios name = BENCH
  smb ports = {port}
  interfaces = 127.0.0.1/8
  bind interfaces only = yes
  disable netbios = yes
  map to guest = Bad User
  guest account = nobody
  private dir = {root}/private
  lock directory = {root}/lock
  state directory = {root}/state
  cache directory = {root}/cache
  pid directory = {root}/pid
  ncalrpc dir = {root}/ncalrpc
  log file = {root}/smbd.log
  log level = 0
  max log size = 0
  load printers = no
  printing = bsd
  printcap name = /dev/null
  disable spoolss = yes
  server signing = disabled
  server smb encrypt = off
  use sendfile = {sendfile}
  aio read size = 0
  kernel change notify = no
  smb2 leases = no

[files]
  path = {files}
  guest ok = yes
  read only = yes
  locking = no
  oplocks = no
"""


def version():
    """Its version, or that it is not installed."""
    return machine.package("samba")()


def is_installed():
    """Whether it and its client are installed, and it can run."""
    return None not in (_program(), shutil.which("smbclient")) and os.geteuid() == 0


class Samba:
    """A private instance that serves the files of a folder."""

    name = "smbd"

    def __init__(self, folder, files, sendfile=True):
        self.root = folder / "samba"
        self._files, self._sendfile = files, "yes" if sendfile else "no"
        self.port = free_port()
        self.group = accounting.Group("smbd")
        self._process = None

    def start(self):
        """Writes the configuration, starts it, and waits until it listens."""
        self.root.mkdir()
        for part in ("private", "lock", "state", "cache", "pid", "ncalrpc"):
            (self.root / part).mkdir()
        names = {"root": self.root, "files": self._files, "port": self.port, "sendfile": self._sendfile}
        self._config().write_text(_CONFIGURATION.format(**names))
        # In a process group of its own, which it ends when it ends.
        argv = [_program(), "--foreground", f"--configfile={self._config()}"]
        with open(self.root / "console.log", "wb") as log:
            self._process = subprocess.Popen(self.group.command(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._listens():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"smbd does not listen:\n{self._log()}")
            time.sleep(0.02)

    def stop(self):
        """Ends it in any state."""
        self.group.end()
        if self._process is not None:
            self._process.wait(10)

    def configuration(self):
        """smb.conf, for a report."""
        return self._config().read_text()

    def check_kept(self, count):
        """Does nothing: it keeps no mail."""

    def _config(self):
        return self.root / "smb.conf"

    def _log(self):
        logs = [self.root / "console.log", self.root / "smbd.log"]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def _listens(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False


def _program():
    """Its path; on Debian it is in /usr/sbin, which is not in the PATH of users."""
    return shutil.which("smbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
