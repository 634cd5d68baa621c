"""`mailrace bench` in the form of the peers that it is compared with.

The network loads print the same JSON: how many were `done`, `failed`, and `missed` (due at the
given rate, but never started), and the `seconds` from the first to the last.
"""

import dataclasses
import json
import math
import os
import shlex
import subprocess
import time

from . import accounting, load, postmark
from .mailrace import BINARY
from .smtp import RECIPIENT, SENDER, free_port

_SECONDS_SPARE = 60  # how much longer than its given time a load may run
_LISTEN_SECONDS_MAX = 20.0
_COMMAND_SECONDS_MAX = 1800
_WATCH_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Source:
    """`bench smtp`: a number of messages at full speed, or a fixed rate for some time."""

    count: int | None = None
    sessions: int = 100
    reuse: bool = True  # many messages on one connection
    per_connection: int | str | None = None  # this many, or "1..5", if neither all nor one
    octets: int = 6000
    rate: float | None = None  # per second
    seconds: int | None = None
    recipient: str = RECIPIENT  # {} stands for a number up to `users`
    users: int = 1
    recipients_from: str | None = None  # a file of addresses, instead of the two above
    corpus: str | None = None  # a folder of messages, instead of `octets`
    order: str = "random"  # or `turn`
    secure: bool = False  # every connection uses STARTTLS
    resumes: bool = True  # and resumes TLS sessions if the server allows it
    seconds_max: int = 600

    @property
    def messages_max(self):
        """The most messages that it sends."""
        return self.count if self.count is not None else math.ceil(self.rate * self.seconds)

    def command(self, port="PORT"):
        """The command line."""
        ends = ["--messages", str(self.count)] if self.count is not None else ["--duration", f"{self.seconds}s"]
        pace = ["--rate", f"{self.rate:g}"] if self.rate is not None else []
        each = str(self.per_connection) if self.per_connection else "all" if self.reuse else "1"
        content = ["--corpus", self.corpus] if self.corpus else ["--size", str(self.octets)]
        order = ["--order", self.order] if self.order != "random" else []
        one_of = ["--recipient", self.recipient, "--users", str(self.users)]
        secure = ["--starttls", "100%"] if self.secure else []
        secure += ["--no-resumption"] if self.secure and not self.resumes else []
        to = ["--recipients-from", self.recipients_from] if self.recipients_from else one_of
        return [
            str(BINARY), "bench", "smtp", "--target", f"127.0.0.1:{port}", "--connections", str(self.sessions),
            *ends, *pace, *content, "--per-connection", each,
            "--sender", SENDER, *to, *order, *secure, "--json",
        ]  # fmt: skip

    def run(self, port, _folder=None):
        """Sends all messages, from the first connection to the last reply."""
        ran = load.run(self.command(port), seconds_max=self.seconds_max)
        summary = _summary(ran)
        if self.count not in (None, summary["done"]):
            raise RuntimeError(f"{summary['done']} of {self.count} messages were accepted")
        seconds = ran.seconds if self.count is not None else self.seconds
        return load.LoadResult(summary["done"], seconds, ran.cpu_seconds, latency_seconds(summary), ran.threads)


class Sink:
    """`bench sink`, which discards or `records` its mail; `everywhere` listens on all addresses in
    127.0.0.0/8.
    """

    name = "mailrace sink"

    def __init__(self, folder, *, everywhere=False, records=False, rules=()):
        self.port = free_port()
        self.group = accounting.Group("mailrace-sink")
        self._address = "0.0.0.0" if everywhere else "127.0.0.1"
        self._rules = rules
        self.record = folder / f"{self.port}.record" if records else None
        self._output_path, self._log = folder / f"{self.port}-sink.out", folder / f"{self.port}-sink.log"
        self._process = None

    def command(self):
        """The command line."""
        record = ["--record", str(self.record)] if self.record else []
        rules = [word for rule in self._rules for word in ("--rule", rule)]
        return [str(BINARY), "bench", "sink", "--listen", f"{self._address}:{self.port}", *record, *rules, "--json"]

    def start(self):
        """Starts it and waits until it listens; a sink with rules may never greet."""
        with open(self._output_path, "wb") as output, open(self._log, "wb") as log:
            argv = self.group.command(self.command())
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=log)
        self.group.watch(self._process.pid)
        deadline = time.monotonic() + _LISTEN_SECONDS_MAX
        while not self._output_path.read_text().endswith("\n"):
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError(f"the sink is not listening:\n{self._log.read_text()}")
            time.sleep(0.02)

    def stop(self):
        """Ends it in any state."""
        self.group.end()
        if self._process is not None:
            self._process.wait(10)

    def resident_bytes_peak(self):
        """Its peak memory; only while it runs."""
        return accounting.resident_bytes_peak(self._process.pid)

    def summary(self):
        """Its report, after it was stopped."""
        _listening, brace, summary = self._output_path.read_text().partition("{")
        return json.loads(brace + summary)

    def configuration(self):
        """Only its command line."""
        return shlex.join(self.command())

    def check_kept(self, count):
        """Does nothing: a sink keeps no mail."""


@dataclasses.dataclass(frozen=True)
class Fetch:
    """`bench http`: fetches one page on persistent connections at full speed."""

    page: str
    sessions: int = 100
    seconds: int = 10
    local_addresses: tuple = ()  # to connect from

    def command(self, port="PORT"):
        """The command line."""
        return [
            str(BINARY), "bench", "http", "--target", f"http://127.0.0.1:{port}/{self.page}",
            "--connections", str(self.sessions), "--duration", f"{self.seconds}s", "--json",
            *[word for address in self.local_addresses for word in ("--local", address)],
        ]  # fmt: skip

    def run(self, port, _folder=None):
        """Fetches until the time is over."""
        ran = load.run(self.command(port), seconds_max=self.seconds + _SECONDS_SPARE)
        summary = _summary(ran)
        return load.LoadResult(summary["done"], summary["seconds"], ran.cpu_seconds, latency_seconds(summary), ran.threads)


@dataclasses.dataclass(frozen=True)
class ReadMail:
    """`bench pop3`: a number of sessions, each of which fetches all messages of a mailbox."""

    count: int  # sessions
    users: int
    messages: int  # of each mailbox
    connections: int = 10
    secure: bool = False
    seconds_max: int = 600

    def command(self, port="PORT"):
        """The command line."""
        return [
            str(BINARY), "bench", "pop3", "--target", f"127.0.0.1:{port}", "--users", str(self.users),
            "--password", "secret", "--sessions", str(self.count), "--connections", str(self.connections),
            *(["--tls"] if self.secure else []), "--json",
        ]  # fmt: skip

    def run(self, port, _folder=None):
        """Reads; messages are counted."""
        ran = load.run(self.command(port), seconds_max=self.seconds_max)
        summary = _summary(ran)
        if summary["parts"] != (expected := self.count * self.messages):
            raise RuntimeError(f"{summary['parts']} messages were read, expected {expected}")
        return load.LoadResult(summary["parts"], summary["seconds"], ran.cpu_seconds, threads=ran.threads)


@dataclasses.dataclass(frozen=True)
class LogIn:
    """`bench login`: a number of sessions, each of which logs in and out."""

    count: int
    users: int
    protocol: str  # pop3 or imap
    connections: int = 10
    seconds_max: int = 600

    def command(self, port="PORT"):
        """The command line."""
        return [
            str(BINARY), "bench", "login", "--target", f"127.0.0.1:{port}", "--protocol", self.protocol,
            "--users", str(self.users), "--password", "secret", "--sessions", str(self.count),
            "--connections", str(self.connections), "--json",
        ]  # fmt: skip

    def run(self, port, _folder=None):
        """Logs in and out."""
        ran = load.run(self.command(port), seconds_max=self.seconds_max)
        summary = _summary(ran)
        return load.LoadResult(summary["done"], summary["seconds"], ran.cpu_seconds, threads=ran.threads)


@dataclasses.dataclass(frozen=True)
class Together:
    """Network loads that run at the same time, each against the port of its protocol."""

    loads: dict  # by protocol
    seconds_max: int = 600

    @property
    def messages_max(self):
        """The most messages that are sent."""
        return sum(getattr(one, "messages_max", 0) for one in self.loads.values())

    def command(self, ports=None):
        """All command lines, as one."""
        return [" & ".join(" ".join(command) for command in self._commands(ports))]

    def run(self, ports, _folder=None):
        """Runs all to their end; messages sent and messages read are counted."""
        ran = load.run(*self._commands(ports), seconds_max=self.seconds_max)
        done = [_summary(ran, number) for number in range(len(self.loads))]
        count = sum(summary["parts"] for summary in done)
        return load.LoadResult(count, ran.seconds, ran.cpu_seconds, threads=ran.threads)

    def _commands(self, ports):
        return [one.command(*([ports[protocol]] if ports else [])) for protocol, one in self.loads.items()]


@dataclasses.dataclass(frozen=True)
class Files(postmark.Work):
    """`bench files`: the same work as postmark."""

    def command(self, folder="DIR"):
        """The command line."""
        return [
            str(BINARY), "bench", "files", "--folder", str(folder), "--files", str(self.files),
            "--subfolders", str(self.subfolders), "--transactions", str(self.count),
            "--size", f"{self.low}..{self.high}", "--block", str(self.block), "--seed", str(self.seed),
        ]  # fmt: skip

    def run(self, _port, folder):
        """Creates the pool, works on it, and removes it; timed from outside, like postmark."""
        ran = load.run(self.command(folder), seconds_max=self.seconds_max)
        return load.LoadResult(self.count, ran.seconds, ran.cpu_seconds, threads=ran.threads)


@dataclasses.dataclass(frozen=True)
class Sign:
    """`bench sign`: signatures with an RSA key of 2048 bits over messages in memory, on all processors."""

    count: int
    octets: int = 6000
    seconds_max: int = 600

    def command(self):
        """The command line."""
        return [
            str(BINARY), "bench", "sign", "--signatures", str(self.count), "--size", str(self.octets),
            "--threads", str(os.cpu_count()), "--json",
        ]  # fmt: skip

    def run(self, _port, _folder=None):
        """Signs; the time and CPU are those without the making of the key."""
        ran = load.run(self.command(), seconds_max=self.seconds_max)
        report = json.loads(ran.outputs[0])
        return load.LoadResult(report["signatures"], report["seconds"], report["cpu_seconds"], threads=ran.threads)


@dataclasses.dataclass(frozen=True)
class Command:
    """A `mailrace bench` command and its result."""

    line: str
    report: dict
    seconds: float
    peak_octets: int
    code: int


def bench(folder, *argv):
    """Runs a `mailrace bench` command to its end; a bad verdict is allowed, a failure is not."""
    begin, peak = time.monotonic(), 0
    command = [str(BINARY), "bench", *argv, "--json"]
    output, complaint = folder / f"{argv[0]}.out", folder / f"{argv[0]}.err"
    with open(output, "wb") as out, open(complaint, "wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        while process.poll() is None:
            if time.monotonic() > begin + _COMMAND_SECONDS_MAX:
                raise RuntimeError(f"`{' '.join(command)}` does not end in time")
            peak = max(peak, accounting.resident_bytes_peak(process.pid))
            time.sleep(_WATCH_SECONDS)
    finally:
        process.kill()
        process.wait()
    if process.returncode not in (0, 1):
        raise RuntimeError(f"`{' '.join(command)}` ended with {process.returncode}: {complaint.read_text()}")
    line = " ".join(["mailrace", *command[1:]])
    return Command(line, json.loads(output.read_text()), time.monotonic() - begin, peak, process.returncode)


def latency_seconds(summary):
    """The latencies of a load's report by percentile."""
    names = {"50": "p50_us", "90": "p90_us", "99": "p99_us", "100": "max_us"}
    return {percentile: summary["latency"][name] / 1e6 for percentile, name in names.items()}


def _summary(ran, number=0):
    """The report of a load, of the first one if there are several; fails if the load failed in part."""
    summary = json.loads(ran.outputs[number])
    for fault in ("failed", "missed", "unfinished"):
        if summary[fault]:
            raise RuntimeError(f"{summary[fault]} {summary['unit']} {fault}: {summary['errors']}")
    return summary
