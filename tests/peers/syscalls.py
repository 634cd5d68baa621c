"""Reads a trace of strace and checks that the 250 for each message came only after it was durable.

The order of lines is the clock: strace writes a line when a call begins (`<unfinished ...>`) and
another when it ends (`<... resumed>`), or one for both. For each message with a 250 the trace must
have, in this order,

    the end of its last write        to a file, with the message's token in the data
    the start of a sync              fdatasync or fsync of the same descriptor, or syncfs
    the end of that sync             with result 0
    the start of sending the 250     on the socket from which the token was read

and for a message in more than one file (a spilled body and its record) this must hold for each
file.
"""

import re
import shutil
import subprocess

CALLS = (
    "read,recvfrom,recvmsg,readv,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,fdatasync,fsync,syncfs,"
    "openat,close,accept4,dup,sendfile,splice,copy_file_range"
)
RECEIVES = {"recvfrom", "recvmsg", "read", "readv"}
WRITES = {"write", "writev", "pwrite64", "pwritev", "pwritev2"}
SENDS = {"sendto", "sendmsg", "write", "writev"}
SYNCS = {"fdatasync", "fsync", "syncfs"}

_LINE = re.compile(r"^(\d+)\s+[\d.]+ (.*)$")
_CALL = re.compile(r"^(\w+)\((.*)$", re.S)
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$", re.S)
_RESULT = re.compile(r"\)\s+= (-?\d+)")


class Call:
    """A system call: its name, arguments and result as text, and the lines where it began and
    ended.
    """

    def __init__(self, name, arguments, begin):
        self.name, self.arguments, self.begin = name, arguments, begin
        self.end = self.result = None

    def finish(self, rest, end):
        """Adds the end of the call."""
        self.arguments += rest
        self.end = end
        results = _RESULT.findall(rest if _RESULT.search(rest) else self.arguments)
        self.result = int(results[-1]) if results else None

    @property
    def descriptor(self):
        """The first argument if it is a number."""
        digits = re.match(r"\d+", self.arguments)
        return int(digits[0]) if digits else None


def skip_without_strace(test, place):
    """Skips the test if strace is not installed, or may not trace; it writes into `place`."""
    if not shutil.which("strace"):
        test.skipTest("strace is not installed")
    probe = subprocess.run(["strace", "-o", f"{place}/probe", "true"], capture_output=True, text=True)
    if probe.returncode:
        test.skipTest(f"strace cannot trace: {probe.stderr.strip()}")


def calls(lines):
    """All calls of a trace, in the order in which they began."""
    found, pending = [], {}
    for number, line in enumerate(lines):
        if not (parts := _LINE.match(line)):
            continue
        process, text = parts[1], parts[2]
        if resumed := _RESUMED.match(text):
            if call := pending.pop(process, None):
                call.finish(resumed[2], number)
        elif started := _CALL.match(text):
            call = Call(started[1], "", number)
            found.append(call)
            if text.endswith("<unfinished ...>"):
                call.arguments = started[2].removesuffix("<unfinished ...>")
                pending[process] = call
            else:
                call.finish(started[2], number)
    return found


def violations(lines, tokens):
    """Texts about each of `tokens` whose 250 came too early, or with calls missing in the trace."""
    all_calls = calls(lines)
    return [f"{token}: {fault}" for token in tokens if (fault := _fault(all_calls, token))]


def _fault(all_calls, token):
    received = [call for call in all_calls if call.name in RECEIVES and token in call.arguments]
    if not received:
        return "never received"
    socket, arrival = received[0].descriptor, received[-1].begin
    replies = [
        call for call in all_calls
        if call.begin > arrival and call.name in SENDS and call.descriptor == socket and '"250 ' in call.arguments
    ]  # fmt: skip
    if not replies:
        return "no 250 after the message"
    reply = replies[0].begin
    writes = [
        call for call in all_calls
        if call.name in WRITES and call.descriptor not in (socket, 2) and token in call.arguments
        and call.begin < reply and call.end is not None
    ]  # fmt: skip
    if not writes:
        return "the 250 was sent before the message was written"
    for descriptor in {call.descriptor for call in writes}:
        written = max(call.end for call in writes if call.descriptor == descriptor)
        if not any(_covers(call, descriptor, written, reply) for call in all_calls):
            return f"no sync of descriptor {descriptor} between its write and the 250"
    return None


def _covers(call, descriptor, written, reply):
    same = call.name == "syncfs" or call.descriptor == descriptor
    return (
        call.name in SYNCS and same and call.result == 0 and call.begin > written
        and call.end is not None and call.end < reply
    )  # fmt: skip
