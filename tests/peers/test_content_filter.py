"""A content filter after the queue: all mail goes there first, and what comes back goes on.

    once        one transaction for all recipients; no message is filtered twice
    aliases     expanded before the filter, and not again
    rules       apply to clients, and not to what comes back
    failures    the filter refuses, drops, or is down
    chosen      only the mail for which a policy service answers FILTER goes to a filter
"""

import unittest

from content_filter import MARK, ContentFilter
from harness import await_messages, await_that
from outbound import OutboundCase, await_event, mail_events, text_message
from peers.mailrace import listener, route
from test_filters import PolicyService

SETTINGS = """
[transport.filter]
type = "smtp"
next_hop = "{}"
tls = "never"
xforward = true
probe = {{ failures = 1000 }}

[content_filter]
transport = "filter"

[[access]]
senders = ["refused@client.test"]
action = "refuse"
reply = "550 5.7.1 not you"

[[table]]
name = "aliases"
type = "text"
path = "{}"
"""


class Filtered(OutboundCase):
    """A server with a content filter and a next hop."""

    def setUp(self):
        super().setUp()
        self.filter = self.ending(ContentFilter())
        self.far = self.host()
        aliases = self.folder / "aliases"
        aliases.write_text("team@bench.test team@bench.test, bob@bench.test, x@far.test\n")
        aliases.chmod(0o644)
        settings = SETTINGS.format(self.filter.target, aliases)
        settings += listener("smtp", "from_content_filter = true") + route("far.test", f"[127.0.0.1]:{self.far.port}")
        self.server = self.start(
            extra=settings, aliases="aliases", users=["alice", "bob", "team"], retry='first = "1s", jitter = 0.0'
        )
        self.port_of_return = self.server.all_ports["smtp"][1]
        self.filter.back_to = self.port_of_return

    def test_all_mail_passes_the_filter_once(self):
        self.send(self.server, "bob@bench.test", "alice@bench.test", "y@far.test")
        (filtered,) = await_that(lambda: self.filter.messages, "the message at the filter", self.server)
        self.assertEqual(len(filtered.recipients), 3)
        for user in ("bob", "alice"):
            (path,) = await_messages(self.server, user, 1)
            self.assertEqual(path.read_bytes().count(MARK), 1)
        (relayed,) = self.await_messages(self.far, 1, self.server)
        self.assertEqual((relayed.recipients, relayed.content.count(MARK)), (["TO:<y@far.test>"], 1))
        self.assertEqual(len(self.filter.messages), 1)

    def test_the_filter_is_told_of_the_client(self):
        sent = self.send(self.server, "bob@bench.test", "y@far.test")
        self.await_messages(self.far, 1, self.server)
        (told,) = [line for session in self.filter.host.sessions for line in session.commands if line.startswith("XFORWARD")]
        self.assertEqual(told, f"XFORWARD ADDR=127.0.0.1 HELO=client.test IDENT={sent} SOURCE=REMOTE")
        self.assertNotIn("XFORWARD", [line.split()[0] for session in self.far.sessions for line in session.commands])

    def test_aliases_are_not_expanded_again(self):
        self.send(self.server, "team@bench.test")
        for user in ("team", "bob"):
            self.assertEqual(len(await_messages(self.server, user, 1)), 1)
        self.await_messages(self.far, 1, self.server)
        await_that(lambda: not self.server.queued(), "an empty queue", self.server)
        self.assertEqual([len(await_messages(self.server, user, 1)) for user in ("team", "bob")], [1, 1])
        self.assertEqual(len(self.far.accepted), 1)

    def test_rules_do_not_see_what_comes_back(self):
        with self.assertRaisesRegex(AssertionError, "not you"):
            self.send(self.server, "bob@bench.test", sender="refused@client.test")

    def test_a_filter_can_refuse_and_drop(self):
        self.send(self.server, "bob@bench.test", message=text_message(body="REFUSE\r\n"))
        refused = await_event(self.server, "bounced", to="<bob@bench.test>")
        self.assertEqual(refused.reason, "554 5.7.1 virus found")
        # The notice is not filtered.
        await_messages(self.server, "alice", 1)
        self.send(self.server, "bob@bench.test", message=text_message(body="DROP\r\n"))
        await_event(self.server, "delivered", to="<bob@bench.test>")
        self.assertEqual([len(self.filter.messages), self.server.queued()], [2, 0])

    def test_mail_waits_while_the_filter_is_down(self):
        self.filter.stop()
        self.send(self.server, "bob@bench.test")
        await_event(self.server, "deferred", to="<bob@bench.test>")
        self.assertEqual(mail_events(self.server, "delivered"), [])


class Chosen(OutboundCase):
    """A server without a content filter of its own, and a policy service that chooses one by sender."""

    def setUp(self):
        super().setUp()
        self.filter = self.ending(ContentFilter())
        self.answers = {"alice@bench.test": f"FILTER check:{self.filter.target}", "bob@bench.test": "DUNNO"}
        service = PolicyService(lambda question: self.answers[question["sender"]])
        self.addCleanup(service.close)
        settings = '\n[transport.check]\ntype = "smtp"\ntls = "never"\n' + listener("smtp", "from_content_filter = true")
        settings += f'\n[[policy_service]]\naddress = "127.0.0.1:{service.port}"\nstages = ["mail"]\n'
        self.server = self.start(extra=settings, retry='first = "1s", jitter = 0.0')
        self.filter.back_to = self.server.all_ports["smtp"][1]

    def test_only_mail_that_the_service_chooses_is_filtered(self):
        self.send(self.server, "carol@bench.test", sender="bob@bench.test")
        (path,) = await_messages(self.server, "carol", 1)
        self.assertNotIn(MARK, path.read_bytes())
        self.send(self.server, "carol@bench.test", "bob@bench.test", sender="alice@bench.test")
        (path,) = await_messages(self.server, "bob", 1)
        self.assertEqual(path.read_bytes().count(MARK), 1)
        await_messages(self.server, "carol", 2)
        self.assertEqual([len(message.recipients) for message in self.filter.messages], [2])

    def test_mail_waits_for_a_filter_that_does_not_exist(self):
        self.answers["alice@bench.test"] = "FILTER gone:[127.0.0.1]:10024"
        self.send(self.server, "carol@bench.test", sender="alice@bench.test")
        deferred = await_event(self.server, "deferred", to="<carol@bench.test>")
        self.assertIn("unknown transport", deferred.reason)
        self.answers["alice@bench.test"] = "FILTER"
        with self.assertRaisesRegex(AssertionError, "451 4.7.1"):
            self.send(self.server, "carol@bench.test", sender="alice@bench.test")


if __name__ == "__main__":
    unittest.main()
