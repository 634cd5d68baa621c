"""What it costs to sign mail with DKIM while it is accepted: Mailrace with and without keys, and Postfix with OpenDKIM.

    off        no key
    rsa        a signature with an RSA key of 2048 bits
    ed25519    one with an Ed25519 key
    postfix-opendkim    Postfix, which passes each message to OpenDKIM, with an RSA key of 2048 bits
    bare-rsa   no server: only the key operation and the hash of a message in memory

The servers sync before their 250 and deliver nothing. The load comes from a relay network, whose mail is signed.
"""

import dataclasses
import functools
import subprocess

import comparison
import pairs
from comparison import Comparison, NullServer, Side
from peers import opendkim
from peers.laboratory import Sign
from peers.mailrace import BINARY, Mailrace
from peers.milter import MilterPostfix
from peers.smtp import Load

from .accept import MESSAGE_DISK_OCTETS, NOTES

DOMAIN = "bench.test"
_KEY = """
[[signing.key]]
domain = "{}"
selector = "{}"
file = "{}"
"""


def make_key(algorithm, folder):
    """Makes a key; returns the domain, the selector and the file."""
    names = ["--selector", algorithm, "--algorithm", algorithm, "--dir", str(folder)]
    subprocess.run([str(BINARY), "dkim", "generate", DOMAIN, *names], capture_output=True, check=True, timeout=60)
    path = folder / f"{algorithm}.{DOMAIN}.pem"
    path.chmod(0o644)  # the server gives up its rights
    return DOMAIN, algorithm, path


def key_section(domain, selector, path):
    """The section of a key."""
    return _KEY.format(domain, selector, path)


def _mailrace(place, algorithm=None):
    extra = key_section(*make_key(algorithm, place)) if algorithm else ""
    return Mailrace(place, concurrency=0, networks=("127.0.0.0/8",), extra=extra)


def _postfix(place):
    return MilterPostfix(place, [opendkim.signer(*make_key("rsa", place))])


@dataclasses.dataclass(frozen=True)
class BareSide(Side):
    """Work without a server; its CPU counts as that of a server."""

    def measure(self, server, place):
        """Does the work."""
        figures = super().measure(server, place)
        return dataclasses.replace(figures, cpu_seconds=figures.load_cpu_seconds, load_cpu_seconds=0.0)


SIGN = Comparison(
    "Accepting and signing",
    {
        "off": Side(_mailrace, Load(50_000), MESSAGE_DISK_OCTETS),
        "rsa": Side(functools.partial(_mailrace, algorithm="rsa"), Load(10_000), MESSAGE_DISK_OCTETS),
        "ed25519": Side(functools.partial(_mailrace, algorithm="ed25519"), Load(40_000), MESSAGE_DISK_OCTETS),
        "postfix-opendkim": Side(_postfix, Load(3_000), MESSAGE_DISK_OCTETS, needs=(("opendkim", opendkim.is_installed),)),
        "bare-rsa": BareSide(NullServer, Sign(10_000)),
    },
    (
        pairs.Target("rsa", "postfix-opendkim", "rate", least=3.5),
        pairs.Target("ed25519", "postfix-opendkim", "rate", least=8),
        pairs.Target("rsa", "postfix-opendkim", "cpu_per_thousand"),
        pairs.Target("ed25519", "postfix-opendkim", "cpu_per_thousand"),
        pairs.Target("ed25519", "off", "cpu_per_thousand"),
        pairs.Target("rsa", "bare-rsa", "cpu_per_thousand", most=1.15, less="off"),
    ),
    (
        *NOTES,
        "OpenDKIM signs with rsa-sha256 and relaxed/relaxed, as Mailrace does. Its CPU and that of Postfix count together.",
        "bare-rsa uses the same cryptographic library on all processors, with a key and a message in memory, and neither "
        "canonical form nor fields. Its CPU is compared with what signing adds to the CPU of the server.",
    ),
    versions={"OpenDKIM": opendkim.version},
)

SCENARIOS = comparison.scenarios({"sign": SIGN})
