"""Each folder in examples/ has a configuration that `mailrace check` accepts and that works: it is
started with its paths, ports, host names and certificates replaced, and a message is sent through
it.
"""

import base64
import pathlib
import re
import shutil
import smtplib
import ssl
import subprocess
import unittest

from harness import Client, await_messages, await_that, folder, make_message
from hosts import Host
from ldap_server import LdapServer, users
from peers import people
from peers.mailrace import ROOT
from test_tls import TlsMailrace, issue, unverified_context

EXAMPLES = ROOT / "examples"
_ADDRESS = re.compile(r'^address = "[^"]*"', re.M)


def path(argument):
    """The address in an argument of MAIL or RCPT."""
    return re.search(r"<([^>]*)>", argument)[1]


class ExampleMailrace(TlsMailrace):
    """A server with an example configuration, copied to a folder of the test."""

    def __init__(self, at, role, replaced=(), added="", moved_to="example.org"):
        super().__init__(at)
        etc = self.folder / "etc"
        shutil.copytree(EXAMPLES / role, etc)
        issue(etc, "own", "mx1.example.org")
        for table in etc.iterdir():
            table.write_text(table.read_text().replace("@example.org", f"@{moved_to}"))
        text = (etc / "mailrace.toml").read_text()
        text = _ADDRESS.sub('address = "127.0.0.1:0"', text)
        text = text.replace('user = "mailrace"', self._user())
        text = text.replace("fullchain.pem", "own.pem").replace("privkey.pem", "own.key")
        text = text.replace("/etc/mailrace", str(etc)).replace("/var/lib/mailrace", str(self.data))
        for old, new in replaced:
            if old not in text:
                raise AssertionError(f"{role} has no {old}")
            text = text.replace(old, new)
        self.config.write_text(text + added)

    def check(self):
        """The output of `mailrace check`."""
        argv = [str(self.binary), "check", "--config", str(self.config)]
        return subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=60)


class Examples(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        (self.folder / "issued").mkdir()

    def start(self, role, **named):
        """The server of an example that `check` has accepted."""
        server = ExampleMailrace(self.folder, role, **named)
        self.addCleanup(server.stop)
        done = server.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        server.start()
        return server

    def host(self, **named):
        """A host that receives mail; it ends before the servers, so that none waits for it."""
        host = Host(**named)
        self.addCleanup(host.stop)
        return host

    def everything_to(self, host):
        """A route for all domains."""
        return f'\n[[route]]\ndomain = "*"\nnext_hop = "{host.target}"\n'

    def client(self, server):
        client = Client(server.ports["smtp"])
        self.addCleanup(client.__exit__)
        client.greet()
        return client

    def awaited(self, host, count, server):
        return await_that(lambda: len(host.messages) >= count and host.messages, f"{count} messages", server)

    def test_every_example_is_tested(self):
        roles = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
        # Those in compare/ are for `mailrace bench compare`: test_compare.py.
        self.assertEqual(roles - {"compare"}, {"mx-ldap", "relay", "null-client", "submission", "mass-sender"})

    def test_an_mx_with_ldap_delivers_to_users_of_the_directory(self):
        directory = LdapServer(users(1, 2, 3))
        self.addCleanup(directory.stop)
        password = self.folder / "ldap.password"
        password.write_text("secret\n")
        replaced = [
            ('["ldaps://ldap1.example.org", "ldaps://ldap2.example.org"]', f'"ldap://127.0.0.1:{directory.port}"'),
            (f'ca_file = "{self.folder}/mailrace/etc/ldap-ca.pem"\n', ""),
            (f"{self.folder}/mailrace/etc/ldap.password", str(password)),
            ("example.org", people.DOMAIN),
        ]
        server = self.start("mx-ldap", replaced=replaced, moved_to=people.DOMAIN)
        client = self.client(server)
        self.assertEqual(client.envelope("user4@bench.test").code, 550)
        client.say("RSET")
        self.assertEqual(client.deliver(make_message("x"), "user3@bench.test", "sales@bench.test").code, 250)
        for user in ("user1", "user2", "user3"):
            await_messages(server, user, 1)
        self.assertTrue(all(search.base == "ou=people,dc=example,dc=org" for search in directory.searches))

    def test_a_relay_passes_mail_in_and_out_and_nothing_else(self):
        inside, outside = self.host(), self.host()
        # The client of the test is internal only if the network is configured so.
        replaced = [("mail.internal.example.org:25", inside.target), ("10.0.0.0/24", "127.0.0.9/32")]
        server = self.start("relay", replaced=replaced, added=self.everything_to(outside))
        client = self.client(server)
        self.assertEqual(client.envelope("nobody@example.org").code, 550)
        client.say("RSET")
        self.assertEqual(client.envelope("victim@elsewhere.example").code, 550)
        client.say("RSET")
        self.assertEqual(client.deliver(make_message("in"), "user1@example.org").code, 250)
        self.assertEqual(len(self.awaited(inside, 1, server)), 1)
        with Client(server.ports["smtp"], source="127.0.0.9") as friend:
            friend.greet()
            self.assertEqual(friend.deliver(make_message("out"), "you@elsewhere.example").code, 250)
        self.assertEqual(len(self.awaited(outside, 1, server)), 1)

    def test_a_null_client_sends_all_mail_to_its_relay(self):
        chain, key = issue(self.folder / "issued", "relay", "relay.example.org")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        relay = self.host(tls=context)
        server = self.start("null-client", replaced=[("relay.example.org:25", relay.target)])
        client = self.client(server)
        self.assertEqual(client.deliver(make_message("x"), "you@elsewhere.example", "root@web1.example.org").code, 250)
        recipients = {path(to) for one in self.awaited(relay, 2, server) for to in one.recipients}
        self.assertEqual(recipients, {"you@elsewhere.example", "admin@example.org"})
        self.assertTrue(all(one.session.is_secure for one in relay.messages))
        client.say("RSET")
        self.assertEqual(client.envelope("nobody@web1.example.org").code, 550)

    def test_users_submit_with_their_password_and_their_own_addresses(self):
        mx, internet = self.host(), self.host()
        replaced = [("mx1.example.org:25", mx.target)]
        server = self.start("submission", replaced=replaced, added=self.everything_to(internet))
        implicit, starttls = server.at.values()
        with smtplib.SMTP_SSL("127.0.0.1", implicit, context=unverified_context()) as client:
            client.login("bob", "change-me")
            client.sendmail("bob@example.org", ["carol@example.org", "you@elsewhere.example"], make_message("x"))
            with self.assertRaises(smtplib.SMTPSenderRefused):
                client.sendmail("carol@example.org", ["you@elsewhere.example"], make_message("x"))
        for host in (mx, internet):
            self.assertIn(b"Message-ID: ", self.awaited(host, 1, server)[0].content)
        with smtplib.SMTP("127.0.0.1", starttls) as client:
            client.starttls(context=unverified_context())
            client.ehlo()
            code, _ = client.docmd("AUTH", "PLAIN " + base64.b64encode(b"\0bob\0wrong").decode())
            self.assertEqual(code, 535)
            self.assertEqual(client.docmd("MAIL", "FROM:<bob@example.org>")[0], 530)

    def test_a_bulk_sender_sends_each_recipient_a_separate_message_and_gets_the_bounces(self):
        provider = self.host()
        # The machine may be busy during tests.
        replaced = [("10.0.0.0/24", "127.0.0.0/8"), ("queue_only_above = 20.0", "queue_only_above = 1000.0")]
        server = self.start("mass-sender", replaced=replaced, added=self.everything_to(provider))
        client = self.client(server)
        mailing = b"List-Id: <news.example.org>\r\n" + make_message("news")
        to = [f"user{n}@dest.example" for n in range(3)]
        self.assertEqual(client.deliver(mailing, *to, sender="news@example.org").code, 250)
        senders = {path(one.sender) for one in self.awaited(provider, 3, server)}
        self.assertEqual(senders, {f"news+user{n}=dest.example@example.org" for n in range(3)})
        self.assertEqual(client.deliver(make_message("bounce"), min(senders), sender="").code, 250)
        await_messages(server, "news", 1, domain="example.org")


if __name__ == "__main__":
    unittest.main()
