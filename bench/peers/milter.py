"""Milters beside a private Postfix, such as OpenDKIM: each is a process with a port and a configuration of its own.

They read no mail but what Postfix passes to them, and end with it.
"""

import dataclasses
import socket
import subprocess
import time

from .postfix import HOLD, Postfix
from .smtp import free_port

_START_SECONDS_MAX = 20.0


@dataclasses.dataclass
class Milter:
    """A milter that is not started.

    program: its name
    options: of its command line, before the file of its configuration
    lines: of its configuration, without its socket
    """

    program: str
    options: tuple
    lines: str
    port: int = dataclasses.field(default_factory=free_port)

    def configuration(self):
        """Its whole configuration."""
        return f"Socket inet:{self.port}@127.0.0.1\n{self.lines}"

    def start(self, folder, group, namespace):
        """Starts it in a group, behind the prefix of a namespace, and waits until it listens."""
        path, log_path = folder / f"{self.program}.conf", folder / f"{self.program}.log"
        path.write_text(self.configuration())
        argv = group.command([*namespace, self.program, *self.options, str(path)])
        with open(log_path, "wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        group.watch(process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._listens():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{self.program} does not listen:\n{log_path.read_text()}")
            time.sleep(0.05)
        return process

    def _listens(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False


class MilterPostfix(Postfix):
    """A tuned Postfix that queues all mail after milters have seen it. The CPU of all counts."""

    def __init__(self, folder, milters, lines=(), services=(), files=None):
        addresses = " ".join(f"inet:127.0.0.1:{milter.port}" for milter in milters)
        lines = [HOLD, f"smtpd_milters = {addresses}", "milter_default_action = tempfail", *lines]
        super().__init__(folder, "tuned", lines, services, files)
        self._folder, self._milters, self._processes = folder, milters, []

    def start(self):
        """Starts the milters, and then Postfix."""
        for milter in self._milters:
            self._processes.append(milter.start(self._folder, self.group, self.namespace()))
        super().start()

    def stop(self):
        """Ends all, in any state."""
        super().stop()
        for process in self._processes:
            process.wait(10)

    def configuration(self):
        """The configurations of all, for a report."""
        texts = [f"# {milter.program}.conf\n{milter.configuration()}" for milter in self._milters]
        return "".join([super().configuration(), *texts])
