"""One set-up in namespaces of its own: `python3 -m equivalence SERVER NAME FOLDER` there, `in_namespaces` from outside.

The network has the loopback interface alone, with all addresses of the documentation networks. /etc/postfix or /etc,
/srv and /etc/resolv.conf are those of the set-up.
"""

import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

from peers.certificate import certificate
from peers.unbound import STANDARD_ADDRESS, Unbound

from . import servers, sides
from .comparison import Outcome, compare, documented
from .exim_side import EximSide
from .probe import SERVER, send

_NETWORKS = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
_ZONES = ("example", "example.com", "example.net", "example.org", "arpa", "test")
_RECORDS = """\
mail.example.com. IN A 192.0.2.1
example.com. IN MX 10 mail.example.com.
1.2.0.192.in-addr.arpa. IN PTR mail.example.com.
far.example. IN MX 10 mx.far.example.
sub.far.example. IN MX 10 mx.far.example.
mx.far.example. IN A 192.0.2.25
client7.far.example. IN A 198.51.100.7
7.100.51.198.in-addr.arpa. IN PTR client7.far.example.
forged.far.example. IN A 192.0.2.99
8.100.51.198.in-addr.arpa. IN PTR forged.far.example.
client9.far.example. IN A 198.51.100.9
9.100.51.198.in-addr.arpa. IN PTR client9.far.example.
inside.example.com. IN A 192.0.2.50
50.2.0.192.in-addr.arpa. IN PTR inside.example.com.
host.example.net. IN A 192.0.2.25
"""
_SIDES = {"postfix": sides.PostfixSide, "exim": EximSide}
_SECONDS_MAX = 240
_UNSHARE = (
    "setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private".split()
)


@dataclasses.dataclass(frozen=True)
class Result:
    """A set-up's result; `skipped` says which server is missing."""

    setup: str
    title: str
    compared: list
    told: str
    failure: str = ""
    skipped: str = ""


def server_title(server):
    """How a server is called."""
    return _SIDES[server].title


def in_namespaces(setup):
    """Runs a set-up in a child."""
    with tempfile.TemporaryDirectory(prefix="equivalence-") as folder:
        pathlib.Path(folder).chmod(0o755)
        argv = [*_UNSHARE, sys.executable, "-m", "equivalence", setup.server, setup.name, folder]
        bench = pathlib.Path(__file__).resolve().parents[1]
        done = subprocess.run(argv, cwd=bench, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=_SECONDS_MAX)  # fmt: skip
        result = pathlib.Path(folder) / "result"
        if not result.exists():
            return Result(setup.name, setup.title, [], "", done.stdout[-4000:] or "no result")
        return pickle.loads(result.read_bytes())


def run(setup, folder):
    """Runs it here, in the namespaces."""
    names = _namespaces(folder, setup)
    probes = setup.probes
    surroundings = None
    try:
        original = _SIDES[setup.server](folder, setup)
        surroundings = servers.Surroundings(setup, folder)
        outcomes = [_outcomes(original, probes, surroundings.hosts)]
        mailrace = sides.MailraceSide(folder, original.imported)
        outcomes.append(_outcomes(mailrace, probes, surroundings.hosts))
    except servers.Missing as missing:
        return Result(setup.name, setup.title, [], "", skipped=str(missing))
    finally:
        names.stop()
        if surroundings:
            surroundings.stop()
    _keep(original, mailrace, setup.name)
    known, meant = setup.known, documented(setup.server)
    compared = [compare(probe, *both, known, mailrace.told, meant) for probe, *both in zip(probes, *outcomes)]
    return Result(setup.name, setup.title, compared, mailrace.told)


def _outcomes(side, probes, hosts):
    """What becomes of the probes with this server."""
    try:
        side.start()
        answers = [send(probe, number) for number, probe in enumerate(probes)]
        sides.settle(side, hosts)
        ids = {answer.queue_id: number for number, answer in enumerate(answers) if answer.queue_id}
        found = sides.places(side, hosts, ids)
    finally:
        side.stop()
    return [Outcome(answer, tuple(sorted(found.get(number, [])))) for number, answer in enumerate(answers)]


def _keep(original, mailrace, name):
    """Keeps configuration and logs where MAILRACE_EQUIVALENCE_KEEP says, to look at a difference."""
    if keep := os.environ.get("MAILRACE_EQUIVALENCE_KEEP"):
        folder = pathlib.Path(keep) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mailrace.toml").write_text(mailrace.configuration())
        (folder / "mailrace.log").write_text(mailrace.log.read_text(errors="replace"))
        (folder / "told").write_text(mailrace.told)
        for path in (mailrace.folder / "mailrace-tables").glob("*"):
            (folder / f"table-{path.name}").write_text(path.read_text())
        (folder / "maillog").write_text(original.logged())


def _namespaces(folder, setup):
    """Sets them up; returns the name server."""
    command = lambda *argv: subprocess.run(argv, check=True, timeout=60)  # noqa: E731
    command("ip", "link", "set", "lo", "up")
    command("ip", "address", "add", f"{SERVER}/32", "dev", "lo")  # Postfix looks for it among the interfaces
    for network in _NETWORKS:
        command("ip", "route", "add", "local", network, "dev", "lo")
    resolv, srv = folder / "resolv.conf", folder / "srv"
    resolv.write_text(f"nameserver {STANDARD_ADDRESS}\n")
    command("mount", "--bind", str(resolv), "/etc/resolv.conf")
    srv.mkdir()
    command("mount", "--bind", str(srv), "/srv")
    certificate(folder)
    for name in ("chain.pem", "key.pem"):
        (srv / name).write_text((folder / name).read_text())
    sides.prepare()
    names = Unbound(folder / "unbound", _ZONES, (_RECORDS + setup.text("zone")).splitlines(), standard=True)
    names.start()
    return names
