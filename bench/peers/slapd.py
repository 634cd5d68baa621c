"""A private slapd with its own configuration, database, sockets and certificate.

The users of `people` are loaded before it starts. It runs in the foreground as a child and is ready
when it answers a search. It can be killed and started again on the same port and data; it does not
sync, so only a crash of the machine loses changes.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from . import accounting, people
from .ldap import BASE as BASE_SCOPE
from .ldap import Client
from .smtp import free_port

ADMIN, PASSWORD = f"cn=admin,{people.BASE}", "secret"
_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 30.0
_LOAD_SECONDS_MAX = 300
_SLAPD = shutil.which("slapd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "/usr/sbin/slapd"
_SLAPADD = str(pathlib.Path(_SLAPD).with_name("slapadd"))

_CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/misc.schema
pidfile {folder}/slapd.pid
modulepath /usr/lib/ldap
moduleload back_mdb
{modules}
loglevel 0
sizelimit {sizelimit}
threads 16
{tls}
database mdb
suffix {base}
rootdn {admin}
rootpw {password}
directory {folder}/db
maxsize 8589934592
index objectClass,mail,uid,cn,entryCSN,entryUUID eq
dbnosync
{access}
{overlays}
"""
_PRIVATE = "access to attrs=userPassword by anonymous auth by users read\naccess to * by users read by anonymous auth"


def is_installed():
    """Whether it is installed."""
    return os.path.exists(_SLAPD)


class Slapd:
    """A directory of `users` users and the entries of `extra` (LDIF)."""

    def __init__(self, folder, users, *, syncprov=True, sizelimit="unlimited", private=False, tls=False,
                 extra=""):  # fmt: skip
        self.folder = pathlib.Path(folder) / "slapd"
        (self.folder / "db").mkdir(parents=True)
        self.port, self.tls_port = free_port(), free_port() if tls else None
        # The path of a unix socket has a small limit.
        self._sockets = tempfile.TemporaryDirectory(prefix="mailrace-ldapi-", ignore_cleanup_errors=True)
        pathlib.Path(self._sockets.name).chmod(0o755)
        self.path = pathlib.Path(self._sockets.name) / "ldapi"
        self.group = accounting.Group("slapd")
        self.config, self.log = self.folder / "slapd.conf", self.folder / "slapd.log"
        self.ca = self.folder / "cert.pem" if tls else None
        self._private, self._process = private, None
        if tls:
            self._make_certificate()
        self.config.write_text(
            _CONFIG.format(
                folder=self.folder, base=people.BASE, admin=ADMIN, password=PASSWORD, sizelimit=sizelimit,
                modules="moduleload syncprov" if syncprov else "", overlays="overlay syncprov" if syncprov else "",
                tls=f"TLSCertificateFile {self.ca}\nTLSCertificateKeyFile {self.folder}/key.pem" if tls else "",
                access=_PRIVATE if private else "",
            )
        )  # fmt: skip
        self._load(users, extra)

    @property
    def url(self):
        """Its URL."""
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def tls_url(self):
        """Its URL with TLS from the start; the certificate is for this name."""
        return f"ldaps://localhost:{self.tls_port}"

    @property
    def starttls_url(self):
        """Its URL with the name of its certificate."""
        return f"ldap://localhost:{self.port}"

    @property
    def ldapi_url(self):
        """Its URL for local processes, which it identifies by their user."""
        return f"ldapi://{str(self.path).replace('/', '%2F')}"

    def command(self):
        """The command line."""
        urls = [self.url, self.ldapi_url] + ([f"ldaps://127.0.0.1:{self.tls_port}"] if self.tls_port else [])
        return [_SLAPD, "-d", "0", "-f", str(self.config), "-h", " ".join(urls)]

    def start(self):
        """Starts it and waits until it answers."""
        self.path.unlink(missing_ok=True)
        with open(self.log, "ab") as log:
            argv = self.group.command(self.command())
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"slapd does not respond:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.02)

    def kill(self):
        """Kills it without an orderly close."""
        self._process.kill()
        self._process.wait(_STOP_SECONDS_MAX)

    def terminate(self):
        """Sends SIGTERM; it can be started again."""
        self._process.terminate()
        self._process.wait(_STOP_SECONDS_MAX)

    def restart(self):
        """Restarts it as an operator would."""
        self.terminate()
        self.start()

    def stop(self):
        """Ends it in any state; it is not started again."""
        self.group.end()
        if self._process is not None:
            self._process.wait(_STOP_SECONDS_MAX)
        self._sockets.cleanup()

    def admin(self):
        """A connection with all rights."""
        client = Client(self.port)
        client.bind(ADMIN, PASSWORD)
        return client

    def add_user(self, number, **attributes):
        """Adds a user of `people`; given attributes (lists) replace the defaults."""
        with self.admin() as client:
            client.add(people.dn(number), people.attributes(number) | attributes)

    def delete_users(self, *numbers):
        """Deletes users."""
        with self.admin() as client:
            for number in numbers:
                client.delete(people.dn(number))

    def configuration(self):
        """Its configuration, for a report."""
        return self.config.read_text()

    def _answers(self):
        try:
            with Client(self.port) as client, Client(path=self.path):
                client.search("", scope=BASE_SCOPE)
                return True
        except (OSError, EOFError):
            return False

    def _load(self, users, extra):
        argv = [_SLAPADD, "-q", "-f", str(self.config)]
        with open(self.log, "ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)
            with process.stdin as stdin:
                stdin.writelines(people.ldif(users))
                stdin.write(extra)
            if process.wait(_LOAD_SECONDS_MAX):
                raise RuntimeError(f"slapadd failed:\n{self.log.read_text(errors='replace')}")

    def _make_certificate(self):
        argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-addext", "basicConstraints=critical,CA:FALSE",
                "-keyout", self.folder / "key.pem", "-out", self.ca]  # fmt: skip
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
