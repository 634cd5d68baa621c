"""Memory is bounded: idle sessions need little, and many large messages at the same time are all
kept.

Three loads, each on a new server: 2,000 idle sessions after EHLO; 1,000 sessions that send 2 MB
each; 200 sessions that send 25 MB each. The client is one Python process with all sockets; the
server's resident memory is read every 20 ms, and the maximum counts. For idle sessions the report
shows what the memory consists of, before the first and with all of them.
"""

import asyncio
import collections
import os
import pathlib

import report
from peers import machine
from peers.mailrace import Mailrace

from . import Scenario

IDLE_SESSIONS, IDLE_OCTETS_MAX = 2000, 16e6
LARGE = [(1000, 2_000_000), (200, 25_000_000)]  # sessions, octets each
LARGE_OCTETS_MAX = 300e6
_LINE = b"x" * 78 + b"\r\n"
_CHUNK = _LINE * 800
_SECONDS_MAX = 900
_OPEN_FILES = 2 * IDLE_SESSIONS + 100  # of the client, or of the server, which has files for large messages
_NOTES = [
    "Memory is VmRSS, read every 20 ms; the maximum counts.",
    "When its start is over, the server unmaps the pages of its program and libraries. What is counted of them was used "
    "since then, with its neighbours in the page cache, which the kernel maps at the same time.",
    "Of an idle session's 3.4 kB, 3 kB are the block of its task: 1.3 kB for a lookup or a commit under way, 0.5 kB for the "
    "session, 0.5 kB for the connection, and the rest for the start of a session and for alignment. 0.3 kB are other allocations, such as tokio's "
    "registration of the socket.",
]
_PARTS = ("code of the program", "constants of the program", "libraries", "heap, stacks and data")


def scenario(options):
    """Runs all three loads once."""
    machine.require_open_files(_OPEN_FILES)
    with machine.run_folder("memory") as folder:
        machine.require_space(folder, 2 * sum(sessions * octets for sessions, octets in LARGE))
        facts = machine.describe(folder)
        check, parts = _idle(folder, IDLE_SESSIONS // options.shrink)
        checks = [check]
        for sessions, octets in LARGE:
            checks += _large(folder, sessions // options.shrink, octets)
        return report.Report(
            "memory", "Memory", facts, folder,
            {"client": ["raw SMTP over asyncio, all sessions in one process, one message each"]},
            _NOTES,
            checks=checks, tables={"Memory of idle sessions by kind, MB": parts},
        ).finish(options)  # fmt: skip


def _idle(folder, sessions):
    server = Mailrace(folder / "idle", concurrency=0)
    try:
        server.start()
        before = _parts("none", server.process.pid)
        resident, held = asyncio.run(_hold_idle(server, sessions))
    finally:
        server.stop()
    aim = f"{sessions:,} idle sessions: resident memory below {IDLE_OCTETS_MAX / 1e6:.0f} MB"
    return (aim, f"{resident / 1e6:.1f} MB", resident < IDLE_OCTETS_MAX), [before, held]


async def _hold_idle(server, sessions):
    streams = [await _greet(server.port) for _ in range(sessions)]
    resident, parts = server.resident_bytes(), _parts(f"{sessions:,}", server.process.pid)
    for _, writer in streams:
        writer.close()
    return resident, parts


def _parts(sessions, pid):
    """The memory of a process by kind of mapping. File pages are shared by all processes that map
    them, and the kernel can drop them.
    """
    octets, name = collections.Counter(), None
    program = os.readlink(f"/proc/{pid}/exe")
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            name = _part(fields[1], fields[5] if len(fields) > 5 else "", program)
        elif fields[0] == "Rss:":
            octets[name] += int(fields[1]) * 1024
    return {"sessions": sessions} | {part: octets[part] / 1e6 for part in _PARTS}


def _part(rights, path, program):
    if path == program and "w" not in rights:
        return "code of the program" if "x" in rights else "constants of the program"
    return "libraries" if path.startswith("/") and path != program and "w" not in rights else "heap, stacks and data"


def _large(folder, sessions, octets):
    server = Mailrace(folder / f"large-{octets}", concurrency=0)
    try:
        server.start()
        kept, peak = asyncio.run(asyncio.wait_for(_send_large(server, sessions, octets), _SECONDS_MAX))
        queued = server.queued()
    finally:
        server.stop()
    what = f"{sessions:,} sessions of {octets / 1e6:.0f} MB each"
    return [
        (
            f"{what}: resident memory below {LARGE_OCTETS_MAX / 1e6:.0f} MB",
            f"{peak / 1e6:.1f} MB",
            peak < LARGE_OCTETS_MAX,
        ),
        (f"{what}: all are queued", f"{kept:,} answered 250, {queued:,} in the queue", kept == queued == sessions),
    ]


async def _send_large(server, sessions, octets):
    peak = 0
    done = asyncio.Event()

    async def watch():
        nonlocal peak
        while not done.is_set():
            peak = max(peak, server.resident_bytes())
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    codes = await asyncio.gather(*(_send_one(server.port, octets) for _ in range(sessions)))
    done.set()
    await watching
    return sum(code == 250 for code in codes), peak


async def _greet(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _reply(reader)
    await _say(reader, writer, b"EHLO client.test")
    return reader, writer


async def _send_one(port, octets):
    """Sends one message; returns the code of its reply, or of an earlier refusal."""
    reader, writer = await _greet(port)
    try:
        for line in (b"MAIL FROM:<s@bench.test>", b"RCPT TO:<user@bench.test>", b"DATA"):
            code = await _say(reader, writer, line)
            if code >= 400:
                return code
        writer.write(b"Subject: large\r\n\r\n")
        for _ in range(octets // len(_CHUNK)):
            writer.write(_CHUNK)
            await writer.drain()
        return await _say(reader, writer, b".")
    finally:
        writer.close()


async def _say(reader, writer, line):
    writer.write(line + b"\r\n")
    await writer.drain()
    return await _reply(reader)


async def _reply(reader):
    while True:
        line = await reader.readuntil(b"\n")
        if line[3:4] != b"-":
            return int(line[:3])


SCENARIOS = {"memory": Scenario(scenario)}
