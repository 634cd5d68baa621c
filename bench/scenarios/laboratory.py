"""`mailrace bench` compared with well-known tools: is it cheaper, and does it measure the same?

    lab-smtp-many, lab-smtp-one  our source and sink, smtp-source and smtp-sink: the rate, and the CPU of each end
    lab-agree                    Postfix, measured by our source and by smtp-source at full speed
    lab-postal                   Postfix at a fixed rate for a minute: the counts of our source and of postal
    lab-http                     nginx, measured by ours and by wrk at full speed
    lab-files                    the file operations of postmark, done by ours and by postmark
"""

import comparison
import pairs
from comparison import Comparison, NullServer, Side
from peers import laboratory, machine, nginx, smtp, wrk
from peers.laboratory import Fetch, Files, Source
from peers.postal import Postal
from peers.postmark import Postmark, Work
from peers.smtp import Load
from peers.wrk import Wrk

from .accept import MESSAGE_DISK_OCTETS, postfix_tuned

AGREES = {"least": 0.9, "most": 1.1}
RATE = 500  # messages per second, for a minute
PAGES = {"page": 10_000}


def _smtp(how, reuse, count):
    return Comparison(
        f"Our source and sink compared with smtp-source and smtp-sink: {how}",
        {
            "smtp-source": Side(smtp.Sink, Load(count, reuse=reuse)),
            "mailrace": Side(laboratory.Sink, Source(count, reuse=reuse)),
        },
        (
            pairs.Target("mailrace", "smtp-source", "rate", least=1),
            pairs.Target("mailrace", "smtp-source", "load_cpu_per_thousand", most=1),
            pairs.Target("mailrace", "smtp-source", "cpu_per_thousand", most=1),
        ),
        (
            "100 sessions, 6,000 bytes, one recipient, each command after the reply to the one before.",
            "Each source sends to its own sink; the server is that sink.",
            comparison.REST_NOTE,
        ),
    )


AGREE = Comparison(
    "Agreement with smtp-source",
    {
        "smtp-source": Side(postfix_tuned, Load(10_000), MESSAGE_DISK_OCTETS),
        "mailrace": Side(postfix_tuned, Source(10_000), MESSAGE_DISK_OCTETS),
    },
    (pairs.Target("mailrace", "smtp-source", "rate", **AGREES),),
    ("100 sessions, 6,000 bytes, one recipient; afterwards all messages were counted in the queue.", comparison.REST_NOTE),
)

POSTAL = Comparison(
    "Agreement with postal",
    {
        "postal": Side(postfix_tuned, Postal(60 * RATE), MESSAGE_DISK_OCTETS, is_minute=True, is_part=True),
        "mailrace": Side(postfix_tuned, Source(rate=RATE, seconds=60), MESSAGE_DISK_OCTETS, is_minute=True),
    },
    (pairs.Target("mailrace", "postal", "messages", least=0.99, most=1.01),),
    (
        f"{RATE} messages of about 6,000 bytes per second go to Postfix, which holds them; the messages of "
        "one minute count, as each tool reports them. Afterwards Postfix held exactly ours, and more than postal's, which "
        "starts before that minute.",
        f"{Postal(60 * RATE).processes} processes of postal run, since one does not reach the rate. They take "
        "minutes to reach their rate and are killed at the end; the last whole minute counts, by the lines that they "
        "wrote when it ended. CPU cannot be compared here, since that of Postfix and postal covers all minutes.",
        "Ours counts the acknowledged messages of the minute; none of them was missed or unfinished.",
        comparison.REST_NOTE,
    ),
    versions={"postal": machine.package("postal")},
)

HTTP = Comparison(
    "Agreement with wrk",
    {
        "wrk": Side(lambda place: nginx.Nginx(place, PAGES), Wrk("page")),
        "mailrace": Side(lambda place: nginx.Nginx(place, PAGES), Fetch("page")),
    },
    (pairs.Target("mailrace", "wrk", "rate", **AGREES),),
    (f"A page of {PAGES['page']:,} bytes, 100 connections from one thread, one worker.", comparison.REST_NOTE),
    unit="request",
    versions={"nginx": nginx.version, "wrk": wrk.version},
)

FILES = Comparison(
    "Agreement with postmark",
    {
        "postmark": Side(NullServer, Postmark()),
        "mailrace": Side(NullServer, Files()),
    },
    (pairs.Target("mailrace", "postmark", "rate", **AGREES),),
    (
        f"{Work.files:,} files in {Work.subfolders} folders, {Work.low:,} to {Work.high:,} bytes each, blocks of "
        f"{Work.block}, seed {Work.seed}; nothing is synced.",
        "postmark reports whole seconds, so the whole run is timed from outside.",
        comparison.REST_NOTE,
    ),
    unit="transaction",
    versions={"postmark": machine.package("postmark")},
)

SCENARIOS = comparison.scenarios(
    {
        "lab-smtp-many": _smtp("many messages a connection", True, 100_000),
        "lab-smtp-one": _smtp("one message a connection", False, 40_000),
        "lab-agree": AGREE,
        "lab-postal": POSTAL,
        "lab-http": HTTP,
        "lab-files": FILES,
    }
)
