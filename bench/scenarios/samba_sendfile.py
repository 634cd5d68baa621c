"""What sendfile saves: smbd with and without `use sendfile`, and Mailrace with `sendfile = true` and
`false`.

    samba-sendfile    a file of 500 MB over 1 and over 10 connections, CPU for each GB

smbd uses sendfile only if reads are not asynchronous and nothing is signed, so both sides of it have
these settings. curl says how much it received, and smbclient whether a transfer failed, so that nothing
is missing unnoticed.
"""

import functools

import comparison
import pairs
from peers import machine, samba
from peers.download import Curl, Smbclient
from peers.samba import Samba

from . import Scenario
from .reading import FILE_OCTETS, Reading, http_mailrace, make_file, warmed_download

SIDES = ("smbd", "smbd-copying", "mailrace", "mailrace-copying")
CONNECTIONS = (1, 10)
DOWNLOADS = 20  # over all connections
PAIRS = 7
_OCTETS_MIN, _OCTETS_UNIT = 50_000_000, 1_000_000
_SAMBA = (("samba", samba.is_installed),)

NOTES = (
    "The load is smbclient, as a guest, for smbd, and curl for Mailrace: one process for each connection, so the CPU of the "
    "load can be compared only between the two sides of one server. Figures per thousand are per GB.",
    "smbd: no signing, no encryption, `aio read size = 0` on both sides; without it, smbd does not use sendfile at all.",
    "The file was read once before each measurement, so that it is in the page cache. curl received all of it each time, "
    "and smbclient reported no failed transfer.",
    comparison.REST_NOTE,
)


def scenario(options):
    """Runs all rounds."""
    octets = max(_OCTETS_MIN, FILE_OCTETS // options.shrink) // _OCTETS_UNIT * _OCTETS_UNIT
    return Reading(
        f"What sendfile saves: a file of {octets // _OCTETS_UNIT} MB by SMB and by HTTP",
        {},
        tuple(target for label in map(str, CONNECTIONS) for target in _targets(label)),
        NOTES,
        unit="MB",
        versions={"Samba": samba.version, "curl": machine.package("curl")},
        question="What does sendfile save in smbd and in Mailrace?",
        answer=_answer,
        case_name="connections",
        cases=tuple(comparison.Case(str(count), _sides(count, octets), count) for count in CONNECTIONS),
        prepare=make_file(octets),
    ).run("samba-sendfile", options)


def _sides(connections, octets):
    times = DOWNLOADS // connections
    smb = functools.partial(warmed_download, download=Smbclient(connections, times, octets), needs=_SAMBA)
    http = functools.partial(warmed_download, download=Curl(connections, times, octets))
    return {
        "smbd": smb(lambda place: Samba(place, place.parent / "files")),
        "smbd-copying": smb(lambda place: Samba(place, place.parent / "files", sendfile=False)),
        "mailrace": http(http_mailrace),
        "mailrace-copying": http(lambda place: http_mailrace(place, "sendfile = false")),
    }


def _targets(label):
    yield pairs.Target("smbd", "smbd-copying", "cpu_per_thousand", case=label)
    yield pairs.Target("mailrace", "mailrace-copying", "cpu_per_thousand", case=label)
    yield pairs.Target("smbd", "smbd-copying", "rate", case=label)
    yield pairs.Target("mailrace", "mailrace-copying", "rate", case=label)
    yield pairs.Target("mailrace", "smbd", "cpu_per_thousand", case=label)


def _answer(found):
    parts = []
    for server, copying, name in (("smbd", "smbd-copying", "smbd"), ("mailrace", "mailrace-copying", "Mailrace")):
        ratios = {count: found.ratio(server, copying, "cpu_per_thousand", case=str(count)) for count in CONNECTIONS}
        if None not in ratios.values():
            parts.append(f"{name} " + " and ".join(f"{ratio:.2f} over {count}" for count, ratio in ratios.items()))
    return f"With sendfile a GB takes this part of the CPU of copying: {', '.join(parts)} connections." if parts else None


SCENARIOS = {"samba-sendfile": Scenario(scenario, SIDES, PAIRS)}
