"""Looking up half a million recipients: Postfix and Mailrace with local tables and with one LDAP
directory.

Messages are only a header, a connection carries 3, and nothing is delivered, so that the cost of
lookups is as visible as possible.

    hash, lmdb      Postfix, virtual_mailbox_maps in a local file
    ldap, proxy     Postfix with the directory, queried by each smtpd(8) or through proxymap(8)
    cdb             Mailrace, a local file
    warm            Mailrace with the directory, all users cached before
    cold            Mailrace with the directory, an empty cache, and each message to a different recipient
    replica         Mailrace with a copy of the directory, loaded before
"""

import functools
import json
import statistics
import sys

import comparison
import pairs
from comparison import Comparison
from lookups import LookupSide, LookupSource, Users
from peers import ldap_load, load, machine, people
from peers.mailrace import BINARY

from . import Scenario

USERS = 500_000
PAIRS = 15
POSTFIX_COUNT, MAILRACE_COUNT = 6_000, 120_000
SIDES = ("hash", "lmdb", "ldap", "proxy", "cdb", "warm", "cold", "replica")
_FILE_OCTETS, _RECORD_OCTETS = 8192, 2048  # for one message: a file of Postfix, or a record of Mailrace
_USERS_DISK_OCTETS = 5000  # for one user in all formats, and in a copy
_CEILINGS = ((1, 1), (16, 1), (1, 64), (2, 64), (4, 64), (16, 64))  # connections, and keys of a search
_CEILING_SECONDS = 5

TARGETS = (
    pairs.Target("warm", "cdb", "cpu_per_thousand", most=1.03),
    pairs.Target("warm", "cdb", "rate", holds=1),
    pairs.Target("replica", "cdb", "cpu_per_thousand", most=1.05),
    pairs.Target("cold", "cdb", "rate", least=0.7),
    pairs.Target("warm", "proxy", "rate", least=8),
    pairs.Target("cold", "proxy", "rate", least=5),
)

NOTES = (
    f"{USERS:,} users; 100 concurrent connections, 3 messages each, only a header. Nothing is delivered: Postfix "
    "has a HOLD action, Mailrace has `concurrency = 0`. After each run the queued messages are counted.",
    "The directory is one slapd (mdb, indexed) on the same processors; it runs only for the sides that "
    "query it. Its CPU time has a column of its own.",
    "`cold` begins with an empty cache; each message goes to a different recipient, in random order. The others draw from all "
    "users.",
    comparison.REST_NOTE,
    "The tuned Postfix has no log file, and nothing reads its syslog messages. Mailrace logs a line for each message.",
    "An interval contains the true median with at least 95 % confidence; a few rounds are too few for one.",
    "The ceiling of the directory alone was measured once, before the rounds: OR filters with this many keys, each "
    "connection with one search at a time; the client only looks for the ends of the answers.",
)


def scenario(options):
    """Measures the directory alone, then runs all rounds."""
    users = max(1000, USERS // options.shrink)
    with machine.run_folder("directory") as folder:
        machine.require_space(folder, users * _USERS_DISK_OCTETS)
        shared = Users(folder / "users", users)
        try:
            sides = _sides(shared)
            shared.make_local(options.sides or SIDES)
            ceiling = list(_ceiling(shared))
            one = Comparison("Looking up recipients in a directory of half a million", sides, TARGETS, NOTES,
                          versions={"slapd": machine.package("slapd")})  # fmt: skip
            found = one.measure("directory", folder, options)
        finally:
            shared.slapd.stop()
        found.tables = {
            "Medians": [_row(name, sides[name], found.rounds) for name in found.rounds[0]],
            "The directory alone": ceiling,
        }
        found.checks = list(_checks({name: sides[name] for name in found.rounds[0]}, found.rounds))
        found.configurations["slapd"] = shared.slapd.configuration()
        for rows in found.tables.values():
            print("\n".join(map(str, rows)))
        return found.finish(options)


def cold_side(shared, count, binary=BINARY):
    """Mailrace with the directory, an empty cache, and each of `count` messages to a different recipient.
    The list of recipients must exist.
    """
    each_once = {"recipients_from": str(shared.shuffled), "order": "turn"}
    return _side(functools.partial(shared.cold, binary=binary), count, each_once)


def _sides(shared):
    anyone = {"recipient": people.address("{}"), "users": shared.count}
    return {
        "hash": _side(functools.partial(shared.local_postfix, "hash"), POSTFIX_COUNT, anyone),
        "lmdb": _side(functools.partial(shared.local_postfix, "lmdb"), POSTFIX_COUNT, anyone),
        "ldap": _side(functools.partial(shared.ldap_postfix, "ldap", "ldap"), POSTFIX_COUNT, anyone),
        "proxy": _side(functools.partial(shared.ldap_postfix, "proxy", "proxy:ldap"), POSTFIX_COUNT, anyone),
        "cdb": _side(shared.cdb, MAILRACE_COUNT, anyone),
        "warm": _side(shared.warm, MAILRACE_COUNT, anyone),
        "cold": cold_side(shared, min(MAILRACE_COUNT, shared.count)),
        "replica": _side(shared.replica, MAILRACE_COUNT, anyone),
    }


def _side(server, count, to):
    octets = _FILE_OCTETS if count == POSTFIX_COUNT else _RECORD_OCTETS
    return LookupSide(server, LookupSource(count, octets=0, per_connection=3, **to), octets)


def _row(name, side, rounds):
    """The medians of a side."""
    figures = [measured[name] for measured in rounds]
    rates = [one.rate for one in figures]
    asked = [keys / requests for requests, keys in side.asked if requests]
    return {
        "side": name,
        "messages/s": f"{statistics.median(rates):,.0f}{pairs.in_words(pairs.interval(rates))}",
        "server's CPU": _median(one.cpu_per_thousand for one in figures),
        "slapd's CPU": _median(side.costs),
        "source's share of one processor": f"{statistics.median(map(_source_share, figures)):.0%}",
        "machine's share of all": f"{statistics.median(map(_machine_share, figures)):.0%}",
        "keys in a request": f"{statistics.median(asked):.1f}" if asked else "",
        "replies other than 250": sum(_refused(side).values()),
    }


def _median(values):
    return f"{statistics.median(values):.4f}"


def _source_share(figures):
    return figures.load_cpu_seconds / figures.seconds


def _machine_share(figures):
    return figures.machine_cpu_seconds / figures.seconds / machine.processors()


def _refused(side):
    """Replies other than 250 and their counts."""
    counts = {}
    for refusals in side.load.refusals:
        for text, count in refusals.items():
            counts[text] = counts.get(text, 0) + count
    return counts


def _checks(sides, rounds):
    for name, side in sides.items():
        refused = _refused(side)
        replies = "; ".join(f"{text} ({count:,})" for text, count in refused.items()) or "none"
        yield f"{name}: no reply other than 250", replies, not refused
    for name in ("warm", "replica"):
        if name in sides:
            keys = sum(keys for _, keys in sides[name].asked)
            yield f"{name}: the directory gets no query under load", f"{keys:,}", keys == 0
    if "cold" in sides:
        keys, sent = sum(keys for _, keys in sides["cold"].asked), sum(figures["cold"].messages for figures in rounds)
        yield "cold: each recipient is looked up in the directory", f"{keys:,} keys for {sent:,} messages", keys == sent


def _ceiling(shared):
    """What the directory can do alone, by connections and keys of a search."""
    machine.settle()
    shared.slapd.start()
    try:
        for connections, keys in _CEILINGS:
            cpu = shared.slapd.group.cpu_seconds()
            numbers = (shared.slapd.port, shared.count, connections, keys, _CEILING_SECONDS)
            ran = load.run([sys.executable, ldap_load.__file__, *map(str, numbers)], seconds_max=60)
            cpu, result = shared.slapd.group.cpu_seconds() - cpu, json.loads(ran.outputs[0])
            searches, asked = result["searches"] / result["seconds"], result["keys"] / result["seconds"]
            yield {
                "connections": connections, "keys of a search": keys,
                "searches/s": round(searches), "keys/s": round(asked),
                "slapd's CPU for a key, us": cpu / result["keys"] * 1e6,
                "client's share of one processor": f"{result['cpu_seconds'] / result['seconds']:.0%}",
            }  # fmt: skip
    finally:
        shared.slapd.terminate()


SCENARIOS = {"directory": Scenario(scenario, SIDES, PAIRS)}
