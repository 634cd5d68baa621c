"""A server that reads the load average by a call for each connection: Mailrace with a library that does so in accept4.

Mailrace samples its gauges and has no setting for this. The library is compiled for each run, and counts its readings,
so that a run in which it was not in use fails.
"""

import pathlib
import shutil
import subprocess

from .mailrace import BINARY, Mailrace

_SOURCE = pathlib.Path(__file__).with_suffix(".c")
_SCRIPT = """\
#!/bin/sh
case $1 in
  serve) exec env LD_PRELOAD={library} GAUGE_CALLS={count} {binary} "$@" ;;
  *) exec {binary} "$@" ;;
esac
"""


def is_installed():
    """Whether there is a C compiler."""
    return shutil.which("cc") is not None


class CallingMailrace(Mailrace):
    """The server with the library."""

    def __init__(self, folder, **settings):
        folder.mkdir(parents=True, exist_ok=True)
        self._count, library, script = (folder / name for name in ("gauge-calls", "gauge-calls.so", "mailrace-with-calls"))
        argv = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
        compiled = subprocess.run(argv, capture_output=True, text=True)
        if compiled.returncode:
            raise RuntimeError(f"{_SOURCE.name} does not compile: {compiled.stderr}")
        script.write_text(_SCRIPT.format(library=library, count=self._count, binary=BINARY))
        script.chmod(0o755)
        super().__init__(folder, binary=script, **settings)

    def check_kept(self, count):
        """Also fails unless the gauge was read for each of as many connections."""
        super().check_kept(count)
        if (readings := int.from_bytes(self._count.read_bytes(), "little")) < count:
            raise RuntimeError(f"the load average was read {readings} times for {count} connections")
