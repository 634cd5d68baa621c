"""Delivery to 2,000 Maildirs, from the first connection until the queue is empty.

Ten processes of smtp-source send one message each to the same 2,000 recipients (`-N` numbers the
recipients from 1), so both servers get the same load and every Maildir the same number of messages.
All Maildirs exist before, so that creating folders is not measured. At the end the messages are
counted.
"""

import dataclasses
import os
import shutil
import time

import pairs
import report
from peers import machine, postfix
from peers.mailrace import Mailrace
from peers.smtp import Load

from . import Scenario

USERS, SOURCES = 2000, 10
_EMPTY_SECONDS_MAX = 600
_MESSAGE_DISK_OCTETS = 20_000  # a message, its queue record, and its share of the folders

TARGETS = [
    pairs.Target("mailrace", "postfix", "rate", least=8),
    pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 10),
]
NOTES = [
    f"{SOURCES} processes of smtp-source with {100 // SOURCES} sessions each; each sends one message to each user.",
    "The time is from the first connection until the queue is empty; both queues are checked every 50 ms.",
    "All Maildirs exist before. The messages in all new/ folders were counted afterwards.",
]


def scenario(options):
    """Postfix virtual(8) and Mailrace in turns."""
    users = max(SOURCES, USERS // options.shrink)
    names = [f"{number}user" for number in range(1, users + 1)]
    load = Load(users * SOURCES, sources=SOURCES, numbered=True)
    commands = {side: [f"{SOURCES} x " + " ".join(load.command("PORT"))] for side in ("postfix", "mailrace")}
    configurations = {}

    def side(start):
        def run(number):
            place = folder / f"{number}-{start.__name__}"
            place.mkdir()
            maildirs = place / "mail"
            _make_maildirs(maildirs / "bench.test", names)
            machine.settle()
            server = start(place, maildirs, names)
            try:
                server.start()
                figures = pairs.measure(server, lambda: _until_empty(server, load))
            finally:
                server.stop()
            _check_messages(maildirs / "bench.test", names, load.count)
            configurations[server.name] = server.configuration()
            return figures

        return run

    with machine.run_folder("maildir") as folder:
        machine.require_space(folder, 2 * options.pairs * load.count * _MESSAGE_DISK_OCTETS)
        facts = machine.describe(folder)
        found = pairs.rounds(options.pairs, {"postfix": side(_postfix), "mailrace": side(_mailrace)}, options.sides)
        return report.Report(
            "maildir", f"Delivering to {users:,} Maildirs", facts, folder, commands, NOTES, configurations,
            rounds=found, targets=TARGETS,
        ).finish(options)  # fmt: skip


def _postfix(place, maildirs, names):
    table = place / "users"
    table.write_text("".join(f"{name}@bench.test bench.test/{name}/\n" for name in names))
    postfix.build_table("hash", table)
    return postfix.Postfix(place, "tuned", postfix.maildir_lines(maildirs, table))


def _mailrace(place, maildirs, names):
    return Mailrace(place, users=names, maildirs=maildirs)


def _until_empty(server, load):
    begin = time.monotonic()
    done = load.run(server.port)
    server.wait_until_empty(_EMPTY_SECONDS_MAX)
    return dataclasses.replace(done, seconds=time.monotonic() - begin)


def _make_maildirs(parent, names):
    for name in names:
        for part in ("tmp", "new", "cur"):
            (parent / name / part).mkdir(parents=True)
    if os.geteuid() == 0:
        for folder, _, _ in os.walk(parent.parent):
            shutil.chown(folder, "nobody", "nogroup")


def _check_messages(parent, names, count):
    found = sum(len(os.listdir(parent / name / "new")) for name in names)
    if found != count:
        raise RuntimeError(f"{found} messages were delivered, {count} were sent")


SCENARIOS = {"maildir": Scenario(scenario, ("postfix", "mailrace"))}
