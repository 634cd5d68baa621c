"""The figures that matter: Mailrace, Postfix and Exim accept the same kind of load in one run, as fast as each can.

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

OTHERS_COUNT = 20_000  # of messages, to Postfix and to Exim


def _notes(mailrace_count):
    return (
        "100 sessions, 6,000 bytes, one recipient; every message was counted in the queue afterwards.",
        f"Mailrace gets {mailrace_count:,} messages, Postfix and Exim {OTHERS_COUNT:,} each: with equal counts the "
        "fastest would be done in a second. So each is busy for some seconds, and what is compared is the rate, and "
        "the CPU for each message.",
        contest.REST_NOTE,
        "Mailrace writes a line into its log for each message; Exim's goes to /dev/null, and the tuned Postfix has no "
        "log file, and no syslog that hears it.",
    )


def _contest(title, reuse, mailrace_count):
    others, ours = Source(OTHERS_COUNT, reuse=reuse), Source(mailrace_count, reuse=reuse)
    return Contest(
        title,
        {
            "postfix": Side(postfix_tuned, others, MESSAGE_DISK_OCTETS),
            "exim": Side(Exim, others, 2 * MESSAGE_DISK_OCTETS),  # a message is two files
            "mailrace": Side(mailrace, ours, MESSAGE_DISK_OCTETS),
        },
        (
            pairs.Target("mailrace", "postfix", "rate", least=1),
            pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1),
            pairs.Target("mailrace", "exim", "rate", least=1),
            pairs.Target("mailrace", "exim", "cpu_per_thousand", most=1),
        ),
        _notes(mailrace_count),
        versions={"Exim": exim.version},
    )


SCENARIOS = contest.scenarios(
    {
        "servers-many": _contest("Three servers: many messages a connection", True, 100_000),
        "servers-one": _contest("Three servers: one message a connection", False, 40_000),
    }
)
