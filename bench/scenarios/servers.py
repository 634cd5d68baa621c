"""The figures that matter: Mailrace, Postfix and Exim accept the same load in one run, as fast as each can.

All three sync before their 250 and deliver nothing: Mailrace holds by `concurrency = 0`, Postfix by a HOLD action, Exim
by `queue_only`. After each run the messages that each holds are counted.
"""

import contest
import pairs
from contest import Contest, Side
from peers import exim
from peers.exim import Exim
from peers.laboratory import Source

from .accept import MESSAGE_DISK_OCTETS, mailrace, postfix_tuned

NOTES = (
    "100 sessions, 6,000 bytes, one recipient; every message was counted in the queue afterwards.",
    contest.REST_NOTE,
    "Mailrace logs a line for each message; Postfix and Exim, as they are tuned here, log nothing.",
)


def _contest(title, reuse, mailrace_count):
    return Contest(
        title,
        {
            "postfix": Side(postfix_tuned, Source(10_000, reuse=reuse), MESSAGE_DISK_OCTETS),
            "exim": Side(Exim, Source(10_000, reuse=reuse), 2 * MESSAGE_DISK_OCTETS),  # a message is two files
            "mailrace": Side(mailrace, Source(mailrace_count, reuse=reuse), MESSAGE_DISK_OCTETS),
        },
        (
            pairs.Target("mailrace", "postfix", "rate", least=1),
            pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1),
            pairs.Target("mailrace", "exim", "rate", least=1),
            pairs.Target("mailrace", "exim", "cpu_per_thousand", most=1),
        ),
        NOTES,
        versions={"Exim": exim.version},
    )


SCENARIOS = contest.scenarios(
    {
        "servers-many": _contest("Three servers: many messages a connection", True, 100_000),
        "servers-one": _contest("Three servers: one message a connection", False, 40_000),
    }
)
