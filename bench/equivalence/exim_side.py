"""Exim with the files of a set-up, which are in /etc/exim4 of the namespace.

A set-up without an exim4.conf has the answers to the questions of Debian's package, and gets Debian's own files and its
program that makes a configuration of both.
"""

import os
import pathlib
import re
import shutil
import subprocess

from peers import exim

from .probe import SERVER
from .servers import Missing
from .sides import SPOOL

_BASE = """\
exim_path = {binary}
local_interfaces = <; {server} ; 127.0.0.1
spool_directory = {spool}
log_file_path = {root}/%slog
check_spool_space = 0
check_spool_inodes = 0
rfc1413_query_timeout = 0s
keep_environment =
"""
# Debian's files have names for these, and their program is where the package puts it.
_DEBIAN_MACROS = "conf.d/main/000_localmacros"
_DEBIAN_BASE = """\
SPOOLDIR = {spool}
MAIN_LOCAL_INTERFACES = <; {server} ; 127.0.0.1
MAIN_HARDCODE_PRIMARY_HOSTNAME = mail.example.com
log_file_path = {root}/%slog
check_spool_space = 0
check_spool_inodes = 0
rfc1413_query_timeout = 0s
"""
_DEBIAN_BINARY = "/usr/sbin/exim4"
_QUEUED = re.compile(r"^\s*\S+\s+\S+\s+(\S{16}) <.*?>(.*)\n((?:^ {10}.*\n)*)", re.M)


class EximSide(exim.Exim):
    """Exim, with the heavy package of Debian."""

    title = "Exim"

    def __init__(self, folder, setup):
        if not exim.HEAVY.exists():
            raise Missing("the heavy package of Exim is not unpacked")
        super().__init__(folder, binary=exim.HEAVY / "usr/sbin/exim4")
        self._setup, self.port = setup, 25
        self.imported = ("exim", f"/etc/exim4/{setup.main}")

    def namespace(self):
        """None further: the set-up has its own."""
        return []

    def logged(self):
        """Its log."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.root.glob("*log")))

    def queue_ids(self):
        """What is in the queue: the id, "held" or "waits", and the recipient."""
        listed = subprocess.run([self.binary, "-bp"], capture_output=True, text=True, timeout=60, check=True).stdout
        for queue_id, mark, recipients in _QUEUED.findall(listed):
            state = "held" if "frozen" in mark else "waits"
            # Those with a D have got it.
            yield from ((queue_id, state, one.strip()) for one in recipients.splitlines() if not one.startswith(" " * 8 + "D"))

    def is_busy(self):
        """Whether it is still delivering."""
        # Deliveries are no children of the daemon. Those that have ended have no command line.
        commands = (path.read_bytes().split(b"\0")[0] for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"))
        return sum(command.endswith(b"/exim4") for command in commands) > 1

    def _configure(self):
        etc = self.root / "etc"
        (etc / "exim4").mkdir(parents=True)
        self.spool.mkdir()
        uid = exim.add_users(etc, self._setup.text("accounts").split())
        for folder in (self.root, self.spool):
            os.chown(folder, uid, uid)
        shutil.copy("/etc/resolv.conf", etc)
        if (extra := self._setup.folder / "etc").exists():
            shutil.copytree(extra, etc, dirs_exist_ok=True)
        is_debian = self._setup.main != "exim4.conf"
        if is_debian:
            shutil.copytree(exim.HEAVY / "etc/exim4", etc / "exim4", dirs_exist_ok=True)
        self._copy_files(etc / "exim4")
        base = (_DEBIAN_BASE if is_debian else _BASE).format(
            binary=self.binary, spool=self.spool, root=self.root, server=SERVER
        )
        own = etc / "exim4" / (_DEBIAN_MACROS if is_debian else "exim4.conf")
        own.write_text(base + self._setup.text("exim4.conf"))
        _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={etc}:/etc", "/etc")
        _run("mount", "--bind", SPOOL, "/var/mail")
        if is_debian:
            self._install_binary()
            _run("mount", "--bind", etc / "exim4", "/etc/exim4")  # to be written to
            _run("sh", exim.HEAVY / "usr/sbin/update-exim4.conf", "--output", "/etc/exim4/exim4.conf")

    def _install_binary(self):
        folder = self.root / "sbin"
        folder.mkdir()
        shutil.copy2(self.binary, folder / "exim4")  # with the bit that makes it run as root
        _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={folder}:/usr/sbin", "/usr/sbin")
        self.binary = _DEBIAN_BINARY

    def _copy_files(self, folder):
        for extra in self._setup.files():
            (shutil.copytree if extra.is_dir() else shutil.copy)(extra, folder / extra.name)


def _run(*argv):
    subprocess.run(argv, check=True, timeout=60)
