"""A set-up: its files."""

import dataclasses
import pathlib

from .comparison import Known
from .probe import read

FOLDER = pathlib.Path(__file__).resolve().parent / "setups"
_OURS = ("probes", "servers", "differences", "zone", "main.cf", "master.cf")


def names():
    """All set-ups."""
    return sorted(path.name for path in FOLDER.iterdir() if (path / "main.cf").exists())


@dataclasses.dataclass(frozen=True)
class Setup:
    """One of them."""

    name: str

    def text(self, file):
        """The text of a file; empty if there is none."""
        path = FOLDER / self.name / file
        return path.read_text() if path.exists() else ""

    def files(self):
        """What is copied to /etc/postfix as it is."""
        return [path for path in (FOLDER / self.name).iterdir() if path.name not in _OURS]

    @property
    def title(self):
        """The first line of main.cf, a comment."""
        return self.text("main.cf").splitlines()[0].lstrip("# ")

    @property
    def probes(self):
        """Its probes."""
        return read(self.text("probes"))

    @property
    def known(self):
        """Its known differences, and those of all set-ups."""
        return Known.read(self.text("differences") + (FOLDER / "differences").read_text())
