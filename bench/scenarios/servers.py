"""Mailrace, Postfix and Exim accept the same kind of load in one run, each at full speed.

All three sync before their 250 and deliver nothing: Mailrace has `concurrency = 0`, Postfix a HOLD
action, Exim `queue_only`. After each run the queued messages are counted.
"""

import comparison
import pairs
from comparison import Comparison, Side
from peers import exim
from peers.exim import Exim
from peers.laboratory import Source

from .accept import MESSAGE_DISK_OCTETS, mailrace, postfix_tuned

OTHERS_COUNT = 20_000  # messages to Postfix and to Exim


def _notes(mailrace_count):
    return (
        "100 sessions, 6,000 bytes, one recipient; afterwards all messages were counted in the queue.",
        f"Mailrace gets {mailrace_count:,} messages, Postfix and Exim {OTHERS_COUNT:,} each: with equal counts, the "
        "fastest would be done in a second. Each is busy for some seconds; the rate is compared, and "
        "the CPU for each message.",
        comparison.REST_NOTE,
        "Mailrace logs a line for each message; the log of Exim is /dev/null, and the tuned Postfix has no "
        "log file, and nothing reads its syslog messages.",
    )


def _contest(title, reuse, mailrace_count):
    others, ours = Source(OTHERS_COUNT, reuse=reuse), Source(mailrace_count, reuse=reuse)
    return Comparison(
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


SCENARIOS = comparison.scenarios(
    {
        "servers-many": _contest("Three servers: many messages a connection", True, 100_000),
        "servers-one": _contest("Three servers: one message a connection", False, 40_000),
    }
)
