"""A private Redis on its own port and unix socket, without a file."""

import pathlib
import socket
import subprocess
import tempfile
import time

from . import accounting
from .smtp import free_port

_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 30.0


class RedisServer:
    """A server; it can be stopped and started again on the same port, and is then empty."""

    def __init__(self, password=None):
        self._made = tempfile.TemporaryDirectory(prefix="mailrace-redis-", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._made.name)
        self.folder.chmod(0o755)
        self.port = free_port()
        self.socket = self.folder / "socket"
        self.password = password
        self.group = accounting.Group("redis")
        self.log = self.folder / "redis.log"
        self._process = None

    @property
    def url(self):
        """Its URL over TCP, without a password."""
        return f"redis://127.0.0.1:{self.port}/1"

    @property
    def socket_url(self):
        """Its URL through the unix socket."""
        return f"redis:///1?socket={self.socket}"

    def start(self):
        """Starts it and waits until it is ready."""
        argv = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket),
                "--unixsocketperm", "777", "--save", "", "--dir", str(self.folder)]  # fmt: skip
        if self.password:
            argv += ["--requirepass", self.password]
        with open(self.log, "ab") as log:
            command = self.group.command(argv)
            self._process = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Redis does not start:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.02)

    def kill(self):
        """Kills it, and with it all connections."""
        self._process.kill()
        self._process.wait(_STOP_SECONDS_MAX)

    def stop(self):
        """Ends it in any state; it is not started again."""
        self.group.end()
        if self._process is not None:
            self._process.wait(_STOP_SECONDS_MAX)
        self._made.cleanup()

    def run(self, *words):
        """Runs a command in database 1; returns the raw reply, which must not be an error."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            if self.password:
                self._ask(connection, "AUTH", self.password)
            self._ask(connection, "SELECT", "1")
            return self._ask(connection, *words)

    def _ask(self, connection, *words):
        parts = (f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        reply = connection.recv(65536)
        if not reply or reply.startswith(b"-"):
            raise RuntimeError(f"{words[0]}: {reply!r}")
        return reply

    def _is_ready(self):
        try:
            self.run("PING")
        except (OSError, RuntimeError):
            return False
        return True
