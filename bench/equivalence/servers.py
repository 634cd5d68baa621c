"""The servers around both: lines of a file `servers`.

    NAME smtp ADDRESS:PORT [USER:PASSWORD]   takes all mail; with a login if one is given
    NAME lmtp ADDRESS:PORT or PATH
    NAME filter ADDRESS:PORT BACK            takes mail by SMTP, marks it, and sends it back to port BACK
    NAME milter PORT                         refuses messages with "X-Spam: yes" and recipients that begin with "milter-no",
                                             marks others
    NAME policy ADDRESS:PORT or PATH         answers for recipients that begin with "policy-": the rest is the answer
    NAME sasl PATH USER:PASSWORD             Dovecot's authentication server
    NAME ldap PORT FILE                      slapd with the entries of FILE (LDIF) below dc=bench,dc=test
    NAME mysql PORT FILE                     MariaDB after the statements of FILE

`far smtp 192.0.2.25:25` is always there: the mail host of all domains of others.
"""

import base64
import pathlib
import re
import smtplib
import socket
import sys
import threading

from peers import mariadb, slapd

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests/peers"))

from hosts import EXTENSIONS, Host  # noqa: E402
from milter import Milter, frame, strings  # noqa: E402

FAR = "far smtp 192.0.2.25:25"
_ARGUMENT = re.compile(r"(?:FROM|TO):<([^>]*)>")


class MailHost:
    """Takes all mail."""

    def __init__(self, name, kind, address, login=None):
        self.name, self._login = name, login
        script = {} if login is None else {"AUTH": self._check, "MAIL": self._demand_login}
        extensions = [*EXTENSIONS, *(["AUTH PLAIN"] if login else [])]
        where, _, port = address.rpartition(":")
        place = {"path": address} if address.startswith("/") else {"address": where, "port": int(port)}
        self._host = Host(**place, script=script, extensions=extensions, lmtp=kind == "lmtp")
        self._users = {}

    def take(self):
        """What has come since the last time: the sender, the recipient, and the message, for each recipient."""
        messages, self._host.messages = self._host.messages, []
        for one in messages:
            who = self._users.get(id(one.session))
            place = self.name if who is None else f"{self.name} as {who}"
            for recipient in one.recipients:
                yield place, _address(one.sender), _address(recipient), one.content

    def count(self):
        """How many messages it has."""
        return len(self._host.messages)

    def _check(self, session, argument):
        given = base64.b64decode(argument.rpartition(" ")[2]).decode().split("\0")
        self._users[id(session)] = given[1]
        return "235 2.7.0 fine" if ":".join(given[1:]) in self._login.split(",") else "535 5.7.8 no"

    def _demand_login(self, session, _argument):
        return None if id(session) in self._users else "530 5.7.0 log in"


class FilterHost(MailHost):
    """A content filter after the queue."""

    def __init__(self, name, _kind, address, back):
        super().__init__(name, "smtp", address)
        self._host.script["message"] = self._pass_on
        self._back = int(back)

    def _pass_on(self, session, _argument):
        one = session.host.messages[-1]
        if b"X-Virus: yes" in one.content:
            return "554 5.7.1 virus"
        with smtplib.SMTP("127.0.0.1", self._back, timeout=30) as back:
            back.sendmail(_address(one.sender), [_address(to) for to in one.recipients], b"X-Filtered: yes\r\n" + one.content)
        return None


def _milter(_name, _kind, port):
    """A milter as rspamd is one."""

    def rules(message):
        if ("X-Spam", "yes") in [(name, value.strip()) for name, value in message.fields]:
            return [frame(b"y", b"554 5.7.1 spam\0")]
        return [frame(b"h", strings("X-Milter", "seen"))]

    class Choosy(Milter):
        def _answer(self, message, code, data):
            if code == b"R" and data.startswith(b"<milter-no"):
                return frame(b"y", b"550 5.7.1 not wanted\0")
            return super()._answer(message, code, data)

    return Choosy(rules, port=int(port))


class LineServer:
    """Serves a socket in threads."""

    def __init__(self, address):
        if address.startswith("/"):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(address)
            pathlib.Path(address).chmod(0o666)
            self._listener.listen()
        else:
            host, _, port = address.rpartition(":")
            self._listener = socket.create_server((host, int(port)))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection):
        with connection, connection.makefile("rb") as lines:
            try:
                self.serve(connection, lines)
            except OSError:
                pass


class PolicyServer(LineServer):
    """A policy service."""

    def __init__(self, _name, _kind, address):
        super().__init__(address)

    def serve(self, connection, lines):
        """Answers questions."""
        asked = {}
        for line in lines:
            name, _, value = line.decode().rstrip("\n").partition("=")
            if name:
                asked[name] = value
                continue
            found = re.match(r"policy-([^@]*)@", asked.get("recipient", ""))
            connection.sendall(f"action={found[1].replace('_', ' ').replace('=', ':') if found else 'DUNNO'}\n\n".encode())
            asked = {}


class SaslServer(LineServer):
    """The part of Dovecot's authentication protocol that PLAIN needs."""

    def __init__(self, _name, _kind, address, logins):
        self._logins = logins.split(",")
        super().__init__(address)

    def serve(self, connection, lines):
        """Checks logins."""
        connection.sendall(b"VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nMECH\tLOGIN\tplaintext\nSPID\t1\nCUID\t1\nCOOKIE\t"
                           + b"0" * 32 + b"\nDONE\n")  # fmt: skip
        for line in lines:
            words = line.decode().rstrip("\n").split("\t")
            if words[0] != "AUTH":
                continue
            given = next((word[5:] for word in words if word.startswith("resp=")), "")
            _, user, password = base64.b64decode(given).decode().split("\0")
            is_right = f"{user}:{password}" in self._logins
            said = f"OK\t{words[1]}\tuser={user}\n" if is_right else f"FAIL\t{words[1]}\tuser={user}\n"
            connection.sendall(said.encode())


class Missing(Exception):
    """A server that a set-up needs is not installed."""


def _directory(setup, folder, port, file):
    if not slapd.is_installed():
        raise Missing("slapd is not installed")
    directory = slapd.Slapd(folder, 0, extra=(setup.folder / file).read_text())
    directory.port = int(port)
    directory.start()
    return directory


def _database(setup, _folder, port, file):
    if not mariadb.is_installed():
        raise Missing("MariaDB is not installed")
    database = mariadb.Mariadb()
    database.port = int(port)
    database.start()
    database.sql((setup.folder / file).read_text())
    return database


_KINDS = {"smtp": MailHost, "lmtp": MailHost, "filter": FilterHost, "milter": _milter, "policy": PolicyServer, "sasl": SaslServer}
_DAEMONS = {"ldap": _directory, "mysql": _database}


class Surroundings:
    """The servers of a set-up, which are started: `hosts` take mail."""

    def __init__(self, setup, folder):
        self.hosts, self._daemons = [], []
        for line in [FAR, *setup.text("servers").splitlines()]:
            words = line.split()
            if not words or line.startswith("#"):
                continue
            if start := _DAEMONS.get(words[1]):
                self._daemons.append(start(setup, folder, *words[2:]))
                continue
            server = _KINDS[words[1]](*words)
            self.hosts += [server] if isinstance(server, MailHost) else []

    def stop(self):
        """Ends those that are processes."""
        for daemon in self._daemons:
            daemon.stop()


def _address(argument):
    """The address of a command, with its domain in lower case."""
    found = _ARGUMENT.match(argument)
    local, at, domain = (found[1] if found else argument).rpartition("@")
    local = local.lower() if local.lower() == "postmaster" else local  # RFC 5321 section 4.5.1
    return local + at + domain.lower()
