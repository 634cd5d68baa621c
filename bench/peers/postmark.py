"""postmark: transactions on a pool of small files. It reports whole seconds, so it is timed from
outside.
"""

import dataclasses
import shutil

from . import load

_CONFIGURATION = """\
set location {pool}
set number {files}
set subdirectories {subfolders}
set transactions {count}
set size {low} {high}
set read {block}
set write {block}
set seed {seed}
run
quit
"""


def is_installed():
    """Whether it is installed."""
    return shutil.which("postmark") is not None


@dataclasses.dataclass(frozen=True)
class Work:
    """The work on files that all programs do."""

    count: int = 1_000_000  # transactions
    files: int = 5000
    subfolders: int = 10
    low: int = 500  # octets
    high: int = 10_000
    block: int = 512
    seed: int = 42
    seconds_max: int = 900


@dataclasses.dataclass(frozen=True)
class Postmark(Work):
    """The work done by postmark, in the folder of its configuration: it has no space for paths of over 80 octets."""

    def command(self):
        """The command line."""
        return ["postmark", "postmark.conf"]

    def configuration(self):
        """postmark.conf."""
        return _CONFIGURATION.format(pool="pool", **dataclasses.asdict(self))

    def run(self, _port, folder):
        """Creates the pool, works on it, and removes it."""
        (folder / "pool").mkdir()
        (folder / "postmark.conf").write_text(self.configuration())
        ran = load.run(self.command(), seconds_max=self.seconds_max, folder=folder)
        if complaint := ran.complaints[0]:  # its exit status is always 0
            raise RuntimeError(f"postmark: {complaint.partition(chr(10))[0]}")
        return load.LoadResult(self.count, ran.seconds, ran.cpu_seconds, threads=ran.threads)
