"""A Mailrace process with its own configuration, data folder and log.

It binds port 0 and logs the port: `listening protocol=smtp address=127.0.0.1:PORT`. That line is
awaited, so no fixed sleep is needed. A process that ends early or is late is reported with its log.
"""

import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from . import accounting

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("MAILRACE_BIN", ROOT / "target/release/mailrace")).resolve()
_LISTENING = re.compile(rb"listening protocol=([\w-]+) address=127\.[0-9.]+:(\d+)")
_DRAINING = b"draining the queue"
_START_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 60.0

CONFIG = """\
hostname = "mx.bench.test"
data_dir = "{data}"
{user}

[[listener]]
protocol = "smtp"
address  = "127.0.0.1:0"

[[domain]]
name      = "bench.test"
transport = "maildir"
{tables}

[transport.maildir]
type = "maildir"
path = "{maildirs}/{{domain}}/{{local}}"

[relay]
networks = {networks}

[limits]
sessions_per_client = 10000   # all the load comes from one address
{limits}

[[queue]]
name        = "local"
concurrency = {concurrency}
{retry}
"""


# Every user may log in, with the password "secret".
LOGINS = """
[[table]]
name = "everyone"
type = "static"
values = ["{PLAIN}secret"]

[auth]
passwords = "everyone"
clear_text = true
"""

ROUTE = "\n[[route]]\n"

# The clients of tests and measurements are strangers; only those about senders ask the DNS of them.
_METHODS = ("spf", "dkim", "dmarc", "arc", "iprev")
UNCHECKED = "\n[sender_auth]\n" + "".join(f'{method} = "off"\n' for method in _METHODS)


@functools.cache
def _checks_senders(binary):
    """Whether this binary knows the section about senders; those of older versions refuse it."""
    _require(binary)
    with tempfile.TemporaryDirectory() as folder:
        (path := pathlib.Path(folder) / "mailrace.toml").write_text(f'hostname = "mx.bench.test"\n{UNCHECKED}')
        argv = [str(binary), "check", "--config", str(path)]
        return subprocess.run(argv, capture_output=True, timeout=60).returncode == 0


def _require(binary):
    if not binary.exists():
        raise RuntimeError(f"{binary} is missing: run `make` first")


def listener(protocol, *lines, port=0):
    """The section of a listener; its port is free if none is given."""
    return "\n".join(("\n[[listener]]", f'protocol = "{protocol}"', f'address = "127.0.0.1:{port}"', *lines, ""))


def certificate_section(chain, key):
    """The section of a certificate."""
    return f'\n[[certificate]]\nchain = "{chain}"\nkey = "{key}"\n'


def route(domain, next_hop):
    """The section that routes a domain to a next hop."""
    return f'{ROUTE}domain   = "{domain}"\nnext_hop = "{next_hop}"\n'


class Mailrace:
    """A server; it can be started again on the same data after it was stopped."""

    name = "mailrace"

    def __init__(self, folder, *, concurrency=400, users=None, networks=(), retry_first=None, maildirs=None, data=None,
                 limits="", extra="", held=False, binary=BINARY, mailboxes=None, aliases=None, serves="smtp", top=""):  # fmt: skip
        self.folder = folder / "mailrace"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = pathlib.Path(data or self.folder / "data")
        self.maildirs = pathlib.Path(maildirs or self.data / "mail")
        self.binary = binary
        self.serves = serves
        self.config = self.folder / "mailrace.toml"
        self.log = self.folder / "mailrace.log"
        self.group = accounting.Group("mailrace")
        self.process = None
        self.ports = {}  # by protocol; the first of each
        self.all_ports = {}
        self.node = None  # its name in a cluster
        self._held = held  # deliveries wait for `release`
        tables = {"mailboxes": mailboxes, "aliases": aliases}  # by their names in `extra`
        self._write_config(concurrency, users, tables, networks, retry_first, limits, extra, top)

    @property
    def port(self):
        """The port of the protocol that is measured."""
        return self.ports[self.serves]

    def start(self, wrapper=()):
        """Starts it, behind `wrapper` if given, and returns the seconds until all listeners were
        bound.
        """
        begin = time.monotonic()
        self._launch(wrapper, (), self._has_listeners)
        seconds = time.monotonic() - begin
        if self._held:
            self._queue("pause", "standard")
        return seconds

    def start_until(self, text):
        """Starts it, and returns when it has logged this text, with or without listeners."""
        self._launch((), (), lambda logged: text.encode() in logged)

    def start_draining(self, wrapper=()):
        """Starts it to drain its queue and end; returns when it has said so."""
        self._launch(wrapper, ("--drain-only",), lambda logged: _DRAINING in logged)

    def release(self):
        """Releases held deliveries."""
        self._queue("resume", "standard")

    def stop(self):
        """Ends it in any state, first with SIGTERM; it is not started again."""
        self.group.end()
        if self.process is not None:
            self.process.wait(_STOP_SECONDS_MAX)

    def terminate(self):
        """Sends SIGTERM and returns the exit status; it can be started again."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_SECONDS_MAX)

    def kill(self):
        """Sends SIGKILL: no handler runs, nothing is flushed."""
        self.process.kill()
        self.process.wait(_STOP_SECONDS_MAX)

    def queued(self):
        """The number of queued recipients."""
        return int(self._queue("list", "--count").split()[0])

    def queued_when_stopped(self):
        """The number of recipients that the ended server left in its spool, which a new one counts. Next hops must have ended
        too, or it delivers to them.
        """
        self.group = accounting.Group("mailrace")
        self.start()
        try:
            return self.queued()
        finally:
            self.stop()

    def check_kept(self, count):
        """Fails unless exactly `count` recipients are queued."""
        if (held := self.queued()) != count:
            raise RuntimeError(f"Mailrace has {held} recipients, expected {count}")

    def wait_until_empty(self, seconds_max):
        """Waits until the queue is empty."""
        deadline = time.monotonic() + seconds_max
        while left := self.queued():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} recipients are still queued; end of the log:\n{self.log_tail()}")
            time.sleep(0.05)

    def table(self, *words):
        """Runs a `table` command with any exit status; returns the process with its output as text."""
        argv = [str(self.binary), "table", *words, "--config", str(self.config)]
        return subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=60)

    def configuration(self):
        """Its configuration, for a report."""
        return self.config.read_text()

    def resident_bytes(self):
        """Resident memory of the server."""
        return self.group.resident_bytes()

    def maildir(self, local, domain="bench.test"):
        """The Maildir of a user."""
        return self.maildirs / domain / local

    def log_tail(self, lines=20):
        """The end of the log, for error messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _queue(self, *words):
        """The output of a `queue` command; in a cluster, that of this node alone."""
        node = ("--node", self.node) if self.node else ()
        argv = [str(self.binary), "queue", *words, *node, "--config", str(self.config)]
        answer = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=60)
        if answer.returncode:
            raise RuntimeError(f"{' '.join(argv[1:])}: {answer.stderr.strip()}")
        return answer.stdout

    def _launch(self, wrapper, options, is_ready):
        """Starts the process, and waits until `is_ready` says so of what it has logged."""
        _require(self.binary)
        begin, offset = time.monotonic(), self.log.stat().st_size if self.log.exists() else 0
        argv = [*wrapper, str(self.binary), "serve", *options, "--config", str(self.config)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.group.command(argv), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.group.watch(self.process.pid)
        while True:
            ended = self.process.poll()  # before reading: it may have logged that it is ready, and ended
            with open(self.log, "rb") as log:
                log.seek(offset)
                if is_ready(log.read()):
                    return
            if ended is not None:
                raise RuntimeError(f"mailrace ended with {ended}:\n{self.log_tail()}")
            if time.monotonic() > begin + _START_SECONDS_MAX:
                self.kill()
                raise RuntimeError(f"mailrace is not ready:\n{self.log_tail()}")
            time.sleep(0.01)

    def _has_listeners(self, logged):
        found = [(protocol.decode(), int(port)) for protocol, port in _LISTENING.findall(logged)]
        if len(found) < self.config.read_text().count("[[listener]]"):
            return False
        self.ports = dict(reversed(found))
        self.all_ports = {protocol: [port for other, port in found if other == protocol] for protocol in self.ports}
        return True

    def _write_config(self, concurrency, users, tables, networks, retry_first, limits, extra, top):
        if users is not None:
            table = self.folder / "people"
            table.write_text("".join(f"{user}@bench.test {user}\n" for user in users))
            tables["mailboxes"] = "people"
            extra += f'\n[[table]]\nname = "people"\ntype = "text"\npath = "{table}"\n'
        if "[sender_auth]" not in extra and _checks_senders(self.binary):
            extra += UNCHECKED
        self.data.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            CONFIG.format(
                data=self.data,
                user="\n".join(line for line in (self._user(), top) if line),
                maildirs=self.maildirs,
                tables="\n".join(f'{purpose} = "{name}"' for purpose, name in tables.items() if name),
                networks=str(list(networks)).replace("'", '"'),
                limits=limits,
                concurrency=concurrency,
                retry=f'retry       = {{ first = "{retry_first}" }}' if retry_first else "",
            )
            + extra
        )

    def _user(self):
        """The user setting of an operator: root is given up after binding. Other users stay who
        they are.
        """
        if os.geteuid() != 0:
            return ""
        for folder in (self.folder, self.data):
            shutil.chown(folder, "nobody")
        return 'user     = "nobody"'
