"""Counts the instructions that a server executes, with valgrind's callgrind.

A script in place of the server's binary runs `serve` under callgrind, and all other commands as they
are. Callgrind runs one thread at a time, and time goes on slowly; but the count hardly depends on what
else the machine does.
"""

import os
import re
import shutil
import signal
import time

_OUTPUT = "callgrind.out"
_SCRIPT = """\
#!/bin/sh
case $1 in
  serve)
    # The server gives up root before it writes the file.
    >{output} && chmod 666 {output} &&
    exec valgrind --quiet --vgdb=no --tool=callgrind --callgrind-out-file={output} {binary} "$@" ;;
  *) exec {binary} "$@" ;;
esac
"""
_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.M)
_STOP_SECONDS_MAX = 60.0


def is_installed():
    """Whether valgrind is installed."""
    return shutil.which("valgrind") is not None


def wrapped(binary, script):
    """Writes the script that runs this binary, and returns its path."""
    script.write_text(_SCRIPT.format(output=_OUTPUT, binary=binary))
    script.chmod(0o755)
    return script


def instructions(server, place):
    """Ends a server of such a script in order, and returns how many instructions it has executed since
    its start. Its folder is below `place`.
    """
    deadline = time.monotonic() + _STOP_SECONDS_MAX
    for pid in server.group.pids():
        os.kill(pid, signal.SIGTERM)
    while server.group.pids():
        if time.monotonic() > deadline:
            raise RuntimeError("the server does not end under callgrind")
        time.sleep(0.05)
    (output,) = place.rglob(_OUTPUT)
    return int(_TOTAL.search(output.read_text()).group(1))
