"""Recipients in a directory, from the 250 to the Maildir: Postfix and Mailrace with local tables and with
one slapd.

    postfix-ldap        220,000 messages for 500, 1,000 and 2,000 addresses, over 10, 100 and 1,000 connections; one load has
                        as many messages for each side

    postfix-hash        recipients and their mailboxes in a local table
    postfix-ldap        the same in the directory
    postfix-virtual     addresses in another domain, which virtual_alias_maps finds in the directory, too
    mailrace-text, mailrace-ldap, mailrace-virtual      the same with Mailrace
    mailrace-replica    Mailrace with a copy of the directory

The time is from the first connection until the queue is empty. How many messages wait is read all the
time, so that the report shows how the queue grows where delivery is slower than intake.
"""

import concurrent.futures
import dataclasses
import functools
import os
import statistics
import time

import comparison
import lookups
import pairs
from comparison import Case, Comparison, Side
from lookups import LookupServer
from peers import machine, people, postfix, slapd
from peers.laboratory import Source
from peers.mailrace import Mailrace
from plot import Chart

from . import Scenario
from .reading import make_maildirs

SIDES = (
    "postfix-hash", "postfix-ldap", "postfix-virtual", "mailrace-text", "mailrace-ldap", "mailrace-virtual",
    "mailrace-replica",
)  # fmt: skip
ADDRESSES, CONNECTIONS = (500, 1000, 2000), (10, 100, 1000)
USUAL_ADDRESSES, USUAL_CONNECTIONS = 1000, 100
MAILRACE_COUNT, POSTFIX_COUNT = 220_000, 11_000
COUNT_OF_MANY = 22_000  # over the most connections, for all: opening one is a part of the work
OCTETS = 2000
PAIRS = 6
_SMALL_SHRINK, _QUICK_SHRINK = 20, 50  # from the first on, a run has three of the six loads
ALIAS_DOMAIN = "alias.test"
_MESSAGE_DISK_OCTETS = 14_000  # a message, its queue record or file, and its share of the folders
_SAMPLE_SECONDS = 0.5
_SECONDS_MAX = 1800
_OPEN_FILES = 8192  # of slapd, with a connection of each process of Postfix
_PROCESSES = 1100  # of each kind in Postfix: a connection needs one
_CURVE_POINTS = 100
_LDAP = f"""
[[table]]
name   = "{{name}}"
type   = "ldap"
url    = "{{url}}"
base   = "{people.PEOPLE}"
filter = "{{filter}}"
result = "mail"
"""
_ALIAS_DOMAIN = f"""
[[domain]]
name      = "{ALIAS_DOMAIN}"
transport = "maildir"
mailboxes = "directory"
aliases   = "aliases"
"""

NOTES = (
    f"Messages of {OCTETS:,} bytes with one recipient, many on a connection: {MAILRACE_COUNT:,} to Mailrace and "
    f"{POSTFIX_COUNT:,} to Postfix, so that both are busy for some time; over {CONNECTIONS[-1]:,} connections "
    f"{COUNT_OF_MANY:,} to each, so that both open as many for as much mail. One load has {MAILRACE_COUNT:,} for each side. The "
    f"addresses vary over {USUAL_CONNECTIONS} connections, and the connections with {USUAL_ADDRESSES:,} addresses.",
    "The time is from the first connection until the queue is empty. Afterwards all messages were counted in the Maildirs, "
    "which existed before.",
    f"One slapd (mdb, indexed) with {max(ADDRESSES):,} users, on the same processors, runs only for the sides that query it; "
    "its CPU has a column of its own. Postfix asks it in smtpd(8), cleanup(8) and virtual(8), each process on its own connection.",
    f"`virtual`: the recipients are in {ALIAS_DOMAIN}; the directory gives the address of each, and then its mailbox.",
    "Mailrace's cache is that of its defaults, and empty at the start. `mailrace-replica` has the copy before the load begins.",
    f"The queue is counted about every {_SAMPLE_SECONDS:g} s, with `mailrace queue list --count` or in Postfix's folders. The CPU "
    "of the load includes that.",
    f"With `--shrink {_SMALL_SHRINK}` or more, and in a quick trial, there are three loads, in which each number of addresses and "
    "of connections occurs once; so those that are not the usual ones vary together.",
    comparison.REST_NOTE,
)


@dataclasses.dataclass(frozen=True)
class Passed:
    """What happened in one run."""

    answered: int  # messages that got a 250
    intake_seconds: float
    seconds: float  # until the queue was empty
    curve: list  # seconds, messages that wait
    delivered: int
    slapd_cpu: float  # seconds for 1,000 messages


@dataclasses.dataclass(frozen=True)
class PassingSide(Side):
    """A side that delivers to the Maildirs of `users`. `server` gets the folder."""

    users: int = USUAL_ADDRESSES
    passed: list = dataclasses.field(default_factory=list)  # per round

    def create(self, place):
        """A server and its Maildirs."""
        make_maildirs(place / "mail", self.users, 0, "\r\n", domain=people.DOMAIN)
        return self.server(place)

    def measure(self, server, place):
        """Runs the load until the queue is empty, and counts the messages in the Maildirs."""
        cpu, curve, sent = server.directory_cpu_seconds(), [(0.0, 0)], []
        figures = pairs.measure(server, lambda: self._pass(server, curve, sent))
        cpu = (server.directory_cpu_seconds() - cpu) / figures.messages * 1000
        new = (place / "mail" / people.DOMAIN / f"user{number}" / "new" for number in range(1, self.users + 1))
        delivered = sum(len(os.listdir(folder)) for folder in new)
        self.passed.append(Passed(figures.messages, sent[0].seconds, figures.seconds, curve, delivered, cpu))
        return figures

    def _pass(self, server, curve, sent):
        """Sends all messages and watches the queue until it is empty."""
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            sending = pool.submit(self.load.run, server.port)
            try:
                _watch(server, sending, begin, curve)
            except BaseException:
                server.stop()  # ends the load, too, for which the pool waits
                raise
        sent.append(sending.result())
        return dataclasses.replace(sending.result(), seconds=time.monotonic() - begin)


def _watch(server, sending, begin, curve):
    """Counts the queue until everything is sent and the queue is empty."""
    while True:
        is_sent, waiting = sending.done(), server.queued()
        curve.append((time.monotonic() - begin, waiting))
        if is_sent and (waiting == 0 or sending.exception()):
            return
        if time.monotonic() > begin + _SECONDS_MAX:
            raise RuntimeError(f"{waiting:,} messages still wait after {_SECONDS_MAX} s")
        if is_sent:
            time.sleep(_SAMPLE_SECONDS / 5)
        else:
            concurrent.futures.wait([sending], _SAMPLE_SECONDS)


class Directory:
    """The servers of all sides, and the directory that they share; without slapd it is left out."""

    def __init__(self, folder):
        folder.mkdir()
        self._count = max(ADDRESSES)
        self.slapd = slapd.Slapd(folder, self._count) if slapd.is_installed() else None
        self._hash = folder / "people"
        people.write_postmap(self._hash, self._count)
        if postfix.is_installed():
            postfix.build_table("hash", self._hash)
        self._mailboxes, self._aliases = folder / "mailboxes.cf", folder / "aliases.cf"
        if self.slapd:
            self._mailboxes.write_text(lookups.postfix_table(self.slapd))
            self._aliases.write_text(lookups.postfix_table(self.slapd, "(uid=%u)", "mail"))

    def stop(self):
        """Ends slapd."""
        if self.slapd:
            self.slapd.stop()

    def postfix_hash(self, place):
        """Postfix with a local table."""
        return LookupServer("postfix-hash", self._postfix(place, f"hash:{self._hash}"))

    def postfix_ldap(self, place):
        """Postfix with the directory."""
        return LookupServer("postfix-ldap", self._postfix(place, f"ldap:{self._mailboxes}"), self.slapd)

    def postfix_virtual(self, place):
        """Postfix with the directory, also for addresses of another domain."""
        lines = (f"virtual_alias_domains = {ALIAS_DOMAIN}", f"virtual_alias_maps = ldap:{self._aliases}")
        return LookupServer("postfix-virtual", self._postfix(place, f"ldap:{self._mailboxes}", *lines), self.slapd)

    def mailrace_text(self, place):
        """Mailrace with a local table."""
        names = [f"user{number}" for number in range(1, self._count + 1)]
        return LookupServer("mailrace-text", Mailrace(place, maildirs=place / "mail", users=names))

    def mailrace_ldap(self, place):
        """Mailrace with the directory."""
        return LookupServer("mailrace-ldap", self._mailrace(place, self._table("directory")), self.slapd)

    def mailrace_virtual(self, place):
        """Mailrace with the directory, also for addresses of another domain."""
        extra = self._table("directory") + self._table("aliases", "(uid={local})") + _ALIAS_DOMAIN
        return LookupServer("mailrace-virtual", self._mailrace(place, extra), self.slapd)

    def mailrace_replica(self, place):
        """Mailrace with a copy of the directory."""
        server = self._mailrace(place, self._table("directory") + 'mode   = "replica"\n')
        await_copy = functools.partial(lookups.await_copy, count=self._count)
        return LookupServer("mailrace-replica", server, self.slapd, await_copy)

    def _postfix(self, place, table, *lines):
        processes = f"default_process_limit = {_PROCESSES}"
        return postfix.Postfix(place, "tuned", [*postfix.maildir_lines(place / "mail", table), processes, *lines])

    def _mailrace(self, place, extra):
        return Mailrace(place, maildirs=place / "mail", mailboxes="directory", extra=extra)

    def _table(self, name, key="(mail={key})"):
        return _LDAP.format(name=name, url=self.slapd.url, filter=key)


def scenario(options):
    """Runs all rounds."""
    machine.require_open_files(_OPEN_FILES)
    with machine.run_folder("postfix-ldap") as folder:
        directory = Directory(folder / "directory")
        cases = tuple(
            Case(load.label(options.shrink), _sides(directory, load)) for load in _loads(options.shrink >= _SMALL_SHRINK)
        )
        compared = Comparison(
            "Recipients in a directory, from the 250 to the Maildir",
            {},
            tuple(target for case in cases for target in _targets(case.label)),
            NOTES,
            versions={"slapd": machine.package("slapd")},
            question="What does a directory cost Postfix and Mailrace, and how does the queue grow?",
            answer=_answer,
            case_name="load",
            cases=cases,
        )
        try:
            found = compared.measure("postfix-ldap", folder, options)
        finally:
            directory.stop()
        if directory.slapd:
            found.configurations["slapd"] = directory.slapd.configuration()
        passed = {(case.label, name): side.passed for case in cases for name, side in case.sides.items() if side.passed}
        found.checks = list(_checks(passed))
        found.tables["Medians"] = [_row(label, name, runs) for (label, name), runs in passed.items()]
        found.charts = list(_charts(found, passed))
        return found.finish(options)


@dataclasses.dataclass(frozen=True)
class Load:
    """What is varied."""

    addresses: int = USUAL_ADDRESSES
    connections: int = USUAL_CONNECTIONS
    is_equal: bool = False  # as many messages for each side

    def count(self, name):
        """The messages for a side."""
        if self.is_equal:
            return MAILRACE_COUNT
        if self.connections == CONNECTIONS[-1]:
            return COUNT_OF_MANY
        return POSTFIX_COUNT if name.startswith("postfix") else MAILRACE_COUNT

    def label(self, shrink=1):
        """Its name in the report."""
        each = f", {MAILRACE_COUNT // shrink:,} messages to each" if self.is_equal else ""
        return f"{self.addresses:,} addresses, {self.connections:,} connections{each}"


def _loads(is_small):
    """All loads; a small run has time for three, in which each number occurs."""
    if is_small:
        return (Load(ADDRESSES[0], CONNECTIONS[0]), Load(is_equal=True), Load(ADDRESSES[-1], CONNECTIONS[-1]))
    every = [Load(addresses) for addresses in ADDRESSES] + [Load(connections=connections) for connections in CONNECTIONS]
    return (*dict.fromkeys(every), Load(is_equal=True))


def _sides(directory, load):
    makers = {name: getattr(directory, name.replace("-", "_")) for name in SIDES}
    return {name: _side(name, make, load) for name, make in makers.items()}


def _side(name, make, load):
    domain = ALIAS_DOMAIN if name.endswith("-virtual") else people.DOMAIN
    source = Source(
        load.count(name), sessions=load.connections, octets=OCTETS, recipient=people.address("{}", domain),
        users=load.addresses, seconds_max=_SECONDS_MAX,
    )  # fmt: skip
    return PassingSide(make, source, _MESSAGE_DISK_OCTETS, needs=tuple(_needs(name)), users=load.addresses)


def _needs(name):
    is_local = name in ("postfix-hash", "mailrace-text")
    if name.startswith("postfix"):
        yield ("postfix", postfix.is_installed) if is_local else ("the package postfix-ldap", _has_ldap)
    if not is_local:
        yield "slapd", slapd.is_installed


def _has_ldap():
    return postfix.has_table_type("ldap")


def _targets(label):
    for over, under in (
        ("postfix-ldap", "postfix-hash"), ("postfix-virtual", "postfix-hash"), ("mailrace-ldap", "mailrace-text"),
        ("mailrace-virtual", "mailrace-text"), ("mailrace-replica", "mailrace-text"), ("mailrace-ldap", "postfix-ldap"),
    ):  # fmt: skip
        yield pairs.Target(over, under, "rate", case=label)
        yield pairs.Target(over, under, "cpu_per_thousand", case=label)


def _checks(passed):
    for (label, name), runs in passed.items():
        answered, delivered = sum(run.answered for run in runs), sum(run.delivered for run in runs)
        text = f"{delivered:,} in Maildirs of {answered:,}"
        yield f"{label}, {name}: no message is lost or doubled", text, answered == delivered


def _row(label, name, runs):
    """The medians of a side in a case."""

    def median(value):
        return statistics.median(map(value, runs))

    return {
        "load": label,
        "system": name,
        "accepted a second": round(median(lambda run: run.answered / run.intake_seconds)),
        "delivered a second": round(median(lambda run: run.answered / run.seconds)),
        "most messages that wait": round(median(lambda run: max(count for _, count in run.curve))),
        "queue empty after the last 250, s": median(lambda run: max(0.0, run.seconds - run.intake_seconds)),
        "slapd's CPU for 1,000 messages, s": f"{median(lambda run: run.slapd_cpu):.4f}",
    }


def _charts(found, passed):
    usual = _usual_label(found)
    queues = {name: _thinned(runs[0].curve) for (label, name), runs in passed.items() if label == usual}
    yield Chart(f"Queue, {usual}", "seconds", "messages that wait", queues)
    by_addresses = {addresses: Load(addresses).label() for addresses in ADDRESSES}
    by_connections = {connections: Load(connections=connections).label() for connections in CONNECTIONS}
    for axis, labels in (("addresses", by_addresses), ("connections", by_connections)):
        labels = {at: label for at, label in labels.items() if label in found.case_rounds}
        if len(labels) < 2:
            continue  # in a small run both vary together
        series = {
            name: [(at, found.median(name, "rate", label)) for at, label in labels.items()] for name in found.rounds[0]
        }
        yield Chart("Delivered", axis, "messages a second", series, is_logarithmic=True)


def _thinned(curve):
    step = max(1, len(curve) // _CURVE_POINTS)
    return [*curve[:-1:step], curve[-1]]


def _usual_label(found):
    """The load with the usual numbers; that of a small run has as many messages for each side."""
    begin = Load().label()
    return next((label for label in found.case_rounds if label.startswith(begin)), begin)


def _answer(found):
    usual = _usual_label(found)
    parts = []
    for server, local, name in (("postfix", "hash", "Postfix"), ("mailrace", "text", "Mailrace")):
        ratio = found.ratio(f"{server}-ldap", f"{server}-{local}", "rate", case=usual)
        rate = found.median(f"{server}-ldap", "rate", usual)
        if ratio is not None:
            parts.append(f"{name} delivers {rate:,.0f} messages a second, {ratio:.2f} times what it does with a local table")
    return f"With {USUAL_ADDRESSES:,} addresses in the directory {'; '.join(parts)}." if parts else None


SCENARIOS = {"postfix-ldap": Scenario(scenario, SIDES, PAIRS, _QUICK_SHRINK)}
