"""NATS servers with JetStream, for clusters of Mailrace: real ones, and a stub that answers after a fixed time.

All of them listen on 127.0.0.1 only, and announce no addresses. MAILRACE_NATS_SERVER names another binary than the one
in PATH, such as the newer one that `bench/peers/install ecosystem` builds. The stub and the bare publisher are examples of the crate `cluster` beside the measured binary, built with
`cargo build --release -p cluster --examples`; MAILRACE_EXAMPLES names another folder.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time

from . import accounting
from .mailrace import BINARY as MAILRACE
from .mailrace import ROOT
from .smtp import free_port

CURRENT = ROOT / "target/peers/nats/nats-server"  # beside Debian's version, if `bench/peers/install` has built it
BINARY = os.environ.get("MAILRACE_NATS_SERVER") or shutil.which("nats-server") or "/usr/sbin/nats-server"
EXAMPLES = pathlib.Path(os.environ.get("MAILRACE_EXAMPLES", MAILRACE.parent / "examples"))
_STUB, _PUBLISHER = EXAMPLES / "nats_stub", EXAMPLES / "nats_publisher"
# Servers that start at the same time close one of two routes between them. On a busy machine each can close the other
# one, and then they elect nobody for minutes; so they are started again.
_READY_SECONDS_MAX, _STARTS = 40.0, 3

_CONFIG = """
server_name: "n{number}"
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{monitor}"
jetstream {{ store_dir: "{store}", max_memory_store: 64MB, max_file_store: {file_store} }}
cluster {{
  name: "test"
  listen: "127.0.0.1:{route}"
  no_advertise: true
  routes: [{routes}]
}}
"""


def is_installed():
    """Whether a server is installed."""
    return os.access(BINARY, os.X_OK)


def has_examples():
    """Whether the stub and the publisher are built."""
    return all(os.access(program, os.X_OK) for program in (_STUB, _PUBLISHER))


def version():
    """The version of the servers, or that they are not installed."""
    if not is_installed():
        return "not installed"
    shown = subprocess.run([BINARY, "--version"], capture_output=True, text=True, timeout=20).stdout
    found = re.search(r"v([\d.]+)", shown)
    return found.group(1) if found else shown.strip()


class NatsServers:
    """Servers that keep three copies of each stream."""

    def __init__(self, folder, count=3, file_store="4GB", security=""):
        """`security` is added to the configuration of each server: what they ask of clients."""
        self.ports = [free_port() for _ in range(count)]
        self.monitors = [free_port() for _ in range(count)]
        self.replicas = count
        routes = [free_port() for _ in range(count)]
        others = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
        self.folder, self.processes = folder, [None] * count
        self.group = accounting.Group("nats")
        for number in range(count):
            text = _CONFIG.format(
                number=number, client=self.ports[number], monitor=self.monitors[number], route=routes[number],
                routes=others, store=folder / f"nats-{number}", file_store=file_store,
            )  # fmt: skip
            (folder / f"nats-{number}.conf").write_text(text + security)

    @property
    def urls(self):
        """The addresses for clients."""
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    def start(self):
        """Starts all, and waits until they have elected a leader of JetStream."""
        if not any(self._are_healthy_after_start() for _ in range(_STARTS)):
            raise RuntimeError(f"the NATS servers are not ready: {(self.folder / 'nats-0.log').read_text()[-400:]}")

    def _are_healthy_after_start(self):
        """Starts all. If they are not ready in time, they are killed."""
        for number in range(len(self.ports)):
            self.start_one(number)
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while time.monotonic() < deadline and all(process.poll() is None for process in self.processes):
            if self.are_healthy():
                return True
            time.sleep(0.05)
        for number in range(len(self.ports)):
            self.kill_one(number)
        return False

    def start_one(self, number):
        """Starts a server that does not run."""
        argv = self.group.command([BINARY, "-c", str(self.folder / f"nats-{number}.conf")])
        with open(self.folder / f"nats-{number}.log", "ab") as log:
            self.processes[number] = subprocess.Popen(argv, stdout=log, stderr=log)
        self.group.watch(self.processes[number].pid)

    def kill_one(self, number):
        """Kills a server."""
        self.processes[number].kill()
        self.processes[number].wait(30)

    def stop(self):
        """Ends all."""
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(30)
        self.group.end()

    def are_healthy(self):
        """Whether all run, and have the copies of their streams."""
        return all(self._is_healthy(port) for port in self.monitors)

    def _is_healthy(self, port):
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as connection:
                connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                connection.settimeout(5)
                return b" 200 " in connection.recv(100)
        except OSError:
            return False

    def leader_of(self, stream):
        """The number of the server that leads the group of a stream."""
        found = self.request(f"$JS.API.STREAM.INFO.{stream}")
        return int(found["cluster"]["leader"].removeprefix("n"))

    def request(self, subject):
        """Asks the servers something without content, through the first one; returns the answer."""
        with socket.create_connection(("127.0.0.1", self.ports[0]), 10) as connection:
            lines = connection.makefile("rwb")
            lines.readline()  # what the server is
            lines.write(f'CONNECT {{"verbose":false}}\r\nSUB answer 1\r\nPUB {subject} answer 0\r\n\r\n'.encode())
            lines.flush()
            while not (line := lines.readline()).startswith(b"MSG "):
                if line.startswith(b"PING"):
                    lines.write(b"PONG\r\n")
                    lines.flush()
            return json.loads(lines.read(int(line.split()[-1])))


class NatsStub:
    """One that answers each record after a millisecond, and keeps nothing."""

    replicas = 1

    def __init__(self, _folder):
        self.process = self.port = None

    @staticmethod
    def command():
        """The command line."""
        return [str(_STUB), "127.0.0.1:0", "1000"]

    @property
    def urls(self):
        """Its address."""
        return [f"nats://127.0.0.1:{self.port}"]

    def start(self):
        """Starts it; its port is known then."""
        self.process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def stop(self):
        """Ends it, in any state."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def octets(self):
        """What it was sent, in all of its connections."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            lines = connection.makefile("rwb")
            lines.readline()  # the greeting
            lines.write(b"BYTES\r\n")
            lines.flush()
            return int(lines.readline())


def publisher_command(url, replicas, count, octets, in_flight):
    """The command line of a program that only publishes."""
    return [str(_PUBLISHER), url.removeprefix("nats://"), *map(str, (replicas, count, octets, in_flight))]
