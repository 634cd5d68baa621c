"""Stand-ins for a milter and for a policy service: programs that take all mail and cost next to nothing, so that what is
measured is the server that asks them. They are examples of the crate `filter`, beside the server's binary.

A stand-in is no part of the server: its CPU is counted by itself.
"""

import shlex
import subprocess
import time

from . import accounting
from .mailrace import BINARY
from .smtp import free_port

PROGRAMS = BINARY.parent / "examples"
_START_SECONDS_MAX = 20.0


def are_built():
    """Whether `make stand-ins` was run, or for a debug build the tests of the crate."""
    return (PROGRAMS / "milter_stub").exists() and (PROGRAMS / "policy_stub").exists()


class StandIn:
    """A program that is not started; it listens on a port, or at a path."""

    def __init__(self, folder, name, *words, has_path=False):
        self.address = f"unix:{folder}/{name}.sock" if has_path else f"127.0.0.1:{free_port()}"
        self.group = accounting.Group(name)
        self._name, self._words = name, words
        self._output, self._process = folder / f"{name}.out", None

    def command(self):
        """The command line."""
        return [str(PROGRAMS / self._name), self.address, *self._words]

    def start(self):
        """Starts it and waits until it listens."""
        with open(self._output, "wb") as output:
            argv = self.group.command(self.command())
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while "ready" not in (said := self._output.read_text()):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"{self._name} does not listen:\n{said}")
            time.sleep(0.02)

    def stop(self):
        """Ends it in any state."""
        self.group.end()
        if self._process is not None:
            self._process.wait(10)


class FilteredServer:
    """A server that asks a stand-in; otherwise it is that server."""

    def __init__(self, stand_in, server):
        self.stand_in, self._server = stand_in, server

    def __getattr__(self, name):
        return getattr(self._server, name)

    def start(self):
        """Starts the stand-in first."""
        self.stand_in.start()
        return self._server.start()

    def stop(self):
        """Ends both, in any state."""
        self._server.stop()
        self.stand_in.stop()

    def configuration(self):
        """That of the server, and the command line of the stand-in."""
        return f"{self._server.configuration()}\n# stand-in: {shlex.join(self.stand_in.command())}\n"
