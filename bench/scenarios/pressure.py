"""A busy machine still answers: four busy processes per core, and twenty new sessions a second.

Load limits are set low enough to be exceeded during the run: the first sessions get a banner, and
later ones get 421 when the load average has risen. Both count as an answer. The client competes
with the busy processes, so its waiting for a processor is part of the time.
"""

import os
import socket
import statistics
import subprocess
import sys
import time

import report
from peers import machine
from peers.mailrace import Mailrace

from . import Scenario

BUSY_PER_CORE, ANSWER_MS_MAX = 4, 50
SESSIONS, SESSION_EVERY_SECONDS = 3000, 0.05
_SESSION_SECONDS_MAX = 10
_SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
_PERCENTILE_MIN = 100  # below this there is no meaningful 99th percentile

# Relative to the cores; the busy processes want four times as many as there are.
_SETTINGS = """
[load]
queue_only_above  = {queue_only}
no_delivery_above = {no_delivery}
refuse_above      = {refuse}
reserve           = []
"""

NOTES = (
    "The sessions run one after the other: connect, read the first line, close. A time is from before the "
    "connection until the line is read.",
    "Server, client and busy processes have the same priority.",
)


def scenario(options):
    """Runs one load, from the first busy process to the last session."""
    sessions = max(_PERCENTILE_MIN, SESSIONS // options.shrink)
    cores = os.cpu_count()
    settings = _SETTINGS.format(queue_only=1.0 * cores, no_delivery=1.5 * cores, refuse=2.0 * cores)
    with machine.run_folder("pressure") as folder:
        facts = machine.describe(folder)
        machine.settle()
        server = Mailrace(folder, extra=settings)
        try:
            server.start()
            answers, late_ms = _under_pressure(server.port, sessions, BUSY_PER_CORE * cores)
        finally:
            server.stop()
        title = f"{BUSY_PER_CORE} busy processes per core"
        notes = [
            *NOTES,
            f"The load average was {os.getloadavg()[0]:.1f} at the end. The client woke from its sleep between "
            f"sessions {_percentile(late_ms):.2f} ms late at p99, which is what any process waits for a processor.",
        ]
        return report.Report(
            "pressure", title, facts, folder, {"client": [f"{sessions:,} sessions, one after the other"]}, notes,
            {"mailrace": server.configuration()}, checks=list(_checks(answers, sessions)),
        ).finish(options)  # fmt: skip


def _under_pressure(port, sessions, busy):
    """Returns for each session its reply code and the milliseconds until it was read, and how many
    milliseconds late the client started it.
    """
    spin = _SPIN.format(4 * sessions * SESSION_EVERY_SECONDS)  # they also end on their own
    processes = []
    try:
        for _ in range(busy):
            processes.append(subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.DEVNULL))
        late_ms, answers = [], []
        for _ in range(sessions):
            late_ms.append(_rest())
            answers.append(_session(port))
        return answers, late_ms
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _rest():
    begin = time.perf_counter()
    time.sleep(SESSION_EVERY_SECONDS)
    return (time.perf_counter() - begin - SESSION_EVERY_SECONDS) * 1000


def _session(port):
    begin = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=_SESSION_SECONDS_MAX) as connection:
        code = connection.recv(512)[:3].decode()
        return code, (time.perf_counter() - begin) * 1000


def _checks(answers, sessions):
    codes = sorted({code for code, _ in answers})
    counts = ", ".join(f"{sum(one == code for one, _ in answers):,} x {code}" for code in codes)
    aim = "every session gets an answer, a banner first and 421 later"
    yield aim, f"{counts} of {sessions:,}", codes == ["220", "421"]
    for code in codes:
        times = sorted(ms for one, ms in answers if one == code)
        if len(times) < _PERCENTILE_MIN:
            continue
        p50, p99 = statistics.median(times), _percentile(times)
        aim = f"{code} within {ANSWER_MS_MAX} ms in 99 of 100 sessions"
        yield aim, f"p50 {p50:.2f}, p99 {p99:.2f}, longest {times[-1]:.2f} ms", p99 <= ANSWER_MS_MAX


def _percentile(times):
    """The 99th percentile."""
    return statistics.quantiles(times, n=100)[98]


SCENARIOS = {"pressure": Scenario(scenario)}
