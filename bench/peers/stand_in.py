"""Stand-ins for a milter and for a policy service: programs that take all mail and cost next to nothing, so that what is
measured is the server that asks them. They are examples of the crate `filter` without dependencies, and compiled when they
are first used.

A stand-in is no part of the server: its CPU is counted by itself.
"""

import functools
import shlex
import shutil
import subprocess
import time

from . import accounting, machine
from .mailrace import ROOT
from .smtp import free_port

_SOURCES, _PROGRAMS = ROOT / "crates/filter/examples", ROOT / "target/bench"
_START_SECONDS_MAX = 20.0


def is_buildable():
    """Whether there is a compiler."""
    return shutil.which("rustc") is not None


@functools.cache
def _program(name):
    """The path of a program, which is compiled if it is older than its source."""
    source, program = _SOURCES / f"{name}.rs", _PROGRAMS / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        _PROGRAMS.mkdir(parents=True, exist_ok=True)
        machine.run("rustc", "--edition", "2024", "-O", "-o", str(program), str(source))
    return program


class StandIn:
    """A program that is not started."""

    def __init__(self, folder, name, *words):
        self.port = free_port()
        self.group = accounting.Group(name)
        self._name, self._words = name, words
        self._output, self._process = folder / f"{name}.out", None

    def command(self):
        """The command line."""
        return [str(_program(self._name)), f"127.0.0.1:{self.port}", *self._words]

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
