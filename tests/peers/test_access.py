"""Access rules: each stage, tables and DNS lists that answer or fail, mail on hold, and the client
address behind a load balancer (PROXY) or a proxy (XCLIENT). Each test uses its own client address.
"""

import base64
import json
import pathlib
import socket
import struct
import subprocess
import unittest

from harness import Client, ServerCase, await_that, folder, make_message
from name_server import NameServer
from outbound import metrics
from peers.mailrace import Mailrace

FRIEND, REFUSED, DEFERRED, LISTED, UNKNOWN, SOLD, BALANCER, PROXY = (f"127.0.0.{number}" for number in range(11, 19))

RULES = f"""
[[table]]
name = "words"
type = "text"
path = "{{words}}"

[[access]]
name = "friend"
clients = ["{FRIEND}"]
action = "accept"

[[access]]
name = "not from here"
clients = ["{REFUSED}", "192.0.2.66"]
action = "refuse"
reply = "554 5.7.1 not from here"

[[access]]
clients = ["{DEFERRED}"]
action = "defer"

[[access]]
name = "listed"
dnsbl = {{{{ zone = "list.test", codes = ["127.0.0.2/31"] }}}}
action = "refuse"

[[access]]
name = "dynamic"
helos = ["*.dynamic.test"]
action = "refuse"

[[access]]
name = "held"
senders = ["hold@client.test"]
action = "hold"

[[access]]
name = "words"
recipients_in = "words"
action = "table"

[dns]
servers = ["{{servers}}"]
timeout = "1s"
attempts = 1

[smtp]
xclient_from = ["{PROXY}"]

[[listener]]
protocol = "submission"
address  = "127.0.0.1:0"

[[table]]
name = "logins"
type = "static"
values = ["{{{{PLAIN}}}}secret"]

[auth]
passwords  = "logins"
clear_text = true
"""
WORDS = "carol@bench.test REJECT carol has moved, ask bob\ndave@bench.test WHATEVER\n"


def reversed_(address, zone="list.test"):
    return ".".join(reversed(address.split("."))) + "." + zone


class Access(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.names = NameServer()
        cls.addClassCleanup(cls.names.stop)
        cls.names.a(reversed_(LISTED), "127.0.0.3")
        cls.names.a(reversed_("192.0.2.77"), "127.0.0.2")
        cls.names.a(reversed_(SOLD), "203.0.113.1")
        cls.names.broken.add(reversed_(UNKNOWN))
        words = pathlib.Path(cls.folder.name) / "words"
        words.write_text(WORDS)
        words.chmod(0o644)
        extra = RULES.format(words=words, servers=cls.names.target)
        cls.server = Mailrace(
            pathlib.Path(cls.folder.name), users=["alice", "bob", "carol", "dave", "erin"], extra=extra
        )
        text = cls.server.config.read_text()
        listener = 'address  = "127.0.0.1:0"'
        assert listener in text
        cls.server.config.write_text(text.replace(listener, f'{listener}\nproxy_from = ["{BALANCER}"]'))
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def first_line(self, source):
        with Client(self.server.port, source=source) as client:
            reply = client.read()
            if reply.code != 220:
                self.assertTrue(client.is_closed())
            return reply

    def run_mailrace(self, *words):
        argv = [str(self.server.binary), *words, "--config", str(self.server.config)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout

    def test_a_client_is_refused_or_deferred_instead_of_the_banner(self):
        self.assertEqual(repr(self.first_line(REFUSED)), "554 5.7.1 not from here")
        self.assertTrue(self.first_line(DEFERRED).is_a(421, "4.7.1"))
        with Client(self.server.port, source=REFUSED) as client:
            client.write(b"EHLO client.test\r\n" * 100)
            self.assertEqual(repr(client.read()), "554 5.7.1 not from here")
            with self.assertRaises(EOFError, msg="the connection must end without a reset"):
                client.read()
        self.assertEqual(self.first_line("127.0.0.1").code, 220)

    def test_a_listed_client_gets_the_name_of_the_list(self):
        self.assertEqual(repr(self.first_line(LISTED)), f"554 5.7.1 {LISTED} is listed by list.test")

    def test_a_user_may_send_from_a_listed_address_but_not_from_a_refused_one(self):
        submission = self.server.ports["submission"]
        with Client(submission, source=LISTED) as client:
            client.greet()
            self.assertEqual(client.say("MAIL FROM:<bob@bench.test>").code, 530)
            words = base64.b64encode(b"\0bob\0secret").decode()
            self.assertEqual(client.say(f"AUTH PLAIN {words}").code, 235)
            self.assertEqual(client.envelope("someone@elsewhere.test", sender="bob@bench.test").code, 250)
            self.assertEqual(client.say("RSET").code, 250)
            self.assertEqual(client.envelope("carol@bench.test", sender="bob@bench.test").code, 550)
        with Client(submission, source=REFUSED) as client:
            self.assertEqual(repr(client.read()), "554 5.7.1 not from here")
        # A friend is exempt from rules, not from the login.
        with Client(submission, source=FRIEND) as client:
            client.greet()
            self.assertEqual(client.say("MAIL FROM:<bob@bench.test>").code, 530)

    def test_a_list_that_fails_refuses_no_client(self):
        for source in (UNKNOWN, SOLD):
            self.assertEqual(self.first_line(source).code, 220)
        self.assertGreaterEqual(metrics(self.server)["mailrace_access_lists_unanswered_total"], 2)
        self.assertIn('mailrace_table_requests_total{table="list.test"}', metrics(self.server))
        said = self.server.table("stats", "list.test", "--json")
        self.assertIn('"type":"dnsbl"', said.stdout, said.stderr)
        self.assertNotEqual(self.server.table("stats", "no-list.test").returncode, 0)

    def test_a_helo_name_is_refused_but_not_for_a_friend(self):
        with Client(self.server.port) as client:
            client.read()
            for name in ("a.dynamic.test", "a.DYNAMIC.test", "a.dynamic.test."):
                self.assertTrue(client.say(f"EHLO {name}").is_a(550, "5.7.1"))
            self.assertEqual(client.say("MAIL FROM:<a@client.test>").code, 503)
            self.assertEqual(client.say("EHLO a.static.test").code, 250)
        with Client(self.server.port, source=FRIEND) as client:
            client.read()
            self.assertEqual(client.say("EHLO a.dynamic.test").code, 250)
            self.assertEqual(client.envelope("carol@bench.test").code, 250)

    def test_a_table_gives_the_action_and_an_unknown_action_defers(self):
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(repr(client.envelope("carol@bench.test")), "550 5.7.1 carol has moved, ask bob")
            self.assertTrue(client.say("RCPT TO:<dave@bench.test>").is_a(451, "4.3.0"))
            meant = client.say("RCPT TO:<carol@[127.0.0.1]>")
            self.assertEqual(repr(meant), "550 5.7.1 carol has moved, ask bob")
            self.assertEqual(client.say("RCPT TO:<alice@bench.test>").code, 250)

    def test_mail_is_held_on_arrival_and_released(self):
        with Client(self.server.port) as client:
            client.greet()
            reply = client.deliver(make_message("held"), "erin@bench.test", sender="hold@client.test")
            self.assertEqual(reply.code, 250)
            # Mail that arrives later and is not held has been delivered before.
            self.assertEqual(client.deliver(make_message("free"), "erin@bench.test").code, 250)
        self.assertEqual(len(self.await_messages("erin", 1)), 1)
        listed = self.run_mailrace("queue", "list", "--sender", "hold@client.test", "--json")
        self.assertEqual([json.loads(line)["state"] for line in listed.splitlines()], ["held"])
        self.run_mailrace("queue", "release", "--sender", "hold@client.test")
        self.assertEqual(len(self.await_messages("erin", 2)), 2)

    def test_explain_shows_the_decisions_of_rules(self):
        told = self.run_mailrace(
            "explain", "carol@bench.test", "--client", "192.0.2.1", "--helo", "x.test", "--sender", "a@b.test"
        )
        self.assertIn('"not from here"', told)
        self.assertIn("refuse: 550 5.7.1 carol has moved, ask bob", told)
        told = self.run_mailrace("explain", "carol@bench.test", "--client", "192.0.2.77")
        self.assertIn("192.0.2.77 is listed by list.test", told)
        self.assertNotIn("relay", told)
        told = self.run_mailrace("explain", "eve@elsewhere.test", "--client", "192.0.2.1")
        self.assertIn("a client at 192.0.2.1 may not relay without login: 550 5.7.1 at RCPT", told)

    def test_behind_a_load_balancer_the_address_in_its_header_counts(self):
        fields = socket.inet_aton("192.0.2.66") + socket.inet_aton("192.0.2.5") + struct.pack("!2H", 4711, 25)
        v2 = b"\r\n\r\n\0\r\nQUIT\n" + struct.pack("!2BH", 0x21, 0x11, len(fields) + 4) + fields + b"\x04\0\x01x"
        for header in (b"PROXY TCP4 192.0.2.66 192.0.2.5 4711 25\r\n", v2):
            with Client(self.server.port, source=BALANCER) as client:
                client.write(header)
                self.assertEqual(repr(client.read()), "554 5.7.1 not from here")
        local = b"\r\n\r\n\0\r\nQUIT\n" + struct.pack("!2BH", 0x20, 0, 0)
        with Client(self.server.port, source=BALANCER) as client:
            client.write(local)
            client.greet()
        with Client(self.server.port, source=BALANCER) as client:
            client.write(b"PROXY TCP6 2001:db8::1 ::1 4711 25\r\n")
            client.greet()
            self.assertEqual(client.deliver(make_message("proxied"), "bob@bench.test").code, 250)
        found = self.await_messages("bob", 1)[0].read_bytes()
        self.assertIn(b"([IPv6:2001:db8::1])", found)

    def is_disconnection_logged(self):
        """Connects as the load balancer without a header; returns whether the log has a line about it."""
        with Client(self.server.port, source=BALANCER) as client:
            client.write(b"EHLO client.test\r\n")
            with self.assertRaises((EOFError, ConnectionResetError)):
                client.read()
        return "PROXY header missing" in self.server.log_tail()

    def test_a_load_balancer_without_a_header_is_disconnected_and_other_clients_need_none(self):
        # Such lines are throttled, also by those that other tests cause: so it connects until one is logged.
        await_that(self.is_disconnection_logged, "a line of the log", self.server)
        with Client(self.server.port) as client:
            client.read()
            self.assertEqual(client.say("PROXY TCP4 192.0.2.1 192.0.2.5 1 2").code, 500)

    def test_only_a_configured_proxy_may_use_xclient(self):
        with Client(self.server.port, source=PROXY) as client:
            self.assertIn("XCLIENT NAME ADDR", client.greet().text)
            self.assertEqual(client.say("XCLIENT ADDR=192.0.2.1 HELO=real.test NAME=[UNAVAILABLE]").code, 220)
            self.assertEqual(client.say("EHLO proxy.test").code, 250)
            # It is no longer in the relay networks.
            self.assertEqual(client.envelope("someone@elsewhere.test").code, 550)
            self.assertEqual(client.say("RSET").code, 250)
            self.assertEqual(client.deliver(make_message("by proxy"), "alice@bench.test").code, 250)
            # From here on the commands may come from the client itself.
            self.assertTrue(client.say("XCLIENT ADDR=127.0.0.1").is_a(550, "5.7.0"))
            self.assertNotIn("XCLIENT", client.say("EHLO client.test").text)
        with Client(self.server.port, source=PROXY) as client:
            client.greet()
            self.assertEqual(client.say("XCLIENT HELO=real.test").code, 220)
            self.assertEqual(repr(client.say("XCLIENT ADDR=192.0.2.66")), "554 5.7.1 not from here")
            self.assertTrue(client.is_closed())
        found = self.await_messages("alice", 1)[0].read_bytes()
        self.assertIn(b"Received: from real.test ([192.0.2.1])", found)
        with Client(self.server.port) as client:
            self.assertNotIn("XCLIENT", client.greet().text)
            self.assertTrue(client.say("XCLIENT ADDR=192.0.2.1").is_a(550, "5.7.0"))

    def test_swaks_uses_xclient(self):
        argv = ["swaks", "--server", "127.0.0.1", "--port", str(self.server.port), "--local-interface", PROXY,
                "--xclient-addr", "192.0.2.77", "--xclient-helo", "real.test", "--from", "a@client.test",
                "--to", "alice@bench.test"]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        self.assertIn("192.0.2.77 is listed by list.test", done.stdout)


if __name__ == "__main__":
    unittest.main()
