"""Tables other than mailboxes and aliases: local domains, next hops, and queues of senders.

    names          a domain in a table is served like one in the configuration
    next_hops      the table's next hop, that of the closest parent domain, or the next route
    sender_table   the queue of the senders in a table
    places         the path of a mailbox, always below the root
"""

import contextlib
import sqlite3
import unittest

from harness import Client, await_messages, await_that, mail_files
from outbound import OutboundCase, await_event, metrics

TABLE = """
[[table]]
name = "{name}"
type = "text"
path = "{path}"
"""


class ByTable(OutboundCase):
    """A server with text tables."""

    def table(self, name, lines):
        """The section of a table with these lines."""
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod(0o644)
        return TABLE.format(name=name, path=path)

    def refusal(self, server, recipient):
        """The reply to RCPT."""
        with Client(server.port) as client:
            client.greet()
            return client.envelope(recipient)

    def test_a_domain_in_a_table_has_local_mailboxes(self):
        extra = self.table("domains", ["hosted.test yes", "xn--mller-kva.test"])
        extra += self.table("inhabitants", ["dora@hosted.test", "emil@xn--mller-kva.test"])
        extra += '\n[[domain]]\nnames = "domains"\nmailboxes = "inhabitants"\n'
        server = self.start(extra=extra)
        self.send(server, "dora@hosted.test", "Emil@xn--mller-kva.test")
        await_messages(server, "dora", 1, domain="hosted.test")
        await_messages(server, "emil", 1, domain="xn--mller-kva.test")
        self.assertTrue(self.refusal(server, "nobody@hosted.test").is_a(550, "5.1.1"))
        self.assertEqual(metrics(server)['mailrace_outcomes_total{outcome="delivered"}'], 2)

    def test_a_domain_in_a_table_may_be_relayed(self):
        inside = self.host()
        extra = self.table("domains", ["hosted.test"])
        extra += f'\n[transport.inside]\ntype = "smtp"\nnext_hop = "{inside.target}"\n'
        extra += '\n[[domain]]\nnames = "domains"\ntransport = "inside"\n'
        server = self.start(extra=extra)
        self.send(server, "Dora@hosted.test")
        (received,) = self.await_messages(inside, 1, server)
        self.assertEqual(received.recipients, ["TO:<Dora@hosted.test>"])
        self.assertTrue(self.refusal(server, "victim%elsewhere.test@hosted.test").code == 250, "the client is trusted")

    def test_a_table_has_next_hops(self):
        first, second, rest = self.host(), self.host(), self.host()
        extra = self.table("hops", [f"one.test {first.target}", f".above.test {second.target}", "wrong.test a b"])
        extra += '\n[[route]]\ndomain = "*"\nnext_hops = "hops"\n'
        extra += f'\n[[route]]\ndomain = "*"\nnext_hop = "{rest.target}"\n'
        server = self.start(extra=extra)
        recipients = ["a@one.test", "b@x.y.above.test", "c@above.test", "d@other.test", "e@wrong.test"]
        self.send(server, *recipients)
        for host, taken in ((first, ["a@one.test"]), (second, ["b@x.y.above.test"])):
            (received,) = self.await_messages(host, 1, server)
            self.assertEqual(received.recipients, [f"TO:<{recipient}>" for recipient in taken])
        messages = self.await_messages(rest, 2, server)
        recipients = sorted(recipient for received in messages for recipient in received.recipients)
        self.assertEqual(recipients, ["TO:<c@above.test>", "TO:<d@other.test>"])
        event = await_event(server, "deferred", to="<e@wrong.test>")
        self.assertIn("4.3.5 Table 'hops' has an invalid next hop for wrong.test: 'a b'", event.reason)

    def test_a_sender_table_selects_the_queue(self):
        extra = self.table("mailers", ["news@bench.test", "@lists.test"])
        extra += '\n[[queue]]\nname = "mailings"\nconcurrency = 0\nsender_table = "mailers"\n'
        host = self.host()
        extra += f'\n[[route]]\ndomain = "*"\nnext_hop = "{host.target}"\n'
        server = self.start(extra=extra)
        self.send(server, "a@out.test", sender="news@bench.test")
        self.send(server, "b@out.test", sender="any@lists.test")
        self.send(server, "c@out.test", sender="alice@bench.test")
        (received,) = self.await_messages(host, 1, server)
        self.assertEqual(received.recipients, ["TO:<c@out.test>"])
        self.assertEqual(metrics(server)['mailrace_queue_depth{queue="mailings",state="ready"}'], 2)

    def test_a_table_has_the_paths_of_mailboxes(self):
        lines = ["alice@bench.test stores/7/alice/Maildir/", "carol@bench.test ../../carol"]
        extra = self.table("places", lines)
        server = self.configure(extra=extra)
        text = server.config.read_text()
        maildir = 'type = "maildir"\n'
        root = server.data / "stores"
        server.config.write_text(text.replace(maildir, f'{maildir}places = "places"\nroot = "{root}"\n', 1))
        server.start()
        for user in ("alice", "bob", "carol"):
            self.send(server, f"{user}@bench.test")
        await_messages(server, "bob", 1)
        place = root / "stores/7/alice/Maildir/new"
        await_that(lambda: mail_files(place), "a message at the path in the table", server)
        event = await_event(server, "deferred", to="<carol@bench.test>")
        self.assertIn("4.3.5", event.reason)
        self.assertIn("the path of carol@bench.test is '../../carol', which is not below", event.reason)
        self.assertEqual(list(root.rglob("carol")), [])

    def test_a_mailbox_without_a_path_does_not_defer_other_recipients_of_the_message(self):
        extra = self.table("places", ["carol@bench.test ../carol", "alice@bench.test a"])
        server = self.configure(extra=extra)
        maildir = 'type = "maildir"\n'
        root = server.data / "stores"
        text = server.config.read_text().replace(maildir, f'{maildir}places = "places"\nroot = "{root}"\n', 1)
        server.config.write_text(text)
        server.start()
        self.send(server, "carol@bench.test", "alice@bench.test", "bob@bench.test")
        await_messages(server, "bob", 1)
        await_that(lambda: mail_files(root / "a/new"), "a message at the path in the table", server)
        await_event(server, "deferred", to="<carol@bench.test>")
        self.assertEqual(metrics(server)['mailrace_outcomes_total{outcome="deferred"}'], 1)

    def test_a_mailbox_with_an_invalid_host_does_not_defer_recipients_with_a_valid_one(self):
        path = self.folder / "hosts.sqlite"

        def execute(statement):
            with contextlib.closing(sqlite3.connect(path)) as database, database:
                database.execute(statement)

        execute("CREATE TABLE hosts (address TEXT, host TEXT)")
        execute("INSERT INTO hosts VALUES ('alice@shared.test', 'a!b'), ('bob@shared.test', 'c!d')")
        path.chmod(0o644)
        extra = f'\n[[table]]\nname = "hosts"\ntype = "sqlite"\npath = "{path}"\n'
        extra += 'query = "SELECT host FROM hosts WHERE address = :key"\n'
        extra += self.table("inhabitants", ["alice@shared.test", "bob@shared.test"])
        extra += '\n[[domain]]\nname = "shared.test"\nmailboxes = "inhabitants"\nhosts = "hosts"\n'
        server = self.start(extra=extra, retry='first = "200ms", factor = 1.0, jitter = 0.0')
        self.send(server, "alice@shared.test", "bob@shared.test")
        event = await_event(server, "deferred", to="<alice@shared.test>")
        self.assertIn("host of alice@shared.test: invalid host 'a!b'", event.reason)
        execute("DELETE FROM hosts WHERE address = 'alice@shared.test'")
        await_messages(server, "alice", 1, domain="shared.test")
        execute("DELETE FROM hosts")
        await_messages(server, "bob", 1, domain="shared.test")
        event = await_event(server, "deferred", to="<bob@shared.test>")
        self.assertIn("host of bob@shared.test: invalid host 'c!d'", event.reason)


if __name__ == "__main__":
    unittest.main()
