"""Accepting mail with STARTTLS: Mailrace and Postfix with the same certificate, and Mailrace
without TLS.

    secure-many   many messages on a connection: the cost of encryption
    secure-one    one message on a connection, with a full handshake for each
    resumed-one   the same, but the client resumes TLS sessions as mail servers do

The certificate is ECDSA on P-256. Both servers sync before their 250 and deliver nothing.
"""

import dataclasses

import comparison
import pairs
from comparison import Comparison, Side
from peers import postfix
from peers.certificate import certificate
from peers.laboratory import Source
from peers.mailrace import Mailrace

from .accept import MESSAGE_DISK_OCTETS, mailrace

_POSTFIX_COUNT = 10_000
_NOTES = (
    "100 sessions, 6,000 bytes, one recipient; afterwards all messages were counted in the queue. The load is `mailrace "
    "bench smtp`, for both servers.",
    "The certificate is ECDSA on P-256, the same for both, and the load does not verify it.",
    "`clear` is Mailrace with the same load and without TLS; the difference is the cost of TLS.",
    comparison.REST_NOTE,
)


def _postfix(place):
    chain, key = certificate(place)
    lines = [postfix.HOLD, "smtpd_tls_security_level = may", f"smtpd_tls_chain_files = {key}, {chain}"]
    return postfix.Postfix(place, "tuned", lines)


def _mailrace(place):
    chain, key = certificate(place)
    return Mailrace(place, concurrency=0, extra=f'\n[[certificate]]\nchain = "{chain}"\nkey = "{key}"\n')


def _contest(title, count, rate_least, price_most, **load):
    ours = Source(count, secure=True, **load)
    return Comparison(
        title,
        {
            "postfix": Side(_postfix, dataclasses.replace(ours, count=_POSTFIX_COUNT), MESSAGE_DISK_OCTETS),
            "mailrace": Side(_mailrace, ours, MESSAGE_DISK_OCTETS),
            "clear": Side(mailrace, dataclasses.replace(ours, secure=False), MESSAGE_DISK_OCTETS),
        },
        (
            pairs.Target("mailrace", "postfix", "rate", least=rate_least),
            pairs.Target("mailrace", "postfix", "cpu_per_thousand", most=1 / 5),
            pairs.Target("mailrace", "clear", "cpu_per_thousand", most=price_most),
        ),
        _NOTES,
    )


SCENARIOS = comparison.scenarios(
    {
        "secure-many": _contest("Accepting by STARTTLS: many messages a connection", 80_000, 7, 1.5),
        "secure-one": _contest("Accepting by STARTTLS: one message a connection", 20_000, 3, 6, reuse=False, resumes=False),
        "resumed-one": _contest("Accepting by STARTTLS: one message a connection, resumed", 20_000, 3, 4, reuse=False),
    }
)
