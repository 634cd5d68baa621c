"""A set-up: its files, and the server whose configuration they are."""

import dataclasses
import pathlib

from .comparison import Known
from .probe import read

_HERE = pathlib.Path(__file__).resolve().parent
# The folders of set-ups by server, and the files of which each of them has one.
_FOLDERS = {"postfix": _HERE / "setups", "exim": _HERE / "exim_setups"}
_MAIN = {"postfix": ("main.cf",), "exim": ("exim4.conf", "update-exim4.conf.conf")}
_OURS = ("probes", "servers", "differences", "zone", "main.cf", "master.cf", "exim4.conf", "etc", "accounts",
         "directory.ldif", "database.sql")  # fmt: skip


def names(server):
    """All set-ups of a server."""
    return sorted(path.name for path in _FOLDERS[server].iterdir() if any((path / main).exists() for main in _MAIN[server]))


@dataclasses.dataclass(frozen=True)
class Setup:
    """One of them."""

    server: str
    name: str

    @property
    def folder(self):
        """Where its files are."""
        return _FOLDERS[self.server] / self.name

    @property
    def main(self):
        """The name of its main file."""
        return next(main for main in _MAIN[self.server] if (self.folder / main).exists())

    def text(self, file):
        """The text of a file; empty if there is none."""
        path = self.folder / file
        return path.read_text() if path.exists() else ""

    def files(self):
        """What is copied to the server's folder as it is."""
        return [path for path in self.folder.iterdir() if path.name not in _OURS]

    @property
    def title(self):
        """The first line of its main file, a comment."""
        return self.text(self.main).splitlines()[0].lstrip("# ")

    @property
    def probes(self):
        """Its probes."""
        return read(self.text("probes"))

    @property
    def known(self):
        """Its known differences, and those of all set-ups of its server."""
        return Known.read(self.text("differences") + (self.folder.parent / "differences").read_text())
