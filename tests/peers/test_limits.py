"""Limits over time, greylisting, checks of names, and the delay before the greeting: what clients get,
what a reload and a restart keep, and what a thousand waiting clients cost. Clients come through a
balancer, so that each has an address of its own.
"""

import base64
import pathlib
import re
import resource
import subprocess
import time
import unittest

from harness import Client, ServerCase, await_that, folder, make_message
from name_server import NameServer
from outbound import metrics
from peers.mailrace import LOGINS, Mailrace, listener

BALANCER = "127.0.0.17"
LISTENER = 'address  = "127.0.0.1:0"'

LIMITS = f"""
{LOGINS}
{{submission}}
[[limit]]
name = "users"
by = "user"
messages = "2/1h"

[[limit]]
name = "clients"
by = "client"
recipients = "3/1h"
users = false
exempt = ["203.0.113.0/24"]

[[limit]]
name = "senders"
by = "sender"
bytes = "10KiB/1h"

[greylist]
delay = "1s"
exempt = ["127.0.0.0/8", "203.0.113.0/24", "198.51.100.0/24"]
exempt_recipients = ["bob@bench.test"]
"""

NAMES = """
[[access]]
name = "unnamed"
reverse_name = ["missing", "unconfirmed"]
action = "defer"

[[access]]
name = "odd"
helo_is = ["invalid", "wrong_address", "own", "unknown"]
action = "refuse"

[[access]]
name = "domains"
rhsbl = {{ zone = "dbl.test", of = ["sender", "helo", "client_name"] }}
action = "refuse"

[dns]
servers = ["{servers}"]
timeout = "1s"
attempts = 1
"""


def proxied(server, address):
    """A client with this address, as the balancer says."""
    client = Client(server.port, source=BALANCER)
    client.write(f"PROXY TCP4 {address} 192.0.2.5 4711 25\r\n".encode())
    return client


def change_listener(server, *lines):
    """Adds lines to the section of the SMTP listener."""
    text = server.config.read_text()
    assert text.count(LISTENER) >= 1
    server.config.write_text(text.replace(LISTENER, "\n".join((LISTENER, *lines)), 1))


class Limits(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        extra = LIMITS.format(submission=listener("submission"), PLAIN="{PLAIN}")
        cls.server = Mailrace(pathlib.Path(cls.folder.name), users=["alice", "bob"], extra=extra)
        change_listener(cls.server, f'proxy_from = ["{BALANCER}"]')
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def login(self, user):
        client = Client(self.server.ports["submission"])
        client.greet()
        words = base64.b64encode(f"\0{user}\0secret".encode()).decode()
        self.assertEqual(client.say(f"AUTH PLAIN {words}").code, 235)
        return client

    def test_a_user_has_an_allowance_that_a_reload_keeps(self):
        with self.login("alice") as client:
            for number in range(2):
                reply = client.deliver(make_message(f"{number}"), "bob@bench.test", sender="alice@bench.test")
                self.assertEqual(reply.code, 250)
            reply = client.say("MAIL FROM:<alice@bench.test>")
            self.assertRegex(repr(reply), r"^450 4\.7\.1 Too many messages by this user \(limit users\), try again in \d+ s")
        text = self.server.config.read_text()
        self.server.config.write_text(text.replace('"2/1h"', '"2/1h"\nkeys = 100'))
        argv = [str(self.server.binary), "reload", "--config", str(self.server.config)]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        with self.login("ALICE") as client:
            self.assertTrue(client.say("MAIL FROM:<alice@bench.test>").is_a(450, "4.7.1"))
        with self.login("bob") as client:
            self.assertEqual(client.say("MAIL FROM:<bob@bench.test>").code, 250)
        told = metrics(self.server)
        self.assertGreaterEqual(told['mailrace_limit_refusals_total{limit="users",of="messages"}'], 2)
        self.assertGreaterEqual(told['mailrace_limit_keys{limit="users",of="messages"}'], 2)
        await_that(lambda: 'rule="limit users"' in self.server.log_tail(1000), "the limit in the log", self.server)

    def test_a_client_may_name_so_many_recipients_in_all_its_sessions(self):
        for expected in ([250, 250], [250, 452]):
            with proxied(self.server, "198.51.100.7") as client:
                client.greet()
                client.say("MAIL FROM:<a@client.test>")
                self.assertEqual([client.say("RCPT TO:<alice@bench.test>").code for _ in expected], expected)
                self.assertEqual(client.say("RCPT TO:<nobody@bench.test>").code, 550, "unknown recipients cost nothing")
        with proxied(self.server, "203.0.113.7") as client:
            client.greet()
            client.say("MAIL FROM:<a@client.test>")
            self.assertEqual({client.say("RCPT TO:<alice@bench.test>").code for _ in range(9)}, {250})

    def test_bytes_are_refused_before_they_come_if_the_client_tells_the_size(self):
        with proxied(self.server, "203.0.113.8") as client:
            client.greet()
            message = make_message("large", "x" * 70 + "\r\n" * 4000)
            sender = "much@client.test"
            self.assertEqual(client.deliver(message, "bob@bench.test", sender=sender).code, 250)
            self.assertTrue(client.say(f"MAIL FROM:<{sender}> SIZE=9000").is_a(452, "4.7.1"))
            self.assertTrue(client.say(f"MAIL FROM:<{sender}> SIZE=90000").is_a(552, "5.3.4"))
            self.assertTrue(client.deliver(message, "bob@bench.test", sender=sender).is_a(452, "4.7.1"))
            self.assertEqual(client.deliver(message, "bob@bench.test", sender="else@client.test").code, 250)

    def test_an_unknown_sender_waits_and_a_restart_keeps_who_is_known(self):
        def send(address, recipient="alice@bench.test", sender="list-17@client.test"):
            with proxied(self.server, address) as client:
                client.greet()
                client.say(f"MAIL FROM:<{sender}>")
                return client.say(f"RCPT TO:<{recipient}>")

        self.assertEqual(repr(send("192.0.2.1")), "450 4.7.1 Greylisted, try again in 1 seconds")
        self.assertEqual(send("192.0.2.1", "bob@bench.test").code, 250)
        self.assertEqual(send("192.0.2.1", "nobody@bench.test").code, 550)
        await_that(lambda: send("192.0.2.2", sender="list-18@client.test").code == 250, "the delay", self.server)
        self.assertEqual(metrics(self.server)['mailrace_greylist_entries{of="passed"}'], 1)
        greylist = self.server.data / "greylist"
        await_that(lambda: greylist.exists() and "\np " in greylist.read_text(), "the file", self.server)
        self.assertNotIn("bench.test", greylist.read_text())
        self.server.terminate()
        with greylist.open("ab") as file:
            file.write(b"\0\0garbage\np 0123")
        self.server.start()
        self.assertIn("left out 2 damaged lines", self.server.log_tail(1000))
        self.assertEqual(send("192.0.2.3", sender="list-19@client.test").code, 250)
        self.assertEqual(metrics(self.server)['mailrace_greylist_total{result="known"}'], 1)


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.names = NameServer()
        cls.addClassCleanup(cls.names.stop)
        cls.names.a("good.test", "192.0.2.1")
        cls.names.mx("mailed.test", 10, "good.test")
        cls.names.ptr("192.0.2.1", "good.test")
        cls.names.ptr("192.0.2.2", "good.test")
        cls.names.broken.add("4.2.0.192.in-addr.arpa")
        cls.names.a("bad.test.dbl.test", "127.0.1.2")
        cls.names.a("spam.test", "192.0.2.5")
        cls.names.ptr("192.0.2.5", "spam.test")
        cls.names.a("spam.test.dbl.test", "127.0.1.2")
        extra = NAMES.format(servers=cls.names.target)
        cls.server = Mailrace(pathlib.Path(cls.folder.name), users=["alice"], extra=extra)
        change_listener(cls.server, f'proxy_from = ["{BALANCER}"]')
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def banner(self, address):
        with proxied(self.server, address) as client:
            return client.read()

    def test_a_client_without_a_confirmed_name_is_deferred(self):
        self.assertEqual(self.banner("192.0.2.1").code, 220)
        for address in ("192.0.2.2", "192.0.2.3"):
            self.assertTrue(self.banner(address).is_a(421, "4.7.1"), address)
        self.assertTrue(self.banner("192.0.2.4").is_a(451, "4.3.0"), "no answer of the DNS is no proof")

    def test_faults_of_the_greeting_are_refused(self):
        with proxied(self.server, "192.0.2.1") as client:
            client.read()
            for name in ("a..b", "[192.0.2.9]", "mx.bench.test", "MX.bench.test.", "nowhere.test", "192.0.2.9"):
                self.assertTrue(client.say(f"EHLO {name}").is_a(550, "5.7.1"), name)
            for name in ("good.test", "mailed.test", "[192.0.2.1]"):
                self.assertEqual(client.say(f"EHLO {name}").code, 250, name)

    def test_a_listed_domain_is_refused_by_its_name(self):
        with proxied(self.server, "192.0.2.1") as client:
            client.read()
            client.say("EHLO good.test")
            self.assertEqual(repr(client.say("MAIL FROM:<a@bad.test>")), "550 5.7.1 bad.test is listed by dbl.test")
            self.assertEqual(client.say("MAIL FROM:<a@good.test>").code, 250)
        with proxied(self.server, "192.0.2.5") as client:
            client.read()
            client.say("EHLO good.test")
            self.assertEqual(repr(client.say("MAIL FROM:<>")), "550 5.7.1 spam.test is listed by dbl.test")


class Greeting(unittest.TestCase):
    DELAY = 8.0  # in which a thousand connect

    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = Mailrace(pathlib.Path(cls.folder.name), users=["alice"])
        change_listener(cls.server, f'greeting_delay = "{cls.DELAY:.0f}s"', 'greeting_exempt = ["127.0.0.9"]')
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def test_who_waits_is_greeted_after_the_delay_and_the_exempt_at_once(self):
        begun = time.monotonic()
        with Client(self.server.port, source="127.0.0.9") as client:
            client.greet()
        self.assertLess(time.monotonic() - begun, self.DELAY)
        begun = time.monotonic()
        with Client(self.server.port) as client:
            client.greet()
            self.assertGreaterEqual(time.monotonic() - begun, self.DELAY - 0.1)
            self.assertEqual(client.deliver(make_message("patient"), "alice@bench.test").code, 250)

    def test_who_talks_is_refused_at_once(self):
        begun, before = time.monotonic(), metrics(self.server)["mailrace_early_talkers_total"]
        with Client(self.server.port) as client:
            client.write(b"EHLO bot.test\r\nMAIL FROM:<a@bot.test>\r\n")
            self.assertEqual(repr(client.read()), "554 5.5.1 You talked before the greeting")
            self.assertTrue(client.is_closed())
        self.assertLess(time.monotonic() - begun, self.DELAY)
        self.assertEqual(metrics(self.server)["mailrace_early_talkers_total"], before + 1)
        await_that(lambda: 'rule="early talker"' in self.server.log_tail(1000), "the rule in the log", self.server)

    def test_a_thousand_wait_in_little_memory_and_no_thread(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with Client(self.server.port, source="127.0.0.9") as client:
            client.greet()
        metrics(self.server)  # what the first request of this kind allocates is no memory of clients
        before = self.usage()
        clients = [Client(self.server.port) for _ in range(1000)]
        try:
            await_that(lambda: metrics(self.server)["mailrace_delayed_greetings"] >= 900, "waiting clients", self.server)
            during = self.usage()
            begun = time.monotonic()
            with Client(self.server.port, source="127.0.0.9") as client:
                client.greet()
            self.assertLess(time.monotonic() - begun, self.DELAY, "others wait too")
            self.assertEqual(during["Threads"], before["Threads"])
            self.assertLess(during["RssAnon"] - before["RssAnon"], 8 << 10, "KiB for a thousand clients")
            self.assertEqual({client.read().code for client in clients}, {220})
        finally:
            for client in clients:
                client.__exit__()
        await_that(lambda: metrics(self.server)["mailrace_delayed_greetings"] == 0, "no client waits", self.server)

    def usage(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return {key: int(value) for key, value in re.findall(r"^(Threads|RssAnon):\s+(\d+)", status, re.M)}


class Talker(unittest.TestCase):
    def test_a_rule_can_decide_about_early_talkers(self):
        with folder() as made:
            rule = '\n[[access]]\nname = "talker"\nearly_talker = true\nstage = "rcpt"\naction = "defer"\n'
            server = Mailrace(pathlib.Path(made), users=["alice"], extra=rule)
            change_listener(server, 'greeting_delay = "1s"', 'early_talkers = "accept"')
            self.addCleanup(server.stop)
            server.start()
            with Client(server.port) as client:
                client.write(b"EHLO bot.test\r\n")
                self.assertEqual([client.read().code, client.read().code], [220, 250])
                self.assertTrue(client.envelope("alice@bench.test").is_a(450, "4.7.1"))
            with Client(server.port) as client:
                client.greet()
                self.assertEqual(client.envelope("alice@bench.test").code, 250)


if __name__ == "__main__":
    unittest.main()
