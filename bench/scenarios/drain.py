"""Draining separate messages to one next hop and to a thousand, with Postfix and Exim.

    drain-one, drain-many   the rate in the middle of the run, and the server's CPU for each message
    sendfile                large messages: the CPU of sendfile(2) compared with copying
"""

import pathlib

import comparison
import drain
import pairs
from comparison import Comparison
from drain import Drain
from peers import exim
from peers.laboratory import Source
from peers.outbound import Hops

from .accept import MESSAGE_DISK_OCTETS

COUNTS = {"mailrace": 200_000, "postfix": 20_000, "postfix-uncached": 20_000, "exim": 3000}
LARGE_OCTETS, LARGE_COUNT = 1_000_000, 2000

_UNCACHED = "smtp_connection_cache_on_demand = no"

TARGETS = (
    pairs.Target("mailrace", "postfix", "rate", least=8),
    pairs.Target("mailrace", "postfix-uncached", "rate", least=8),
    pairs.Target("mailrace", "exim", "rate", least=25),
    pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 10),
    pairs.Target("mailrace", "postfix-uncached", "cpu_per_thousand", most=1 / 10),
)
_NOTES = (
    *drain.NOTES,
    *drain.PEERS_NOTES,
    "Postfix caches connections by default, which helps when it delivers over "
    "a network. On one machine a new connection is cheaper than looking for a cached one: `postfix-uncached` "
    f"has `{_UNCACHED}`. The targets apply to both.",
    "The counts differ with the rates, so that each side is busy for some seconds. The rate is that of the middle "
    "80 %, and the time is that of all messages at this rate; CPU is that of the whole run plus one second. "
    "The CPU of the load is that of the sink.",
)


def _contest(title, hops):
    uncached = drain.postfix_tuned(hops, name="postfix-uncached", settings=[_UNCACHED])
    loads = {side: Source(count, recipient="user@d{}.test", users=hops.count) for side, count in COUNTS.items()}
    return Comparison(
        title,
        {
            "postfix": Drain(drain.postfix_tuned(hops), loads["postfix"], MESSAGE_DISK_OCTETS),
            "postfix-uncached": Drain(uncached, loads["postfix-uncached"], MESSAGE_DISK_OCTETS),
            "exim": Drain(drain.exim_tuned(hops), loads["exim"], 2 * MESSAGE_DISK_OCTETS),  # a message is two files
            "mailrace": Drain(drain.mailrace(hops), loads["mailrace"], MESSAGE_DISK_OCTETS),
        },
        TARGETS,
        _NOTES,
        versions={"Exim": exim.version},
    )


def _congestion_control():
    return pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def _large(name, setting):
    server = drain.mailrace(Hops(1), name=name, settings=f"\n[transport.smtp]\nsendfile = {setting}\n")
    load = Source(LARGE_COUNT, octets=LARGE_OCTETS, recipient="user@d1.test")
    return Drain(server, load, int(1.1 * LARGE_OCTETS))


SENDFILE = Comparison(
    "Sending with sendfile, and copying",
    {"copied": _large("copied", "false"), "sendfile": _large("sendfile", "true")},
    (pairs.Target("sendfile", "copied", "cpu_per_thousand", most=0.65),),
    (
        *drain.NOTES,
        f"Messages of {LARGE_OCTETS:,} bytes: CPU for 1,000 of them is CPU for each GB. The messages were "
        "written right before, so they are in the page cache.",
        f"TCP congestion control was {_congestion_control()}. With bbr the kernel paces each connection with timers, which "
        "costs the same for both, and on a virtual machine more than the copies; the default of Linux is cubic.",
    ),
)

SCENARIOS = comparison.scenarios(
    {
        "drain-one": _contest("Draining to one next hop", Hops(1)),
        "drain-many": _contest("Draining to 1,000 next hops", Hops(1000)),
        "sendfile": SENDFILE,
    }
)
