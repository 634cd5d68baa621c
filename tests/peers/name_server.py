"""A DNS server with a few records and optional failures: the part of RFC 1035 that mail needs, over
UDP and TCP.

    mx, a, aaaa, txt, ptr, tlsa add a record; a name without any record is NXDOMAIN
    null_mx          the domain accepts no mail (RFC 7505)
    broken, silent   names that are answered with SERVFAIL, or not at all
    signed           names whose records are answered as validated (AD), if the query asks for that

An answer that does not fit a datagram is truncated to its header with TC set, so that the client
repeats the query over TCP.
"""

import collections
import ipaddress
import socket
import struct
import threading

A, SOA, PTR, MX, TXT, AAAA, TLSA = 1, 6, 12, 15, 16, 28, 52
_STRING_OCTETS_MAX = 255
_NO_ERROR, _SERVFAIL, _NXDOMAIN = 0, 2, 3
_HEADER = struct.Struct("!6H")
_RESPONSE, _AUTHORITATIVE, _CUT, _RECURSION, _AUTHENTIC = 0x8000, 0x0400, 0x0200, 0x0080, 0x0020
_IN = 1
_DATAGRAM_OCTETS_MAX = 512
_TRIES = 50


class NameServer:
    """A DNS server on a port of its own; all settings may be changed while it runs."""

    def __init__(self, ttl=60):
        self.ttl = ttl
        self.records = collections.defaultdict(list)  # by (name, type)
        self.broken, self.silent, self.signed = set(), set(), set()
        self.asked = []  # (name, type), in order
        self._datagrams, self._listener = _bound()
        self.target = "127.0.0.1:%d" % self._datagrams.getsockname()[1]
        threading.Thread(target=self._serve_datagrams, daemon=True).start()
        threading.Thread(target=self._serve_connections, daemon=True).start()

    def mx(self, domain, preference, host):
        """Adds a mail host of a domain."""
        self.records[domain, MX].append(struct.pack("!H", preference) + _encoded(host))

    def null_mx(self, domain):
        """Makes the domain accept no mail."""
        self.records[domain, MX].append(struct.pack("!H", 0) + b"\0")

    def a(self, name, address):
        """Adds an IPv4 or IPv6 address of a host."""
        packed = ipaddress.ip_address(address).packed
        self.records[name, A if len(packed) == 4 else AAAA].append(packed)

    def txt(self, name, text):
        """Adds a text, in strings as long as they can be."""
        octets = text.encode()
        strings = [octets[at : at + _STRING_OCTETS_MAX] for at in range(0, len(octets), _STRING_OCTETS_MAX)]
        self.records[name, TXT].append(b"".join(bytes([len(string)]) + string for string in strings))

    def replace_txt(self, name, text):
        """Makes this the only TXT record of the name."""
        self.records[name, TXT].clear()
        self.txt(name, text)

    def ptr(self, address, name):
        """Adds the name of an address."""
        self.records[ipaddress.ip_address(address).reverse_pointer, PTR].append(_encoded(name))

    def tlsa(self, name, usage, selector, matching, data):
        """Adds a TLSA record."""
        self.records[name, TLSA].append(bytes([usage, selector, matching]) + data)

    def domain(self, domain, *addresses):
        """Adds a domain with mail hosts of these addresses, in this order of preference."""
        for number, address in enumerate(addresses, 1):
            self.mx(domain, 10 * number, f"mx{number}.{domain}")
            self.a(f"mx{number}.{domain}", address)

    def stop(self):
        """Stops answering."""
        self._datagrams.close()
        self._listener.close()

    def _serve_datagrams(self):
        while True:
            try:
                question, client = self._datagrams.recvfrom(4096)
                answer = self._answer(question)
                if answer is not None and len(answer) > _DATAGRAM_OCTETS_MAX:
                    answer = self._answer(question, cut=True)
                if answer is not None:
                    self._datagrams.sendto(answer, client)
            except OSError:
                return

    def _serve_connections(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def _serve_connection(self, connection):
        with connection, connection.makefile("rb") as questions:
            try:
                while length := questions.read(2):
                    answer = self._answer(questions.read(struct.unpack("!H", length)[0]))
                    if answer is not None:
                        connection.sendall(struct.pack("!H", len(answer)) + answer)
            except OSError:
                pass

    def _answer(self, message, cut=False):
        """The answer to a query; None for no answer."""
        number, asked_flags, *_ = _HEADER.unpack_from(message)
        name, end = _decoded(message, _HEADER.size)
        (kind,) = struct.unpack_from("!H", message, end)
        question = message[_HEADER.size : end + 4]
        self.asked.append((name, kind))
        if name in self.silent:
            return None
        found = [] if cut else self.records.get((name, kind), [])
        exists = any(known == name and records for (known, _), records in list(self.records.items()))
        code = _SERVFAIL if name in self.broken else _NO_ERROR if exists else _NXDOMAIN
        answers = [] if code else [(kind, record) for record in found]
        authority = [] if answers or cut or code == _SERVFAIL else [(SOA, _soa(self.ttl))]
        authentic = _AUTHENTIC if answers and name in self.signed else 0
        flags = _RESPONSE | _AUTHORITATIVE | _RECURSION | (_CUT if cut else 0) | (authentic & asked_flags) | code
        header = _HEADER.pack(number, flags | 0x0100, 1, len(answers), len(authority), 0)
        return header + question + b"".join(self._record(*record) for record in answers + authority)

    def _record(self, kind, data):
        owner = struct.pack("!H", 0xC000 | _HEADER.size)  # the name in the question
        return owner + struct.pack("!HHIH", kind, _IN, self.ttl, len(data)) + data


def _bound():
    """A datagram socket and a listener with the same port."""
    for _ in range(_TRIES):
        listener = socket.create_server(("127.0.0.1", 0))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagrams.bind(listener.getsockname())
            return datagrams, listener
        except OSError:
            datagrams.close()
            listener.close()
    raise RuntimeError("no port is free for both UDP and TCP")


def _soa(ttl):
    return _encoded("ns.test") + _encoded("postmaster.test") + struct.pack("!5I", 1, 3600, 600, 86400, ttl)


def _encoded(name):
    labels = [label.encode() for label in name.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _decoded(message, offset):
    """The name at the offset in lower case, and the offset after it; names in questions are not
    compressed.
    """
    labels = []
    while length := message[offset]:
        labels.append(message[offset + 1 : offset + 1 + length].decode().lower())
        offset += 1 + length
    return ".".join(labels), offset + 1
