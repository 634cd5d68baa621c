"""A private Unbound with records of its own, which asks nobody else: the name server of measurements that need one."""

import shutil
import socket
import struct
import subprocess
import time

from .smtp import free_port

STANDARD_ADDRESS = "127.0.0.5"  # where programs find it that can only ask port 53
_START_SECONDS_MAX = 20.0
_CONFIGURATION = """\
server:
{interfaces}  do-daemonize: no
  username: ""
  chroot: ""
  directory: "{folder}"
  pidfile: "{folder}/unbound.pid"
  use-syslog: no
  module-config: "iterator"
{zones}{records}remote-control:
  control-enable: no
"""
_STRING_OCTETS_MAX = 255


def is_installed():
    """Whether it is installed."""
    return shutil.which("unbound") is not None


def text_record(name, text):
    """A TXT record, in strings that are short enough."""
    strings = (text[start : start + _STRING_OCTETS_MAX] for start in range(0, len(text), _STRING_OCTETS_MAX))
    return f"{name}. IN TXT " + " ".join(f'"{string}"' for string in strings)


class Unbound:
    """A private instance.

    records: lines of a zone file with complete names
    zones: the names below which nothing else exists
    standard: whether it also answers on port 53 of STANDARD_ADDRESS; only one instance can
    """

    def __init__(self, folder, zones, records, standard=False):
        self.port, self._folder, self._process = free_port(), folder, None
        folder.mkdir()
        sockets = [f"127.0.0.1@{self.port}", *([f"{STANDARD_ADDRESS}@53"] if standard else [])]
        self._configuration = _CONFIGURATION.format(
            interfaces="".join(f"  interface: {socket}\n" for socket in sockets),
            folder=folder, zones="".join(f'  local-zone: "{zone}." static\n' for zone in zones),
            records="".join(f"  local-data: '{record}'\n" for record in records),
        )  # fmt: skip

    def start(self):
        """Starts it, and waits until it answers."""
        path = self._folder / "unbound.conf"
        path.write_text(self._configuration)
        with open(self._folder / "unbound.log", "wb") as log:
            argv = ["unbound", "-d", "-c", str(path)]
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"unbound does not answer:\n{(self._folder / 'unbound.log').read_text()}")

    def stop(self):
        """Ends it, in any state."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)

    def _answers(self):
        question = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + b"\x04test\x00" + struct.pack("!2H", 1, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(0.2)
            try:
                client.sendto(question, ("127.0.0.1", self.port))
                return len(client.recv(4096)) > 0
            except OSError:
                return False
