"""A private Exim, tuned for throughput: split spool, queue only, no logs.

Exim drops root when it gets another configuration (-C), and Debian's looks for its user in
/etc/passwd. So it gets its own /etc: a mount namespace with two files and a folder over those of
the machine, which does not change. The spool is durable: Exim syncs both files of a message before
its 250. It delivers nothing until it is released.

Exim cannot be installed next to Postfix in Debian, so `bench/peers/install` unpacks two packages: the light one, which
is measured, and the heavy one, which has lookups in directories and databases, with Debian's configuration.
"""

import os
import pathlib
import subprocess

from . import accounting
from .mailrace import ROOT
from .smtp import free_port, wait_for_banner

_UNPACKED = ROOT / "target/peers/exim"
BINARY = _UNPACKED / "usr/sbin/exim4"
HEAVY = ROOT / "target/peers/exim-heavy"
_USER = "Debian-exim"  # compiled into the binary
_UID_MAX = 65533  # below that of nobody

# Runs in the child, in its own mount namespace: mounts our folder over /etc, then runs the server.
_OVERLAY = 'mount -t overlay overlay -o lowerdir="$0":/etc /etc && exec "$@"'

# Runs this many queue runners at the same time in one such namespace.
_RUNNERS = 'i=0; while [ $i -lt "$1" ]; do "$0" -q & i=$((i+1)); done; wait'

_CONFIGURATION = """\
exim_path = {binary}
spool_directory = {spool}
log_file_path = {root}/%slog
log_selector = -all
no_write_rejectlog
no_message_logs
primary_hostname = exim.bench.test
local_interfaces = 127.0.0.1
daemon_smtp_ports = {port}
{queueing}
split_spool_directory
check_spool_space = 0
check_spool_inodes = 0
smtp_accept_max = 300
smtp_accept_max_per_connection = 0
smtp_connect_backlog = 300
rfc1413_query_timeout = 0s
tls_advertise_hosts =
keep_environment =
acl_smtp_rcpt = everyone

begin acl
everyone:
  accept

begin routers
{router}"""

_NOWHERE = """\
nowhere:
  driver = redirect
  data = :defer: held
  allow_defer
"""

_OUT = """\
out:
  driver = manualroute
  route_data = ${{lookup{{$domain}}lsearch{{{routes}}}}}
  self = send
  transport = out

begin transports
out:
  driver = smtp
  allow_localhost
  hosts_try_fastopen =
  hosts_avoid_tls = *
  hosts_try_chunking =

begin retry
* * F,1h,1m
"""


def version(unpacked=_UNPACKED):
    """The version of an unpacked Debian package."""
    stamp = unpacked / "version"
    return stamp.read_text().strip() if stamp.exists() else "not installed"


def is_installed():
    """Whether it was unpacked."""
    return BINARY.exists()


def relay_router(routes):
    """The router for mail to the hosts (ADDRESS::PORT) that `routes` (an lsearch file) has for domains."""
    return _OUT.format(routes=routes)


class Exim:
    """A private instance. It only queues until it is released with this number of queue runners.

    `queueing` are the main settings that make it queue.
    """

    name = "exim"

    def __init__(self, folder, router=_NOWHERE, runners=0, queueing="queue_only", binary=BINARY):
        if os.geteuid() != 0:
            raise RuntimeError("starting Exim needs root")
        if not binary.exists():
            raise RuntimeError(f"{binary} is missing: run `bench/peers/install` first")
        self.binary = binary
        self.root = folder / "exim"
        self.spool = self.root / "spool"
        self._console = self.root / "console.log"
        self._router, self._runners, self._queueing = router, runners, queueing
        self.port = free_port()
        self.group = accounting.Group("exim")
        self._processes = []

    def start(self):
        """Writes its /etc, starts it, and waits until it greets."""
        self._configure()
        self._run(str(self.binary), "-bdf")
        try:
            wait_for_banner(self.port)
        except RuntimeError as error:
            self.stop()
            raise RuntimeError(f"Exim: {error}\n{self._console.read_text()}") from None

    def stop(self):
        """Ends it and its remaining children."""
        self.group.end()
        for process in self._processes:
            process.wait(10)

    def release(self):
        """Starts its queue runners in parallel; each ends after one pass through the queue."""
        self._run("sh", "-c", _RUNNERS, str(self.binary), str(self._runners))

    def queued(self):
        """The number of queued messages."""
        folders = os.walk(self.spool / "input")
        return sum(name.endswith("-H") for _, _, names in folders for name in names)

    queued_when_stopped = queued

    def check_kept(self, count):
        """Fails unless exactly `count` messages are queued."""
        if (held := self.queued()) != count:
            raise RuntimeError(f"Exim has {held} messages, expected {count}")

    def configuration(self):
        """exim4.conf, for a report."""
        return (self.root / "etc/exim4/exim4.conf").read_text()

    def namespace(self):
        """The prefix of commands that see Exim's /etc over that of the machine."""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _OVERLAY, str(self.root / "etc")]

    def _run(self, *words):
        argv = self.group.command([*self.namespace(), *words])
        with open(self._console, "ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes.append(process)
        self.group.watch(process.pid)

    def _configure(self):
        etc = self.root / "etc"
        for folder in (etc / "exim4", self.spool):
            folder.mkdir(parents=True)
        uid = add_users(etc)
        os.chown(self.spool, uid, uid)
        (self.root / "mainlog").symlink_to("/dev/null")  # Exim can log less, but not nothing
        text = _CONFIGURATION.format(
            binary=self.binary, root=self.root, spool=self.spool, port=self.port, router=self._router, queueing=self._queueing
        )
        (etc / "exim4/exim4.conf").write_text(text)


def add_users(etc, names=()):
    """Adds Exim's user and group, whose unused id is returned, and people with these names to that /etc."""
    passwd, group = (pathlib.Path("/etc", name).read_text() for name in ("passwd", "group"))
    taken = {line.split(":")[2] for line in (passwd + group).splitlines() if line.count(":") > 2}
    free = (number for number in range(_UID_MAX, 0, -1) if str(number) not in taken)
    ids = {name: next(free) for name in (_USER, *names)}
    # Ours come first, so that they take precedence over an Exim of the machine.
    people = "".join(f"{name}:x:{uid}:{uid}::/:/usr/sbin/nologin\n" for name, uid in ids.items())
    (etc / "passwd").write_text(people + passwd)
    (etc / "group").write_text("".join(f"{name}:x:{uid}:\n" for name, uid in ids.items()) + group)
    return ids[_USER]
