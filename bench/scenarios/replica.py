"""A copy of a directory of half a million: time and memory of the first load, and the delay of a
change.

In each round a new server copies a slapd on the same machine. Its resident memory is read every 20
ms. Then a user is added to the directory and looked up until the server finds it. Finally the
directory is killed and the server restarted, so that it has only its file.
"""

import statistics
import time

import report
from lookups import Users
from peers import machine, people

from . import Scenario

USERS = 500_000
ROUNDS = 5
LOAD_SECONDS_MAX, RESIDENT_OCTETS_MAX, CHANGE_SECONDS_MAX = 120, 150e6, 1.0
_USERS_DISK_OCTETS = 5000  # for one user, in the directory and in a copy
_WAIT_SECONDS_MAX = 120
_CHANGES = 20


def scenario(options):
    """Runs all rounds."""
    users = max(1000, USERS // options.shrink)
    with machine.run_folder("replica") as folder:
        machine.require_space(folder, users * _USERS_DISK_OCTETS)
        shared = Users(folder / "users", users)
        rows = []
        try:
            for number in range(options.pairs):
                machine.settle()
                rows.append(_round(folder / f"round-{number}", shared, users + number * _CHANGES))
                print(rows[-1], flush=True)
        finally:
            shared.slapd.stop()
        return report.Report(
            "replica", "A copy of a directory of half a million", machine.describe(folder), folder,
            {"directory": [" ".join(map(str, shared.slapd.command()))]},
            ["Memory is VmRSS, with the pages of the copy's file, read every 20 ms; the maximum counts.",
             f"The time of a change is the median of {_CHANGES}, from the answer of the directory to the first lookup that "
             "finds it; each lookup starts a process, which takes some milliseconds."],
            checks=list(_checks(rows)), tables={"Rounds": rows},
        ).finish(options)  # fmt: skip


def _round(place, shared, known):
    shared.slapd.start()
    server = shared.replica(place)
    try:
        begin = time.monotonic()
        server.start_server()
        peak = 0
        while not (copy := server.copy())["complete"] or copy["entries"] < known:
            peak = max(peak, server.resident_bytes())
            if time.monotonic() > begin + _WAIT_SECONDS_MAX:
                raise RuntimeError(f"the copy of the directory is incomplete: {copy}\n{server.log_tail()}")
            time.sleep(0.02)
        loaded = time.monotonic() - begin
        changes = [_change(shared.slapd, server, known + 1 + number) for number in range(_CHANGES)]
        peak = max(peak, server.resident_bytes())
        shared.slapd.kill()
        server.terminate()
        again = _restart(server, people.address(known))
        return {
            "first load, s": loaded, "memory, MB": peak / 1e6, "file, MB": copy["file_octets"] / 1e6,
            "a change is seen after, s": statistics.median(changes), "at most, s": max(changes),
            "serves again without the directory after, s": again,
        }  # fmt: skip
    finally:
        server.stop()


def _change(slapd, server, number):
    """Seconds until an added user is found."""
    slapd.add_user(number)
    begin = time.monotonic()
    while server.table("get", "directory", people.address(number)).returncode:
        if time.monotonic() > begin + _WAIT_SECONDS_MAX:
            raise RuntimeError(f"user {number} is not found\n{server.log_tail()}")
    return time.monotonic() - begin


def _restart(server, address):
    """Seconds from the start to the first answer."""
    begin = time.monotonic()
    server.start_server()
    found = server.table("get", "directory", address)
    if found.returncode or "copy" not in found.stderr:
        raise RuntimeError(f"{address} is not in the copy: {found.stderr}")
    return time.monotonic() - begin


def _checks(rows):
    for what, figure, most, unit in (
        ("the first load takes at most", "first load, s", LOAD_SECONDS_MAX, "s"),
        ("resident memory stays below", "memory, MB", RESIDENT_OCTETS_MAX / 1e6, "MB"),
        ("a change is seen within", "at most, s", CHANGE_SECONDS_MAX, "s"),
    ):
        worst = max(row[figure] for row in rows)
        yield f"{what} {most:g} {unit}, in every round", f"{worst:.3g} {unit}", worst <= most


SCENARIOS = {"replica": Scenario(scenario, pairs=ROUNDS)}
