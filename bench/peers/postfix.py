"""A private Postfix with its own configuration, queue and port; the machine may run another one.

    stock   the configuration of the distribution: chrooted services, 100 processes, a log
    tuned   for throughput: 500 processes, no chroot, no intake delay, no log

Postfix always logs. The tuned one has no log file, so it sends each line to syslog; if the machine
has a syslog socket, a mount namespace hides it. The queue is durable in both: cleanup(8) syncs the
queue file before the 250. Needs root, as Postfix does.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from . import accounting, machine
from .smtp import free_port, wait_for_banner

HOLD = "smtpd_data_restrictions = check_client_access static:HOLD"
_SHARE = pathlib.Path("/usr/share/postfix/master.cf.dist")
_NOBODY = 65534
_SYSLOG = "/dev/log"
_ENVELOPE = "*** ENVELOPE RECORDS "  # the first line that postcat(1) prints of a message

_BASE = """\
compatibility_level = 3.6
queue_directory = {queue}
data_directory = {data}
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
myhostname = bench.test
mydestination = bench.test
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
alias_maps =
alias_database =
local_recipient_maps =
smtp_tls_security_level = none
smtpd_tls_security_level = none
maillog_file_prefixes = {root}
"""

_TUNED = """\
default_process_limit = 500
in_flow_delay = 0
qmgr_message_active_limit = 50000
smtpd_client_connection_count_limit = 0
"""


def build_table(kind, table):
    """Builds a table with postmap(1)."""
    with _empty_configuration() as folder:
        machine.run("postmap", "-c", folder, f"{kind}:{table}")


def is_installed():
    """Whether it is installed."""
    return shutil.which("postfix") is not None


def has_table_type(kind):
    """Whether it is installed and knows this type of table."""
    if not is_installed():
        return False
    with _empty_configuration() as folder:
        listed = subprocess.run(["postconf", "-c", folder, "-m"], capture_output=True, text=True, timeout=60)
    return kind in listed.stdout.split()


def maildir_lines(maildirs, users):
    """main.cf lines for delivery by virtual(8) to `users` (a table, such as hash:FILE) below `maildirs`."""
    return [
        "mydestination =",
        "virtual_mailbox_domains = bench.test",
        f"virtual_mailbox_base = {maildirs}",
        f"virtual_mailbox_maps = {users}",
        f"virtual_uid_maps = static:{_NOBODY}",
        f"virtual_gid_maps = static:{_NOBODY}",
    ]


def relay_lines(transports):
    """main.cf lines for delivery by smtp(8) to the next hops of `transports` (a postmap source),
    without DNS.
    """
    return [
        f"transport_maps = hash:{transports}",
        "smtp_dns_support_level = disabled",
        "smtpd_peername_lookup = no",
        "initial_destination_concurrency = 20",
    ]


@contextlib.contextmanager
def _empty_configuration():
    """A folder for commands that read a main.cf; the machine may not have one."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "main.cf").write_text("compatibility_level = 3.6\n")
        yield folder


class Postfix:
    """A private instance.

    lines: of main.cf, after the others
    services: lines of master.cf, after the others
    files: what its processes see at a path of the machine: path to path
    """

    name = "postfix"

    def __init__(self, folder, flavour="tuned", lines=(), services=(), files=None):
        if os.geteuid() != 0:
            raise RuntimeError("starting Postfix needs root")
        self.root = folder / "postfix"
        self.queue = self.root / "queue"
        self.flavour, self.lines, self.services = flavour, list(lines), list(services)
        self._files = files or {}
        self.port = free_port()
        self.group = accounting.Group("postfix")

    def start(self):
        """Writes the configuration, starts the instance, and waits until it greets."""
        self._configure()
        self._command("postfix", "start")
        self.group.watch(int((self.queue / "pid/master.pid").read_text()))
        wait_for_banner(self.port)

    def stop(self):
        """Ends it and its remaining processes, in any state."""
        try:
            if self.root.exists() and self.group.pids():
                self._command("postfix", "stop")
        finally:
            self.group.end()

    def check_kept(self, count):
        """Fails unless exactly `count` messages are on hold."""
        if (held := self._held()) != count:
            raise RuntimeError(f"Postfix has {held} messages on hold, expected {count}")

    def headers(self):
        """The header of each message on hold, with its envelope, as text."""
        files = map(str, (self.queue / "hold").iterdir())
        argv = ["postcat", "-c", str(self.root / "etc"), "-eh", *files]
        shown = subprocess.run(argv, capture_output=True, encoding="latin-1", timeout=300, check=True).stdout
        return shown.split(_ENVELOPE)[1:]

    def check_kept_at_least(self, count):
        """Fails if fewer messages are on hold."""
        if (held := self._held()) < count:
            raise RuntimeError(f"Postfix has {held} messages on hold, expected {count} or more")

    def queued(self):
        """The number of messages in the queue, without those on hold."""
        # In the order in which they move on, so that none is overlooked.
        folders = (self.queue / name for name in ("maildrop", "incoming", "active", "deferred"))
        return sum(len(files) for folder in folders for _, _, files in os.walk(folder))

    queued_when_stopped = queued

    def release(self):
        """Releases what is on hold. The CPU of the commands does not count."""
        self._command("postsuper", "-H", "ALL", counts=False)
        self._command("postqueue", "-f", counts=False)

    def wait_until_empty(self, seconds_max):
        """Waits until the queue is empty."""
        deadline = time.monotonic() + seconds_max
        while self.queued():
            if time.monotonic() > deadline:
                raise RuntimeError("the queue of Postfix does not become empty")
            time.sleep(0.05)

    def configuration(self):
        """main.cf, for a report."""
        chroot = "no service is chrooted" if self.flavour == "tuned" else "as shipped"
        services = "".join(f"{line}\n" for line in self.services)
        return f"{(self.root / 'etc/main.cf').read_text()}# master.cf: {chroot}\n{services}"

    def namespace(self):
        """The prefix of commands that see what its processes see: their own files, and no syslog if it is tuned."""
        hidden = {_SYSLOG: "/dev/null"} if self.flavour == "tuned" and os.path.exists(_SYSLOG) else {}
        mounts = [f"mount --bind '{seen}' '{path}' && " for path, seen in (hidden | self._files).items()]
        # The shell runs in the child, in its own mount namespace: it mounts, then continues.
        script = f"""{''.join(mounts)}exec "$0" "$@\""""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script] if mounts else []

    def _held(self):
        return sum(1 for _ in os.scandir(self.queue / "hold"))

    def _configure(self):
        etc, data = self.root / "etc", self.root / "data"
        for folder in (etc, self.queue, data):
            folder.mkdir(parents=True)
        shutil.chown(data, "postfix")
        for extra in pathlib.Path("/etc/postfix").glob("dynamicmaps.cf*"):
            (shutil.copytree if extra.is_dir() else shutil.copy)(extra, etc / extra.name)
        main = _BASE.format(root=self.root, queue=self.queue, data=data)
        main += _TUNED if self.flavour == "tuned" else f"maillog_file = {self.root}/maillog\n"
        (etc / "main.cf").write_text(main + "".join(f"{line}\n" for line in self.lines))
        (etc / "master.cf").write_text(self._master())
        if self.flavour == "stock":
            self._fill_chroot()

    def _master(self):
        lines = _SHARE.read_text().splitlines()
        return "".join(f"{line}\n" for line in [*map(self._service, lines), *self.services])

    def _service(self, line):
        """A line of master.cf with our port, and without chroot if tuned."""
        fields = line.split(None, 7)
        if line.startswith(("#", " ")) or len(fields) < 8:
            return line
        if fields[:2] == ["smtp", "inet"]:
            fields[0] = f"127.0.0.1:{self.port}"
        if self.flavour == "tuned":
            fields[4] = "n"
        return " ".join(fields)

    def _fill_chroot(self):
        (self.queue / "etc").mkdir()
        for name in ("services", "resolv.conf", "hosts", "nsswitch.conf"):
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", self.queue / "etc" / name)

    def _command(self, program, *words, counts=True):
        """Runs one of its commands; with `counts`, as part of the server."""
        # The daemon must not inherit a pipe of ours: the reader would wait for the daemon to end.
        with open(self.root / "console.log", "ab") as log:
            argv = [*self.namespace(), program, "-c", str(self.root / "etc"), *words]
            argv = self.group.command(argv) if counts else argv
            code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=60).returncode
        if code:
            raise RuntimeError(f"{program} {' '.join(words)}: {(self.root / 'console.log').read_text()}")
