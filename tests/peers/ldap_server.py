"""A scripted LDAP server: it answers searches from a few entries, follows its script, and records
requests.

A script maps a stage to a function: `connect`, `bind`, `schema` (a search for the root DSE or the
subschema), `search` (any other search), `entry` (before each entry of such a search). Stages that
are not in the script succeed. A function gets the session and the request, may do anything with the
connection, and returns True if it has handled the request, or None for the default answer; or it
raises `CloseConnection` to close the connection. The functions below make such functions.
"""

import dataclasses
import pathlib
import socket
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from peers import ldap, people  # noqa: E402

BUSY, UNAVAILABLE, SIZE_LIMIT, REFERRAL = 51, 52, 4, 10
_INVALID_CREDENTIALS, _PROTOCOL_ERROR = 49, 2
_SUBSCHEMA = "cn=Subschema"
_ATTRIBUTE_TYPES = (
    "( 0.9.2342.19200300.100.1.3 NAME ( 'mail' 'rfc822Mailbox' ) EQUALITY caseIgnoreIA5Match "
    "SUBSTR caseIgnoreIA5SubstringsMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.26{256} )",
    "( 0.9.2342.19200300.100.1.1 NAME ( 'uid' 'userid' ) EQUALITY caseIgnoreMatch "
    "SUBSTR caseIgnoreSubstringsMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15{256} )",
    "( 2.5.4.0 NAME 'objectClass' EQUALITY objectIdentifierMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.38 )",
    "( 2.5.4.13 NAME 'description' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15{1024} )",
)


class CloseConnection(Exception):
    """Closes the connection."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A message of the client."""

    number: int
    tag: int
    base: str = ""
    scope: int = ldap.BASE
    condition: tuple = ()  # the filter as (tag, contents)
    attributes: tuple = ()

    @property
    def filter(self):
        """The filter as text, unescaped."""
        return _text(*self.condition)

    @property
    def keys(self):
        """The number of equality filters in it."""
        return _equalities(*self.condition)


class LdapServer:
    """A server of `entries` (dn to attributes), which may change while it runs."""

    def __init__(self, entries=None, *, script=None, size_limit=None, port=0, has_schema=True):
        self.entries = dict(entries or {})
        self.script = dict(script or {})
        self.size_limit, self.has_schema = size_limit, has_schema
        self.searches, self.sessions = [], []  # requests in order, without those for the schema; and connections
        self.stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self.url = f"ldap://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        """Stops listening and closes all connections."""
        self.stopped.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        for session in list(self.sessions):
            session.close()

    def _accept(self):
        while not self.stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = Session(self, connection)
            self.sessions.append(session)
            threading.Thread(target=session.run, daemon=True).start()


class Session:
    """A connection."""

    def __init__(self, server, connection):
        self.server, self.connection = server, connection
        self._stream = connection.makefile("rb")

    def run(self):
        """Runs until the connection ends."""
        try:
            self._staged("connect", None)
            while True:
                self._answer(_request(*ldap.read_message(self._stream)))
        except (CloseConnection, OSError, EOFError, ValueError):
            pass
        finally:
            self.close()
            self._stream.close()
            self.connection.close()

    def close(self):
        """Closes the connection in any state."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def send(self, request, *operations):
        """Sends responses to a request."""
        self.raw(b"".join(ldap.message(request.number, operation) for operation in operations))

    def raw(self, octets):
        """Sends octets unchanged."""
        self.connection.sendall(octets)

    def _answer(self, request):
        if request.tag == ldap.UNBIND:
            raise CloseConnection
        if request.tag == ldap.BIND:
            if not self._staged("bind", request):
                self.send(request, ldap.result(ldap.BIND_DONE, 0))
        elif request.tag == ldap.SEARCH:
            self._search(request)
        elif request.tag == ldap.EXTENDED:
            self.send(request, ldap.result(ldap.EXTENDED_DONE, _PROTOCOL_ERROR, "extended operations are not supported"))

    def _search(self, request):
        is_schema = request.base in ("", _SUBSCHEMA) and request.scope == ldap.BASE
        if not is_schema:
            self.server.searches.append(request)
        if self._staged("schema" if is_schema else "search", request):
            return
        if is_schema:
            found = [_schema(request)] if self.server.has_schema else []
        else:
            found = [(dn, one) for dn, one in list(self.server.entries.items()) if _matches(one, *request.condition)]
        limit = self.server.size_limit
        for dn, attributes in found[:limit]:
            if is_schema or not self._staged("entry", request):
                self.send(request, ldap.entry(dn, _chosen(attributes, request.attributes)))
        is_cut = limit is not None and len(found) > limit
        self.send(request, ldap.result(ldap.SEARCH_DONE, SIZE_LIMIT if is_cut else 0))

    def _staged(self, stage, request):
        act = self.server.script.get(stage)
        return act and act(self, request)


def users(*numbers):
    """Some of `people` as entries."""
    return {people.dn(number): people.attributes(number) for number in numbers}


def answer_with(code, text="", *more):
    """Answers any bind or search with this result."""

    def act(session, request):
        tag = ldap.BIND_DONE if request.tag == ldap.BIND else ldap.SEARCH_DONE
        session.send(request, ldap.result(tag, code, text, *more))
        return True

    return act


def refer_to(url):
    """Answers a search with a referral."""
    return answer_with(REFERRAL, "", ldap.element(0xA3, ldap.element(ldap.OCTETS, url)))


def send_raw(octets):
    """Sends these octets, then continues normally."""

    def act(session, _request):
        session.raw(octets)
        return True

    return act


def disconnect(session, _request):
    """Closes the connection."""
    raise CloseConnection


def disconnect_in_entry(session, request):
    """Closes the connection in the middle of an entry."""
    octets = ldap.message(request.number, ldap.entry(people.dn(1), people.attributes(1)))
    session.raw(octets[: len(octets) // 2])
    raise CloseConnection


def answer_wrong_id(session, request):
    """Answers with a message id that was not used, and nothing else."""
    session.send(dataclasses.replace(request, number=request.number + 1000), ldap.result(ldap.SEARCH_DONE, 0))
    return True


def stall(session, _request):
    """Sends nothing until the server stops."""
    session.server.stopped.wait()
    raise CloseConnection


def slow(seconds):
    """Waits for this time before the normal answer."""

    def act(session, _request):
        session.server.stopped.wait(seconds)

    return act


def before(event):
    """Waits for the event before the normal answer."""

    def act(_session, _request):
        event.wait()

    return act


def times(count, act):
    """Applies the first `count` times, then behaves normally."""
    left, lock = [None] * count, threading.Lock()

    def sometimes(session, request):
        with lock:
            is_kind = not left
            if left:
                left.pop()
        return None if is_kind else act(session, request)

    return sometimes


def _request(number, tag, content):
    if tag != ldap.SEARCH:
        return Request(number, tag)
    (_, base), (_, scope), _deref, _size, _time, _types, condition, (_, attributes) = ldap.elements(content)
    names = tuple(name.decode() for _, name in ldap.elements(attributes))
    return Request(number, tag, base.decode(), int.from_bytes(scope), condition, names)


def _schema(request):
    if not request.base:
        return "", {"subschemaSubentry": [_SUBSCHEMA], "supportedLDAPVersion": ["3"]}
    return _SUBSCHEMA, {"attributeTypes": list(_ATTRIBUTE_TYPES)}


def _chosen(attributes, names):
    wanted = {name.lower() for name in names}
    if not wanted or "*" in wanted or "+" in wanted:
        return attributes
    return {name: values for name, values in attributes.items() if name.lower() in wanted}


def _matches(entry, tag, content):
    if tag == ldap.AND:
        return all(_matches(entry, *part) for part in ldap.elements(content))
    if tag == ldap.OR:
        return any(_matches(entry, *part) for part in ldap.elements(content))
    if tag == ldap.NOT:
        return not _matches(entry, *ldap.elements(content)[0])
    if tag == ldap.PRESENT:
        return content.decode().lower() == "objectclass" or bool(_values(entry, content))
    if tag == ldap.EQUALITY:
        (_, name), (_, value) = ldap.elements(content)
        return _folded(value.decode()) in map(_folded, _values(entry, name))
    raise ValueError(f"unsupported filter tag {tag:#x}")


def _values(entry, name):
    return [value for known, values in entry.items() if known.lower() == name.decode().lower() for value in values]


def _folded(value):
    return " ".join(value.lower().split())


def _text(tag, content):
    if tag in (ldap.AND, ldap.OR, ldap.NOT):
        return f"({'&|!'[tag - ldap.AND]}{''.join(_text(*part) for part in ldap.elements(content))})"
    if tag == ldap.PRESENT:
        return f"({content.decode()}=*)"
    if tag == ldap.EQUALITY:
        (_, name), (_, value) = ldap.elements(content)
        return f"({name.decode()}={value.decode()})"
    return f"({tag:#x})"


def _equalities(tag, content):
    if tag in (ldap.AND, ldap.OR, ldap.NOT):
        return sum(_equalities(*part) for part in ldap.elements(content))
    return int(tag == ldap.EQUALITY)
