"""Reading mailboxes by POP3, and files by HTTP.

    read-pop3        50 messages of 6 KB a session, from the login to QUIT: Mailrace and Dovecot
    read-pop3-lf     the same, with Maildirs whose files have LF line ends
    read-pop3-tls    the same as read-pop3, over TLS
    read-page-N      a page of 10 KB over N kept connections: Mailrace and nginx
    read-file-N      a file of 500 MB over N connections: Mailrace, the same without sendfile, and nginx
    read-file-tls    the same over TLS

The mailboxes and files are the same for all sides and rounds, and are read once before each
measurement, so that all of them are in the page cache.
"""

import dataclasses
import functools
import os
import shutil
import typing

import comparison
import pairs
from comparison import Comparison, Side
from peers import dovecot, load, nginx
from peers.certificate import certificate
from peers.dovecot import Dovecot
from peers.laboratory import Fetch, ReadMail
from peers.mailrace import LOGINS, Mailrace, listener

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


def _pop3_mailrace(place, secure=False):
    tls, lines = "", ['tls = "none"']
    if secure:
        chain, key = certificate(place)
        tls, lines = f'\n[[certificate]]\nchain = "{chain}"\nkey = "{key}"\n', ['tls = "implicit"']
    extra = listener("pop3", *lines) + LOGINS + tls
    return Mailrace(place, maildirs=place.parent / "mail", serves="pop3", extra=extra)


def _pop3_dovecot(place, secure=False):
    maildirs = place.parent / "mail"
    server = Dovecot(place, maildirs, owner=maildirs / "bench.test", certificate=certificate(place) if secure else None)
    if secure:
        server.port, server.clear_port = server.tls_port, server.port
    return server


def _pop3(title, line_end, least, secure=False):
    reading = ReadMail(2 * MAILBOXES, users=MAILBOXES, messages=MESSAGES, secure=secure)
    warm = dataclasses.replace(reading, count=MAILBOXES)
    side = functools.partial(ReadingSide, load=reading, warm=warm)
    return Reading(
        title,
        {
            "dovecot": side(functools.partial(_pop3_dovecot, secure=secure)),
            "mailrace": side(functools.partial(_pop3_mailrace, secure=secure)),
        },
        (pairs.Target("mailrace", "dovecot", "cpu_per_thousand", most=1 / least),),
        (
            f"{MAILBOXES:,} Maildirs with {MESSAGES} messages of {MESSAGE_OCTETS:,} bytes. Each session logs in, lists, fetches "
            "all messages one by one, and quits. All sessions ran once before the measurement.",
            "The load is `mailrace bench pop3` over 10 connections. Passwords are stored in clear text.",
            "Dovecot keeps its processes between sessions, changes no flags and does not sync.",
            comparison.REST_NOTE,
        ),
        versions={"dovecot": dovecot.version},
        prepare=_maildirs(line_end),
    )


def _http_mailrace(place, *lines, secure=False):
    chain = ""
    if secure:
        paths = certificate(place)
        chain = '\n[[certificate]]\nchain = "{}"\nkey = "{}"\n'.format(*paths)
        lines = ('tls = "implicit"', *lines)
    else:
        lines = ('tls = "none"', *lines)
    files = place.parent / "files"
    return Mailrace(place, serves="http", extra=listener("http", f'files = "{files}"', *lines) + chain)


def _http_nginx(place, secure=False):
    pair = certificate(place) if secure else None
    return nginx.Nginx(place, place.parent / "files", certificate=pair)


def _file(octets):
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
    return Reading(
        f"A page of {PAGE_OCTETS:,} bytes over {connections:,} connections",
        {"nginx": side(_http_nginx), "mailrace": side(_http_mailrace)},
        (pairs.Target("mailrace", "nginx", "rate", least=0.9),),
        (
            f"The load is `mailrace bench http` for {fetch.seconds} seconds, from {_LOCAL_ADDRESSES} local addresses.",
            "nginx: one worker, no access log, sendfile, tcp_nopush, open_file_cache. Mailrace: one thread.",
            comparison.REST_NOTE,
        ),
        unit="request",
        versions={"nginx": nginx.version},
        prepare=_file(PAGE_OCTETS),
    )


@dataclasses.dataclass(frozen=True)
class Download:
    """curl: fetches a file over several connections. What is counted are MB, so that the figures per
    thousand are per GB."""

    connections: int
    times: int  # for each connection
    octets: int = FILE_OCTETS
    secure: bool = False
    seconds_max: int = 600

    def command(self, port="PORT"):
        """The command line of each connection."""
        url = f"http{'s' if self.secure else ''}://127.0.0.1:{port}/file"
        return ["curl", "--silent", "--fail", "--insecure", *["--output", "/dev/null", url] * self.times]

    def run(self, port, _folder=None):
        """Fetches all."""
        ran = load.run(*[self.command(port)] * self.connections, seconds_max=self.seconds_max)
        return load.LoadResult(self.connections * self.times * self.octets // 1_000_000, ran.seconds, ran.cpu_seconds)


def _download(connections, secure=False):
    whole = Download(connections, 10 // connections, secure=secure)
    side = functools.partial(ReadingSide, load=whole, warm=dataclasses.replace(whole, connections=1, times=1))
    sides = {
        "nginx": side(functools.partial(_http_nginx, secure=secure)),
        "mailrace": side(functools.partial(_http_mailrace, secure=secure)),
    }
    targets = [pairs.Target("mailrace", "nginx", "cpu_per_thousand", most=1.1 if secure else 1.05)]
    if not secure:
        sides["copying"] = side(lambda place: _http_mailrace(place, "sendfile = false"))
        targets.append(pairs.Target("mailrace", "copying", "cpu_per_thousand", most=0.6))
    return Reading(
        f"A file of {FILE_OCTETS // 1_000_000} MB over {connections} connections" + (" with TLS" if secure else ""),
        sides,
        tuple(targets),
        (
            "The load is curl, one process for each connection. Figures per thousand are per GB.",
            "`copying` is Mailrace with `sendfile = false`.",
            comparison.REST_NOTE,
        ),
        unit="MB",
        versions={"nginx": nginx.version},
        prepare=_file(FILE_OCTETS),
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
        "read-file-tls": _download(10, secure=True),
    }
)
