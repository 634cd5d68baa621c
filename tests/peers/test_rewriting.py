"""Address rewriting and blind copies: the envelope of all mail, the header of local mail, and tables that lead in
circles or are not there.
"""

import base64
import subprocess
import unittest

from harness import Client, await_messages, await_that, mail_files, make_message
from outbound import await_event, mail_events
from peers.mailrace import LOGINS, Mailrace, listener, route
from test_content import ContentCase

REMOTE = "127.0.0.2"  # no relay network: its header stays as it is


class RewritingCase(ContentCase):
    def table(self, name, text):
        """The section of a text table."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return f'\n[[table]]\nname = "{name}"\ntype = "text"\npath = "{path}"\n'

    def send_from(self, server, message, *recipients, sender="sender@client.test", source="127.0.0.1"):
        with Client(server.port, source=source) as client:
            client.greet()
            return client.deliver(message, *recipients, sender=sender)


class Canonical(RewritingCase):
    def test_recipients_are_rewritten_before_they_are_looked_up(self):
        canonical = "old.name@bench.test alice@bench.test\n@old.test @bench.test\ngone@bench.test nobody@bench.test\n"
        server = self.serve(self.table("canonical", canonical) + '[rewrite]\ncanonical = "canonical"\n')
        self.assertEqual(self.send(server, make_message("one"), "old.name@bench.test").code, 250)
        self.assertEqual(self.send(server, make_message("two"), "bob@old.test").code, 250)
        self.assertTrue(self.send(server, make_message("three"), "gone@bench.test").is_a(550, "5.1.1"))
        self.received(server, "alice")
        self.received(server, "bob")

    def test_circles_end(self):
        canonical = "alice@bench.test bob@bench.test\nbob@bench.test alice@bench.test\n"
        server = self.serve(self.table("canonical", canonical) + '[rewrite]\ncanonical = "canonical"\n')
        self.assertEqual(self.send(server, make_message("one"), "alice@bench.test").code, 250)
        self.received(server, "bob")
        self.assertEqual(mail_files(server.maildir("alice") / "new"), [])

    def test_the_header_of_local_mail_is_rewritten_and_that_of_others_is_not(self):
        canonical = "bob@host.bench.test Bob.B@bench.test\n"
        server = self.serve(
            self.table("canonical", canonical)
            + '[rewrite]\ncanonical = "canonical"\nmasquerade = ["bench.test"]\nmasquerade_exceptions = ["root"]\n'
            + 'header_clients = ["127.0.0.1/32"]\n'
        )
        fields = (
            b"From: \"Bob, B\" <bob@host.bench.test> (home)\r\nTo: carol@host.bench.test,\r\n root@host.bench.test, x@y.test\r\n"
            b"Cc: dave\r\nSubject: bob@host.bench.test\r\n\r\nbob@host.bench.test\r\n"
        )
        sent = {"sender": "bob@host.bench.test"}
        self.assertEqual(self.send_from(server, fields, "alice@bench.test", **sent).code, 250)
        content = self.received(server)
        self.assertIn(b'\nFrom: "Bob, B" <Bob.B@bench.test> (home)\n', content)
        self.assertIn(b"\nTo: carol@bench.test,\n root@host.bench.test, x@y.test\n", content)
        self.assertIn(b"\nCc: dave@bench.test\nSubject: bob@host.bench.test\n\nbob@host.bench.test\n", content)
        self.assertEqual(await_event(server, "received").fields["from"], "<Bob.B@bench.test>")
        self.assertEqual(self.send_from(server, fields, "alice@bench.test", source=REMOTE, **sent).code, 250)
        found = [path.read_bytes().replace(b"\r\n", b"\n") for path in await_messages(server, "alice", 2)]
        self.assertEqual(len([content for content in found if fields.replace(b"\r\n", b"\n") in content]), 1)
        [second] = await_that(lambda: mail_events(server, "received")[1:], "both in the log", server)
        self.assertEqual(second.fields["from"], "<Bob.B@bench.test>")

    def test_the_header_of_users_is_rewritten_where_the_settings_say_so(self):
        canonical = self.table("canonical", "bob@bench.test b@bench.test\n")
        message = b"From: bob@bench.test\r\nSubject: x\r\n\r\nhello\r\n"
        for header_users, expected in (("true", b"From: b@bench.test\n"), ("false", b"From: bob@bench.test\n")):
            with self.subTest(header_users=header_users):
                server = Mailrace(
                    self.folder / header_users, users=["alice"],
                    extra=LOGINS + listener("submission", 'tls = "none"') + canonical
                    + '[rewrite]\ncanonical = "canonical"\nheader_clients = ["192.0.2.0/24"]\n'
                    + f"header_users = {header_users}\n",
                )  # fmt: skip
                self.addCleanup(server.stop)
                server.start()
                with Client(server.ports["submission"]) as client:
                    client.greet()
                    words = base64.b64encode(b"\0ann\0secret").decode()
                    self.assertEqual(client.say(f"AUTH PLAIN {words}").code, 235)
                    reply = client.deliver(message, "alice@bench.test", sender="bob@bench.test")
                    self.assertEqual(reply.code, 250)
                self.assertIn(expected, self.received(server))
                self.assertEqual(await_event(server, "received").fields["from"], "<b@bench.test>")

    def test_each_address_is_rewritten_by_the_tables_for_its_class(self):
        server = self.serve(
            self.table("senders", "bob@host.bench.test B@bench.test\n")
            + self.table("recipients", "old@bench.test alice@bench.test\ncarol@host.bench.test c@z.test\n")
            + self.table("both", "dave@host.bench.test d@bench.test\n")
            + '[rewrite]\nsender_canonical = "senders"\nsender_canonical_classes = ["header_sender"]\n'
            + 'recipient_canonical = "recipients"\nrecipient_canonical_classes = ["envelope_recipient"]\n'
            + 'canonical = "both"\ncanonical_classes = ["header_recipient"]\n'
            + 'masquerade = ["!lab.bench.test", "bench.test"]\nmasquerade_classes = ["header_recipient"]\n'
        )
        message = (
            b"From: bob@host.bench.test\r\nReply-To: dave@host.bench.test\r\n"
            b"To: carol@host.bench.test, dave@host.bench.test\r\n"
            b"Cc: x@lab.bench.test, x@a.lab.bench.test, x@a.bench.test\r\nSubject: x\r\n\r\nhello\r\n"
        )
        self.assertEqual(self.send_from(server, message, "old@bench.test", sender="bob@host.bench.test").code, 250)
        content = self.received(server)
        self.assertIn(b"\nFrom: B@bench.test\nReply-To: dave@host.bench.test\n", content)
        self.assertIn(b"\nTo: carol@bench.test, d@bench.test\n", content)
        self.assertIn(b"\nCc: x@lab.bench.test, x@a.lab.bench.test, x@bench.test\n", content)
        self.assertEqual(await_event(server, "received").fields["from"], "<bob@host.bench.test>")

    def test_mail_of_local_programs_is_rewritten(self):
        server = self.serve(self.table("canonical", "bob@bench.test b@bench.test\n") + '[rewrite]\nsender_canonical = "canonical"\n')
        argv = [str(server.binary), "inject", "-C", str(server.config), "-f", "bob@bench.test", "alice@bench.test"]
        subprocess.run(argv, input=b"From: bob@bench.test\nSubject: x\n\nhello\n", check=True, timeout=60)
        self.assertIn(b"\nFrom: b@bench.test\n", self.received(server))

    def test_a_local_address_may_become_one_elsewhere_and_others_still_need_the_right_to_relay(self):
        server = self.serve(
            self.table("canonical", "alice@bench.test x@away.test\ny@other.test x@away.test\n")
            + '[rewrite]\nrecipient_canonical = "canonical"\n'
            + route("away.test", "[127.0.0.1]:1")
        )
        self.assertEqual(self.send(server, make_message("one"), "alice@bench.test").code, 250)
        await_that(lambda: server.queued() == 1, "the message in the queue", server)
        self.assertIn(self.send(server, make_message("two"), "y@other.test").code, (550, 554))

    def test_a_table_that_is_not_there_defers(self):
        section = '\n[[table]]\nname = "gone"\ntype = "unavailable"\nreason = "test"\n'
        server = self.serve(section + '[rewrite]\nsender_canonical = "gone"\n')
        self.assertTrue(self.send(server, make_message("one")).is_a(451, "4.3.0"))


class Copies(RewritingCase):
    def test_copies_are_made_once(self):
        server = self.serve(
            self.table("senders", "boss@client.test bob@bench.test\nbob@bench.test carol@bench.test\n")
            + self.table("recipients", "alice@bench.test bob@bench.test\nbob@bench.test carol@bench.test\n")
            + '[bcc]\nsender_table = "senders"\nrecipient_table = "recipients"\n'
        )
        sent = {"sender": "boss@client.test"}
        self.assertEqual(self.send_from(server, make_message("one"), "alice@bench.test", **sent).code, 250)
        for user in ("alice", "bob"):
            self.received(server, user)
            self.assertEqual(len(mail_files(server.maildir(user) / "new")), 1, user)
        self.assertEqual(mail_files(server.maildir("carol") / "new"), [])

    def test_all_mail_is_copied_also_that_of_programs(self):
        server = self.serve('[bcc]\nalways = "carol@bench.test"\n')
        self.assertEqual(self.send(server, make_message("one")).code, 250)
        argv = [str(server.binary), "inject", "-C", str(server.config), "alice@bench.test"]
        subprocess.run(argv, input=b"Subject: two\n\nhello\n", check=True, timeout=60)
        await_messages(server, "carol", 2)
        await_messages(server, "alice", 2)


if __name__ == "__main__":
    unittest.main()
