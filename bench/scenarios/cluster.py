"""What a second copy of each message costs, and how long a queue takes to move to another node.

`cluster`: the same mail, accepted by a server

    off        without [cluster]
    stub       whose copies go to a stub that acknowledges each record after a millisecond, and keeps nothing
    servers    whose copies go to three NATS servers with JetStream
    large      the same with messages as large as those of the publisher
    publisher  no server: a bare publisher of messages of 64 KB, 32 on their way, to three such servers

`cluster-adopt`: a node with a long queue is killed, and another one takes over its lane: how long that takes, and how
much memory it needs.

The servers sync before their 250 and deliver nothing. The NATS servers run on the same machine, and take processors
from the others.
"""

import dataclasses
import functools
import re
import shutil
import statistics
import time
import typing

import pairs
import report
from comparison import Comparison, NullServer, Side
from peers import accounting, load, machine, nats
from peers.mailrace import Mailrace
from peers.smtp import Load

from . import Scenario
from .accept import MESSAGE_DISK_OCTETS, NOTES

_OCTETS = Load(1).octets  # of a message
_SECTION = """
[cluster]
name = "bench"
node = "{node}"
servers = [{servers}]
replicas = {replicas}
"""
_RECORD_OCTETS, _IN_FLIGHT = 64 << 10, 32
_LARGE_DISK_OCTETS = 2 * _RECORD_OCTETS
_TRAFFIC_MAX = 1.1
_SHARE_LEAST = 0.6  # of what a bare publisher reaches
_QUEUES = ((100_000, 10.0), (1_000_000, 60.0))  # messages, and the seconds within which they are adopted
_ADOPTED_OCTETS = 1000
_ADOPTED_DISK_OCTETS = 6 * 2 * _ADOPTED_OCTETS  # two nodes and three copies, with all that is beside a message
_ADOPTED_MEMORY_MAX = 2.0  # to that of the first node, which has the same queue
_ADOPTION_SECONDS_MAX = 600
_TAKEN_OVER = re.compile(r"took over a lane\b.*messages=(\d+) .*(?:took|seconds)=([\d.]+)")


class ClusterMailrace(Mailrace):
    """A node of a cluster, with the NATS servers that it needs."""

    def __init__(self, folder, servers):
        self.nats = servers
        super().__init__(folder, concurrency=0)

    def start(self, wrapper=()):
        """Starts the NATS servers first: the addresses are in the configuration."""
        self.nats.start()
        join(self, "a", self.nats)
        return super().start(wrapper)

    def stop(self):
        """Ends all, in any state."""
        super().stop()
        self.nats.stop()


def join(server, node, servers):
    """Makes a server that has not started a node of the cluster."""
    urls = ", ".join(f'"{url}"' for url in servers.urls)
    with open(server.config, "a") as config:
        config.write(_SECTION.format(node=node, servers=urls, replicas=servers.replicas))
    server.node = node


def _with_stub(place):
    return ClusterMailrace(place, nats.NatsStub(place))


def _with_servers(place):
    return ClusterMailrace(place, nats.NatsServers(place))


@dataclasses.dataclass(frozen=True)
class CountingSide(Side):
    """A side of which something more is counted, for each message."""

    read: typing.Callable = None  # called with the server; returns the count so far
    counts: list = dataclasses.field(default_factory=list, compare=False)  # one for each round

    def measure(self, server, place):
        """Runs the load."""
        before = self.read(server)
        figures = super().measure(server, place)
        self.counts.append((self.read(server) - before) / figures.messages)
        return figures


def _octets(server):
    return server.nats.octets()


def _cpu_seconds(server):
    return server.nats.group.cpu_seconds()


class NatsAlone(NullServer):
    """Three NATS servers, and no Mailrace."""

    name = "nats"

    def __init__(self, folder):
        super().__init__(folder)
        self.nats = nats.NatsServers(folder)

    @property
    def port(self):
        """The address of the first one."""
        return self.nats.urls[0]

    def start(self):
        """Starts them."""
        self.nats.start()

    def stop(self):
        """Ends them."""
        self.nats.stop()
        super().stop()


@dataclasses.dataclass(frozen=True)
class Publisher:
    """Publishes as many octets as so many messages of the other sides have."""

    count: int

    @property
    def messages_max(self):
        """The most messages that it stands for."""
        return self.count

    def command(self, url="URL"):
        """The command line."""
        return nats.publisher_command(url, 3, self.count * _OCTETS // _RECORD_OCTETS, _RECORD_OCTETS, _IN_FLIGHT)

    def run(self, url, _folder=None):
        """Publishes; the program tells the time without its start."""
        ran = load.run(self.command(url), seconds_max=600)
        return load.LoadResult(self.count, float(ran.outputs[0]), ran.cpu_seconds)


_SERVER, _EXAMPLES = ("nats-server", nats.is_installed), ("examples of crates/cluster", nats.has_examples)

CLUSTER = Comparison(
    "Accepting with a second copy",
    {
        "off": Side(functools.partial(Mailrace, concurrency=0), Load(40_000), MESSAGE_DISK_OCTETS),
        "stub": CountingSide(_with_stub, Load(40_000), MESSAGE_DISK_OCTETS, needs=(_EXAMPLES,), read=_octets),
        "servers": CountingSide(_with_servers, Load(30_000), 4 * MESSAGE_DISK_OCTETS, needs=(_SERVER,), read=_cpu_seconds),
        "large": Side(_with_servers, Load(3_000, octets=_RECORD_OCTETS), 4 * _LARGE_DISK_OCTETS, needs=(_SERVER,)),
        "publisher": CountingSide(
            NatsAlone, Publisher(40_000), 3 * MESSAGE_DISK_OCTETS, needs=(_SERVER, _EXAMPLES), read=_cpu_seconds
        ),
    },
    (
        pairs.Target("stub", "off", "rate", least=0.8),
        pairs.Target("stub", "off", "cpu_per_thousand", most=1.6),
        pairs.Target("servers", "publisher", "rate", least=_SHARE_LEAST),
        pairs.Target("servers", "off", "rate"),
        pairs.Target("servers", "off", "cpu_per_thousand"),
    ),
    (
        *NOTES[:2],
        "CPU is that of Mailrace alone. The stub and the NATS servers have the same two processors, and so has the load: its "
        "share of them is missing for the messages of `servers`. The ratio of the CPU of both sides without their loads says "
        "what the ratio of the rates would be with a load on another machine, as far as processors are the limit.",
        f"The publisher sends messages of {_RECORD_OCTETS:,} octets with {_IN_FLIGHT} on their way, without a condition on "
        f"the last sequence. Each {_OCTETS:,} octets of it count as one message, so that its rate is one of octets.",
        "Traffic is what the node sends to the stub, with everything that is beside the mail, for each octet of the mail.",
    ),
    versions={"nats-server": nats.version},
)


def _run_cluster(options):
    with machine.run_folder("cluster") as folder:
        found = CLUSTER.measure("cluster", folder, options)
        if traffic := [octets / _OCTETS for octets in CLUSTER.sides["stub"].counts]:
            aim = f"octets to NATS for each octet of the mail: at most {_TRAFFIC_MAX:g}"
            found.checks.append((aim, f"{max(traffic):.3f}", max(traffic) <= _TRAFFIC_MAX))
        if shares := _octet_shares(found.rounds):
            share = statistics.median(shares)
            aim = f"octets a second, large / publisher: at least {_SHARE_LEAST:g}"
            found.checks.append((aim, f"{share:.4g} ({min(shares):.4g} to {max(shares):.4g})", share >= _SHARE_LEAST))
        if shares := _cpu_shares(found.rounds):
            share = statistics.median(shares)
            aim = f"CPU per message, NATS alone / Mailrace and NATS: at least {_SHARE_LEAST:g}"
            found.checks.append((aim, f"{share:.4g} ({min(shares):.4g} to {max(shares):.4g})", share >= _SHARE_LEAST))
        found.tables["CPU seconds of the three NATS servers for 1,000 messages"] = [
            {"side": side, "median": f"{statistics.median(counts) * 1000:.3f}"}
            for side in ("servers", "publisher")
            if (counts := CLUSTER.sides[side].counts)
        ] or [{"side": "none"}]
        return found.finish(options)


def _octet_shares(rounds):
    """For each round, the octets a second of large messages, to those of the bare publisher."""
    return [
        measured["large"].rate * _RECORD_OCTETS / (measured["publisher"].rate * _OCTETS)
        for measured in rounds
        if {"large", "publisher"} <= {*measured}
    ]


def _cpu_shares(rounds):
    """For each round, the CPU for what a bare publisher sends, to that for the same mail through Mailrace."""
    both = zip(rounds, CLUSTER.sides["publisher"].counts, CLUSTER.sides["servers"].counts, strict=False)
    return [
        publisher * 1000 / (nats_servers * 1000 + measured["servers"].cpu_per_thousand)
        for measured, publisher, nats_servers in both
    ]


def _run_adoption(options):
    """Adopts each queue once."""
    with machine.run_folder("adopt") as folder:
        queues = [(max(1_000, messages // options.shrink), seconds) for messages, seconds in _QUEUES]
        machine.require_space(folder, max(messages for messages, _ in queues) * _ADOPTED_DISK_OCTETS)
        facts = machine.describe(folder) | {"nats-server": nats.version()}
        rows, checks = [], []
        for messages, seconds in queues:
            place = folder / str(messages)
            place.mkdir()
            row, found = _adopt(place, messages, seconds)
            rows.append(row)
            checks += found
            shutil.rmtree(place)
        return report.Report(
            "cluster-adopt", "A queue moves to another node", facts, folder,
            {"load": [" ".join(_queue_load(queues[0][0]).command())]}, list(_ADOPT_NOTES), checks=checks,
            tables={"Queues": rows},
        ).finish(options)  # fmt: skip


_ADOPT_NOTES = (
    f"Messages of {_ADOPTED_OCTETS:,} octets to one recipient each, on three NATS servers of this machine. The first node is "
    "killed with kill -9 when its queue is complete; the other one has no mail of its own.",
    "Seconds are those that the second node logs, from the claim until all messages are in its queue. Before that it waits "
    "until the lease of the first one is over, which the seconds since the kill contain.",
    "Memory is the most that the second node has resident meanwhile, what it had before, and what the first one had with the "
    "same queue, before it was killed.",
)


def _queue_load(messages):
    return Load(messages, octets=_ADOPTED_OCTETS)


def _adopt(place, messages, seconds_max):
    """A row of the table, and the checks."""
    servers = nats.NatsServers(place, file_store="12GB")
    nodes = [Mailrace(place / name, concurrency=0) for name in ("first", "second")]
    try:
        servers.start()
        for node, name in zip(nodes, ("first", "second"), strict=True):
            join(node, name, servers)
        first, second = nodes
        first.start()
        _queue_load(messages).run(first.port)
        second.start()
        machine.settle()
        before, owner = second.resident_bytes(), first.resident_bytes()
        first.kill()
        begin = time.monotonic()
        taken, took, peak = _await_adoption(second)
        total = time.monotonic() - begin
        second.check_kept(messages)
    finally:
        for one in (*nodes, servers):
            one.stop()
    row = {
        "messages": f"{messages:,}", "seconds": f"{took:.1f}", "seconds since the kill": f"{total:.1f}",
        "MB of the first node": f"{owner / 1e6:.0f}", "MB before": f"{before / 1e6:.0f}", "MB at most": f"{peak / 1e6:.0f}",
    }  # fmt: skip
    return row, [
        (f"{messages:,} messages are adopted within {seconds_max:g} s of the claim", f"{took:.1f} s", took <= seconds_max),
        (f"{messages:,} messages are adopted within {seconds_max:g} s of the kill", f"{total:.1f} s", total <= seconds_max),
        (f"{messages:,} messages: all are in the queue", f"{taken:,}", taken == messages),
        (
            f"{messages:,} messages: resident memory at most {_ADOPTED_MEMORY_MAX:g} times that of the first node",
            f"{peak / owner:.2f}",
            peak <= _ADOPTED_MEMORY_MAX * owner,
        ),
    ]


def _await_adoption(node):
    """The messages, the seconds, and the most resident memory until then."""
    peak, deadline = 0, time.monotonic() + _ADOPTION_SECONDS_MAX
    while (found := _TAKEN_OVER.search(node.log.read_text(errors="replace"))) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the lane is not taken over:\n{node.log_tail()}")
        peak = max(peak, accounting.resident_bytes_peak(node.process.pid))
        time.sleep(0.05)
    peak = max(peak, accounting.resident_bytes_peak(node.process.pid))
    return int(found.group(1)), float(found.group(2)), peak


SCENARIOS = {
    "cluster": Scenario(_run_cluster, tuple(CLUSTER.sides)),
    "cluster-adopt": Scenario(_run_adoption, pairs=1),
}
