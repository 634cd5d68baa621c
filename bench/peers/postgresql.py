"""A private PostgreSQL with its own cluster, port and unix socket; the machine may run another one.

It is for tests that kill and restart it, and does not sync (`fsync = off`). Clients from 127.0.0.1
need a password if the cluster was created with one, else they are trusted. It refuses to run as
root, so root starts it as the user postgres.
"""

import glob
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from . import accounting
from .smtp import free_port

USER = "postgres"
_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 30.0
_READY = b"database system is ready to accept connections"


class Postgresql:
    """A cluster, created in the constructor; it can be stopped and started again on the same port
    and data.
    """

    def __init__(self, password=None):
        # A folder that this user can enter, with a path short enough for a socket.
        self._made = tempfile.TemporaryDirectory(prefix="mailrace-pg-", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._made.name)
        self.port = free_port()
        self.password = password
        self.group = accounting.Group("postgresql")
        self.log = self.folder / "postgres.log"
        self._data, self._process = self.folder / "data", None
        self.folder.chmod(0o755)
        if _is_root():
            shutil.chown(self.folder, USER)
        self._initialise()

    @property
    def url(self):
        """Its URL over TCP, without a password."""
        return f"postgres://{USER}@127.0.0.1:{self.port}/postgres?sslmode=disable"

    @property
    def socket_url(self):
        """Its URL through the unix socket."""
        return f"postgres:///postgres?host={self.folder}&port={self.port}&user={USER}"

    def start(self):
        """Starts it and waits until it is ready."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        argv = [*_as_user(), _program("postgres"), "-D", str(self._data), "-p", str(self.port), "-k", str(self.folder),
                "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=16MB"]  # fmt: skip
        with open(self.log, "ab") as log:
            command = self.group.command(argv)
            self._process = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._is_ready(begin):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL does not start:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.02)

    def kill(self):
        """Kills it and all its sessions."""
        pids = self.group.pids()
        for pid in pids:
            _signal(pid)
        self._process.wait(_STOP_SECONDS_MAX)
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        while self.group.pids() and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self):
        """Ends it in any state; it is not started again."""
        self.group.end()
        if self._process is not None:
            self._process.wait(_STOP_SECONDS_MAX)
        self._made.cleanup()

    def sql(self, text):
        """Runs SQL as a superuser; returns the output of psql."""
        argv = [_program("psql"), "-h", str(self.folder), "-p", str(self.port), "-U", USER, "-X", "-q", "-A", "-t",
                "-v", "ON_ERROR_STOP=1", "-c", text]  # fmt: skip
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"psql: {done.stderr.strip()}")
        return done.stdout

    def _initialise(self):
        argv = [*_as_user(), _program("initdb"), "-D", str(self._data), "-U", USER, "--no-sync", "-E", "UTF8",
                "--no-locale", "-A", "trust"]  # fmt: skip
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stderr.strip()}")
        if self.password:
            hosts = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
            (self._data / "pg_hba.conf").write_text(hosts)

    def set_password(self):
        """Sets the password that the cluster was created with."""
        self.sql(f"ALTER USER {USER} PASSWORD '{self.password}'")

    def _is_ready(self, begin):
        with open(self.log, "rb") as log:
            log.seek(begin)
            return _READY in log.read()


def _program(name):
    """The newest version; Debian keeps it out of PATH."""
    found = glob.glob(f"/usr/lib/postgresql/*/bin/{name}")
    newest = max(found, key=lambda path: int(pathlib.Path(path).parts[4].partition(".")[0]), default=None)
    if found := newest or shutil.which(name):
        return found
    raise RuntimeError(f"{name} is missing: run bench/peers/install")


def _is_root():
    return os.geteuid() == 0


def _as_user():
    if not _is_root():
        return []
    return ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups"]  # without an additional process


def _signal(pid):
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
