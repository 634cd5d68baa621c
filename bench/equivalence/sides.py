"""Postfix, Exim (exim_side.py) and Mailrace with the same set-up, and where the mail went that they accepted.

A place is a text: "far: a@b -> c@d" (a mail host got it), "box alice" (a mailbox), "program ARGUMENTS", "held",
"waits". With it are the fields of the message that servers change.
"""

import email.parser
import email.policy
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

from peers import postfix
from peers.mailrace import Mailrace

from .probe import MARK, SERVER, STRANGER
from .servers import Missing

MAIL, SPOOL, PROGRAMS = (pathlib.Path("/srv") / name for name in ("vmail", "spool", "programs"))
TABLES = "/etc/postfix"
_NOBODY = 65534
_SERVED = re.compile(r"\b(ldap|mysql):")
_SETTLE_SECONDS, _SETTLE_SECONDS_MAX = 0.6, 25
_PROGRAM = """\
#!/bin/sh
# A program of the set-ups: keeps what it is given.
file=$(mktemp /srv/programs/XXXXXX)
{ printf '%s\\n' "program $*"; cat; } > "$file.part"
mv "$file.part" "$file"
"""
_BASE = """\
compatibility_level = 3.6
queue_directory = {queue}
data_directory = {data}
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
maillog_file = {root}/maillog
maillog_file_prefixes = {root}
myhostname = mail.example.com
inet_interfaces = {server}, localhost
inet_protocols = ipv4
in_flow_delay = 0
smtpd_client_connection_count_limit = 0
smtpd_error_sleep_time = 0
maximal_backoff_time = 1000s
"""


def _installed():
    """Files that Postfix itself needs there."""
    return [path for path in pathlib.Path(TABLES).iterdir() if path.name not in ("main.cf", "master.cf")]


def prepare():
    """Makes the folders of mail and programs, which both have at the same path."""
    for folder in (MAIL, SPOOL, PROGRAMS):
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, _NOBODY, _NOBODY)
        folder.chmod(0o777)
    script = PROGRAMS.parent / "deliver"
    script.write_text(_PROGRAM)
    script.chmod(0o755)


class PostfixSide(postfix.Postfix):
    """Postfix with the files of a set-up, which are in /etc/postfix of the namespace."""

    title = "Postfix"
    imported = ("postfix", TABLES)

    def __init__(self, folder, setup):
        for kind in sorted(set(_SERVED.findall(setup.text("main.cf")))):
            if not postfix.has_table_type(kind):
                raise Missing(f"Postfix has no tables of type {kind}: postfix-{kind} is not installed")
        super().__init__(folder, "tuned")
        self._setup, self.port = setup, 25
        self.etc = self.root / "etc"

    def namespace(self):
        """None further: the set-up has its own."""
        return []

    def logged(self):
        """Its log."""
        log = self.root / "maillog"
        return log.read_text(errors="replace") if log.exists() else ""

    def queue_ids(self):
        """What is in the queue: the id, "held" or "waits", and the recipient."""
        argv = ["postqueue", "-c", TABLES, "-j"]
        lines = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
        for entry in map(json.loads, lines):
            state = "held" if entry["queue_name"] == "hold" else "waits"
            yield from ((entry["queue_id"], state, one["address"]) for one in entry["recipients"])

    def is_busy(self):
        """Whether it is still delivering."""
        return any(files for name in ("maildrop", "incoming", "active") for _, _, files in os.walk(self.queue / name))

    def _configure(self):
        data = self.root / "data"
        for folder in (self.etc, self.queue, data):
            folder.mkdir(parents=True)
        shutil.chown(data, "postfix")
        for extra in [*_installed(), *self._setup.files()]:
            (shutil.copytree if extra.is_dir() else shutil.copy)(extra, self.etc / extra.name)
        subprocess.run(["mount", "--bind", str(self.etc), TABLES], check=True, timeout=60)
        main = _BASE.format(root=self.root, queue=self.queue, data=data, server=SERVER)
        (self.etc / "main.cf").write_text(main + self._setup.text("main.cf"))
        (self.etc / "master.cf").write_text(self._services())
        self._build_maps()

    def _services(self):
        """Those of Debian, unless the set-up has one of this name and type."""
        own = self._setup.text("master.cf")
        names = {tuple(line.split()[:2]) for line in own.splitlines() if line[:1] not in ("", "#", " ", "\t")}
        lines, is_kept = [], True
        for line in postfix._SHARE.read_text().splitlines():
            if line[:1] not in ("", "#", " ", "\t"):
                is_kept = tuple(line.split()[:2]) not in names
            lines += [self._service(line)] if is_kept else []
        return "".join(f"{line}\n" for line in lines) + own

    def _service(self, line):
        fields = line.split(None, 7)
        if line.startswith(("#", " ", "\t")) or len(fields) < 8:
            return line
        fields[4] = "n"
        return " ".join(fields)

    def _build_maps(self):
        """postmap(1) for all text maps that main.cf and master.cf name."""
        text = (self.etc / "main.cf").read_text() + (self.etc / "master.cf").read_text()
        for kind, name in sorted(set(re.findall(r"\b(hash|btree|cdb|lmdb):([\w/.$-]+)", text))):
            path = name.replace("$config_directory", TABLES)
            program = ["postalias", "-c", TABLES] if name.endswith("aliases") else ["postmap", "-c", TABLES]
            subprocess.run([*program, f"{kind}:{path}"], check=True, timeout=60)


class MailraceSide(Mailrace):
    """Mailrace with what the import makes of the files of a server: `imported` is the server and the path."""

    def __init__(self, folder, imported):
        super().__init__(folder)
        user = "".join(re.findall(r"^user\s*=.*$", self.config.read_text(), re.M))
        argv = [str(self.binary), "import", *imported, "--output", str(self.config), "--force"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"import: {done.stderr}")
        self.told = "".join(f"{line}\n" for line in done.stderr.splitlines() if "mailrace: written: " not in line)
        text = self.config.read_text().replace('"/var/lib/mailrace"', f'"{self.data}"')
        self.config.write_text(text.replace("\ndata_dir", f"\n{user}\ndata_dir", 1))
        for path in (self.folder / "mailrace-tables").glob("*"):
            path.chmod(0o644)  # the import leaves the owner of secrets to the operator

    def queue_ids(self):
        """What is in the queue: the id, "held" or "waits", and the recipient."""
        for entry in map(json.loads, self._queue("list", "--json").splitlines()):
            yield entry["id"], "held" if entry["state"] == "held" else "waits", entry["recipient"]

    def is_busy(self):
        """Whether it is still delivering."""
        return int(self._queue("list", "--count", "--state", "active").split()[0]) > 0

    def _has_listeners(self, logged):
        wanted = sum(line == "[[listener]]" for line in self.config.read_text().splitlines())
        return logged.count(b"listening protocol=") >= wanted


def settle(side, hosts):
    """Waits until nothing more happens."""
    deadline, quiet_since, seen = time.monotonic() + _SETTLE_SECONDS_MAX, time.monotonic(), None
    while time.monotonic() < deadline:
        now = (sum(host.count() for host in hosts), sum(1 for _ in _files(MAIL)), sum(1 for _ in _files(PROGRAMS)))
        if now != seen or side.is_busy():
            quiet_since, seen = time.monotonic(), now
        if time.monotonic() - quiet_since > _SETTLE_SECONDS:
            return
        time.sleep(0.1)


def places(side, hosts, ids):
    """Where the mail of each probe is now: number to places. `ids`: queue id to number."""
    found = {}

    def add(message, text):
        if number := MARK.search(message):
            found.setdefault(int(number[1]), []).append(f"{text} {_fields(message)}".rstrip())

    for host in hosts:
        for name, sender, recipient, message in host.take():
            add(message, f"{name}: {sender} -> {recipient}" if sender else f"{name}: notice -> {recipient}")
    for root in (MAIL, SPOOL, getattr(side, "data", pathlib.Path("/nonexistent")) / "mail"):
        for path in list(_files(root)):
            for message in re.split(rb"(?m)^From .*\n", path.read_bytes()) if root == SPOOL else [path.read_bytes()]:
                add(message, f"box {_box(path, root)}")
            path.unlink()
    for path in list(_files(PROGRAMS)):
        line, _, message = path.read_bytes().partition(b"\n")
        add(message, line.decode())
        path.unlink()
    for queue_id, state, recipient in side.queue_ids():
        if queue_id in ids:
            found.setdefault(ids[queue_id], []).append(f"{state}: {recipient}")
    return found


def _files(folder):
    return (path for path in folder.rglob("*") if path.is_file() and "tmp" not in path.relative_to(folder).parts)


def _box(path, root):
    """The mailbox of a file: the folder of a Maildir below its root, or the local part of a system user."""
    if root == SPOOL:
        return path.name
    folder = path.parent.parent.relative_to(root) if path.parent.name in ("new", "cur") else path.relative_to(root)
    return folder.name if root.name == "mail" else str(folder)


def _fields(message):
    """The fields that servers may change or add."""
    head = email.parser.BytesHeaderParser(policy=email.policy.compat32).parsebytes(message)
    if "report" in str(head.get("Content-Type", "")):
        return ""
    shown = [f"{name}: {' '.join(str(value).split())}" for name, value in head.items() if _is_shown(name, value)]
    return f"({', '.join(sorted(shown))})" if shown else ""


def _is_shown(name, value):
    usual = {"From": "Sender <author@far.example>", "To": "<someone@far.example>", "Subject": "hello"}
    if name in usual:
        return " ".join(str(value).split()) != usual[name]
    return name.startswith("X-") and name not in ("X-Probe", "X-Original-To", "X-Mailrace-Filter")


__all__ = ["MailraceSide", "PostfixSide", "STRANGER", "places", "prepare", "settle"]
