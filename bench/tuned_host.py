"""A host whose settings a scenario changes: namespaces for the network, mounts and processes, and a new file system.

What belongs to the namespaces and the mount ends with them. The values of the file system's device, and those of the
whole machine (vm.*), are put back when the run ends, and by the guard (peers/guard.py) if it is killed. Needs root.
"""

import os
import pathlib
import re
import subprocess
import sys

import filesystem
from peers import guard, machine

_INSIDE = "MAILRACE_BENCH_NAMESPACES"  # set in the environment of the run in its namespaces
# Whatever kills the outer process ends the namespaces, too.
_UNSHARE = (
    "setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private".split()
)
_MET, _MISSED = 0, 1  # exit statuses of bench/run
_SHOWN = ("noatime", "relatime", "sync")  # others are what a mount has without a word
_SYSCTLS = pathlib.Path("/proc/sys")
_PAIRED = "dirty_"  # of two such values one is 0, which cannot be written to it


def run_in_namespaces(options, kind, run, host):
    """Runs `run(options, host, folder)` on a new file system of this kind; `host` makes the host from its folder."""
    if options.on is not None:
        raise RuntimeError(f"{options.name} makes a file system of its own: leave out --on")
    if os.geteuid() != 0:
        raise RuntimeError("namespaces and mounts need root")
    if _INSIDE not in os.environ:
        line = [*_UNSHARE, sys.executable, *sys.argv]
        with guard.watching():
            environment = os.environ | {_INSIDE: "1"}
            code = subprocess.run(line, env=environment, pass_fds=guard.inherited()).returncode
        if code not in (_MET, _MISSED):
            raise RuntimeError("the run in its namespaces failed, as it says above")
        return code == _MET
    machine.run("ip", "link", "set", "lo", "up")
    with filesystem.chosen(kind):
        place = pathlib.Path(os.environ["MAILRACE_BENCH_DIR"])
        place.chmod(0o755)
        with host(place) as changing, machine.run_folder(options.name) as folder:
            return run(options, changing, folder)


class TunedHost:
    """What of the host is varied. Values have the names of their files: in the folder of the device's queue, and sysctls.

    `machine_sysctls` are those of the whole machine that may be changed. Of two that set each other to 0, such as
    vm.dirty_ratio and vm.dirty_bytes, the one in force is put back.
    """

    def __init__(self, place, device_values=(), machine_sysctls=()):
        self._place = place
        device = os.stat(place).st_dev
        self._queue = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue").resolve()
        values = {self._queue / name: _value(self._queue / name) for name in device_values}
        sysctls = {_sysctl(name): _value(_sysctl(name)) for name in machine_sysctls if _sysctl(name).exists()}
        in_force = {path: value for path, value in sysctls.items() if value != "0" or not path.name.startswith(_PAIRED)}
        self._before = values | in_force

    def __enter__(self):
        for path, value in self._before.items():
            guard.remember(path, value)
        return self

    def __exit__(self, *_):
        self.put_back()

    def put_back(self):
        """Writes the values as they were before; mounts and namespaces end by themselves."""
        for path, value in self._before.items():
            path.write_text(value)

    def set_device(self, values):
        """Sets values of the device."""
        for name, value in values.items():
            (self._queue / name).write_text(value)

    def set_sysctls(self, values):
        """Sets sysctls, of the network namespace or of the machine."""
        for name, value in values.items():
            _sysctl(name).write_text(value)

    def remount(self, options):
        """Mounts the file system with other options."""
        machine.run("mount", "-o", f"remount,{options}", str(self._place))
        now = machine.file_system(self._place).rpartition("(")[2].rstrip(")").split(",")
        if lacking := [word for word in options.split(",") if word in _SHOWN and word not in now]:
            raise RuntimeError(f"{self._place} is not mounted with {' and '.join(lacking)}, but with {','.join(now)}")


def sysctls(names):
    """The values of sysctls now, those that exist."""
    return {name: _value(_sysctl(name)) for name in names if _sysctl(name).exists()}


def may_set(name):
    """Whether a sysctl can be written here; in some containers /proc/sys is read-only."""
    return os.access(_sysctl(name), os.W_OK)


def _sysctl(name):
    return _SYSCTLS / name.replace(".", "/")


def _value(path):
    """The value in a file; of several words with one in brackets, that one."""
    text = path.read_text().strip()
    chosen = re.search(r"\[(.+?)\]", text)
    return chosen[1] if chosen else text
