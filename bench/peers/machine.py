"""The machine and folder of a measurement: processor, memory, kernel, file system, versions.

All files of a run are in one new folder below MAILRACE_BENCH_DIR, which is removed at the end.
"""

import contextlib
import datetime
import os
import pathlib
import platform
import resource
import shutil
import subprocess
import time
import tempfile

from . import accounting
from .mailrace import BINARY, ROOT


def bench_dir():
    """Where runs create their folders."""
    default = pathlib.Path(tempfile.gettempdir()) / "mailrace-bench"
    return pathlib.Path(os.environ.get("MAILRACE_BENCH_DIR", default))


@contextlib.contextmanager
def run_folder(name, below=None):
    """A new folder for one run, usually below `bench_dir`; all users can enter it, since servers give up root."""
    if below is None:
        below = bench_dir()
        below.mkdir(parents=True, exist_ok=True)
        below.chmod(0o755)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir=below))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_space(folder, octets):
    """Fails if the disk does not have enough space."""
    free = shutil.disk_usage(folder).free
    if free < octets:
        raise RuntimeError(f"this run needs {octets / 1e9:.1f} GB below {folder}, but only {free / 1e9:.1f} GB are free")


def require_open_files(count):
    """Lets this process and the servers that it starts open so many files; fails if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise RuntimeError(f"this run needs {count:,} open files, but the hard limit is {hard:,} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def run(*argv):
    """Runs a command that must succeed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


# Virtual machines are slower right after a load, so each run begins after the same pause. A smaller load needs less.
REST_SECONDS = int(os.environ.get("MAILRACE_BENCH_REST", "8"))


def settle():
    """Syncs the disk and pauses, so that a run does not pay for earlier ones."""
    os.sync()
    time.sleep(REST_SECONDS)


def processors():
    """The number of processors."""
    return os.cpu_count()


def describe(folder):
    """The machine as name and value pairs for a report."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {processors()} cores, shared by load and server",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": file_system(folder),
        "Mailrace": f"{_output(str(BINARY), '--version') or 'not built'}, commit {_commit()}{_built()}",
        "CPU read from": accounting.source(),
        "Postfix": _output("postconf", "-dh", "mail_version") or "not installed",
    }


def package(name):
    """Returns a function that returns the version of this Debian package."""
    return lambda: _output("dpkg-query", "--show", "--showformat=${Version}", name) or "not installed as a package"


def file_system(folder):
    """Type, device and options of the file system of `folder`, and for ext4 whether it has a
    journal.
    """
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


def newer_source(binary=BINARY):
    """A source file that has changed since the binary was built from it, by Cargo's list of them; None if there is none."""
    listed = binary.with_name(f"{binary.name}.d")
    if not binary.exists() or not listed.exists():
        return None
    built = binary.stat().st_mtime
    sources = listed.read_text().replace("\\ ", "\0").split()[1:]
    paths = (pathlib.Path(source.replace("\0", " ")) for source in sources)
    return next((path for path in paths if not path.exists() or path.stat().st_mtime > built), None)


def _built():
    """When the binary was built, and whether it is that of the commit."""
    if not BINARY.exists():
        return ""
    built = datetime.datetime.fromtimestamp(BINARY.stat().st_mtime, datetime.timezone.utc)
    return f", built {built:%Y-%m-%d %H:%M} UTC{' from OTHER SOURCES' if newer_source() else ''}"


def _commit():
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", "crates", "Cargo.lock", "Cargo.toml")
    return f"{commit or 'unknown'}{' with changes' if changed else ''}"


def _output(*argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError:
        return ""
