"""A private Dovecot that serves Maildirs, or is a proxy in front of another server.

All users have the password `secret`. It is tuned for throughput: processes serve many clients, and
reading a message changes no flags.
"""

import grp
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import time

from . import accounting, machine
from .smtp import free_port

PASSWORD = "secret"
_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 30.0

_CONFIG = """\
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/dovecot.log
protocols = pop3{imap}
listen = 127.0.0.1
{tls}
disable_plaintext_auth = no
mail_max_userip_connections = 10000
mail_fsync = never
pop3_no_flag_updates = yes
first_valid_uid = 0
first_valid_gid = 0
default_internal_user = {user}
default_login_user = {user}
default_internal_group = {group}
default_vsz_limit = 0
default_client_limit = 20000
default_process_limit = 500
service pop3-login {{
  chroot =
  service_count = 0
  process_min_avail = 1
  process_limit = 1
  inet_listener pop3 {{
    port = {pop3}
  }}
  inet_listener pop3s {{
    port = {pop3s}
  }}
}}
service imap-login {{
  chroot =
  service_count = 0
  process_limit = 1
  inet_listener imap {{
    port = {imap_port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service pop3 {{
  service_count = 0
}}
service imap {{
  service_count = 0
}}
service anvil {{
  chroot =
}}
passdb {{
  driver = static
  args = {passdb}
}}
{mail}
{extra}
"""

_MAIL = """\
mail_location = maildir:{maildirs}/%d/%n{index}
userdb {{
  driver = static
  args = uid={user} gid={group} home={home}/homes/%u
}}
"""


class Dovecot:
    """A private instance. It serves the Maildirs below `maildirs`, by domain and name, or passes
    sessions on to the port `backend` of this machine.

    index: where it keeps its own files, in addition to those in the Maildirs
    certificate: the paths of a chain and its key, for TLS
    ports: those of POP3 and IMAP, if others must know them before it starts
    """

    name = "dovecot"

    def __init__(self, folder, maildirs=None, *, backend=None, certificate=None, separate_index=True, owner=None,
                 imap=False, ports=None, extra=""):  # fmt: skip
        self.home = pathlib.Path(folder) / "dovecot"
        self.home.mkdir(parents=True)
        self.port, self.imap_port = ports or (free_port(), free_port() if imap else 0)
        self.clear_port, self.tls_port = self.port, free_port() if certificate else 0
        owner = (owner or maildirs or self.home).stat()
        user, group = pwd.getpwuid(owner.st_uid).pw_name, grp.getgrgid(owner.st_gid).gr_name
        os.chown(self.home, owner.st_uid, owner.st_gid)
        index = f":INDEX={self.home}/index/%u:CONTROL={self.home}/control/%u" if separate_index else ""
        names = {"home": self.home, "user": user, "group": group}
        self.config = self.home / "dovecot.conf"
        self.config.write_text(
            _CONFIG.format(
                **names,
                imap=" imap" if imap else "",
                tls="ssl = yes\nssl_cert = <{}\nssl_key = <{}".format(*certificate) if certificate else "ssl = no",
                pop3=self.clear_port,
                pop3s=self.tls_port,
                imap_port=self.imap_port,
                passdb=_passdb(backend),
                mail=_MAIL.format(**names, maildirs=maildirs, index=index) if maildirs else "",
                extra=extra,
            )
        )
        self.group = accounting.Group("dovecot")
        self.process = None

    def start(self):
        """Starts it and waits until it greets."""
        program = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise RuntimeError("dovecot is missing: run `bench/peers/install tests` first")
        argv = self.group.command([program, "-F", "-c", str(self.config)])
        with open(self.home / "console.log", "wb") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self.process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._greets():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"Dovecot does not greet:\n{self.log()}")
            time.sleep(0.02)

    def stop(self):
        """Ends it in any state."""
        self.group.end()
        if self.process is not None:
            self.process.wait(_STOP_SECONDS_MAX)

    def log(self):
        """Its log."""
        logs = [self.home / "console.log", self.home / "dovecot.log"]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def configuration(self):
        """dovecot.conf, for a report."""
        return self.config.read_text()

    def _greets(self):
        try:
            with socket.create_connection(("127.0.0.1", self.clear_port), timeout=5) as connection:
                return connection.recv(100).startswith(b"+OK")
        except OSError:
            return False


def version():
    """Its version, or that it is not installed."""
    return machine.package("dovecot-core")()


def _passdb(backend):
    if backend is None:
        return f"password={PASSWORD}"
    return f"proxy=y host=127.0.0.1 port={backend} nopassword=y"
