"""Postfix's smtp-source as the load and smtp-sink as the reference: it takes mail at full speed and
discards it.

The load always goes to 127.0.0.1 and is limited in messages and in time. smtp-source fails at the
first unexpected reply, so after a successful run every message has its 250.
"""

import dataclasses
import os
import pathlib
import random
import socket
import subprocess
import time

from . import accounting, load

SENDER, RECIPIENT = "sender@bench.test", "user@bench.test"
_LISTEN_SECONDS_MAX = 20.0
_PORT_MIN = 16_384
_PORT_TRIES = 100


@dataclasses.dataclass(frozen=True)
class Load:
    """The number of messages, and how they are sent."""

    count: int
    sessions: int = 100
    reuse: bool = True  # many messages on one connection
    octets: int = 6000
    recipient: str = RECIPIENT
    sources: int = 1  # processes that share count and sessions evenly
    numbered: bool = False  # each source prefixes its recipients with 1, 2, 3, ...
    seconds_max: int = 600

    @property
    def messages_max(self):
        """The most messages that it sends."""
        return self.count

    def command(self, port="PORT"):
        """The command line of one source."""
        flags = (["-d"] if self.reuse else []) + (["-N"] if self.numbered else [])
        return [
            "smtp-source", *flags,
            "-s", str(self.sessions // self.sources), "-l", str(self.octets), "-m", str(self.count // self.sources),
            "-f", SENDER, "-t", self.recipient, f"127.0.0.1:{port}",
        ]  # fmt: skip

    def run(self, port, _folder=None):
        """Sends all messages, from the first connection to the last reply."""
        ran = load.run(*[self.command(port)] * self.sources, seconds_max=self.seconds_max)
        return load.LoadResult(self.count, ran.seconds, ran.cpu_seconds, threads=ran.threads)


class Sink:
    """smtp-sink on a port of its own."""

    name = "sink"

    def __init__(self, folder):
        self.port = free_port()
        self.group = accounting.Group("sink")
        self._log = folder / "sink.log"
        self._process = None

    def command(self):
        """The command line."""
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        return ["smtp-sink", *user, f"127.0.0.1:{self.port}", "1000"]

    def start(self):
        """Starts it and waits until it listens."""
        with open(self._log, "wb") as log:
            argv = self.group.command(self.command())
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        wait_for_banner(self.port)

    def stop(self):
        """Ends it in any state."""
        self.group.end()
        if self._process is not None:
            self._process.wait(10)

    def configuration(self):
        """Only its command line."""
        return " ".join(self.command())

    def check_kept(self, count):
        """Does nothing: a sink keeps no mail."""


def free_port():
    """A free loopback port. It stays free until a server takes it, and while that server is down:
    it is outside the range from which the kernel takes the ports of clients.
    """
    first_of_clients = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(_PORT_MIN, max(first_of_clients, _PORT_MIN + 1000)), _PORT_TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port")


def wait_for_banner(port):
    """Waits until a server greets on `port`."""
    deadline = time.monotonic() + _LISTEN_SECONDS_MAX
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                if connection.recv(3) == b"220":
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"no greeting on port {port} within {_LISTEN_SECONDS_MAX:.0f} s")
        time.sleep(0.02)
