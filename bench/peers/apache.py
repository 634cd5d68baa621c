"""A private Apache with the event MPM, which serves files.

It is tuned for throughput: no access log, sendfile, persistent connections without a limit, no
.htaccess files, and no check of symbolic links.
"""

import http.client
import os
import pathlib
import shutil
import subprocess
import time

from . import accounting, machine
from .smtp import free_port

_MODULES = pathlib.Path("/usr/lib/apache2/modules")
_START_SECONDS_MAX = 20.0

_CONFIGURATION = """\
ServerRoot {root}
ServerName bench.test
DefaultRuntimeDir {root}
PidFile {root}/apache.pid
ErrorLog {root}/error.log
LogLevel warn
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
{user}
Listen 127.0.0.1:{port}
ListenBacklog 4096
StartServers 2
ServerLimit 2
ThreadLimit 64
ThreadsPerChild 64
MinSpareThreads 1
MaxSpareThreads 128
MaxRequestWorkers 128
AsyncRequestWorkerFactor 32
MaxConnectionsPerChild 0
KeepAlive On
KeepAliveTimeout 60
MaxKeepAliveRequests 0
EnableSendfile On
ServerTokens Prod
DocumentRoot {files}
<Directory />
  Options FollowSymLinks
  AllowOverride None
  Require all granted
</Directory>
"""


def version():
    """Its version, or that it is not installed."""
    return machine.package("apache2-bin")()


def is_installed():
    """Whether it is installed."""
    return _program() is not None


class Apache:
    """A private instance that serves the files of a folder."""

    name = "apache"

    def __init__(self, folder, files):
        self.root = folder / "apache"
        self._files = files
        self.port = free_port()
        self.group = accounting.Group("apache")
        self._process = None

    def start(self):
        """Writes the configuration, starts it, and waits until it answers."""
        self.root.mkdir()
        user = "User nobody\nGroup nogroup" if os.geteuid() == 0 else ""
        names = {"root": self.root, "files": self._files, "port": self.port, "modules": _MODULES, "user": user}
        self._config().write_text(_CONFIGURATION.format(**names))
        argv = [_program(), "-d", str(self.root), "-f", str(self._config()), "-DFOREGROUND"]
        with open(self.root / "console.log", "wb") as log:
            self._process = subprocess.Popen(self.group.command(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"Apache does not respond:\n{self._log()}")
            time.sleep(0.02)

    def stop(self):
        """Ends it in any state."""
        self.group.end()
        if self._process is not None:
            self._process.wait(10)

    def configuration(self):
        """Its configuration, for a report."""
        return self._config().read_text()

    def check_kept(self, count):
        """Does nothing: it keeps no mail."""

    def _config(self):
        return self.root / "apache.conf"

    def _log(self):
        logs = [self.root / "console.log", self.root / "error.log"]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def _answers(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("HEAD", "/")
            return connection.getresponse().status > 0
        except OSError:
            return False
        finally:
            connection.close()


def _program():
    """Its path; on Debian it is in /usr/sbin, which is not in the PATH of users."""
    return shutil.which("apache2", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
