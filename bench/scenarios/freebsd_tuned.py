"""Defaults and tuned values, back to back: pages by HTTP, small files, and mail at rising rates.

    freebsd-tuned    http: a page over 10, 100 and 1,000 connections from 10 local addresses
                     files: pools of 1,000 and of 20,000 files, by postmark and by `mailrace bench files`
                     mail: 500 to 4,000 messages a second, 1 to 5 on a connection as postal sends them, into Maildirs

    untuned, tuned                     Mailrace with its defaults, and with the values below, each on a host of the same kind
    files-disk, files-memory           `mailrace bench files` on a disk of an untuned host, and in /dev/shm
    files-tuned                        the same on a disk of a tuned host
    postmark-disk, postmark-memory, postmark-tuned     postmark there

The host is tuned by values of the network namespace and of the mount, which end with the run, and by values of the whole
machine, which a guard puts back, also if the run is killed (tuned_host.py).
"""

import dataclasses
import functools
import json
import os
import pathlib
import statistics
import tempfile

import comparison
import pairs
from comparison import Case, NullServer, Side
from filesystem import MEMORY
from peers import load, machine, postmark
from peers.laboratory import Fetch, Files, Source, latency_seconds
from peers.mailrace import Mailrace
from peers.postmark import Postmark
from plot import Chart
from tuned_host import TunedHost, may_set, run_in_namespaces, sysctls

from . import Scenario
from .reading import PAGE_OCTETS, Reading, ReadingSide, http_mailrace, make_file, make_maildirs

SIDES = (
    "untuned", "tuned", "files-disk", "files-tuned", "files-memory", "postmark-disk", "postmark-tuned", "postmark-memory",
)  # fmt: skip
CONNECTIONS, LOCAL_ADDRESSES = (10, 100, 1000), 10
FILES, TRANSACTIONS = (1000, 20_000), 50_000
RATES, RATE_SECONDS, USERS = (500, 1000, 2000, 4000), 20, 100
PAIRS = 6
_EMPTY_SECONDS_MAX = 300
_MESSAGE_DISK_OCTETS = 20_000  # a message, its queue record, and its share of the folders
_OPEN_FILES = 4096

# The values of the server that operators change first; which of them gain is what is measured.
TUNED_TOP = f"threads = {os.cpu_count()}"
TUNED_LIMITS = "backlog = 4096"
TUNED_SECTIONS = "\n[spool]\nspare_segments = 32\n"
TUNED_CONCURRENCY, DEFAULT_CONCURRENCY = 400, 2000
# Those of the host, which `mailrace tune check` knows. The others are those of a new namespace and a new mount.
TUNED_NETWORK = {
    "net.core.somaxconn": "16384",
    "net.ipv4.tcp_max_syn_backlog": "8192",
    "net.ipv4.ip_local_port_range": "1024 65535",
    "net.ipv4.tcp_tw_reuse": "1",
    "net.ipv4.tcp_rmem": "4096 131072 16777216",
    "net.ipv4.tcp_wmem": "4096 65536 16777216",
}
TUNED_MACHINE = {
    "vm.dirty_background_bytes": str(64 << 20),
    "vm.dirty_bytes": str(512 << 20),
    "vm.vfs_cache_pressure": "50",
    "vm.swappiness": "10",
}
_MACHINE_SYSCTLS = (*TUNED_MACHINE, "vm.dirty_background_ratio", "vm.dirty_ratio")  # what changes with them
TUNED_MOUNT, UNTUNED_MOUNT = "noatime", "atime,relatime"  # mount(8) keeps noatime unless atime is named

NOTES = (
    f"http: a page of {PAGE_OCTETS:,} bytes, `mailrace bench http` for 10 seconds from {LOCAL_ADDRESSES} local addresses, "
    "which compares each response with the first.",
    f"files: {TRANSACTIONS:,} transactions of postmark's kind on files of 500 to 10,000 bytes, nothing is synced; memory is "
    f"{MEMORY}, a tmpfs. `mailrace bench files` compares what it reads with what it wrote.",
    f"mail: an open loop of {RATE_SECONDS} seconds with 1 to 5 messages of 6,000 bytes on a connection, to {USERS} Maildirs. "
    "Messages that could not be sent in time are missed; all that were answered 250 were counted in the Maildirs when the "
    "queue was empty. The rate is that of the replies; CPU counts until the queue is empty.",
    f"Tuned: `{TUNED_TOP}`, `{TUNED_LIMITS}`, `spool.spare_segments = 32`, and {TUNED_CONCURRENCY} instead of "
    f"{DEFAULT_CONCURRENCY} local deliveries at the same time. Its host: mounted noatime instead of relatime, and "
    f"{', '.join(f'{name} {value}' for name, value in (TUNED_NETWORK | TUNED_MACHINE).items())}; those of vm that "
    "cannot be set on the machine are left out.",
    "The unit differs between the cases: pages, transactions, messages.",
    comparison.REST_NOTE,
)


@dataclasses.dataclass(frozen=True)
class MemorySide(Side):
    """A side whose load works in memory."""

    def measure(self, server, _place):
        """Runs the load in a folder of its own."""
        with tempfile.TemporaryDirectory(prefix="mailrace-bench-", dir=MEMORY) as folder:
            return pairs.measure(server, lambda: self.load.run(None, pathlib.Path(folder)))


@dataclasses.dataclass(frozen=True)
class OfferedSource(Source):
    """A source at a fixed rate, which may be more than the server can take."""

    def run(self, port, _folder=None):
        """Sends for its time."""
        ran = load.run(self.command(port), seconds_max=self.seconds_max, codes=(0, 1))
        summary = json.loads(ran.outputs[0])
        if summary["failed"] or not summary["done"]:
            raise RuntimeError(f"{summary['failed']} messages failed: {summary['errors']}")
        seconds = max(self.seconds, summary["seconds"])
        return load.LoadResult(summary["done"], seconds, ran.cpu_seconds, latency_seconds(summary), ran.threads)


@dataclasses.dataclass(frozen=True)
class MailSide(Side):
    """A side that delivers what it accepts to Maildirs."""

    counts: list = dataclasses.field(default_factory=list)  # per round: answered 250, delivered

    def create(self, place):
        """A server and its Maildirs."""
        make_maildirs(place / "mail", USERS, 0, "\r\n")
        return self.server(place)

    def measure(self, server, place):
        """Runs the load until the queue is empty, and counts the messages in the Maildirs."""

        def pass_through():
            sent = self.load.run(server.port, place)
            server.wait_until_empty(_EMPTY_SECONDS_MAX)
            return sent

        figures = pairs.measure(server, pass_through)
        new = (server.maildir(f"user{number}") / "new" for number in range(1, USERS + 1))
        self.counts.append((figures.messages, sum(len(os.listdir(folder)) for folder in new)))
        return figures


class _Host(TunedHost):
    """The host, tuned or as it was."""

    def __init__(self, place):
        super().__init__(place, machine_sysctls=filter(may_set, _MACHINE_SYSCTLS))
        self._network = sysctls(TUNED_NETWORK)

    def tuned(self):
        """Sets the tuned values."""
        self.remount(TUNED_MOUNT)
        self.set_sysctls(TUNED_NETWORK | {name: value for name, value in TUNED_MACHINE.items() if may_set(name)})

    def untuned(self):
        """Sets the values as they were."""
        self.remount(UNTUNED_MOUNT)
        self.set_sysctls(self._network)
        self.put_back()


def scenario(options):
    """Runs all rounds, in namespaces of their own and on a new ext4."""
    return run_in_namespaces(options, "ext4", _run, _Host)


def _run(options, host, folder):
    mail = tuple(Case(_mail_label(rate), _mail(host, rate)) for rate in RATES)
    compared = Reading(
        "Defaults and tuned values, back to back",
        {},
        tuple(_targets()),
        NOTES,
        unit="operation",
        versions={"postmark": machine.package("postmark")},
        question="What do tuned values gain over the defaults?",
        answer=_answer,
        case_name="load",
        cases=(
            *(Case(_http_label(count), _http(host, count)) for count in CONNECTIONS),
            *(Case(_files_label(count), _files(host, count)) for count in FILES),
            *mail,
        ),
        prepare=make_file(PAGE_OCTETS),
    )
    machine.require_open_files(_OPEN_FILES)
    found = compared.measure("freebsd-tuned", folder, options)
    found.checks = list(_checks(mail))
    found.charts = [chart for chart in _charts(found) if chart.series]
    return found.finish(options)


def _on(set_host, make):
    """A function that sets the host, then makes a server."""

    def server(place):
        set_host()
        return make(place)

    return server


def _http_label(connections):
    return f"http, {connections:,} connections"


def _files_label(files):
    return f"files, {files:,}"


def _http(host, connections):
    addresses = tuple(f"127.0.0.{number}" for number in range(2, 2 + LOCAL_ADDRESSES))
    fetch = Fetch("file", sessions=connections, local_addresses=addresses)
    side = functools.partial(ReadingSide, load=fetch, warm=dataclasses.replace(fetch, seconds=1))
    tuned = functools.partial(http_mailrace, top=TUNED_TOP, limits=TUNED_LIMITS)
    return {"untuned": side(_on(host.untuned, http_mailrace)), "tuned": side(_on(host.tuned, tuned))}


def _files(host, files):
    ours, theirs = Files(TRANSACTIONS, files), Postmark(TRANSACTIONS, files)
    needed = {"needs": (("postmark", postmark.is_installed),)}
    shared = ("a tmpfs at /dev/shm", _has_memory)
    untuned, tuned = _on(host.untuned, NullServer), _on(host.tuned, NullServer)
    return {
        "files-disk": Side(untuned, ours),
        "files-tuned": Side(tuned, ours),
        "files-memory": MemorySide(untuned, ours, needs=(shared,)),
        "postmark-disk": Side(untuned, theirs, **needed),
        "postmark-tuned": Side(tuned, theirs, **needed),
        "postmark-memory": MemorySide(untuned, theirs, needs=(*needed["needs"], shared)),
    }


def _has_memory():
    return MEMORY.is_dir() and machine.file_system(MEMORY).startswith("tmpfs")


def _mail(host, rate):
    offered = OfferedSource(
        rate=rate, seconds=RATE_SECONDS, per_connection="1..5", recipient="user{}@bench.test", users=USERS
    )
    tuned = {"top": TUNED_TOP, "limits": TUNED_LIMITS, "extra": TUNED_SECTIONS, "concurrency": TUNED_CONCURRENCY}

    def server(place, **settings):
        return Mailrace(place, maildirs=place / "mail", **settings)

    side = functools.partial(MailSide, load=offered, message_octets=_MESSAGE_DISK_OCTETS)
    return {
        "untuned": side(_on(host.untuned, functools.partial(server, concurrency=DEFAULT_CONCURRENCY))),
        "tuned": side(_on(host.tuned, functools.partial(server, **tuned))),
    }


def _mail_label(rate):
    return f"mail, {rate:,} a second"


def _targets():
    for label in (*map(_http_label, CONNECTIONS), *map(_mail_label, RATES)):
        yield pairs.Target("tuned", "untuned", "rate", case=label)
        yield pairs.Target("tuned", "untuned", "cpu_per_thousand", case=label)
    for label in map(_files_label, FILES):
        yield pairs.Target("files-tuned", "files-disk", "rate", case=label)
        yield pairs.Target("postmark-tuned", "postmark-disk", "rate", case=label)
        yield pairs.Target("files-memory", "files-disk", "rate", case=label)
        yield pairs.Target("postmark-memory", "postmark-disk", "rate", case=label)
        yield pairs.Target("files-disk", "postmark-disk", "rate", case=label)


def _checks(mail):
    for case in mail:
        for name, side in case.sides.items():
            if side.counts:
                answered, delivered = (sum(counts) for counts in zip(*side.counts, strict=True))
                text = f"{delivered:,} delivered of {answered:,} that were answered 250"
                yield f"{case.label}, {name}: no message is lost or doubled", text, answered == delivered


def _charts(found):
    def series(labels, value):
        points = {name: [(at, value(name, label)) for at, label in labels.items()] for name in ("untuned", "tuned")}
        return {name: line for name, line in points.items() if all(y is not None for _, y in line)}

    http = {connections: _http_label(connections) for connections in CONNECTIONS}
    mail = {rate: _mail_label(rate) for rate in RATES}
    rates = functools.partial(found.median, figure="rate")
    yield Chart("Pages", "connections", "a second", series(http, lambda name, label: rates(name, case=label)))
    yield Chart("Mail", "messages offered a second", "answered 250 a second",
                series(mail, lambda name, label: rates(name, case=label)))  # fmt: skip
    yield Chart("Mail", "messages offered a second", "99th percentile until the 250, ms",
                series(mail, lambda name, label: _p99_ms(found, name, label)), is_logarithmic=True)  # fmt: skip


def _p99_ms(found, name, label):
    rounds = found.case_rounds.get(label, [])
    times = [measured[name].latency_seconds["99"] * 1000 for measured in rounds if name in measured]
    return statistics.median(times) if times else None


def _answer(found):
    pages = found.ratio("tuned", "untuned", "rate", case=_http_label(CONNECTIONS[-1]))
    mail = found.ratio("tuned", "untuned", "cpu_per_thousand", case=_mail_label(RATES[-1]))
    files = found.ratio("files-memory", "files-disk", "rate", case=_files_label(FILES[-1]))
    parts = [f"{pages:.2f} times the pages over {CONNECTIONS[-1]:,} connections"] if pages else []
    parts += [f"{mail:.2f} times the CPU for a message at {RATES[-1]:,} a second"] if mail else []
    memory = f"{FILES[-1]:,} small files in memory are {files:.2f} times as fast as on the disk" if files else None
    tuned = f"Tuned, Mailrace has {' and '.join(parts)}" if parts else None
    return "; ".join(sentence for sentence in (tuned, memory) if sentence) + "." if tuned or memory else None


SCENARIOS = {"freebsd-tuned": Scenario(scenario, SIDES, PAIRS)}
