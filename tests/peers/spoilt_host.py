"""A host that a test may spoil: namespaces for the network, mounts and processes, /etc and /var/lib of its own, and a
new loop device with an ext4 for the spool. Needs root.

A process holds it, and removes everything when its standard input ends: also if the test is killed. Of the kernel's
values only those of the network namespace and of the loop device can be changed; /proc/sys/vm, /proc/sys/fs and
/proc/sys/kernel are read-only there.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import time

_UNSHARE = "unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private".split()
_IMAGE_OCTETS = 1 << 30  # sparse
_READ_ONLY = ("/proc/sys/vm", "/proc/sys/fs", "/proc/sys/kernel")
_LOOP_MAJOR, _LOOP_FIRST, _LOOP_LAST = 7, 64, 255
_LOOP_SET_FD, _LOOP_CLR_FD, _LOOP_SET_STATUS64, _LOOP_CTL_ADD, _LOOP_CTL_REMOVE = 0x4C00, 0x4C01, 0x4C04, 0x4C80, 0x4C81
_LOOP_INFO_OCTETS, _LOOP_FLAGS_AT, _LOOP_AUTOCLEAR = 232, 52, 4  # struct loop_info64
_SECONDS_MAX = 60
_NETWORK = ("/proc/sys/net/core", "/proc/sys/net/ipv4")
_MOUNT_FIELDS = ("source", "options")


class Unavailable(Exception):
    """This machine does not let us make such a host."""


class SpoiltHost:
    """The host, from the side of the test."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.spool = self.folder / "spool"
        argv = [*_UNSHARE, sys.executable, os.path.abspath(__file__), str(self.folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._holder = subprocess.Popen(argv, text=True, **pipes)
        said = self._holder.stdout.readline()
        if not said:
            _, error = self._holder.communicate(timeout=_SECONDS_MAX)
            raise Unavailable(error.strip().rpartition("\n")[2] or "unshare failed")
        self.disk = json.loads(said)["disk"]
        self._pid = children(self._holder.pid)[0]

    def end(self):
        """Removes everything."""
        self._holder.communicate(timeout=_SECONDS_MAX)

    def command(self, *argv):
        """The command line that runs a command there."""
        return ["nsenter", "--target", str(self._pid), "--mount", "--net", "--pid", "--", *map(str, argv)]

    def run(self, *argv, code=0, seconds_max=_SECONDS_MAX):
        """Runs a command, which must end with this code; None: with any."""
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run(self.command(*argv), timeout=seconds_max, **streams)
        if code is not None and done.returncode != code:
            raise AssertionError(f"{' '.join(map(str, argv))} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def path(self, name):
        """A path there, as the test can open it."""
        return pathlib.Path(f"/proc/{self._pid}/root{name}")

    def read(self, name):
        """The text of a file there; None without it."""
        done = self.run("cat", name, code=None)
        return done.stdout if done.returncode == 0 else None

    def write(self, name, text):
        """Writes a file there, or a value of the kernel."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf "%s" "$2" >"$1"', "sh", name, text)

    def remount(self, options):
        """Mounts the file system of the spool with other options."""
        self.run("mount", "-o", f"remount,{options}", self.spool)

    def queue(self, name):
        """The file of a value of the loop device."""
        return f"/sys/block/{self.disk}/queue/{name}"

    def state(self):
        """Everything that a test may change, to compare it with later: files with their content, mode and
        owner, values of the kernel, mount options.
        """
        return json.loads(self.run(sys.executable, os.path.abspath(__file__), "state", self.folder, self.disk).stdout)


def children(pid):
    """The children of a process."""
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _state(folder, disk):
    values = {}
    for place in (*_NETWORK, f"/sys/block/{disk}/queue"):
        for path in pathlib.Path(place).rglob("*"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if path.is_file() and path.stat().st_mode & stat.S_IWUSR and path.stat().st_mode & stat.S_IRUSR:
                    values[str(path)] = path.read_text()
    for place in ("/etc", "/var/lib"):
        for path in (pathlib.Path(place), *pathlib.Path(place).rglob("*")):
            about = path.lstat()
            content = path.read_bytes().hex() if stat.S_ISREG(about.st_mode) else None
            values[str(path)] = [about.st_mode, about.st_uid, about.st_gid, content]
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    values["mount"] = [dict(zip(_MOUNT_FIELDS, (line[0], line[3]))) for line in mounts if line[1] == f"{folder}/spool"]
    return values


def _hold(folder):
    """Makes the host, says so, and removes it when standard input ends."""
    _command("ip", "link", "set", "lo", "up")
    for name, source in (("etc", "/etc"), ("lib", None)):
        own = folder / name
        if source:
            shutil.copytree(source, own, symlinks=True, ignore_dangling_symlinks=True)
        else:
            own.mkdir()
        _command("mount", "--bind", str(own), "/var/lib" if name == "lib" else "/etc")
    for place in _READ_ONLY:
        _command("mount", "--bind", place, place)
        _command("mount", "-o", "remount,bind,ro", place)
    with _loop_device(folder / "image", folder) as (number, node):
        _command("mkfs.ext4", "-q", "-F", node)
        (folder / "spool").mkdir()
        _command("mount", "-o", "noatime", node, str(folder / "spool"))
        (folder / "spool").chmod(0o755)
        _end_with_mount(node)
        try:
            print(json.dumps({"disk": f"loop{number}"}), flush=True)
            sys.stdin.read()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all others in this namespace
            _unmount(str(folder / "spool"))


@contextlib.contextmanager
def _loop_device(image, folder):
    """A loop device of its own, so that no value of another one changes."""
    with open(image, "wb") as file:
        file.truncate(_IMAGE_OCTETS)
    control = os.open("/dev/loop-control", os.O_RDWR)
    number = _add_loop(control)
    node = folder / f"loop{number}"
    try:
        os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(_LOOP_MAJOR, number))
        with open(node, "r+b", buffering=0) as device, open(image, "r+b", buffering=0) as file:
            fcntl.ioctl(device, _LOOP_SET_FD, file.fileno())
        try:
            yield number, str(node)
        finally:
            # It usually went with the mount.
            with open(node, "rb", buffering=0) as device, contextlib.suppress(OSError):
                fcntl.ioctl(device, _LOOP_CLR_FD, 0)
    finally:
        _patiently(lambda: fcntl.ioctl(control, _LOOP_CTL_REMOVE, number))
        os.close(control)


def _end_with_mount(node):
    """Detaches the device when it is unmounted, which the end of the namespace does even after a kill."""
    info = bytearray(_LOOP_INFO_OCTETS)
    info[_LOOP_FLAGS_AT] = _LOOP_AUTOCLEAR
    with open(node, "r+b", buffering=0) as device:
        fcntl.ioctl(device, _LOOP_SET_STATUS64, bytes(info))


def _add_loop(control):
    for number in range(_LOOP_FIRST, _LOOP_LAST):
        with contextlib.suppress(FileExistsError):
            fcntl.ioctl(control, _LOOP_CTL_ADD, number)
            return number
    raise OSError("no number is left for a loop device")


def _unmount(place):
    libc = ctypes.CDLL(None, use_errno=True)

    def unmount():
        if libc.umount2(place.encode(), 0):
            raise OSError(ctypes.get_errno(), place)

    _patiently(unmount)


def _patiently(act):
    """Processes that were killed, and the last close of a device, take a moment."""
    deadline = time.monotonic() + _SECONDS_MAX / 2
    while True:
        try:
            return act()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _command(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS_MAX)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")


if __name__ == "__main__":
    if sys.argv[1] == "state":
        print(json.dumps(_state(*sys.argv[2:])))
    else:
        _hold(pathlib.Path(sys.argv[1]))
