"""The walkthrough of docs/sender-auth.md, followed step by step from the server of docs/mx-in-ten-minutes.md: its
commands and its configuration as they stand there, in another folder, with a DNS of our own.
"""

import os
import pathlib
import re
import subprocess
import unittest

from harness import Client, await_that, folder, mail_files
from hosts import Host
from name_server import NameServer
from outbound import send
from peers.mailrace import BINARY, ROOT, Mailrace, route

START = "mx-in-ten-minutes.md"
PAGE, SECTION = "sender-auth.md", "## In ten minutes: a domain that signs, verifies and reports"
RELAYED, STRANGER = "127.0.0.1", "127.0.0.2"
# What the reader has already, and the rest of the Internet.
SURROUNDINGS = """
[relay]
networks = ["127.0.0.1"]

[dns]
servers = ["{servers}"]
timeout = "10s"
attempts = 1
"""
# Commands of the system, as far as the page uses them.
COMMANDS = {
    "mailrace": 'exec "{binary}" --config "{config}" "$@"',
    "chown": 'shift; [ "$(id -u)" != 0 ] || exec /usr/bin/chown nobody "$@"',
    "systemctl": '[ "$*" = "restart mailrace" ] && touch "{folder}/restart"',
    "journalctl": '[ "$1 $2" = "-u mailrace" ] && grep -e "${{4:?}}" "{log}"',
}
_BLOCK = re.compile(r"^```(sh|toml)\n(.*?)^```$", re.M | re.S)
_RECORD = re.compile(r"^(\S+)\. IN (MX|TXT|PTR|TLSA) (\([^)]*\)|.*)$", re.M)


def blocks(page, heading):
    """The commands and settings of a section and its steps, in order: (language, text)."""
    text = (ROOT / "docs" / page).read_text()
    section = text.split(f"\n{heading}\n")[1].split("\n## ")[0]
    return _BLOCK.findall(section)


class Walkthrough(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        self.names = NameServer()
        self.addCleanup(self.names.stop)
        self.elsewhere = Host()
        self.server = Mailrace(self.folder, users=["bob"])
        self.addCleanup(self.server.stop)
        self.addCleanup(self.elsewhere.stop)
        self.etc = self.folder / "etc"
        self.etc.mkdir()
        self.commands()
        self.start()

    def commands(self):
        names = {"binary": BINARY, "config": self.server.config, "folder": self.folder, "log": self.server.log}
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name, body in COMMANDS.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{body.format(**names)}\n")
            (self.bin / name).chmod(0o755)

    def start(self):
        """The server of the page before, its users and its DNS."""
        [(_, text)] = blocks(START, "## 4. Configuration")[:1]
        user = "\n".join(re.findall(r"^user .*$", self.server.config.read_text(), re.M))
        for old, new in {
            "/etc/mailrace": str(self.etc),
            "/var/lib/mailrace": str(self.server.data),
            'user = "mailrace"': user,
            "0.0.0.0:25": "127.0.0.1:0",
        }.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        (self.etc / "people").write_text("bob@example.org\npostmaster@example.org\n")
        around = SURROUNDINGS.format(servers=self.names.target)
        around += route("elsewhere.test", f"[127.0.0.1]:{self.elsewhere.port}")
        self.server.config.write_text(text + around)
        self.names.mx("example.org", 10, "mx1.example.org")
        self.names.a("mx1.example.org", "127.0.0.1")
        self.names.ptr("127.0.0.1", "mx1.example.org")
        self.names.txt("_dmarc.elsewhere.test", "v=DMARC1; p=none; rua=mailto:reports@elsewhere.test")
        self.server.start()

    def run_block(self, text):
        """Runs the commands of a block; returns what they print."""
        text = text.replace("/etc/mailrace", str(self.etc))
        path = f"{self.bin}:{os.environ['PATH']}"
        done = subprocess.run(["sh", "-ec", text], env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"{text}{done.stdout}{done.stderr}\n{self.server.log_tail()}")
        restart = self.folder / "restart"
        if restart.exists():
            restart.unlink()
            self.assertEqual(self.server.terminate(), 0)
            self.server.start()
        return done.stdout

    def publish(self, zone):
        """Publishes the lines of a zone, but those that the page leaves out; returns the names."""
        published = []
        for name, kind, data in _RECORD.findall(zone):
            texts = "".join(re.findall(r'"([^"]*)"', data))
            if kind == "TXT" and not name.startswith("_mta-sts."):
                self.names.txt(name, texts)
                published.append(name)
        return published

    def exchange_messages(self):
        """Sends a message of the domain, receives it again as a stranger would send it, and an answer."""
        content = b"From: Bob <bob@example.org>\r\nTo: ann@elsewhere.test\r\nSubject: first\r\n\r\nHello.\r\n"
        send(self.server, "ann@elsewhere.test", sender="bob@example.org", message=content)
        sent = await_that(lambda: self.elsewhere.accepted, "the message", self.server)[0].content
        self.assertEqual(len(re.findall(rb"(?m)^DKIM-Signature:", sent)), 2, sent)
        answer = b"From: Ann <ann@elsewhere.test>\r\nTo: bob@example.org\r\nSubject: Re: first\r\n\r\nHello.\r\n"
        for message in (sent, answer):
            with Client(self.server.port, source=STRANGER) as client:
                client.greet()
                self.assertEqual(client.deliver(message, "bob@example.org", sender="ann@elsewhere.test").code, 250)

        def verified():
            texts = [path.read_bytes() for path in mail_files(self.server.data / "mail/example.org/bob/new")]
            fields = [re.sub(rb"\r?\n[ \t]+", b" ", text.partition(b"\n\r\n")[0]) for text in texts]
            return [text for text in fields if text.count(b"dkim=pass header.d=example.org") == 2]

        [header] = await_that(verified, "the message with its results", self.server)
        self.assertIn(b"Authentication-Results: mx1.example.org;", header)
        self.assertIn(b"dmarc=pass (p=none) header.from=example.org", header)

    def test_its_commands_make_a_domain_that_signs_verifies_and_reports(self):
        printed = {}
        for language, text in blocks(PAGE, SECTION):
            if language == "toml":
                config = self.server.config
                config.write_text(config.read_text() + "\n" + text.replace("/etc/mailrace", str(self.etc)))
                continue
            if text.startswith("journalctl"):
                self.exchange_messages()
            if text == "mailrace reports show\n":
                shows = lambda: "elsewhere.test" in self.run_block(text)  # noqa: B023, E731
                await_that(shows, "the counts of a report", self.server)
                continue
            printed[text] = self.run_block(text)
            if text == "mailrace dns example.org\n":
                published = self.publish(printed[text])
        keys = {"mail._domainkey.example.org", "mail-ed25519._domainkey.example.org"}
        self.assertLessEqual(keys | {"example.org", "_dmarc.example.org", "_smtp._tls.example.org"}, set(published))
        checked = printed["mailrace dns example.org --check\n"]
        self.assertEqual(set(re.findall(r"^\w+", checked, re.M)) - {"optional"}, {"ok"}, checked)
        self.assertIn("auth=", next(text for command, text in printed.items() if command.startswith("journalctl")))


if __name__ == "__main__":
    unittest.main()
