"""Running a load: programs that send until they are done, and what they did, took and cost themselves.

Every load goes to 127.0.0.1 and is bounded in time. A program that does not end well fails the run, in its own words.
Each leads a session of its own, so that one that is cut off ends with all that it has started.
"""

import dataclasses
import os
import resource
import signal
import subprocess
import time

_END_SECONDS_MAX = 5


@dataclasses.dataclass(frozen=True)
class Done:
    """What a load did."""

    count: int  # messages, requests or transactions that ended well
    seconds: float
    cpu_seconds: float  # of the load itself, not of the server


@dataclasses.dataclass(frozen=True)
class Ran:
    """What programs said, took and cost together."""

    outputs: tuple
    complaints: tuple  # on their standard error
    seconds: float
    cpu_seconds: float


def run(*commands, seconds_max, folder=None, codes=(0,)):
    """Runs commands side by side in `folder` until all have ended, and ended well, which is with one of `codes`."""
    return _run(commands, folder, lambda programs: _await(programs, seconds_max, codes))


def run_endless(*commands, seconds, folder=None):
    """Runs commands that have no end of their own for so long; one that ends before is at fault."""
    return _run(commands, folder, lambda programs: _cut(programs, seconds))


def _run(commands, folder, listen):
    """Starts them and gives them to `listen`, which returns for each what it said; none of them is left."""
    cpu, begin, programs = _children_cpu_seconds(), time.monotonic(), []
    try:
        for command in commands:
            programs.append(_started(command, folder))
        said = listen(programs)
    finally:
        for program in programs:
            _end(program)
    seconds, cpu = time.monotonic() - begin, _children_cpu_seconds() - cpu
    outputs, complaints = zip(*said, strict=True)
    return Ran(outputs, complaints, seconds, cpu)


def _started(command, folder):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, **pipes)


def _await(programs, seconds_max, codes):
    """What each said until it ended, well."""
    deadline = time.monotonic() + seconds_max
    said = [program.communicate(timeout=max(0.0, deadline - time.monotonic())) for program in programs]
    for program, words in zip(programs, said, strict=True):
        if program.returncode not in codes:
            raise _fault(program, words)
    return said


def _cut(programs, seconds):
    """What each said until its time was over; it cannot be asked to end, so it is killed."""
    deadline, said = time.monotonic() + seconds, []
    for program in programs:
        try:
            raise _fault(program, program.communicate(timeout=max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            _signal(program, signal.SIGKILL)
            said.append(program.communicate())
    return said


def _fault(program, words):
    output, complaint = words
    line = " ".join(map(str, program.args))
    return RuntimeError(f"`{line}` ended with {program.returncode}: {complaint.strip()}\n{output.strip()}")


def _end(program):
    """Ends what still runs of its session, politely first."""
    if program.poll() is not None:
        return
    try:
        _signal(program, signal.SIGTERM)
        program.communicate(timeout=_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        _signal(program, signal.SIGKILL)
        program.communicate()


def _signal(program, number):
    """To all of the group that it leads; it has not been waited for, so the number is still its own."""
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        pass


def _children_cpu_seconds():
    """CPU of the children that have been waited for; servers are not among them while they run."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
