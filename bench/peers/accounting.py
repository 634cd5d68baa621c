"""The cost of a server: CPU seconds of a group of processes and of the machine, and resident
memory.

CPU is counted by a control group if one can be created (version 1 `cpuacct`, version 2 `cpu.stat`),
so that short-lived children are included. Otherwise the process tree in /proc is summed, which
misses reaped grandchildren; `Group.source` tells which one it is. CPU is user plus system time in
seconds.

Process ids are reused, so each one is stored with the start time of its process. A later process
with the same id is neither counted nor ended.
"""

import itertools
import os
import pathlib
import signal
import time

_CGROUP = pathlib.Path("/sys/fs/cgroup")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_END_SECONDS_MAX = 10.0
_numbers = itertools.count(1)

# Runs in the child: enters the group first, so that all CPU is counted, then runs the server.
_ENTER = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


class Group:
    """Processes whose CPU is counted together."""

    def __init__(self, name):
        self._roots = {}  # process id to start time
        self._folder, self.source = _make_cgroup(f"mailrace-bench-{os.getpid()}-{next(_numbers)}-{name}")

    def command(self, argv):
        """The command that enters the group and runs `argv`."""
        if self._folder is None:
            return list(argv)
        return ["/bin/sh", "-c", _ENTER, str(self._folder), *argv]

    def watch(self, pid):
        """Counts the running process `pid`, and its children if there is no control group."""
        if (started := _started(pid)) is not None:
            self._roots[pid] = started

    def pids(self):
        """All running processes of the group."""
        if self._folder is not None:
            return [int(line) for line in _lines(self._folder / "cgroup.procs")]
        self._roots = {pid: started for pid, started in self._roots.items() if _started(pid) == started}
        return [pid for root in self._roots for pid in _tree(root)]

    def cpu_seconds(self):
        """CPU seconds so far."""
        if self._folder is None:
            return sum(_process_cpu_seconds(pid) for pid in self.pids())
        usage = self._folder / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        fields = dict(line.split() for line in _lines(self._folder / "cpu.stat"))
        return int(fields["usage_usec"]) / 1e6

    def thread_cpu_seconds(self):
        """CPU seconds so far of each running thread, by the ids of process and thread."""
        found = {}
        for pid in self.pids():
            for thread in _names(f"/proc/{pid}/task"):
                found[pid, thread] = _cpu_seconds(_stat_fields(f"{pid}/task/{thread}"))
        return found

    def resident_bytes(self):
        """Resident memory of the processes; shared pages are counted for each."""
        return sum(resident_bytes(pid) for pid in self.pids())

    def end(self):
        """Ends the remaining processes, first with SIGTERM, and removes the group."""
        deadline = time.monotonic() + _END_SECONDS_MAX
        while pids := self.pids():
            late = time.monotonic() > deadline - _END_SECONDS_MAX / 2
            for pid in pids:
                _signal(pid, signal.SIGKILL if late else signal.SIGTERM)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {pids} survive SIGKILL")
            time.sleep(0.1)
        if self._folder is not None:
            self._folder.rmdir()
            self._folder = None


def source():
    """How CPU is read on this machine, for a report."""
    group = Group("probe")
    group.end()
    return group.source


def machine_busy_seconds():
    """CPU seconds of all processes of the machine, with interrupts, without idle and iowait."""
    return machine_busy_and_idle_seconds()[0]


def machine_busy_and_idle_seconds():
    """The same, and the seconds in which processors had nothing to do, iowait included."""
    fields = [int(field) for field in _lines("/proc/stat")[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = fields
    busy = user + nice + system + irq + softirq + steal
    return busy / _TICKS_PER_SECOND, (idle + iowait) / _TICKS_PER_SECOND


def resident_bytes(pid):
    """Resident memory of a process; 0 if it has ended."""
    return _status_bytes(pid, "VmRSS")


def resident_bytes_peak(pid):
    """Peak resident memory of a process; 0 if it has ended."""
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid, name):
    for line in _lines(f"/proc/{pid}/status"):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _make_cgroup(name):
    for parent, proof, source in (
        (_CGROUP / "cpuacct", "cpuacct.usage", "cgroup v1, cpuacct.usage"),
        (_CGROUP, "cpu.stat", "cgroup v2, cpu.stat"),
    ):
        folder = parent / name
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / proof).exists():
            return folder, source
        folder.rmdir()
    return None, "/proc process tree (no control group could be made; CPU of reaped grandchildren is missed)"


def _tree(root):
    """`root` and its descendants."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat_fields(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [root] if _stat_fields(root) else []
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def _started(pid):
    """The start time of a process in clock ticks since boot; None if it has ended."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def _process_cpu_seconds(pid):
    fields = _stat_fields(pid)
    return sum(int(field) for field in fields[11:15]) / _TICKS_PER_SECOND if fields else 0.0


def _cpu_seconds(fields):
    """User plus system time of a process or a thread, without its children."""
    return sum(int(field) for field in fields[11:13]) / _TICKS_PER_SECOND


def _stat_fields(pid):
    """The fields of /proc/PID/stat after the command name, which may contain blanks and brackets;
    [] if it has ended.
    """
    lines = _lines(f"/proc/{pid}/stat")
    fields = lines[0].rpartition(")")[2].split() if lines else []
    return [] if fields[:1] == ["Z"] else fields


def _names(folder):
    """The names in a folder of /proc; none if the process has ended."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _lines(path):
    try:
        return pathlib.Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
