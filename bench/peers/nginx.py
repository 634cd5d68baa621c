"""A private nginx with one worker, which gives out pages of given sizes from files: the yardstick for HTTP.

As an operator after throughput sets it: no access log, sendfile, connections that are kept open for good.
"""

import http.client
import os
import shutil
import subprocess
import time

from . import accounting
from .smtp import free_port

_START_SECONDS_MAX = 20.0

_CONFIGURATION = """\
{user}
daemon off;
worker_processes 1;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{
  worker_connections 4096;
}}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000000;
  client_body_temp_path {root}/temporary;
  proxy_temp_path {root}/temporary;
  fastcgi_temp_path {root}/temporary;
  uwsgi_temp_path {root}/temporary;
  scgi_temp_path {root}/temporary;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    root {root}/pages;
  }}
}}
"""


def version():
    """What it calls itself, or that it is not there."""
    if (program := _program()) is None:
        return "not installed"
    told = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=20).stderr
    return told.strip().rpartition("/")[2]


class Nginx:
    """One private instance; `pages` says how many octets the page of each name has."""

    name = "nginx"

    def __init__(self, folder, pages):
        if _program() is None:
            raise RuntimeError("nginx is missing: run `bench/peers/install tests` first")
        self.root = folder / "nginx"
        self.pages = pages
        self.port = free_port()
        self.group = accounting.Group("nginx")
        self._process = None

    def start(self):
        """Writes the pages and the configuration, starts it, waits until it listens."""
        self._configure()
        # It opens the log that was compiled in before it reads which one it is to use, unless it is told at once.
        argv = [_program(), "-p", str(self.root), "-c", "nginx.conf", "-e", "error.log"]
        with open(self.root / "console.log", "wb") as log:
            self._process = subprocess.Popen(self.group.command(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        self._await_worker()

    def stop(self):
        """Ends it."""
        self.group.end()
        if self._process is not None:
            self._process.wait(10)

    def configuration(self):
        """nginx.conf, for a report."""
        return (self.root / "nginx.conf").read_text().lstrip()

    def check_kept(self, count):
        """It gives, and keeps nothing."""

    def _configure(self):
        (self.root / "pages").mkdir(parents=True)
        for name, octets in self.pages.items():
            (self.root / "pages" / name).write_bytes(b"x" * octets)
        user = "user nobody nogroup;" if os.geteuid() == 0 else ""
        text = _CONFIGURATION.format(user=user, root=self.root, port=self.port)
        (self.root / "nginx.conf").write_text(text)

    def _await_worker(self):
        """Waits until a page comes: the master already listens while there is no worker yet."""
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError(f"nginx does not answer:\n{(self.root / 'console.log').read_text()}")
            time.sleep(0.02)

    def _answers(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("HEAD", f"/{next(iter(self.pages))}")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def _program():
    """Its path; it lies in a folder of root's, which is in no other user's search path."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
