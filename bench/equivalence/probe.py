"""Probes: one message each, on a connection of its own.

Lines of a file `probes` set what the following probes have, or are a probe:

    client ADDRESS      the client; 127.0.0.1 is the machine itself. Default: 198.51.100.7
    helo NAME           default: client7.far.example, the name of that address
    from ADDRESS        as after MAIL FROM: without brackets
    login USER PASSWORD or `login` for none
    port PORT           465 means TLS from the first byte; on 587 TLS begins with STARTTLS
    header FIELD        a field more, for the next probe only
    body TEXT           the body, for the next probe only
    size OCTETS         the size, for the next probe only
    to ADDRESS          a probe with this recipient
    to-raw TEXT         a probe with this after RCPT TO:
    from-raw TEXT       a probe with this after MAIL FROM:, and the last recipient
    spellings LOCAL DOMAIN   probes with this address in all spellings, and with tricks to relay
"""

import base64
import dataclasses
import re
import socket
import ssl

SERVER, STRANGER, STRANGER_NAME = "192.0.2.1", "198.51.100.7", "client7.far.example"
SENDER = "sender@far.example"
_REPLY_SECONDS_MAX = 30
_STARTTLS_PORT, _TLS_PORT = 587, 465
MARK = re.compile(rb"X-Probe: (\d+)")

# {l} the local part, {d} the domain; far.example is a domain of others, victim@far.example exists there.
SPELLINGS = """\
<{l}@{d}> <{L}@{d}> <{l}@{D}> <{l}@{d}.> <"{l}"@{d}> <"{l} x"@{d}> <{l}+tag@{d}> <{l}+@{d}> <+{l}@{d}> <"{l}+tag"@{d}>
<nosuch@{d}> <nosuch+tag@{d}> <{l}@sub.{d}> <{l}@{d}.far.example> <{l}@x{d}> <{l}> <{l}@> <@{d}> <> <postmaster> <POSTMASTER>
<postmaster@{d}> <abuse@{d}> <.{l}@{d}> <{l}.@{d}> <{l}..x@{d}> <{l}@[192.0.2.1]> <{l}@[198.51.100.9]> <{l}@192.0.2.1>
<{l}@-{d}> <{l}@{d}-> <{l}@a_b.{d}> <-{l}@{d}> <{l}@@{d}> <{l}@{d}@{d}> <{l}/x@{d}> <|{l}@{d}> <"/etc/passwd"@{d}>
<"|/bin/sh"@{d}> <:include:/x@{d}> <\\{l}@{d}> <{l}!x@{d}> <{l}%x@{d}> <=?x?=@{d}> {l}@{d} <{l}@{d} <<{l}@{d}>> <{l}@{d}>x
<victim@far.example> <victim%far.example@{d}> <"victim%far.example"@{d}> <victim%far.example> <"victim@far.example"@{d}>
<"victim@far.example"> <victim@far.example@{d}> <far.example!victim> <far.example!victim@{d}> <"far.example!victim"@{d}>
<@{d}:victim@far.example> <@far.example:{l}@{d}> <@far.example,@{d}:{l}@{d}> <@{d},@far.example:victim@far.example>
<{d}!victim@far.example> <victim@far.example.> <victim@[198.51.100.9]> <victim%[198.51.100.9]@{d}> <victim@FAR.example>
<victim@{d}%far.example> <victim@far.example%{d}> <"victim\\@far.example"@{d}> <victim\\@far.example@{d}>
<"@{d}:victim@far.example"@{d}> <victim@far.example,{l}@{d}> <{l}@{d}\\@far.example> <victim@sub.far.example>
""".split("\n")


@dataclasses.dataclass(frozen=True)
class Probe:
    """A message and how it is sent."""

    client: str = STRANGER
    helo: str = STRANGER_NAME
    sender: str = f"<{SENDER}>"
    recipient: str = ""
    login: tuple = ()
    port: int = 25
    header: str = ""
    body: str = "Hello."
    size: int = 0

    def __str__(self):
        words = [self.client, "" if self.helo == STRANGER_NAME else f"({self.helo})"]
        words += [f"port {self.port}" if self.port != 25 else "", f"as {self.login[0]}" if self.login else ""]
        words += [self.sender, "->", self.recipient, self.header, "" if self.body == "Hello." else f"[{self.body}]"]
        words += [f"{self.size} octets" if self.size else ""]
        return " ".join(filter(None, words))

    def message(self, number):
        """The message; its mark tells where it comes from."""
        lines = [f"X-Probe: {number}", "From: Sender <author@far.example>", "To: <someone@far.example>", "Subject: hello",
                 "Date: Mon, 2 Nov 2026 10:00:00 +0000", f"Message-ID: <{number}@far.example>"]  # fmt: skip
        name = self.header.partition(":")[0].lower()
        lines = [line for line in lines if not name or line.partition(":")[0].lower() != name]
        text = "\r\n".join([*lines, *([self.header] if self.header else []), "", self.body, ""])
        missing = max(0, self.size - len(text))
        return text + ("x" * 76 + "\r\n") * (missing // 78)


@dataclasses.dataclass
class Answer:
    """What the server said: the command that it refused, or "message"."""

    stage: str
    code: int
    text: str

    @property
    def verdict(self):
        """"accepted", "deferred" or "refused"."""
        return {2: "accepted", 4: "deferred"}.get(self.code // 100, "refused")

    @property
    def queue_id(self):
        """The id in the queue of an accepted message."""
        found = re.search(r"(?:queued as |id=)(\S+)", self.text)
        return found[1] if found else None

    def __str__(self):
        return f"{self.code} at {self.stage}"


def read(text):
    """The probes in a file."""
    state, once, probes = Probe(), {}, []

    def add(**values):
        probes.append(dataclasses.replace(state, **once, **values))
        once.clear()

    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match word:
            case "" | "#":
                pass
            case "client" | "helo":
                state = dataclasses.replace(state, **{word: rest})
            case "from":
                state = dataclasses.replace(state, sender=f"<{rest}>")
            case "login":
                state = dataclasses.replace(state, login=tuple(rest.split()))
            case "port":
                state = dataclasses.replace(state, port=int(rest))
            case "size":
                once["size"] = int(rest)
            case "header" | "body":
                once[word] = rest
            case "to":
                add(recipient=f"<{rest}>")
            case "to-raw":
                add(recipient=rest)
            case "from-raw":
                add(sender=rest, recipient=probes[-1].recipient)
            case "spellings":
                for recipient in spellings(*rest.split()):
                    add(recipient=recipient)
            case _:
                raise ValueError(f"probes: unknown word in {line!r}")
    return probes


def spellings(local, domain):
    """An address in all spellings, and what others made of it to relay."""
    for line in SPELLINGS:
        filled = line.format(l=local, d=domain, L=local.upper(), D=domain.upper())
        yield from re.findall(r'(?:"[^"]*"|\S)+', filled)


class _Refused(Exception):
    pass


class _Session:
    """A connection that ends with the first refusal."""

    def __init__(self, probe):
        host = "127.0.0.1" if probe.client == "127.0.0.1" else SERVER
        self._socket = socket.create_connection((host, probe.port), _REPLY_SECONDS_MAX, (probe.client, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if probe.port == _TLS_PORT:
            self._secure()
        self._lines = self._socket.makefile("rb")

    def close(self):
        self._lines.close()
        self._socket.close()

    def _secure(self):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._socket = context.wrap_socket(self._socket)

    def say(self, stage, line, wanted=2):
        """Sends a command, if any, and reads the reply; raises unless it is of this class."""
        if line is not None:
            self._socket.sendall(line.encode() + b"\r\n")
        while True:
            reply = self._lines.readline()
            if not reply:
                raise _Refused(Answer(stage, 421, "closed"))
            if reply[3:4] != b"-":
                break
        answer = Answer(stage, int(reply[:3]), reply[4:].decode(errors="replace").strip())
        if answer.code // 100 != wanted:
            raise _Refused(answer)
        return answer

    def start_tls(self, helo):
        """STARTTLS, and the greeting once more."""
        self.say("starttls", "STARTTLS")
        self._lines.close()
        self._secure()
        self._lines = self._socket.makefile("rb")
        self.say("helo", f"EHLO {helo}")

    def log_in(self, user, password):
        words = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
        self.say("auth", f"AUTH PLAIN {words}")

    def send(self, text):
        """The message with its end."""
        stuffed = re.sub(r"(?m)^\.", "..", text)
        self._socket.sendall(stuffed.encode() + b".\r\n")
        return self.say("message", None)


def send(probe, number):
    """Sends a probe, and returns the last answer."""
    session = None
    try:
        session = _Session(probe)
        session.say("connect", None)
        session.say("helo", f"EHLO {probe.helo}")
        if probe.port == _STARTTLS_PORT:
            session.start_tls(probe.helo)
        if probe.login:
            session.log_in(*probe.login)
        size = f" SIZE={probe.size}" if probe.size else ""
        session.say("mail", f"MAIL FROM:{probe.sender}{size}")
        session.say("rcpt", f"RCPT TO:{probe.recipient}")
        session.say("data", "DATA", wanted=3)
        return session.send(probe.message(number))
    except _Refused as refused:
        return refused.args[0]
    except OSError as error:
        return Answer("connect", 421, str(error))
    finally:
        if session:
            session.close()
