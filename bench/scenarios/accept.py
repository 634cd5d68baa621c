"""Accepting mail into a durable queue: Mailrace, Postfix, and smtp-sink (which stores nothing).

Both servers sync before their 250 and deliver nothing: Mailrace has `concurrency = 0`, Postfix a
HOLD action. After each run the number of queued messages is compared with the number sent.
"""

import comparison
import pairs
from comparison import Comparison, Side
from peers import postfix
from peers.mailrace import BINARY, Mailrace
from peers.smtp import Load, Sink

MESSAGE_DISK_OCTETS = 9000  # for 6,000 bytes, with header, file system blocks and segments

NOTES = (
    "100 sessions, 6,000 bytes, one recipient; afterwards all messages were counted in the queue.",
    comparison.REST_NOTE,
    "Mailrace logs a line for each message; the tuned Postfix has no log file, and nothing reads its "
    "syslog messages.",
    "The counts differ with the rates, so that each side is busy for some seconds. The rate is compared, "
    "and the CPU for each message.",
)


def mailrace(place, binary=BINARY):
    """Mailrace, which queues all mail."""
    return Mailrace(place, concurrency=0, binary=binary)


def postfix_tuned(place):
    """Tuned Postfix, which queues all mail."""
    return postfix.Postfix(place, "tuned", [postfix.HOLD])


MANY = Comparison(
    "Accepting: many messages a connection",
    {
        "postfix": Side(postfix_tuned, Load(10_000), MESSAGE_DISK_OCTETS),
        "mailrace": Side(mailrace, Load(100_000), MESSAGE_DISK_OCTETS),
        "sink": Side(Sink, Load(100_000)),
    },
    (
        pairs.Target("mailrace", "postfix", "rate", least=10),
        pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 20),
        pairs.Target("mailrace", "sink", "rate", least=0.8),
    ),
    NOTES,
)

ONE = Comparison(
    "Accepting: one message a connection",
    {
        "postfix": Side(postfix_tuned, Load(10_000, reuse=False), MESSAGE_DISK_OCTETS),
        "mailrace": Side(mailrace, Load(40_000, reuse=False), MESSAGE_DISK_OCTETS),
        "sink": Side(Sink, Load(40_000, reuse=False)),
    },
    (
        pairs.Target("mailrace", "postfix", "rate", least=5),
        pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 12),
    ),
    NOTES,
)

SCENARIOS = comparison.scenarios({"accept-many": MANY, "accept-one": ONE})
