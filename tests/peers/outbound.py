"""Shared by the tests of outbound mail: servers with next hops, and the events in their logs."""

import dataclasses
import pathlib
import re
import subprocess
import unittest

from harness import Client, await_that, folder
from hosts import Host
from name_server import NameServer
from peers.mailrace import Mailrace

EVERYONE = ["127.0.0.0/8"]
SENDER = "alice@bench.test"
_FIELD = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|\S*)')
_CONFIG = """
[transport.smtp]
{smtp}

[[queue]]
name = "standard"
retry = {{ {retry} }}
{standard}

[dns]
servers = [{servers}]
timeout = "{dns_timeout}"
attempts = 1

{extra}
"""


@dataclasses.dataclass(frozen=True)
class MailEvent:
    """A log line about a message."""

    name: str
    fields: dict

    def __getattr__(self, field):
        return self.fields.get(field, "")


def mail_events(server, name, **having):
    """The events of this name in the log whose fields begin with these texts."""
    found = []
    for line in server.log.read_text(errors="replace").splitlines():
        _time, _, rest = line.partition(" ")
        if rest.startswith(f"{name} "):
            fields = {key: _plain(value) for key, value in _FIELD.findall(rest)}
            if all(fields.get(key, "").startswith(value) for key, value in having.items()):
                found.append(MailEvent(name, fields))
    return found


def _plain(value):
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def metrics(server):
    """The metrics of the server, by name and labels."""
    argv = [str(server.binary), "status", "--config", str(server.config)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    pairs = (line.rpartition(" ") for line in said.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def await_event(server, name, **having):
    """Waits for the first such event."""
    return await_that(lambda: mail_events(server, name, **having), f"{name} {having}", server)[0]


def configured(folder_, *, smtp="", retry='first = "1m", jitter = 0.0', standard="", names=None, dns_timeout=None,
               extra="", hostname=None, address=None, **named):  # fmt: skip
    """A server whose mail leaves as these settings say; it is not started yet."""
    named = {"users": ["alice", "bob", "carol", "postmaster"], "networks": EVERYONE} | named
    servers = f'"{names.target}"' if names else '"127.0.0.1:1"'  # an unexpected query is visible as a delay
    dns_timeout = dns_timeout or ("10s" if names else "1s")  # the name server is a thread of the test, which may be late
    extra = _CONFIG.format(
        smtp=smtp, retry=retry, standard=standard, servers=servers, dns_timeout=dns_timeout, extra=extra
    )  # fmt: skip
    server = Mailrace(folder_, extra=extra, **named)
    text = server.config.read_text()
    if hostname:
        text = text.replace('hostname = "mx.bench.test"', f'hostname = "{hostname}"')
    if address:
        text = text.replace('address  = "127.0.0.1:0"', f'address  = "{address}"')
    server.config.write_text(text)
    return server


class OutboundCase(unittest.TestCase):
    """Tests that make servers and hosts; the hosts end first, so that no server waits for one."""

    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        self._servers, self._others = [], []
        self.addCleanup(self._end)

    def _end(self):
        for one in (*self._others, *self._servers):
            one.stop()

    def configure(self, place=".", **settings):
        """A server that ends with the test and is not started yet."""
        server = configured(self.folder / place, **settings)
        self._servers.append(server)
        return server

    def start(self, place=".", **settings):
        """A running server."""
        server = self.configure(place, **settings)
        server.start()
        return server

    def host(self, *args, **named):
        """A host that ends with the test."""
        return self.ending(Host(*args, **named))

    def names(self, **named):
        """A DNS server that ends with the test."""
        return self.ending(NameServer(**named))

    def ending(self, one):
        """Stops it when the test ends."""
        self._others.append(one)
        return one

    def send(self, server, *recipients, sender=SENDER, message=None, mail="", rcpt=""):
        """Sends a message; returns its queue id."""
        return send(server, *recipients, sender=sender, message=message, mail=mail, rcpt=rcpt)

    def await_messages(self, host, count, server):
        """Waits until the host has accepted this many messages, and returns them."""
        return await_that(lambda: len(host.accepted) >= count and host.accepted, f"{count} messages", server)


def text_message(subject="hello", body="Hello.\r\n", sender=SENDER):
    """A small message."""
    return f"From: {sender}\r\nSubject: {subject}\r\n\r\n{body}".encode()


def send(server, *recipients, sender=SENDER, message=None, mail="", rcpt=""):
    """Sends a message; returns its queue id."""
    with Client(server.port) as client:
        client.greet()
        commands = [f"MAIL FROM:<{sender}>{mail and ' ' + mail}"]
        commands += [f"RCPT TO:<{recipient}>{rcpt and ' ' + rcpt}" for recipient in recipients]
        for command in commands:
            reply = client.say(command)
            if reply.code != 250:
                raise AssertionError(f"{command}: {reply}")
        assert client.say("DATA").code == 354
        client.write((message or text_message()) + b".\r\n")
        reply = client.read()
        if reply.code != 250:
            raise AssertionError(f"content: {reply}")
        return identity(reply)


def identity(reply):
    """The queue id in the reply to a message."""
    return re.search(r"[0-9A-Z]+(?:-[0-9a-f]+)+", reply.text)[0]
