"""Runs load programs to their end and collects their output, time and CPU.

Every load goes to 127.0.0.1 and has a time limit. A program that fails makes the run fail with its
error output. Each program leads its own session, so that its children are ended with it.
"""

import dataclasses
import os
import resource
import signal
import subprocess
import threading
import time

_END_SECONDS_MAX = 5
_COUNT_SECONDS = 0.1  # between two counts of threads


@dataclasses.dataclass(frozen=True)
class LoadResult:
    """The result of a load."""

    count: int  # messages, requests or transactions that succeeded
    seconds: float
    cpu_seconds: float  # of the load, not of the server
    latency_seconds: dict = dataclasses.field(default_factory=dict)  # by percentile ("50", "99"), if it is known
    threads: int = 0  # of the load; 0 if they are not known


@dataclasses.dataclass(frozen=True)
class ProgramResult:
    """The output, time and CPU of programs."""

    outputs: tuple
    complaints: tuple  # standard error of each
    seconds: float
    cpu_seconds: float
    threads: int  # the most that all of them had at the same time


def run(*commands, seconds_max, folder=None, codes=(0,)):
    """Runs commands in parallel in `folder` until all have ended with one of `codes`."""
    return _run(commands, folder, lambda programs: _wait_for_end(programs, seconds_max, codes))


def run_endless(*commands, seconds, folder=None):
    """Runs commands that do not end on their own for this long; one that ends earlier has failed."""
    return _run(commands, folder, lambda programs: _run_for(programs, seconds))


def _run(commands, folder, listen):
    """Starts the commands and passes them to `listen`, which returns their output; then ends all of
    them.
    """
    cpu, begin, programs = _children_cpu_seconds(), time.monotonic(), []
    counter = ThreadCounter(programs)
    try:
        for command in commands:
            programs.append(_started(command, folder))
        outputs = listen(programs)
    finally:
        counter.stop()
        for program in programs:
            _end(program)
    seconds, cpu = time.monotonic() - begin, _children_cpu_seconds() - cpu
    outputs, complaints = zip(*outputs, strict=True)
    return ProgramResult(outputs, complaints, seconds, cpu, counter.most)


class ThreadCounter:
    """Counts the threads of running programs until it is stopped: a load whose threads are all busy limits its run."""

    def __init__(self, programs):
        self.most, self._programs = 0, programs
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self):
        """Stops counting."""
        self._stopping.set()
        self._thread.join()

    def _watch(self):
        while not self._stopping.wait(_COUNT_SECONDS):
            self.most = max(self.most, sum(_thread_count(program.pid) for program in list(self._programs)))


def _thread_count(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:  # it has ended
        return 0


def _started(command, folder):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, **pipes)


def _wait_for_end(programs, seconds_max, codes):
    """The output of each program until it ended with an allowed code."""
    deadline = time.monotonic() + seconds_max
    outputs = [program.communicate(timeout=max(0.0, deadline - time.monotonic())) for program in programs]
    for program, words in zip(programs, outputs, strict=True):
        if program.returncode not in codes:
            raise _fault(program, words)
    return outputs


def _run_for(programs, seconds):
    """The output of each program until its time was over; then it is killed."""
    deadline, outputs = time.monotonic() + seconds, []
    for program in programs:
        try:
            raise _fault(program, program.communicate(timeout=max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            _signal(program, signal.SIGKILL)
            outputs.append(program.communicate())
    return outputs


def _fault(program, words):
    output, complaint = words
    line = " ".join(map(str, program.args))
    return RuntimeError(f"`{line}` ended with {program.returncode}: {complaint.strip()}\n{output.strip()}")


def _end(program):
    """Ends what is left of its session, first with SIGTERM."""
    if program.poll() is not None:
        return
    try:
        _signal(program, signal.SIGTERM)
        program.communicate(timeout=_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        _signal(program, signal.SIGKILL)
        program.communicate()


def _signal(program, number):
    """Signals the whole group; the leader was not waited for, so its id is still valid."""
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        pass


def _children_cpu_seconds():
    """CPU of children that were waited for; running servers are not included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
