"""The fail2ban filter finds clients that guess passwords by any protocol, try to relay or are refused,
and no others: with Python's regular expressions, which fail2ban uses, and with fail2ban-regex if it
is installed.
"""

import base64
import configparser
import pathlib
import re
import shutil
import subprocess
import unittest

from harness import Client, ServerCase, await_that
from peers.mailrace import ROOT, listener
from retrieval import ReaderConnection

FILTER = ROOT / "packaging/fail2ban/mailrace.conf"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
# The clients, each with an address of its own.
GUESSER, RELAYER, REFUSED, FORGER, HARVESTER, FRIEND = (f"127.0.0.{n}" for n in range(2, 8))
# Those that guess where mail and files are read.
READERS = {protocol: f"127.0.0.{n}" for n, protocol in enumerate(("pop3", "pop3-proxy", "imap-proxy", "http"), 8)}
NORMAL = {GUESSER, RELAYER, REFUSED, FORGER, *READERS.values()}
AGGRESSIVE = NORMAL | {HARVESTER}
VICTIM = "203.0.113.9"

EXTRA = """
[[listener]]
protocol = "submission"
address  = "127.0.0.1:0"
tls      = "none"

[[listener]]
protocol = "http"
address  = "127.0.0.1:0"
files    = "/usr"
auth     = true

[auth]
passwords   = "logins"
clear_text  = true

[[table]]
name   = "logins"
type   = "static"
values = ["{{PLAIN}}right"]

[[access]]
name    = "not you"
clients = ["{refused}"]
action  = "refuse"

[log]
format = "{format}"
"""


def expressions(mode):
    """The expressions of a mode, as fail2ban reads them from the file."""
    parser = configparser.ConfigParser(interpolation=configparser.BasicInterpolation())
    parser.read(FILTER)
    lines = parser["Definition"][f"mdre-{mode}"].splitlines()
    return [re.compile(line.replace("<HOST>", r"(?P<host>[\d.]+|[\da-fA-F:]+)")) for line in lines]


def found(lines, mode):
    """The clients that the filter finds in lines without the date, which fail2ban removes."""
    matches = (one.search(line) for line in lines for one in expressions(mode))
    return {match["host"] for match in matches if match}


def dateless(log):
    return [_TIME.sub("", line, count=1) for line in log.splitlines()]


class Filter(ServerCase):
    """The log is text."""

    FORMAT = "text"

    @classmethod
    def setUpClass(cls):
        extra = EXTRA.format(refused=REFUSED, format=cls.FORMAT)
        extra += "".join(listener(protocol) for protocol in READERS if protocol != "http")
        cls.SERVER = {"users": ["alice"], "extra": extra}
        super().setUpClass()
        cls.misbehave()
        cls.log = await_that(cls.whole_log, "a line for each client", cls.server)

    @classmethod
    def misbehave(cls):
        port, submission = cls.server.ports["smtp"], cls.server.ports["submission"]
        lie = f"x mailrace[1]: login result=refused client={VICTIM} "
        for source, user in ((GUESSER, "bob"), (FORGER, lie)):
            with Client(submission, source=source) as client:
                client.greet()
                client.say("AUTH PLAIN " + base64.b64encode(f"\0{user}\0wrong".encode()).decode())
        cls.guess_as_readers(lie)
        with Client(port, source=RELAYER) as client:
            client.greet()
            client.envelope("victim@elsewhere.example")
        with Client(port, source=REFUSED) as client:
            client.read()
        with Client(port, source=HARVESTER) as client:
            client.greet()
            client.envelope("nobody@bench.test")
        with Client(port, source=FRIEND) as client:
            client.greet()
            client.say("NONSENSE")
            client.deliver(b"Subject: x\r\n\r\n", "alice@bench.test")

    @classmethod
    def guess_as_readers(cls, user):
        """Wrong passwords by each protocol, from an address of its own."""
        basic = base64.b64encode(f"{user.replace(':', '')}:wrong".encode()).decode()
        plain = base64.b64encode(f"\0{user}\0wrong".encode()).decode()
        asked = {
            "pop3": f"USER {user}\r\nPASS wrong\r\nQUIT\r\n",
            "pop3-proxy": f"AUTH PLAIN {plain}\r\nQUIT\r\n",
            "imap-proxy": f'a LOGIN "{user}" wrong\r\nb LOGOUT\r\n',
            "http": f"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {basic}\r\n\r\n",
        }
        for protocol, source in READERS.items():
            with ReaderConnection(cls.server.ports[protocol], source=source) as connection:
                connection.write(asked[protocol].encode())
                connection.rest()

    @classmethod
    def whole_log(cls):
        log = cls.server.log.read_text()
        return log if all(who in log for who in AGGRESSIVE | {FRIEND}) else None

    def test_it_finds_only_clients_that_misbehave(self):
        self.assertIn(VICTIM, self.log)
        self.assertEqual(found(dateless(self.log), "normal"), NORMAL)
        self.assertEqual(found(dateless(self.log), "aggressive"), AGGRESSIVE)

    def test_prefixes_of_syslog_and_the_journal_are_ignored(self):
        syslog = "".join(f"Nov 20 17:46:16 mx1 mailrace[12]: {line}\n" for line in self.log.splitlines())
        self.assertEqual(found(dateless(syslog), "aggressive"), AGGRESSIVE)
        # The journal adds its own time; the time of the line stays.
        journal = [f"mx1 mailrace[12]: {line}" for line in self.log.splitlines()]
        self.assertEqual(found(journal, "aggressive"), AGGRESSIVE)

    @unittest.skipUnless(shutil.which("fail2ban-regex"), "fail2ban-regex is not installed")
    def test_fail2ban_reads_the_filter_and_finds_the_same(self):
        log = pathlib.Path(self.folder.name) / "copy.log"
        log.write_text(self.log)
        for mode, hosts in (("normal", NORMAL), ("aggressive", AGGRESSIVE)):
            argv = ["fail2ban-regex", "--out", "<ip>", str(log), f"{FILTER}[mode={mode}]"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(set(done.stdout.split()), hosts, done.stdout)


class FilterOfJson(Filter):
    """The log is JSON."""

    FORMAT = "json"


if __name__ == "__main__":
    unittest.main()
