"""A private Exim, tuned as an operator after throughput sets it: split spool, queue only, no log, no message logs.

Exim gives its rights up when it is told of another configuration (-C), and Debian's looks for its user in /etc/passwd.
So it gets an /etc of its own: in a mount namespace, which ends with it, two files and a folder of ours lie over the
machine's. The machine itself stays as it is. The spool is durable: Exim syncs both files of a message before its 250.

The binary is not installed, since Debian lets one mail server replace another: `bench/peers/install` unpacks it.
"""

import os
import pathlib
import subprocess

from . import accounting
from .mailrace import ROOT
from .smtp import free_port, wait_for_banner

_UNPACKED = ROOT / "target/peers/exim"
BINARY = _UNPACKED / "usr/sbin/exim4"
_USER = "Debian-exim"  # compiled into the binary
_UID_MAX = 65533  # below nobody's

# Runs in the child, in a mount namespace of its own: lays our folder over /etc, then becomes the server.
_OVERLAY = 'mount -t overlay overlay -o lowerdir="$0":/etc /etc && exec "$@"'

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
queue_only
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
  port = {port}
  allow_localhost
  hosts_try_fastopen =
  hosts_avoid_tls = *
  hosts_try_chunking =

begin retry
* * F,1h,1m
"""


def version():
    """The version of Debian's package that was unpacked."""
    stamp = _UNPACKED / "version"
    return stamp.read_text().strip() if stamp.exists() else "not installed"


def relay_router(routes, port):
    """The router by which mail leaves to the addresses that `routes` (an lsearch file) has for domains."""
    return _OUT.format(routes=routes, port=port)


class Exim:
    """One private instance. It only queues, until it is released with so many runners."""

    name = "exim"

    def __init__(self, folder, router=_NOWHERE, runners=0):
        if os.geteuid() != 0:
            raise RuntimeError("Exim can only be started by root")
        if not BINARY.exists():
            raise RuntimeError(f"{BINARY} is missing: run `bench/peers/install` first")
        self.root = folder / "exim"
        self.spool = self.root / "spool"
        self._console = self.root / "console.log"
        self._router, self._runners = router, runners
        self.port = free_port()
        self.group = accounting.Group("exim")
        self._processes = []

    def start(self):
        """Writes its /etc, starts it there, waits until it greets."""
        self._configure()
        self._run("-bdf")
        try:
            wait_for_banner(self.port)
        except RuntimeError as error:
            self.stop()
            raise RuntimeError(f"Exim: {error}\n{self._console.read_text()}") from None

    def stop(self):
        """Ends it and the children it leaves."""
        self.group.end()
        for process in self._processes:
            process.wait(10)

    def release(self):
        """Lets its runners deliver what is queued, side by side; each ends when it has gone through the queue."""
        for _ in range(self._runners):
            self._run("-q")

    def check_kept(self, count):
        """Complains unless exactly `count` messages are in its queue."""
        folders = os.walk(self.spool / "input")
        held = sum(name.endswith("-H") for _, _, names in folders for name in names)
        if held != count:
            raise RuntimeError(f"Exim holds {held} messages, expected {count}")

    def configuration(self):
        """exim4.conf, for a report."""
        return (self.root / "etc/exim4/exim4.conf").read_text()

    def _run(self, *words):
        """Starts it as something, in a namespace where its /etc lies over the machine's."""
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _OVERLAY, str(self.root / "etc")]
        argv = self.group.command([*argv, str(BINARY), *words])
        with open(self._console, "ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes.append(process)
        self.group.watch(process.pid)

    def _configure(self):
        etc = self.root / "etc"
        for folder in (etc / "exim4", self.spool):
            folder.mkdir(parents=True)
        uid = _add_user(etc)
        os.chown(self.spool, uid, uid)
        (self.root / "mainlog").symlink_to("/dev/null")  # it can write less into its log, but not nothing
        text = _CONFIGURATION.format(
            binary=BINARY, root=self.root, spool=self.spool, port=self.port, router=self._router
        )
        (etc / "exim4/exim4.conf").write_text(text)


def _add_user(etc):
    """Gives that /etc the user and the group that Exim wants, by a number that nobody has, which is returned."""
    passwd, group = (pathlib.Path("/etc", name).read_text() for name in ("passwd", "group"))
    taken = {line.split(":")[2] for line in (passwd + group).splitlines() if line.count(":") > 2}
    uid = next(number for number in range(_UID_MAX, 0, -1) if str(number) not in taken)
    # Ours come first, so that they count where the machine has an Exim of its own.
    (etc / "passwd").write_text(f"{_USER}:x:{uid}:{uid}::/nonexistent:/usr/sbin/nologin\n{passwd}")
    (etc / "group").write_text(f"{_USER}:x:{uid}:\n{group}")
    return uid
