"""A private MariaDB with its own data, port and unix socket; the machine may run another one.

It is for tests that kill and restart it, and does not sync. Root may connect through the socket
without a password.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from . import accounting
from .smtp import free_port

_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 30.0
# Small, since the tests store little; Debian's default is 96 MB.
_LOG_SIZE = "--innodb-log-file-size=4M"


def is_installed():
    """Whether it is installed."""
    return shutil.which("mariadbd") is not None


class Mariadb:
    """A server, whose data is created in the constructor; it can be stopped and started again on the
    same port and data.
    """

    def __init__(self):
        if not is_installed():
            raise RuntimeError("MariaDB is missing: run bench/peers/install")
        self._made = tempfile.TemporaryDirectory(prefix="mailrace-my-", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._made.name)
        self.folder.chmod(0o755)
        self.port = free_port()
        self.socket = self.folder / "socket"
        self.group = accounting.Group("mariadb")
        self.log = self.folder / "mariadb.log"
        self._data, self._process = self.folder / "data", None
        self._initialise()

    def url(self, user="root", password="", database="mail"):
        """Its URL over TCP."""
        login = f"{user}:{password}" if password else user
        return f"mysql://{login}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, user="root", database="mail"):
        """Its URL through the unix socket."""
        return f"mysql://{user}@localhost/{database}?socket={self.socket}"

    def start(self, *settings):
        """Starts it and waits until it is ready."""
        argv = ["mariadbd", "--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--skip-name-resolve",
                "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=2", _LOG_SIZE,
                f"--port={self.port}", f"--datadir={self._data}", f"--socket={self.socket}", *_as_root(), *settings]  # fmt: skip
        with open(self.log, "ab") as log:
            command = self.group.command(argv)
            self._process = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while self._client("SELECT 1").returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"MariaDB does not start:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.05)

    def kill(self):
        """Kills it, and with it all connections."""
        self._process.kill()
        self._process.wait(_STOP_SECONDS_MAX)

    def terminate(self):
        """Ends it cleanly; it may be started again."""
        self._process.terminate()
        self._process.wait(_STOP_SECONDS_MAX)

    def stop(self):
        """Ends it in any state; it is not started again."""
        self.group.end()
        if self._process is not None:
            self._process.wait(_STOP_SECONDS_MAX)
        self._made.cleanup()

    def sql(self, text):
        """Runs SQL as root; returns the output."""
        done = self._client(text)
        if done.returncode:
            raise RuntimeError(f"mariadb: {done.stderr.strip()}")
        return done.stdout

    def _client(self, text):
        argv = ["mariadb", "--no-defaults", "-u", "root", "-S", str(self.socket), "-N", "-B", "-e", text]
        return subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60)

    def _initialise(self):
        argv = ["mariadb-install-db", "--no-defaults", f"--datadir={self._data}", "--skip-test-db", _LOG_SIZE,
                "--auth-root-authentication-method=normal", *_as_root()]  # fmt: skip
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db: {done.stderr.strip()}{done.stdout.strip()}")


def _as_root():
    """It runs as root only if it is told to."""
    return ["--user=root"] if os.geteuid() == 0 else []
