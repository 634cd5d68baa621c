"""The part of LDAP (RFC 4511) that tests and measurements need: BER, and a client that waits for
each answer.

Encoded values are bytes: `element` makes one from a tag and its contents, `elements` splits
contents. A client raises `LdapError` if the result is not success, and OSError when the connection
ends.
"""

import dataclasses
import socket

SEQUENCE, SET, BOOLEAN, INTEGER, OCTETS, NULL, ENUMERATED = 0x30, 0x31, 0x01, 0x02, 0x04, 0x05, 0x0A
BIND, BIND_DONE, UNBIND = 0x60, 0x61, 0x42
SEARCH, ENTRY, SEARCH_DONE, REFERENCE = 0x63, 0x64, 0x65, 0x73
MODIFY, ADD, DELETE = 0x66, 0x68, 0x4A
EXTENDED, EXTENDED_DONE = 0x77, 0x78
AND, OR, NOT, EQUALITY, SUBSTRINGS, PRESENT = 0xA0, 0xA1, 0xA2, 0xA3, 0xA4, 0x87
BASE, ONE, SUB = 0, 1, 2
_REPLACE, _ADD_VALUES, _DELETE_VALUES = 2, 0, 1
SUCCESS_DONE = bytes([SEARCH_DONE, 7, ENUMERATED, 1, 0, OCTETS, 0, OCTETS, 0])  # the end of a successful search
_CONNECT_SECONDS_MAX = 10


class LdapError(RuntimeError):
    """A result other than success."""

    def __init__(self, code, text):
        super().__init__(f"result {code}: {text}")
        self.code = code


@dataclasses.dataclass(frozen=True)
class LdapEntry:
    """An entry of a search result."""

    dn: str
    attributes: dict  # name to values, as text


def element(tag, *contents):
    """Encodes an element; contents are bytes or text."""
    content = b"".join(part.encode() if isinstance(part, str) else part for part in contents)
    return bytes([tag]) + _length(len(content)) + content


def integer(number, tag=INTEGER):
    """Encodes a non-negative number."""
    return element(tag, number.to_bytes(number.bit_length() // 8 + 1))


def elements(content):
    """The consecutive elements in `content` as (tag, contents); ValueError if they are malformed."""
    found, place = [], 0
    while place < len(content):
        tag, start, end = _bounds(content, place)
        found.append((tag, content[start:end]))
        place = end
    return found


def message(number, operation):
    """Encodes an LDAPMessage."""
    return element(SEQUENCE, integer(number), operation)


def read_message(stream):
    """The next message of a stream as (number, tag of the operation, its contents); EOFError at the
    end.
    """
    head = _exactly(stream, 2)
    length = head[1]
    if length >= 0x80:
        length = int.from_bytes(_exactly(stream, length - 0x80))
    number, operation, *_controls = elements(_exactly(stream, length))
    return int.from_bytes(number[1]), *operation


def equality(attribute, value):
    """The filter (attribute=value)."""
    return element(EQUALITY, element(OCTETS, attribute), element(OCTETS, value))


def any_of(filters):
    """The filter (|...)."""
    return element(OR, *filters)


def present(attribute="objectClass"):
    """The filter (attribute=*)."""
    return element(PRESENT, attribute)


def search(base, condition, attributes=(), scope=SUB):
    """A search request without limits."""
    names = element(SEQUENCE, *(element(OCTETS, name) for name in attributes))
    return element(
        SEARCH, element(OCTETS, base), integer(scope, ENUMERATED), integer(0, ENUMERATED), integer(0), integer(0),
        element(BOOLEAN, b"\0"), condition, names,
    )  # fmt: skip


def result(tag, code, text="", *more):
    """The contents of most responses."""
    return element(tag, integer(code, ENUMERATED), element(OCTETS, ""), element(OCTETS, text), *more)


def entry(dn, attributes):
    """A SearchResultEntry; attributes map names to values."""
    return element(ENTRY, element(OCTETS, dn), element(SEQUENCE, *_attributes(attributes)))


def bind(dn="", password=""):
    """A simple bind; without a name it is anonymous."""
    return element(BIND, integer(3), element(OCTETS, dn), element(0x80, password))


class Client:
    """A connection to 127.0.0.1 or to a unix socket, with one request at a time."""

    def __init__(self, port=None, path=None):
        self._socket = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._socket.settimeout(_CONNECT_SECONDS_MAX)
        try:
            self._socket.connect(str(path) if path else ("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self._stream = self._socket.makefile("rb")
        self._number = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the connection."""
        self._stream.close()
        self._socket.close()

    def bind(self, dn="", password=""):
        """Authenticates."""
        self._ask(bind(dn, password))

    def search(self, base, condition=None, attributes=(), scope=SUB):
        """The matching entries."""
        found = []
        self._ask(search(base, condition or present(), attributes, scope), found)
        return found

    def add(self, dn, attributes):
        """Adds an entry."""
        self._ask(element(ADD, element(OCTETS, dn), element(SEQUENCE, *_attributes(attributes))))

    def replace(self, dn, **attributes):
        """Replaces the values of attributes, each a list; an empty list removes the attribute."""
        self._modify(dn, _REPLACE, attributes)

    def append(self, dn, **attributes):
        """Adds values."""
        self._modify(dn, _ADD_VALUES, attributes)

    def remove_values(self, dn, **attributes):
        """Removes values."""
        self._modify(dn, _DELETE_VALUES, attributes)

    def delete(self, dn):
        """Deletes the entry."""
        self._ask(element(DELETE, dn))

    def _modify(self, dn, kind, attributes):
        changes = (element(SEQUENCE, integer(kind, ENUMERATED), one) for one in _attributes(attributes))
        self._ask(element(MODIFY, element(OCTETS, dn), element(SEQUENCE, *changes)))

    def _ask(self, operation, found=None):
        self._number += 1
        self._socket.sendall(message(self._number, operation))
        while True:
            _, tag, content = read_message(self._stream)
            if tag == ENTRY:
                found.append(_entry(content))
            elif tag != REFERENCE:
                (_, code), _, (_, text), *_ = elements(content)
                if code := int.from_bytes(code):
                    raise LdapError(code, text.decode())
                return


def _entry(content):
    (_, dn), (_, attributes) = elements(content)
    found = {}
    for _, attribute in elements(attributes):
        (_, name), (_, values) = elements(attribute)
        found[name.decode()] = [value.decode() for _, value in elements(values)]
    return LdapEntry(dn.decode(), found)


def _attributes(attributes):
    for name, values in attributes.items():
        yield element(SEQUENCE, element(OCTETS, name), element(SET, *(element(OCTETS, value) for value in values)))


def _length(length):
    if length < 0x80:
        return bytes([length])
    octets = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes([0x80 | len(octets)]) + octets


def _bounds(content, place):
    if place + 2 > len(content):
        raise ValueError("an element is truncated")
    length, start = content[place + 1], place + 2
    if length >= 0x80:
        octets = length - 0x80
        length, start = int.from_bytes(content[start : start + octets]), start + octets
    if start + length > len(content):
        raise ValueError("an element is longer than its container")
    return content[place], start, start + length


def _exactly(stream, count):
    data = stream.read(count)
    if len(data) != count:
        raise EOFError("the connection ended")
    return data
