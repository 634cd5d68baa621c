"""A private nginx with one worker, which serves files: the reference for HTTP.

It is tuned for throughput: no access log, sendfile, persistent connections, a cache of open files.
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
  {sending}
  open_file_cache max=1000 inactive=60s;
  keepalive_requests 1000000000;
  client_body_temp_path {root}/temporary;
  proxy_temp_path {root}/temporary;
  fastcgi_temp_path {root}/temporary;
  uwsgi_temp_path {root}/temporary;
  scgi_temp_path {root}/temporary;
  server {{
    listen 127.0.0.1:{port}{ssl} backlog=4096;
    {certificate}
    root {pages};
  }}
}}
"""


_SENDFILE, _COPYING = "sendfile on; tcp_nopush on;", "sendfile off; output_buffers 2 256k;"


def version():
    """Its version, or that it is not installed."""
    if (program := _program()) is None:
        return "not installed"
    output = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=20).stderr
    return output.strip().rpartition("/")[2]


class Nginx:
    """A private instance.

    pages: a folder of files, or a dictionary of names and sizes in octets, which it creates
    certificate: the paths of a chain and its key, for TLS on its port
    copies: reads files and writes what it has read, instead of sendfile
    """

    name = "nginx"

    def __init__(self, folder, pages, certificate=None, copies=False):
        if _program() is None:
            raise RuntimeError("nginx is missing: run `bench/peers/install tests` first")
        self.root = folder / "nginx"
        self.pages = pages
        self._certificate = certificate
        self._copies = copies
        self.port = free_port()
        self.group = accounting.Group("nginx")
        self._process = None

    def start(self):
        """Writes the pages and the configuration, starts it, and waits until it listens."""
        self._configure()
        # Until it has read its configuration it opens the compiled-in log, unless -e names another
        # one.
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
        """Does nothing: it keeps no mail."""

    def _configure(self):
        self.root.mkdir()
        folder = self.pages
        if isinstance(self.pages, dict):
            folder = self.root / "pages"
            folder.mkdir()
            for name, octets in self.pages.items():
                (folder / name).write_bytes(b"x" * octets)
        user = "user nobody nogroup;" if os.geteuid() == 0 else ""
        ssl, certificate = "", ""
        if self._certificate:
            ssl, certificate = " ssl", "ssl_certificate {}; ssl_certificate_key {};".format(*self._certificate)
        names = {"user": user, "root": self.root, "pages": folder, "port": self.port}
        names["sending"] = _COPYING if self._copies else _SENDFILE
        text = _CONFIGURATION.format(**names, ssl=ssl, certificate=certificate)
        (self.root / "nginx.conf").write_text(text)

    def _await_worker(self):
        """Waits for a response, of any kind: the master listens before there is a worker."""
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError(f"nginx does not respond:\n{(self.root / 'console.log').read_text()}")
            time.sleep(0.02)

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
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
