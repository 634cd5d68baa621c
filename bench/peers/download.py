"""Downloads of one file, several times over several connections, by programs that drop it and say how
much it was.

What is counted are MB, so that the figures per thousand are per GB.
"""

import abc
import dataclasses
import pathlib
import re
import sys
import typing

from . import load


@dataclasses.dataclass(frozen=True)
class Download(abc.ABC):
    """A program for each connection."""

    SIZE: typing.ClassVar[re.Pattern]  # where its output has the size of a file that it fetched
    FAULT: typing.ClassVar[re.Pattern | None] = None  # what it says of a transfer that failed

    connections: int
    times: int  # for each connection
    octets: int  # of the file
    seconds_max: int = 600

    @abc.abstractmethod
    def command(self, port="PORT"):
        """The command line of each connection."""

    def run(self, port, _folder=None):
        """Fetches all; fails if a byte is missing."""
        ran = load.run(*[self.command(port)] * self.connections, seconds_max=self.seconds_max)
        said = [*ran.outputs, *ran.complaints]
        sizes = [size for words in said for size in self.SIZE.findall(words)]
        if self.FAULT and (faults := [fault for words in said for fault in self.FAULT.findall(words)]):
            raise RuntimeError(f"a transfer failed: {faults[0]}")
        if sizes != [str(self.octets)] * (self.connections * self.times):
            raise RuntimeError(f"expected {self.connections * self.times} files of {self.octets} bytes, but fetched {sizes}")
        return load.LoadResult(self.connections * self.times * self.octets // 1_000_000, ran.seconds, ran.cpu_seconds, threads=ran.threads)


@dataclasses.dataclass(frozen=True)
class Discard(Download):
    """`discard.py`, by HTTP: the kernel drops the bytes, as if the client were on another machine."""

    SIZE = re.compile(r"^(\d+)$", re.M)

    def command(self, port="PORT"):
        """The command line of each connection."""
        return [sys.executable, str(pathlib.Path(__file__).with_name("discard.py")), str(port), "/file", str(self.times)]


@dataclasses.dataclass(frozen=True)
class Curl(Download):
    """curl, by HTTP, to /dev/null."""

    SIZE = re.compile(r"^(\d+)$", re.M)

    secure: bool = False

    def command(self, port="PORT"):
        """The command line of each connection."""
        url = f"http{'s' if self.secure else ''}://127.0.0.1:{port}/file"
        says = ["--write-out", r"%{size_download}\n"]
        return ["curl", "--silent", "--fail", "--insecure", *says, *["--output", "/dev/null", url] * self.times]


@dataclasses.dataclass(frozen=True)
class Smbclient(Download):
    """smbclient, as a guest of the share `files`. It does not read the configuration of the machine.

    It says the size that the server has stated before it fetches the file, and complains if it gets less.
    """

    SIZE = re.compile(r"of size (\d+)")
    FAULT = re.compile(r".*(?:parallel_read|NT_STATUS_).*")

    def command(self, port="PORT"):
        """The command line of each connection."""
        gets = "; ".join(["get file /dev/null"] * self.times)
        return ["smbclient", "--configfile=/dev/null", "--no-pass", f"--port={port}", "//127.0.0.1/files", f"--command={gets}"]
