"""What it costs to check who sent a message: the same server with all checks, and with none.

    off     no check of senders
    on      SPF, DKIM, DMARC, ARC and the reverse name of the client, all observed

The messages have a DKIM signature (RSA, 2048 bits), which the server itself made before the run. The answers of the
name server are cached after the first message. The load is a stranger, and every message must pass DKIM and DMARC.
"""

import dataclasses
import re
import shutil
import subprocess

import comparison
import pairs
from comparison import Comparison, Side
from peers import unbound
from peers.laboratory import Source
from peers.mailrace import BINARY, UNCHECKED, Mailrace
from peers.smtp import Load

from .accept import MESSAGE_DISK_OCTETS, NOTES
from .signing import DOMAIN, key_section, make_key

_CORPUS, _RECORD = "signed", "record.txt"
_CORPUS_MESSAGES = 100
_EMPTY_SECONDS_MAX = 60
_ON = "\n[sender_auth]\n"  # all methods observe by default


@dataclasses.dataclass(frozen=True)
class SignedSource(Source):
    """Sends the signed messages of the run."""

    corpus: str = f"$DIR/{_CORPUS}"

    def run(self, port, folder=None):
        """Sends all messages, from the first connection to the last reply."""
        return Source.run(dataclasses.replace(self, corpus=str(folder.parent / _CORPUS)), port)


@dataclasses.dataclass(frozen=True)
class VerifyingSide(Side):
    """A server that gets signed messages."""

    verifies: bool = False

    def create(self, place):
        """A server with a name server beside it; the first one of a run makes the messages."""
        if not (place.parent / _CORPUS).exists():
            _make_corpus(place.parent)
        return VerifyingMailrace(place, self.verifies)

    def measure(self, server, place):
        """Runs the load, and counts what passed."""
        figures = super().measure(server, place)
        if self.verifies and (passed := server.passed()) != {"dkim": figures.messages, "dmarc": figures.messages}:
            raise RuntimeError(f"of {figures.messages} messages passed: {passed}")
        return figures


class VerifyingMailrace(Mailrace):
    """Mailrace beside a name server that knows the domain of the messages."""

    def __init__(self, place, verifies):
        record = (place.parent / _RECORD).read_text()
        self._names = unbound.Unbound(place / "names", ["test", "127.in-addr.arpa"], [
            unbound.text_record(DOMAIN, "v=spf1 ip4:127.0.0.1 -all"),
            unbound.text_record(f"_dmarc.{DOMAIN}", "v=DMARC1; p=reject"),
            unbound.text_record(f"rsa._domainkey.{DOMAIN}", record),
            f"1.0.0.127.in-addr.arpa. IN PTR client.{DOMAIN}.",
            f"client.{DOMAIN}. IN A 127.0.0.1",
        ])  # fmt: skip
        dns = f'\n[dns]\nservers = ["127.0.0.1:{self._names.port}"]\n'
        super().__init__(place, concurrency=0, extra=dns + (_ON if verifies else UNCHECKED))

    def start(self, wrapper=()):
        """Starts the name server first."""
        self._names.start()
        return super().start(wrapper)

    def stop(self):
        """Ends both, in any state."""
        super().stop()
        self._names.stop()

    def passed(self):
        """How many messages passed DKIM, and DMARC."""
        argv = [str(BINARY), "status", "--config", str(self.config)]
        text = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        pattern = r'mailrace_sender_auth_total\{method="(dkim|dmarc)",result="pass"\} (\d+)'
        return {method: int(count) for method, count in re.findall(pattern, text)}


def _make_corpus(folder):
    """Signs messages and keeps them, with the record of their key."""
    place = folder / "signer"
    place.mkdir()
    key = make_key("rsa", place)
    signer = Mailrace(place, users=["user"], networks=("127.0.0.0/8",), extra=key_section(*key))
    signer.start()
    try:
        Load(_CORPUS_MESSAGES, sessions=1).run(signer.port)
        signer.wait_until_empty(_EMPTY_SECONDS_MAX)
        shown = [str(BINARY), "dkim", "show", "--config", str(signer.config)]
        zone_line = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True).stdout
        (folder / _RECORD).write_text("".join(re.findall(r'"([^"]*)"', zone_line)))
        (folder / _CORPUS).mkdir()
        for number, path in enumerate(sorted(signer.maildirs.glob("**/new/*"))):
            shutil.copy(path, folder / _CORPUS / f"{number}.eml")
    finally:
        signer.stop()


def _side(count, verifies):
    needs = (("unbound", unbound.is_installed),)
    return VerifyingSide(None, SignedSource(count), MESSAGE_DISK_OCTETS, needs=needs, verifies=verifies)


VERIFY = Comparison(
    "Accepting and checking who sent the messages",
    {"off": _side(60_000, False), "on": _side(30_000, True)},
    (pairs.Target("on", "off", "cpu_per_thousand", most=2.5),),
    (*NOTES, "The CPU of the name server does not count; it answers once."),
)

SCENARIOS = comparison.scenarios({"verify-senders": VERIFY})
