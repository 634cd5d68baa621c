"""The operator's HTTP API on servers with a long queue, and what it costs that dashboards are open.

    operator-api    two servers, one with a thousand messages held and one with a million, get the same requests in turns;
                    a third one knows 10,000 next hops
    dashboards      a listener of the API that nobody uses, and ten open dashboards, at rest and while mail comes
"""

import dataclasses
import statistics
import time

import pairs
import report
from peers import machine
from peers.api import ApiClient, Dashboards, create_token
from peers.laboratory import Source
from peers.mailrace import Mailrace, listener, route

from . import Scenario

FEW, MANY = 1000, 1_000_000
RATIO_MAX = 1.5
HOPS, WIDE_HOPS, METRICS_RATIO_MAX = 100, 10_000, 5
DASHBOARDS, DASHBOARDS_CPU_MAX = 10, 0.01
IDLE_CPU_MAX = 0.0005  # of a processor
BUSY_RATE = 200  # messages a second
_WATCHED_SECONDS = 20
_OCTETS, _DISK_OCTETS = 300, 1500
_TIMES, _SLOW_TIMES = 200, 40  # that each request is made in a round; those that change something
_HOLD_SECONDS_MAX = 600
_IDLE_SHARE, _IDLE_SECONDS_MAX = 0.01, 300
_HELD_QUEUES = '\n[[queue]]\nname = "standard"\nconcurrency = 0\n'
_PAGE = "/api/v1/recipients?limit=100"
_NOTES = (
    "A request is timed at the client, on one connection, from the first byte sent to the last one received. The client is a "
    "socket in Python.",
    "The servers run at the same time. Each request goes to one and then to the other, and every other time in the other order, so "
    "that the load of the machine is the same for both. A ratio is the median of the ratios of the rounds, and that of a round is one "
    "of medians.",
)


class ApiServer:
    """A server with the API, that delivers nothing, with a number of next hops."""

    def __init__(self, folder, hops=HOPS, serves_api=True):
        routes = "".join(route(f"d{number + 1}.test", f"[127.0.{number // 250 + 1}.{number % 250 + 1}]:9") for number in range(hops))
        api = listener("http", "api = true") if serves_api else ""
        self.mailrace = Mailrace(folder, networks=("127.0.0.0/8",), extra=_HELD_QUEUES + routes + api)
        self._hops, self.token, self.client = hops, None, None

    def start(self):
        """Starts it, and connects."""
        self.mailrace.start()
        if "http" in self.mailrace.ports:
            self.token = create_token(self.mailrace, "bench")
            self.client = ApiClient(self.mailrace.ports["http"], self.token)

    def stop(self):
        """Ends it in any state."""
        if self.client is not None:
            self.client.close()
        self.mailrace.stop()

    def fill(self, count):
        """Queues messages, to all next hops in turn."""
        load = Source(count, octets=_OCTETS, recipient="user@d{}.test", users=self._hops, order="turn", seconds_max=1800)
        load.run(self.mailrace.port)
        self.mailrace.check_kept(count)

    def hold(self, count):
        """Holds all messages; returns the seconds until that is recorded."""
        begin = time.monotonic()
        self.client.ask("/api/v1/recipients/hold", {"all": True})
        self.wait_until_held(count)
        return time.monotonic() - begin

    def wait_until_held(self, count):
        """Waits until exactly so many recipients are held, and that is recorded."""
        deadline = time.monotonic() + _HOLD_SECONDS_MAX
        while self._counts() != (count, 0):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._counts()} recipients are held and in flight, expected {count} and 0")
            time.sleep(0.05)

    def _counts(self):
        queues = self.client.ask("/api/v1/queues")["queues"]
        return tuple(sum(queue[state] for queue in queues) for state in ("held", "in_flight"))

    def some_ids(self, count, number):
        """The ids of messages in the middle of the queue, others for each number."""
        page = self.client.ask(f"/api/v1/recipients?limit={count}&cursor={number // 2 + count}")
        return [recipient["id"] for recipient in page["recipients"]]


@dataclasses.dataclass
class Held:
    """A server whose messages are held, and the messages that requests name."""

    server: ApiServer
    count: int
    ids: list = dataclasses.field(default_factory=list)

    def choose(self, number):
        """Chooses messages for a round."""
        self.ids = self.server.some_ids(number, self.count)


_SERVERS = {"small": HOPS, "large": HOPS, "wide": WIDE_HOPS}
# What is asked: the name in the report, to the path. {id} is one of the messages.
_READS = {
    "GET recipients, 100 of them": _PAGE,
    "GET recipients, 100 of those held, from the middle": _PAGE + "&state=held&cursor={middle}",
    "GET queues": "/api/v1/queues",
    "GET next-hops": "/api/v1/next-hops",
    "GET next-hops, order=trouble": "/api/v1/next-hops?order=trouble&limit=20",
    "GET destinations": "/api/v1/destinations",
    "GET destinations, order=recipients": "/api/v1/destinations?order=recipients&limit=20",
    "GET status": "/api/v1/status",
    "GET overview": "/api/v1/overview",
    "GET limits": "/api/v1/limits",
    "GET history": "/api/v1/history?span=hour",
    "GET metrics": "/metrics",
    "GET messages/{id}": "/api/v1/messages/{id}",
    "GET messages/{id}/content": "/api/v1/messages/{id}/content",
    "GET messages/{id}/explanation": "/api/v1/messages/{id}/explanation",
}
_HOLD, _RELEASE = "POST recipients/hold, one message", "POST recipients/release, one message"


def scenario(options):
    """Fills the servers, and asks them in turns."""
    few, many = max(100, FEW // options.shrink), MANY // options.shrink
    with machine.run_folder("operator-api") as folder:
        machine.require_space(folder, many * _DISK_OCTETS)
        facts = machine.describe(folder)
        small, large, wide = (ApiServer(folder / name, hops) for name, hops in _SERVERS.items())
        try:
            for server, count in ((small, few), (large, many), (wide, WIDE_HOPS)):
                server.start()
                server.fill(count)
            seconds = [server.hold(count) for server, count in ((small, few), (large, many))]
            print(f"held {many:,} in {seconds[1]:.1f} s", flush=True)
            idle_seconds = _await_idle((small, large, wide))
            print(f"idle after {idle_seconds:.0f} s", flush=True)
            machine.settle()
            sides = [Held(small, few), Held(large, many)]
            times = max(20, _TIMES // options.shrink), max(10, _SLOW_TIMES // options.shrink)
            rounds = [_round(number, sides, wide, *times) for number in range(options.pairs)]
            resident = large.mailrace.resident_bytes()
            open_on = {f"{many:,} messages held": large, f"{WIDE_HOPS:,} next hops": wide}
            watched = {name: _cost_of_dashboards(server, _WATCHED_SECONDS // min(4, options.shrink))
                       for name, server in open_on.items()}
        finally:
            for server in (small, large, wide):
                server.stop()
        found = _report(folder, facts, (few, many), rounds, small)
        found.checks += [_dashboards_check(f"on a server with {name}", [cost]) for name, cost in watched.items()]
        found.checks.append((f"seconds until all {many:,} messages are held, on the disk too", f"{seconds[1]:.1f}", None))
        found.checks.append((f"memory of the server with {many:,} messages held", f"{resident / 1e6:.0f} MB", None))
        return found.finish(options)


def _round(number, sides, wide, times, slow_times):
    """The medians of one round, in seconds: name to those of both servers."""
    for side in sides:
        side.choose(slow_times)
    found = {name: _medians([_reader(side, path) for side in sides], times) for name, path in _READS.items()}
    for name, verb in ((_RELEASE, "release"), (_HOLD, "hold")):
        found[name] = _medians([_actor(side, verb) for side in sides], slow_times)
        for side in sides:
            side.server.wait_until_held(side.count - (slow_times if verb == "release" else 0))
    status = _reader(sides[0], "/api/v1/status")
    found["metrics"] = _medians([status, lambda _: wide.client.timed("/metrics")[0]], times)
    found["status"] = _medians([status, lambda _: wide.client.timed("/api/v1/status")[0]], times)
    print(f"round {number + 1}: " + ", ".join(f"{name} {large / small:.2f}" for name, (small, large) in found.items()), flush=True)
    return found


def _reader(side, path):
    middle = side.count // 2
    return lambda turn: side.server.client.timed(path.format(id=side.ids[turn % len(side.ids)], middle=middle))[0]


def _actor(side, verb):
    def act(turn):
        seconds, content = side.server.client.timed(f"/api/v1/recipients/{verb}", {"filter": {"id": [side.ids[turn]]}})
        if content != b'{"recipients":1}':
            raise RuntimeError(f"{verb} of one message: {content}")
        return seconds

    return act


def _medians(askers, times):
    """The medians of what the askers return, which take turns."""
    seconds = [[] for _ in askers]
    for turn in range(times):
        order = range(len(askers)) if turn % 2 == 0 else reversed(range(len(askers)))
        for number in order:
            seconds[number].append(askers[number](turn))
    return [statistics.median(one) for one in seconds]


def _ratio(rounds, name):
    """The median of the ratios of a request, and its interval as text."""
    ratios = [found[name][1] / found[name][0] for found in rounds]
    return statistics.median(ratios), pairs.in_words(pairs.interval(ratios))


def _report(folder, facts, counts, rounds, small):
    few, many = counts
    checks, rows = [], []
    for name in (*_READS, _RELEASE, _HOLD):
        ratio, interval = _ratio(rounds, name)
        medians = [statistics.median(found[name][side] for found in rounds) * 1e3 for side in (0, 1)]
        rows.append({"request": name, f"{few:,} held, ms": f"{medians[0]:.3f}", f"{many:,} held, ms": f"{medians[1]:.3f}",
                     "ratio": f"{ratio:.2f}"})  # fmt: skip
        aim = f"{name}: time with {many:,} messages held / with {few:,}: at most {RATIO_MAX:g}"
        checks.append((aim, f"{ratio:.2f}{interval}", ratio <= RATIO_MAX))
    ratio, interval = _ratio(rounds, "metrics")
    aim = f"time of /metrics with {WIDE_HOPS:,} next hops / of a status with {HOPS}: at most {METRICS_RATIO_MAX}"
    checks.append((aim, f"{ratio:.2f}{interval}", ratio <= METRICS_RATIO_MAX))
    ratio, interval = _ratio(rounds, "status")
    checks.append((f"time of a status with {WIDE_HOPS:,} next hops / with {HOPS}", f"{ratio:.2f}{interval}", None))
    notes = [*_NOTES, f"Messages of {_OCTETS} bytes to {HOPS} domains, each with a next hop of its own; nothing is delivered. "
             "All were held by one request."]  # fmt: skip
    return report.Report(
        "operator-api", "The HTTP API with a long queue", facts, folder,
        {"client": [path for path in _READS.values()]}, notes,
        {"server": small.mailrace.configuration().split("\n[[route]]")[0]}, checks=checks, tables={"Requests": rows},
    )  # fmt: skip


def _await_idle(servers):
    """Waits until no server works at anything, such as making its spool smaller; returns the seconds."""
    begin = time.monotonic()
    while max(_cpu_share(servers, 1.0)) > _IDLE_SHARE:
        if time.monotonic() > begin + _IDLE_SECONDS_MAX:
            raise RuntimeError(f"a server is still busy after {_IDLE_SECONDS_MAX} s")
    return time.monotonic() - begin


def _cpu_share(servers, seconds):
    """The share of a processor that each server uses for some seconds."""
    begin, before = time.monotonic(), [server.mailrace.group.cpu_seconds() for server in servers]
    time.sleep(seconds)
    passed = time.monotonic() - begin
    return [(server.mailrace.group.cpu_seconds() - cpu) / passed for server, cpu in zip(servers, before, strict=True)]


def _cpu_share_of(load, server):
    """The same while a load runs."""
    begin, before = time.monotonic(), server.mailrace.group.cpu_seconds()
    load.run(server.mailrace.port)
    return (server.mailrace.group.cpu_seconds() - before) / (time.monotonic() - begin)


def _open_dashboards(server):
    return Dashboards(server.mailrace.ports["http"], server.token, DASHBOARDS)


def _cost_of_dashboards(server, seconds):
    """The share of a processor with dashboards, less that without them."""
    (without,) = _cpu_share([server], seconds)
    with _open_dashboards(server) as dashboards:
        (share,) = _cpu_share([server], seconds)
        dashboards.check()
    return share - without


def _dashboards_check(where, costs):
    cost = statistics.median(costs)
    aim = f"{DASHBOARDS} open dashboards {where}: less than {DASHBOARDS_CPU_MAX:.0%} of a processor"
    return aim, f"{cost:.2%}{_shares(costs)}", cost < DASHBOARDS_CPU_MAX


def _shares(found):
    return f" ({min(found):.2%} to {max(found):.2%})" if len(found) > 1 else ""


def dashboards_scenario(options):
    """Watches two servers at rest, one without the API, and then one while mail comes."""
    seconds = max(5, _WATCHED_SECONDS // options.shrink)
    load = Source(rate=BUSY_RATE, seconds=seconds, sessions=20, octets=_OCTETS, recipient="user@d{}.test", users=HOPS)
    with machine.run_folder("dashboards") as folder:
        facts = machine.describe(folder)
        bare, served = ApiServer(folder / "bare", serves_api=False), ApiServer(folder / "served")
        try:
            for server in (bare, served):
                server.start()
                server.fill(FEW)
            machine.settle()
            rounds = [_watch(bare, served, load, seconds) for _ in range(options.pairs)]
        finally:
            for server in (bare, served):
                server.stop()
        return _dashboards_report(folder, facts, rounds, load, served).finish(options)


def _watch(bare, served, load, seconds):
    """The shares of a processor in one round."""
    without, idle = _cpu_share([bare, served], seconds)
    at_rest = _cost_of_dashboards(served, seconds)
    busy = _cpu_share_of(load, served)
    with _open_dashboards(served) as dashboards:
        both = _cpu_share_of(load, served)
        dashboards.check()
    found = {"without the API": without, "with the API": idle, "dashboards at rest": at_rest, "mail": busy, "mail and dashboards": both}
    print(", ".join(f"{name} {share:.3%}" for name, share in found.items()), flush=True)
    return found


def _dashboards_report(folder, facts, rounds, load, served):
    idle = [found["with the API"] - found["without the API"] for found in rounds]
    busy = [found["mail and dashboards"] - found["mail"] for found in rounds]
    aim = f"a listener of the API that nobody uses: less than {IDLE_CPU_MAX:.2%} of a processor"
    checks = [
        (aim, f"{statistics.median(idle):.3%}{_shares(idle)}", statistics.median(idle) < IDLE_CPU_MAX),
        _dashboards_check("on a server at rest", [found["dashboards at rest"] for found in rounds]),
        _dashboards_check(f"while {BUSY_RATE} messages a second come", busy),
    ]
    rows = [{"round": number} | {name: f"{share:.3%}" for name, share in found.items()} for number, found in enumerate(rounds, 1)]
    notes = [
        f"Each dashboard follows the events, and asks for an overview every 5 seconds and for the history of an hour every 10, as "
        "the page does whose first screen is open in a browser. Its events are samples, one every two seconds: the page asks for "
        "lines of the log only while that part is on the screen.",
        f"The servers have {FEW:,} messages in their queues, and deliver none. The cost of dashboards is the share of a processor "
        "with them, less that without them, each measured for the same time.",
        "A server without dashboards reads its counters every 10 seconds for the history, with or without a listener of the API.",
    ]
    return report.Report(
        "dashboards", "Open dashboards, and a listener of the API that nobody uses", facts, folder,
        {"mail": [" ".join(load.command())]}, notes, {"server": served.mailrace.configuration().split("\n[[route]]")[0]},
        checks=checks, tables={"Shares of a processor": rows},
    )  # fmt: skip


SCENARIOS = {"operator-api": Scenario(scenario, quick_shrink=20), "dashboards": Scenario(dashboards_scenario, pairs=3)}
