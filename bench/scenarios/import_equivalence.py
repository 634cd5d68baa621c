"""Whether mail is treated alike by Postfix and by Mailrace with the imported configuration, in many set-ups.

    import-equivalence      all set-ups of equivalence/setups; with --sides NAME,... only these
"""

import collections
import concurrent.futures
import os

import report
from equivalence import comparison, run, setup
from peers import machine

from . import Scenario

_KINDS = (comparison.SAME, comparison.ELSEWHERE, comparison.TOLD, comparison.MEANT, comparison.DEMANDED,
          comparison.DIFFERS, comparison.LETS_IN)  # fmt: skip
_NOTES = [
    "A probe is one message on a connection of its own: with the same client, names, addresses and content for both servers. "
    "Compared are the verdict (accepted, deferred, refused), and where the mail went: host, mailbox or program, with its "
    "envelope and the fields that servers change.",
    "another command: the verdict is the same, and told at another command (Postfix refuses at RCPT what Mailrace refuses "
    "at MAIL).",
    "told: the import tells this difference. meant: docs/from-postfix.md tells the reason under \"What differs by design\". demanded by an RFC: the same, told by the "
    "import, although Postfix refuses.",
]


def compare_all(options):
    """Runs the set-ups, a few at a time."""
    chosen = [name for name in setup.names() if options.sides is None or name in options.sides]
    with machine.run_folder("import-equivalence") as folder:
        facts = machine.describe(folder)
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("MAILRACE_JOBS", "2"))) as pool:
            results = list(pool.map(run.in_namespaces, chosen))
        for result in results:
            _show(result)
        return report.Report(
            "import-equivalence", "What the import makes of Postfix's configuration, held against Postfix", facts, folder,
            {"both": [f"bench/equivalence/setups/{name}" for name in chosen]}, _NOTES,
            checks=list(_checks(results)), tables=_tables(results),
        ).finish(options)  # fmt: skip


def _show(result):
    print(f"--- {result.setup}: {len(result.compared)} probes")
    if result.failure:
        print(result.failure)
    for one in result.compared:
        if one.kind not in (comparison.SAME, comparison.ELSEWHERE):
            print(f"{one.kind}: {one.probe}\n    Postfix:  {one.postfix}\n    Mailrace: {one.mailrace}")


def _checks(results):
    compared = [one for result in results for one in result.compared]
    count = collections.Counter(one.kind for one in compared)
    failed = [result.setup for result in results if result.failure]
    yield "all set-ups run", ", ".join(failed) or f"{len(results)} set-ups, {len(compared)} probes", not failed
    aim = "nothing is accepted or relayed that Postfix refused, unless an RFC demands it"
    yield aim, f"{count[comparison.LETS_IN]} probes", count[comparison.LETS_IN] == 0
    aim = "every other difference is told by the import, or meant"
    yield aim, f"{count[comparison.DIFFERS]} are not", count[comparison.DIFFERS] == 0


def _tables(results):
    rows, differences = [], []
    for result in results:
        count = collections.Counter(one.kind for one in result.compared)
        rows.append({"set-up": result.setup, "": result.title, "probes": len(result.compared)}
                    | {kind: count[kind] for kind in _KINDS})  # fmt: skip
        differences += [one.row(result.setup) for one in result.compared
                        if one.kind not in (comparison.SAME, comparison.ELSEWHERE)]  # fmt: skip
    return {"Set-ups": rows} | ({"Differences": differences} if differences else {})


SCENARIOS = {"import-equivalence": Scenario(compare_all, sides=tuple(setup.names()))}
