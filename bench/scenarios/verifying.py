"""What it costs to check who sent a message: the same server with all checks, and with none, and Postfix with filters.

    off     no check of senders
    on      SPF, DKIM, DMARC, ARC and the reverse name of the client, all observed
    postfix-filters    Postfix with OpenDKIM, OpenDMARC and a policy daemon for SPF, which observe

The messages have a DKIM signature (RSA, 2048 bits), which Mailrace itself made before the run. Every message must pass
SPF, DKIM and DMARC, which is checked after the run.
"""

import dataclasses
import functools
import re
import shutil
import subprocess

import comparison
import pairs
from comparison import Comparison, Side
from peers import filters, machine, opendkim, unbound
from peers.laboratory import Source
from peers.mailrace import BINARY, UNCHECKED, Mailrace
from peers.smtp import Load

from .accept import MESSAGE_DISK_OCTETS, NOTES
from .signing import DOMAIN, key_section, make_key

_CORPUS, _RECORD = "signed", "record.txt"
_CORPUS_MESSAGES = 100
_EMPTY_SECONDS_MAX = 60
_KEY_NAME = f"rsa._domainkey.{DOMAIN}"
_METHODS = ("spf", "dkim", "dmarc")
_WARM_MESSAGES = 500  # a few for each session
_ON = "\n[sender_auth]\n"  # all methods observe by default


@dataclasses.dataclass(frozen=True)
class SignedSource(Source):
    """Sends the signed messages of the run."""

    corpus: str = f"$DIR/{_CORPUS}"

    def run(self, port, folder=None):
        """Sends all messages, from the first connection to the last reply."""
        return Source.run(dataclasses.replace(self, corpus=str(folder.parent / _CORPUS)), port)


@dataclasses.dataclass(frozen=True)
class SignedSide(Side):
    """A server that gets signed messages."""

    verifies: bool = True
    warm: int = 0  # messages before the measured ones

    def create(self, place):
        """A server; the first one of a run makes the messages."""
        if not (place.parent / _CORPUS).exists():
            _make_corpus(place.parent)
        return super().create(place)

    def measure(self, server, place):
        """Runs the load, and counts what passed."""
        if self.warm:
            dataclasses.replace(self.load, count=self.warm).run(server.port, place)
        figures = pairs.measure(server, lambda: self.load.run(server.port, place))
        sent = self.warm + figures.messages
        server.check_kept(sent)
        if self.verifies and (passed := server.passed(_METHODS)) != dict.fromkeys(_METHODS, sent):
            raise RuntimeError(f"of {sent} messages passed: {passed}")
        return figures


class VerifyingMailrace(Mailrace):
    """Mailrace beside a name server that knows the domain of the messages."""

    def __init__(self, place, senders):
        self._names = _name_server(place)
        dns = f'\n[dns]\nservers = ["127.0.0.1:{self._names.port}"]\n'
        super().__init__(place, concurrency=0, extra=dns + senders)

    def start(self, wrapper=()):
        """Starts the name server first."""
        self._names.start()
        return super().start(wrapper)

    def stop(self):
        """Ends both, in any state."""
        super().stop()
        self._names.stop()

    def passed(self, methods):
        """How many messages have passed each of these methods."""
        argv = [str(BINARY), "status", "--config", str(self.config)]
        text = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        counts = dict(re.findall(r'mailrace_sender_auth_total\{method="(\w+)",result="pass"\} (\d+)', text))
        return {method: int(counts.get(method, 0)) for method in methods}


def _name_server(place, standard=False):
    """One that knows the domain of the messages, and the client."""
    return unbound.Unbound(place / "names", ["test", "127.in-addr.arpa"], [
        unbound.text_record(DOMAIN, "v=spf1 ip4:127.0.0.1 -all"),
        unbound.text_record(f"_dmarc.{DOMAIN}", "v=DMARC1; p=reject"),
        unbound.text_record(_KEY_NAME, _key_record(place)),
        f"1.0.0.127.in-addr.arpa. IN PTR client.{DOMAIN}.",
        f"client.{DOMAIN}. IN A 127.0.0.1",
    ], standard)  # fmt: skip


def _key_record(place):
    return (place.parent / _RECORD).read_text()


def _filtering_postfix(place):
    return filters.FilteringPostfix(place, _name_server(place, standard=True), {_KEY_NAME: _key_record(place)})


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


def _mailrace_side(count, senders, verifies):
    needs = (("unbound", unbound.is_installed),)
    server = functools.partial(VerifyingMailrace, senders=senders)
    return SignedSide(server, SignedSource(count), MESSAGE_DISK_OCTETS, needs=needs, verifies=verifies)


def _postfix_side(count):
    needs = (("unbound", unbound.is_installed), ("one of opendkim, opendmarc and policyd-spf", filters.are_installed))
    return SignedSide(_filtering_postfix, SignedSource(count), MESSAGE_DISK_OCTETS, needs=needs, warm=_WARM_MESSAGES)


VERIFY = Comparison(
    "Accepting and checking who sent the messages",
    {
        "off": _mailrace_side(60_000, UNCHECKED, verifies=False),
        "on": _mailrace_side(30_000, _ON, verifies=True),
        "postfix-filters": _postfix_side(2_000),
    },
    (
        pairs.Target("on", "off", "cpu_per_thousand", most=2.5),
        pairs.Target("on", "postfix-filters", "rate", least=15),
        pairs.Target("on", "postfix-filters", "cpu_per_thousand", most=0.05),
    ),
    (
        *NOTES,
        "The CPU of the name server does not count. Mailrace keeps its answers; OpenDMARC and the policy daemon "
        "ask for each message; OpenDKIM has the key in a file.",
        "The CPU of Postfix and all its filters counts together. Before the measured messages Postfix has got "
        f"{_WARM_MESSAGES} others, so that all its processes run, those of the policy daemon too.",
        "After each run all messages had passed SPF, DKIM and DMARC: by the metrics of Mailrace, and by the "
        "Authentication-Results in the queue files of Postfix.",
    ),
    versions={
        "OpenDKIM": opendkim.version,
        "OpenDMARC": machine.package("opendmarc"),
        "policyd-spf": machine.package("postfix-policyd-spf-python"),
    },
)

SCENARIOS = comparison.scenarios({"verify-senders": VERIFY})
