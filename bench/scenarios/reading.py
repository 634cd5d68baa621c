"""Reading mailboxes by POP3, and files by HTTP.

    read-pop3        50 messages of 6 KB a session, from the login to QUIT: Mailrace and Dovecot
    read-pop3-lf     the same, with Maildirs whose files have LF line ends
    read-pop3-tls    the same as read-pop3, over TLS
    read-page-N      a page of 10 KB over N kept connections: Mailrace, nginx and Apache
    read-file-N      a file of 500 MB over N connections: Mailrace, the same without sendfile, nginx, and smbd
    read-file-tls    the same over TLS, without smbd

The mailboxes and files are the same for all sides and rounds, and are read once before each
measurement, so that all of them are in the page cache. Apache and smbd are left out where they are
not installed.
"""

import dataclasses
import functools
import os
import shutil
import typing

import comparison
import pairs
from comparison import Comparison, Side
from peers import apache, dovecot, nginx, samba
from peers.apache import Apache
from peers.certificate import certificate
from peers.dovecot import Dovecot
from peers.download import Curl, Discard, Smbclient
from peers.laboratory import Fetch, ReadMail
from peers.mailrace import LOGINS, Mailrace, certificate_section, listener
from peers.samba import Samba

MAILBOXES, MESSAGES, MESSAGE_OCTETS = 1000, 50, 6000
PAGE_OCTETS, FILE_OCTETS = 10_000, 500_000_000
_LOCAL_ADDRESSES = 10


def make_maildirs(root, mailboxes, messages, line_end, domain="bench.test", octets=MESSAGE_OCTETS):
    """Maildirs user1, user2 ... with messages in cur/, named as mail servers name them."""
    for user in range(1, mailboxes + 1):
        folder = root / domain / f"user{user}"
        for part in ("tmp", "new", "cur"):
            (folder / part).mkdir(parents=True)
        for number in range(messages):
            text = _message(user, number, octets)
            content = text.replace("\r\n", line_end).encode()
            sizes = f",S={len(content)},W={len(text)}"
            (folder / "cur" / f"{1_700_000_000 + number}.M{number}P1.bench{sizes}:2,").write_bytes(content)
    if os.geteuid() == 0:
        for folder, _, files in os.walk(root):
            for name in ("", *files):
                shutil.chown(os.path.join(folder, name), "nobody", "nogroup")


def _message(user, number, octets):
    """A message of about this size, with CRLF line ends and some lines that begin with a dot."""
    head = (
        f"From: <sender@client.test>\r\nTo: <user{user}@bench.test>\r\nSubject: message {number}\r\n"
        f"Date: Mon, 2 Nov 2026 10:00:00 +0000\r\nMessage-ID: <{number}.{user}@client.test>\r\n\r\n"
    )
    line = "x" * 74 + "\r\n"
    lines = (octets - len(head)) // len(line)
    return head + line * (lines // 2) + "." + line[1:] + line * (lines - lines // 2 - 1)


@dataclasses.dataclass(frozen=True)
class ReadingSide(Side):
    """A side whose server is warmed by one pass of `warm` before it is measured."""

    warm: object = None

    def measure(self, server, place):
        """Warms the caches, and runs the load."""
        self.warm.run(server.port, place)
        return pairs.measure(server, lambda: self.load.run(server.port, place))


@dataclasses.dataclass(frozen=True)
class Reading(Comparison):
    """A comparison of servers that read what `prepare` makes in the folder of the run."""

    prepare: typing.Callable = None

    def measure(self, name, folder, options):
        """Makes what is read, and runs all rounds."""
        self.prepare(folder)
        return super().measure(name, folder, options)


def _maildirs(line_end):
    def prepare(folder):
        make_maildirs(folder / "mail", MAILBOXES, MESSAGES, line_end)

    return prepare


def secured(place, protocol, *lines, secure):
    """The section of a listener; if it is secure, with TLS from the first byte and a certificate."""
    section = listener(protocol, f'tls = "{"implicit" if secure else "none"}"', *lines)
    return section + (certificate_section(*certificate(place)) if secure else "")


def pop3_mailrace(place, secure=False):
    """Mailrace, which serves the Maildirs of the run by POP3."""
    extra = secured(place, "pop3", secure=secure) + LOGINS + "\n[pop3]\nlock_file = false\n"
    return Mailrace(place, maildirs=place.parent / "mail", serves="pop3", extra=extra)


def _pop3_dovecot(place, secure=False):
    maildirs = place.parent / "mail"
    server = Dovecot(place, maildirs, owner=maildirs / "bench.test", certificate=certificate(place) if secure else None)
    if secure:
        server.port = server.tls_port
    return server


def _pop3(title, line_end, least, secure=False):
    reading = ReadMail(2 * MAILBOXES, users=MAILBOXES, messages=MESSAGES, secure=secure)
    warm = dataclasses.replace(reading, count=MAILBOXES)
    side = functools.partial(ReadingSide, load=reading, warm=warm)
    return Reading(
        title,
        {
            "dovecot": side(functools.partial(_pop3_dovecot, secure=secure)),
            "mailrace": side(functools.partial(pop3_mailrace, secure=secure)),
        },
        (pairs.Target("mailrace", "dovecot", "cpu_per_thousand", most=1 / least),),
        (
            f"{MAILBOXES:,} Maildirs with {MESSAGES} messages of {MESSAGE_OCTETS:,} bytes. Each session logs in, lists, fetches "
            "all messages one by one, and quits. All sessions ran once before the measurement.",
            "The load is `mailrace bench pop3` over 10 connections. Passwords are stored in clear text.",
            "Dovecot keeps its processes between sessions, changes no flags and does not sync. Neither side locks a mailbox by a "
            "file (pop3_lock_session = no, lock_file = false), which would cost Mailrace a tenth of its CPU here.",
            comparison.REST_NOTE,
        ),
        versions={"dovecot": dovecot.version},
        prepare=_maildirs(line_end),
    )


def http_mailrace(place, *lines, secure=False, **settings):
    """Mailrace, which serves the files of the run by HTTP; `lines` are of the listener, `settings` those of `Mailrace`."""
    extra = secured(place, "http", f'files = "{place.parent / "files"}"', *lines, secure=secure)
    return Mailrace(place, serves="http", extra=extra, **settings)


def _http_nginx(place, secure=False, copies=False):
    pair = certificate(place) if secure else None
    return nginx.Nginx(place, place.parent / "files", certificate=pair, copies=copies)


def _http_apache(place):
    return Apache(place, place.parent / "files")


def _smbd(place):
    return Samba(place, place.parent / "files")


def make_file(octets):
    """A function that makes a file of random bytes for a run."""

    def prepare(folder):
        files = folder / "files"
        files.mkdir()
        with open(files / "file", "wb") as file:
            for _ in range(0, octets, 10_000):
                file.write(os.urandom(min(octets, 10_000)))

    return prepare


def _page(connections):
    addresses = tuple(f"127.0.0.{number}" for number in range(2, 2 + _LOCAL_ADDRESSES))
    fetch = Fetch("file", sessions=connections, local_addresses=addresses)
    side = functools.partial(ReadingSide, load=fetch, warm=dataclasses.replace(fetch, seconds=1))
    sides = {"nginx": side(_http_nginx), "mailrace": side(functools.partial(http_mailrace, top="threads = 1"))}
    if apache.is_installed():
        sides["apache"] = side(_http_apache)
    return Reading(
        f"A page of {PAGE_OCTETS:,} bytes over {connections:,} connections",
        sides,
        (
            pairs.Target("mailrace", "nginx", "rate", least=0.9),
            pairs.Target("mailrace", "apache", "rate", least=3),
        ),
        (
            f"The load is `mailrace bench http` for {fetch.seconds} seconds, from {_LOCAL_ADDRESSES} local addresses. "
            "`lab-http` compares it with wrk.",
            "nginx: one worker, no access log, sendfile, tcp_nopush, open_file_cache. Mailrace: one thread.",
            "Apache: event MPM, two processes with 64 threads each, no access log, sendfile, no .htaccess files. It is left "
            "out where it is not installed.",
            comparison.REST_NOTE,
        ),
        unit="request",
        versions={"nginx": nginx.version, "Apache": apache.version},
        prepare=make_file(PAGE_OCTETS),
    )


def warmed_download(server, download, needs=()):
    """A side that downloads the file, after one download of it."""
    return ReadingSide(server, download, warm=dataclasses.replace(download, connections=1, times=1), needs=needs)


def _download(connections):
    times = 10 // connections
    fetch = functools.partial(warmed_download, download=Discard(connections, times, FILE_OCTETS))
    sides = {
        "nginx": fetch(_http_nginx),
        "mailrace": fetch(http_mailrace),
        "copying": fetch(lambda place: http_mailrace(place, "sendfile = false")),
        "nginx-copying": fetch(functools.partial(_http_nginx, copies=True)),
    }
    if samba.is_installed():
        sides["smbd"] = warmed_download(_smbd, Smbclient(connections, times, FILE_OCTETS))
    return _file_reading(
        f"over {connections} connections",
        sides,
        (
            pairs.Target("mailrace", "nginx", "cpu_per_thousand", most=1.05),
            pairs.Target("mailrace", "copying", "cpu_per_thousand", most=0.6),
            pairs.Target("nginx", "nginx-copying", "cpu_per_thousand"),
            pairs.Target("mailrace", "smbd", "cpu_per_thousand", most=1.05),
        ),
        (
            "The client drops the bytes in the kernel (MSG_TRUNC), as if it were on another machine; what TCP costs at its end "
            "counts for the server all the same, since loopback does that in the sender's system call.",
            "`copying` is Mailrace with `sendfile = false`, `nginx-copying` nginx with `sendfile off`: how much another server "
            "gains by sendfile on this machine.",
            "The load of smbd is smbclient, as a guest, without signatures and encryption; smbd uses sendfile. It is left out "
            "where it or smbclient is not installed.",
        ),
        {"Samba": samba.version},
    )


def _download_tls(connections):
    curl = functools.partial(warmed_download, download=Curl(connections, 1, FILE_OCTETS, secure=True))
    return _file_reading(
        f"over {connections} connections with TLS",
        {
            "nginx": curl(functools.partial(_http_nginx, secure=True)),
            "mailrace": curl(functools.partial(http_mailrace, secure=True)),
        },
        (pairs.Target("mailrace", "nginx", "cpu_per_thousand", most=1.1),),
        ("The load is curl.",),
        {},
    )


def _file_reading(how, sides, targets, notes, versions):
    return Reading(
        f"A file of {FILE_OCTETS // 1_000_000} MB {how}",
        sides,
        targets,
        (
            "The load is one process for each connection. Figures per thousand are per GB.",
            *notes,
            comparison.REST_NOTE,
        ),
        unit="MB",
        versions={"nginx": nginx.version, **versions},
        prepare=make_file(FILE_OCTETS),
    )


SCENARIOS = comparison.scenarios(
    {
        "read-pop3": _pop3("Reading mailboxes by POP3", "\r\n", 3),
        "read-pop3-lf": _pop3("Reading mailboxes with LF line ends by POP3", "\n", 3),
        "read-pop3-tls": _pop3("Reading mailboxes by POP3 over TLS", "\r\n", 1.5, secure=True),
        "read-page-10": _page(10),
        "read-page-100": _page(100),
        "read-page-1000": _page(1000),
        "read-file-1": _download(1),
        "read-file-10": _download(10),
        "read-file-tls": _download_tls(10),
    }
)
