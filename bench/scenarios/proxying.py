"""The proxy in front of POP3 and IMAP servers, compared with Dovecot's own proxy.

    proxy-logins-pop3    logins by USER and PASS, each followed by QUIT
    proxy-logins-imap    logins by LOGIN, each followed by LOGOUT
    proxy-bytes          messages of 10 MB, fetched by POP3
    proxy-bytes-tls      the same, with TLS between the client and the proxy

Only the CPU of the proxy is counted, with all its processes. Behind both is the same kind of server:
Mailrace for POP3, Dovecot for IMAP. Neither proxy checks passwords: the server behind it does.
"""

import dataclasses
import functools

import comparison
import pairs
from peers import dovecot
from peers.certificate import certificate
from peers.dovecot import Dovecot
from peers.laboratory import LogIn, ReadMail
from peers.mailrace import LOGINS, Mailrace, listener
from peers.proxied import Proxied
from peers.smtp import free_port

from .reading import Reading, ReadingSide, make_maildirs, secured

LOGIN_COUNT, USERS = 20_000, 1000
MAILBOXES, MESSAGES, MESSAGE_OCTETS = 16, 2, 10_000_000
_SESSIONS, _CONNECTIONS = 200, 4
_NOTES = (
    "Only the proxy is measured, with all its processes. Load, proxy and the server behind it share the machine.",
    "Neither proxy checks passwords; the server behind it does. Both log the start of each session, and Dovecot its end too.",
    "Dovecot: one login process for all clients, which it keeps.",
    comparison.REST_NOTE,
)


@dataclasses.dataclass(frozen=True)
class ReadLarge(ReadMail):
    """Fetches all messages, and counts their MB, so that the figures per thousand are per GB."""

    octets: int = MESSAGE_OCTETS  # of each message

    def run(self, port, folder=None):
        """Reads; MB are counted."""
        done = super().run(port, folder)
        return dataclasses.replace(done, count=done.count * self.octets // 1_000_000)


def _proxied(proxy):
    """Makes a side's server from a function that makes the proxy, and gets its folder, protocol and the port
    of the server behind it."""

    def make(place, protocol, **settings):
        behind = place / "behind"
        behind.mkdir()
        port = free_port()
        backend = (_imap_backend if protocol == "imap" else _pop3_backend)(behind, place.parent / "mail", port)
        return Proxied(proxy(place, protocol, port, **settings), backend)

    return make


def _pop3_backend(place, maildirs, port):
    extra = listener("pop3", 'tls = "none"', port=port) + LOGINS
    return Mailrace(place, maildirs=maildirs, serves="pop3", extra=extra)


def _imap_backend(place, maildirs, port):
    ports = (free_port(), port)
    return Dovecot(place, maildirs, owner=maildirs / "bench.test", imap=True, ports=ports)


@_proxied
def _mailrace(place, protocol, port, secure=False):
    proxy = f'\n[proxy]\nverify = false\nlocal_{protocol} = "127.0.0.1:{port}"\n'
    name = f"{protocol}-proxy"
    return Mailrace(place, serves=name, extra=secured(place, name, secure=secure) + LOGINS + proxy)


@_proxied
def _dovecot(place, protocol, port, secure=False):
    is_imap = protocol == "imap"
    pair = certificate(place) if secure else None
    server = Dovecot(place, backend=port, owner=place.parent / "mail" / "bench.test", imap=is_imap, certificate=pair)
    server.port = server.tls_port if secure else server.imap_port if is_imap else server.port
    return server


def _sides(load, warm, protocol, **settings):
    side = functools.partial(ReadingSide, load=load, warm=warm)
    makers = {"dovecot": _dovecot, "mailrace": _mailrace}
    return {name: side(functools.partial(make, protocol=protocol, **settings)) for name, make in makers.items()}


def _empty_maildirs(folder):
    make_maildirs(folder / "mail", USERS, 0, "\r\n")


def _large_messages(folder):
    make_maildirs(folder / "mail", MAILBOXES, MESSAGES, "\r\n", octets=MESSAGE_OCTETS)


def _logins(protocol, backend, leave):
    load = LogIn(LOGIN_COUNT, USERS, protocol)
    return Reading(
        f"Logins through a proxy by {protocol.upper()}",
        _sides(load, dataclasses.replace(load, count=2 * USERS), protocol),
        (pairs.Target("mailrace", "dovecot", "cpu_per_thousand", most=1 / 2),),
        (
            f"`mailrace bench login` over {load.connections} connections: each session logs in, sends {leave} and waits for "
            f"the end of the connection. {USERS:,} empty mailboxes, on {backend}. {2 * USERS:,} sessions ran before the "
            "measurement.",
            *_NOTES,
        ),
        unit="login",
        versions={"dovecot": dovecot.version},
        prepare=_empty_maildirs,
    )


def _bytes(most, secure):
    load = ReadLarge(_SESSIONS, MAILBOXES, MESSAGES, _CONNECTIONS, secure=secure)
    return Reading(
        "Large messages through a proxy" + (", with TLS to the client" if secure else ""),
        _sides(load, dataclasses.replace(load, count=MAILBOXES), "pop3", secure=secure),
        (pairs.Target("mailrace", "dovecot", "cpu_per_thousand", most=most),),
        (
            f"`mailrace bench pop3` over {_CONNECTIONS} connections reads {MAILBOXES} mailboxes on Mailrace, each with "
            f"{MESSAGES} messages of {MESSAGE_OCTETS // 1_000_000} MB, again and again. Figures per thousand are per GB.",
            *_NOTES,
        ),
        unit="MB",
        versions={"dovecot": dovecot.version},
        prepare=_large_messages,
    )


SCENARIOS = comparison.scenarios(
    {
        "proxy-logins-pop3": _logins("pop3", "Mailrace", "QUIT"),
        "proxy-logins-imap": _logins("imap", "Dovecot", "LOGOUT"),
        "proxy-bytes": _bytes(1 / 2, secure=False),
        "proxy-bytes-tls": _bytes(1, secure=True),
    }
)
