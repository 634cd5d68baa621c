"""Running a load: programs that send until they are done, and what they did, took and cost themselves.

Every load goes to 127.0.0.1 and is bounded in time. A program that does not end well fails the run, in its own words.
"""

import dataclasses
import resource
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


def run(*commands, seconds_max, folder=None, statuses=(0,)):
    """Runs commands side by side in `folder` until all have ended, each with one of the `statuses`."""
    cpu, begin = _children_cpu_seconds(), time.monotonic()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    programs = [subprocess.Popen(command, cwd=folder, text=True, **pipes) for command in commands]
    try:
        said = [program.communicate(timeout=max(0.0, begin + seconds_max - time.monotonic())) for program in programs]
    finally:
        for program in programs:
            if program.poll() is None:
                _end(program)
    seconds, cpu = time.monotonic() - begin, _children_cpu_seconds() - cpu
    for program, (output, complaint) in zip(programs, said, strict=True):
        if program.returncode not in statuses:
            line = " ".join(program.args)
            raise RuntimeError(f"`{line}` ended with {program.returncode}: {complaint.strip()}\n{output.strip()}")
    outputs, complaints = zip(*said, strict=True)
    return Ran(outputs, complaints, seconds, cpu)


def _end(program):
    """Ends what still runs, politely first, since what watches over another program passes only that on."""
    try:
        program.terminate()
        program.communicate(timeout=_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()


def _children_cpu_seconds():
    """CPU of the children that have been waited for; servers are not among them while they run."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
