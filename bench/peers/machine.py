"""What a figure was measured on: processor, memory, kernel, file system, versions. And the folder it was measured in.

Everything that a run writes lies in one fresh folder below MAILRACE_BENCH_DIR, which is removed when the run ends.
"""

import contextlib
import datetime
import os
import pathlib
import platform
import shutil
import subprocess
import time
import tempfile

from . import accounting
from .mailrace import BINARY, ROOT


def bench_dir():
    """Where runs make their folders."""
    default = pathlib.Path(tempfile.gettempdir()) / "mailrace-bench"
    return pathlib.Path(os.environ.get("MAILRACE_BENCH_DIR", default))


@contextlib.contextmanager
def run_folder(name):
    """A fresh folder for one run; every user may pass through it, since servers give up root."""
    bench_dir().mkdir(parents=True, exist_ok=True)
    bench_dir().chmod(0o755)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir=bench_dir()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_space(folder, octets):
    """Refuses a run that the disk has no room for."""
    free = shutil.disk_usage(folder).free
    if free < octets:
        raise RuntimeError(f"this run needs {octets / 1e9:.1f} GB below {folder}, and {free / 1e9:.1f} GB are free")


def run(*argv):
    """Runs a command that has to succeed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


# Virtual machines are slower for a while after they were busy; each run begins after the same rest.
REST_SECONDS = 8


def settle():
    """Lets disk and machine finish what earlier runs left behind, so that the next run does not pay for it."""
    os.sync()
    time.sleep(REST_SECONDS)


def processors():
    """How many there are."""
    return os.cpu_count()


def describe(folder):
    """The machine, as pairs of words for a report."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {processors()} cores, shared by load and server",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": file_system(folder),
        "Mailrace": f"{_output(str(BINARY), '--version') or 'not built'}, commit {_commit()}",
        "CPU read from": accounting.source(),
        "Postfix": _output("postconf", "-dh", "mail_version") or "not installed",
    }


def package(name):
    """A function that tells the version of Debian's package of that name."""
    return lambda: _output("dpkg-query", "--show", "--showformat=${Version}", name) or "not installed as a package"


def file_system(folder):
    """Type, place and options of the file system that holds `folder`, and for ext4 whether it has a journal."""
    device, place, kind, options = _mount(folder)
    if kind != "ext4":
        return f"{kind} on {place} ({options})"
    task = pathlib.Path("/sys/fs/ext4") / os.path.basename(os.path.realpath(device)) / "journal_task"
    journal = "with a journal" if task.exists() and task.read_text().strip().isdigit() else "WITHOUT a journal"
    return f"ext4 {journal} on {place} ({options})"


def _mount(folder):
    path = os.path.realpath(folder)
    mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if os.path.commonpath([path, mount[1]]) == mount[1]]
    device, place, kind, options, *_ = max(reversed(holding), key=lambda mount: len(mount[1]))
    return device, place, kind, options


def _processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit():
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", "crates", "Cargo.lock", "Cargo.toml")
    return f"{commit or 'unknown'}{' with changes' if changed else ''}"


def _output(*argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError:
        return ""
