"""Whether mail is treated alike by another server and by Mailrace with the imported configuration, in many set-ups.

    import-equivalence        Postfix: all set-ups of equivalence/setups; with --sides NAME,... only these
    import-equivalence-exim   Exim: those of equivalence/exim_setups
"""

import collections
import concurrent.futures
import functools
import os

import report
from equivalence import comparison, run, setup
from peers import exim, machine

from . import Scenario

_KINDS = (comparison.SAME, comparison.ELSEWHERE, comparison.TOLD, comparison.MEANT, comparison.DEMANDED,
          comparison.DIFFERS, comparison.LETS_IN)  # fmt: skip
_VERSIONS = {"exim": lambda: {"Exim": exim.version(exim.HEAVY)}}  # of servers that a machine's facts do not have
_NOTES = [
    "A probe is one message on a connection of its own: with the same client, names, addresses and content for both servers. "
    "Compared are the verdict (accepted, deferred, refused), and where the mail went: host, mailbox or program, with its "
    "envelope and the fields that servers change.",
    "another command: the verdict is the same, and told at another command (one server refuses at RCPT what the other "
    "refuses at MAIL).",
    "told: the import tells this difference. meant: the document about the import tells the reason. demanded by an RFC: the "
    "same, told by the import, although the other server refuses.",
]


def compare_all(server, options):
    """Runs the set-ups of a server, a few at a time."""
    title, scenario = run.server_title(server), _scenario(server)
    chosen = [name for name in setup.names(server) if options.sides is None or name in options.sides]
    with machine.run_folder(scenario) as folder:
        facts = machine.describe(folder) | _VERSIONS.get(server, dict)()
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("MAILRACE_JOBS", "2"))) as pool:
            results = list(pool.map(run.in_namespaces, (setup.Setup(server, name) for name in chosen)))
        for result in results:
            _show(result, title)
        return report.Report(
            scenario, f"What the import makes of {title}'s configuration, held against {title}", facts, folder,
            {"both": [str(setup.Setup(server, name).folder.relative_to(machine.ROOT)) for name in chosen]}, _NOTES,
            checks=list(_checks(results, title)), tables=_tables(results, title),
        ).finish(options)  # fmt: skip


def _scenario(server):
    return "import-equivalence" if server == "postfix" else f"import-equivalence-{server}"


def _show(result, title):
    print(f"--- {result.setup}: {len(result.compared)} probes")
    if result.failure or result.skipped:
        print(result.failure or f"skipped: {result.skipped}")
    for one in result.compared:
        if one.kind not in (comparison.SAME, comparison.ELSEWHERE):
            print(f"{one.kind}: {one.probe}\n    {title + ':':<9} {one.original}\n    Mailrace: {one.mailrace}")


def _checks(results, title):
    compared = [one for result in results for one in result.compared]
    count = collections.Counter(one.kind for one in compared)
    failed = [result.setup for result in results if result.failure]
    skipped = [result.setup for result in results if result.skipped]
    yield "all set-ups run", ", ".join([*failed, *(f"{name} skipped" for name in skipped)]) or f"{len(results)} set-ups, {len(compared)} probes", not failed and not skipped
    aim = f"nothing is accepted or relayed that {title} refused, unless an RFC demands it"
    yield aim, f"{count[comparison.LETS_IN]} probes", count[comparison.LETS_IN] == 0
    aim = "every other difference is told by the import, or meant"
    yield aim, f"{count[comparison.DIFFERS]} are not", count[comparison.DIFFERS] == 0


def _tables(results, title):
    rows, differences = [], []
    for result in results:
        count = collections.Counter(one.kind for one in result.compared)
        rows.append({"set-up": result.setup, "": result.title, "probes": len(result.compared)}
                    | {kind: count[kind] for kind in _KINDS})  # fmt: skip
        differences += [one.row(result.setup, title) for one in result.compared
                        if one.kind not in (comparison.SAME, comparison.ELSEWHERE)]  # fmt: skip
    return {"Set-ups": rows} | ({"Differences": differences} if differences else {})


SCENARIOS = {
    _scenario(server): Scenario(functools.partial(compare_all, server), sides=tuple(setup.names(server)))
    for server in ("postfix", "exim")
}
