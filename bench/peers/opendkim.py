"""OpenDKIM, a milter: the reference for signing mail while it is accepted, and a part of that for checking senders."""

import shutil
import subprocess

from .milter import Milter

_OPTIONS = ("-f", "-x")
_COMMON = """\
Background no
Syslog no
RequireSafeKeys no
"""
_SIGN = """\
Mode s
Domain {domain}
Selector {selector}
KeyFile {key}
Canonicalization relaxed/relaxed
SignatureAlgorithm rsa-sha256
OversignHeaders From
InternalHosts 127.0.0.0/8
"""
# The mail of internal hosts is not verified, and by default this machine is one. The keys come from a file: Debian's
# OpenDKIM has a resolver of its own, libunbound, which asks nobody about .test unless a file says so, and this file is read
# anew for each message, by a parser that crashes when two threads use it.
_VERIFY = """\
Mode v
AuthservID {host}
InternalHosts 192.0.2.1
TestDNSData file:{records}
"""


def is_installed():
    """Whether it is installed."""
    return shutil.which("opendkim") is not None


def version():
    """Its version, or that it is not installed."""
    if not is_installed():
        return "not installed"
    shown = subprocess.run(["opendkim", "-V"], capture_output=True, text=True, timeout=20)
    return (shown.stdout + shown.stderr).split("\n", 1)[0].rpartition("v")[2].strip()


def signer(domain, selector, key):
    """One that signs the mail of a domain, with the RSA key in a file."""
    return Milter("opendkim", _OPTIONS, _SIGN.format(domain=domain, selector=selector, key=key) + _COMMON)


def verifier(folder, host, keys):
    """One that verifies all mail in the name of a host, with these key records: name to text."""
    (records := folder / "keys").write_text("".join(f"{name} {text}\n" for name, text in keys.items()))
    return Milter("opendkim", _OPTIONS, _VERIFY.format(host=host, records=records) + _COMMON)
