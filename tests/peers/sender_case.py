"""A server that checks who sent its mail, with a DNS of our own and keys for dkimpy: shared by the tests of incoming
mail."""

import base64
import pathlib
import re
import subprocess

from harness import Client, ServerCase, await_that, folder
from name_server import NameServer
from peers.mailrace import Mailrace

ID = "mx.bench.test"
PASSED, FAILED = "127.0.0.21", "127.0.0.22"  # clients, by SPF of good.test and strict.test
RELAYED = "127.0.0.1"  # in a relay network

SETTINGS = """
[sender_auth]
spf = "{spf}"
dkim = "observe"
dmarc = "{dmarc}"
arc = "observe"
iprev = "observe"
trusted_sealers = ["list.test"]
time = "30s"
{more}

[dns]
servers = ["{servers}"]
timeout = "10s"
attempts = 1
"""
POLICIES = {"strict.test": "p=reject", "soft.test": "p=quarantine", "good.test": "p=none", "slow.test": "p=reject"}


class Keys:
    """A key for each algorithm, and what the DNS says of it."""

    def __init__(self, in_folder):
        self.rsa = in_folder / "rsa.pem"
        argv = ["openssl", "genrsa", "-traditional", "-out", str(self.rsa), "2048"]
        subprocess.run(argv, check=True, capture_output=True)
        argv = ["openssl", "rsa", "-in", str(self.rsa), "-pubout", "-outform", "DER"]
        public = subprocess.run(argv, check=True, capture_output=True).stdout
        self.rsa_record = "v=DKIM1; k=rsa; p=" + base64.b64encode(public).decode()
        # RFC 8463 appendix A.2.
        self.ed25519 = in_folder / "ed25519.key"
        self.ed25519.write_text("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
        self.ed25519_record = "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


def dkimpy(message, *words):
    """The message with what dkimpy puts before it."""
    program = pathlib.Path(__file__).with_name("dkimpy_sign.py")
    argv = ["/usr/bin/python3", str(program), *map(str, words)]
    return subprocess.run(argv, input=message, capture_output=True, check=True, timeout=60).stdout


def message(author, subject="hello", before="", body="Hello,  world.\r\n \r\n\t\r\n"):
    """A message whose body ends in lines of white space."""
    return f"{before}From: {author}\r\nTo: alice@bench.test\r\nSubject: {subject}\r\n\r\n{body}".encode()


class SenderAuthCase(ServerCase):
    """A server with these settings."""

    MODES = {"spf": "observe", "dmarc": "observe", "more": ""}
    LIMITS = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        root = pathlib.Path(cls.folder.name)
        cls.keys = Keys(root)
        cls.names = NameServer()
        cls.addClassCleanup(cls.names.stop)
        for domain, policy in POLICIES.items():
            cls.names.txt(f"_dmarc.{domain}", f"v=DMARC1; {policy}")
            cls.names.txt(f"rsa._domainkey.{domain}", cls.keys.rsa_record)
            cls.names.txt(f"ed._domainkey.{domain}", cls.keys.ed25519_record)
        cls.names.txt("rsa._domainkey.list.test", cls.keys.rsa_record)
        cls.names.txt("rsa._domainkey.stranger.test", cls.keys.rsa_record)
        cls.names.txt("good.test", f"v=spf1 ip4:{PASSED} -all")
        cls.names.txt("strict.test", "v=spf1 -all")
        cls.names.ptr(PASSED, "mail.good.test")
        cls.names.a("mail.good.test", PASSED)
        cls.names.broken.update({"_dmarc.broken.test", "rsa._domainkey.broken.test", "broken.test"})
        extra = SETTINGS.format(servers=cls.names.target, **cls.MODES)
        cls.server = Mailrace(root, users=["alice", "bob"], networks=[RELAYED], extra=extra, limits=cls.LIMITS)
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def send(self, content, sender="ann@good.test", source=PASSED):
        """The reply to a message of a stranger."""
        with Client(self.server.port, source=source) as client:
            client.greet()
            return client.deliver(content, "alice@bench.test", sender=sender)

    def stored(self, content, **session):
        """The message as it is stored; its subject tells it from those that still arrive."""
        new = self.server.maildir("alice", "bench.test") / "new"
        before = set(new.iterdir()) if new.is_dir() else set()
        reply = self.send(content, **session)
        self.assertEqual(reply.code, 250, reply)
        subject = re.search(rb"^Subject: [^\r]*", content, re.M).group()

        def arrived():
            files = set(new.iterdir()) - before if new.is_dir() else ()
            return [text for text in map(pathlib.Path.read_bytes, files) if subject in text]

        found = await_that(arrived, "the message", self.server)
        return found[0].decode().replace("\r\n", "\n")

    def results(self, content, **session):
        """Our field in the stored message, in one line; there must be one."""
        header = self.stored(content, **session).split("\n\n")[0]
        unfolded = re.sub(r"\n[ \t]+", " ", header).split("\n")
        # The first line is Return-Path or our field.
        fields = [line for line in unfolded if re.match(f"(?i)authentication-results:.*{re.escape(ID)}", line)]
        self.assertEqual(len(fields), 1, header)
        return fields[0]
