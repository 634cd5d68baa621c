"""Outbound delivery: how recipients and messages share transactions and connections, protocol
variants, and required extensions.
"""

import threading
import time
import unittest

import hosts
from harness import Client, await_that, stuffed
from hosts import EXTENSIONS
from outbound import OutboundCase, await_event, mail_events, text_message

ROUTE = '\n[[route]]\ndomain = "{}"\nnext_hop = "{}"\n'


def routed(*hosts_, domain="*.test"):
    """Sections that route a domain to the first host, or d1.test, d2.test ... to one host each."""
    if len(hosts_) == 1:
        return ROUTE.format(domain, _hop(hosts_[0]))
    return "".join(ROUTE.format(f"d{number}.test", _hop(host)) for number, host in enumerate(hosts_, 1))


def _hop(host):
    return host.target if host.path else f"[{host.address}]:{host.port}"


class Transactions(OutboundCase):
    def test_recipients_of_one_destination_leave_in_one_transaction(self):
        host = self.host()
        server = self.start(extra=routed(host))
        self.send(server, "a@one.test", "b@one.test", "c@one.test", "d@two.test")
        messages = self.await_messages(host, 2, server)
        together = sorted(sorted(received.recipients) for received in messages)
        self.assertEqual(together, [["TO:<a@one.test>", "TO:<b@one.test>", "TO:<c@one.test>"], ["TO:<d@two.test>"]])

    def test_a_transaction_has_no_more_recipients_than_the_transport_allows(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp="recipients_per_message = 2")
        self.send(server, *(f"user{number}@one.test" for number in range(5)))
        messages = self.await_messages(host, 3, server)
        self.assertEqual(sorted(len(received.recipients) for received in messages), [1, 2, 2])

    def test_messages_share_a_connection(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp='idle = "30s"')
        self.send_in_turn(server, host, 5)
        self.assertEqual(len(host.sessions), 1)

    def test_a_connection_carries_no_more_messages_than_configured(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp='idle = "30s"\nmessages_per_connection = 2')
        self.send_in_turn(server, host, 5)
        self.assertEqual(len(host.sessions), 3)
        self.assertEqual([session.commands[-1] for session in host.sessions[:2]], ["QUIT", "QUIT"])

    def test_an_idle_connection_is_closed_with_quit(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp='idle = "100ms"')
        self.send_in_turn(server, host, 1)
        await_that(host.sessions[0].ended.is_set, "the end of the connection", server)
        self.assertEqual(host.sessions[0].commands[-1], "QUIT")

    def test_a_connection_that_the_next_hop_closed_causes_no_deferral(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp='idle = "30s"')
        self.send_in_turn(server, host, 1)
        host.sessions[0].close()
        self.send_in_turn(server, host, 1)
        self.assertEqual(len(host.sessions), 2)
        self.assertEqual(mail_events(server, "deferred"), [])

    def test_a_connection_that_the_next_hop_ended_with_421_causes_no_deferral(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp='idle = "30s"')
        self.send_in_turn(server, host, 1)
        host.sessions[0].say("421 4.4.2 you take too long")
        host.sessions[0].close()
        self.send_in_turn(server, host, 1)
        self.assertEqual((len(host.sessions), mail_events(server, "deferred")), (2, []))

    def test_a_server_that_stops_sends_quit(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp='idle = "10m"')
        self.send_in_turn(server, host, 1)
        self.assertEqual(server.terminate(), 0)
        await_that(host.sessions[0].ended.is_set, "the end of the connection", server)
        self.assertEqual(host.sessions[0].commands[-1], "QUIT")

    def test_limits_that_the_next_hop_announces_are_respected(self):
        host = self.host(extensions=(*EXTENSIONS, "LIMITS RCPTMAX=2 MAILMAX=2"))
        server = self.start(extra=routed(host), smtp='idle = "30s"\nconnections = 1')
        self.send(server, *(f"user{number}@one.test" for number in range(5)))
        messages = self.await_messages(host, 3, server)
        self.assertEqual(sorted(len(received.recipients) for received in messages), [1, 2, 2])
        mails = [sum(command.startswith("MAIL") for command in session.commands) for session in host.sessions]
        self.assertEqual(mails, [2, 1])
        self.assertEqual(mail_events(server, "deferred"), [])

    def test_a_next_hop_may_have_its_own_settings(self):
        names = self.names()
        host = self.host("127.0.0.2")
        names.domain("big.test", "127.0.0.2")
        extra = '\n[[next_hop]]\nhost = "*.big.test"\nmessages_per_connection = 1\nrecipients_per_message = 1\n'
        server = self.start(names=names, smtp=f"port = {host.port}", extra=extra)
        self.send(server, "a@big.test", "b@big.test")
        self.await_messages(host, 2, server)
        self.assertEqual(len(host.sessions), 2)

    def test_no_more_connections_than_allowed_are_open_at_once(self):
        go = threading.Event()
        host = self.host(script={"message": hosts.before(go)})
        server = self.start(extra=routed(host), smtp="connections = 3\nconcurrency = { start = 3 }")
        for number in range(20):
            self.send(server, f"user{number}@d{number}.test")
        # The first connection is the only one until it has had its first reply.
        await_that(lambda: host.messages, "a first message", server)
        go.set()
        self.await_messages(host, 20, server)
        self.assertEqual(host.open_most, 3)

    def test_a_rate_limits_messages(self):
        host = self.host()
        server = self.start(extra=routed(host), smtp='rate = "2/s"')
        begin = time.monotonic()
        for number in range(5):
            self.send(server, f"user{number}@one.test")
        self.await_messages(host, 5, server)
        self.assertGreaterEqual(time.monotonic() - begin, 1.0, "five messages at two per second take more than a second")

    def test_each_recipient_gets_the_outcome_that_the_next_hop_gave_it(self):
        later = hosts.once("450 4.2.1 busy")
        replies = {"TO:<never@one.test>": lambda *_: "550 5.1.1 who", "TO:<later@one.test>": later}
        host = self.host(script={"RCPT": lambda session, argument: replies.get(argument, _kind)(session, argument)})
        server = self.start(extra=routed(host), retry='first = "200ms", jitter = 0.0')
        self.send(server, "never@one.test", "later@one.test", "now@one.test")
        first, second = self.await_messages(host, 2, server)
        self.assertEqual((first.recipients, second.recipients), (["TO:<now@one.test>"], ["TO:<later@one.test>"]))
        self.assertEqual(await_event(server, "deferred", to="<later@one.test>").reason, "450 4.2.1 busy")
        self.assertEqual(await_event(server, "bounced", to="<never@one.test>").reason, "550 5.1.1 who")
        for recipient in ("<now@one.test>", "<later@one.test>"):
            await_event(server, "delivered", to=recipient)

    def test_aliases_to_other_domains_are_forwarded(self):
        host, table = self.host(), self.folder / "aliases"
        table.write_text("team@lists.test alice@bench.test, bob@one.test\n")
        extra = f'\n[[table]]\nname = "aliases"\ntype = "text"\npath = "{table}"\n'
        extra += '\n[[domain]]\nname = "lists.test"\naliases = "aliases"\ntransport = "maildir"\n'
        server = self.start(extra=routed(host) + extra, networks=[])
        self.send(server, "team@lists.test", sender="stranger@client.test")
        (received,) = self.await_messages(host, 1, server)
        self.assertEqual(received.recipients, ["TO:<bob@one.test>"])
        await_event(server, "delivered", to="<alice@bench.test>", transport="maildir")

    def send_in_turn(self, server, host, count):
        """Sends messages one after the other, each after the outcome of the one before is known."""
        for _ in range(count):
            before = len(host.accepted)
            identity = self.send(server, "user@one.test")
            await_event(server, "delivered", id=identity)
            self.assertEqual(len(host.accepted), before + 1)


def _kind(_session, _argument):
    return None


class Content(OutboundCase):
    """A message arrives unchanged by any transport."""

    BODY = ("." + "x" * 70 + "\r\n" + "..\r\n" + "y" * 900 + "\r\n") * 400

    def assert_arrives(self, host, **settings):
        server = self.start(extra=routed(host), **settings)
        message = text_message(body=self.BODY + ".\r\n")
        self.send(server, "bob@one.test", message=stuffed(message))
        (received,) = self.await_messages(host, 1, server)
        self.assertTrue(received.content.endswith(b"\r\n" + message))
        return received

    def test_a_large_message_arrives_as_it_was_sent_by_data_and_sendfile(self):
        received = self.assert_arrives(self.host(), smtp='sendfile_above = "1KiB"')
        self.assertIn("DATA", received.session.commands)

    def test_a_large_message_arrives_as_it_was_sent_by_data_and_copying(self):
        self.assert_arrives(self.host(), smtp="sendfile = false")

    def test_a_large_message_arrives_as_it_was_sent_by_bdat(self):
        received = self.assert_arrives(self.host(extensions=(*EXTENSIONS, "CHUNKING")))
        self.assertTrue(any(command.startswith("BDAT ") for command in received.session.commands))

    def test_a_large_message_arrives_as_it_was_sent_with_tls(self):
        tls = hosts.certificate(self.folder)
        received = self.assert_arrives(self.host(tls=tls), smtp='sendfile_above = "1KiB"')
        self.assertTrue(received.session.is_secure)

    def test_a_next_hop_without_extensions_gets_it_too(self):
        received = self.assert_arrives(self.host(extensions=()))
        self.assertEqual(received.sender, "FROM:<alice@bench.test>")


class Unsendable(OutboundCase):
    """Messages that the next hop cannot accept bounce right away, since a retry would not help."""

    def bounce(self, lacks, smtp="", **message):
        host = self.host(extensions=[word for word in EXTENSIONS if not word.startswith(lacks)])
        server = self.start(place=str(id(host)), extra=routed(host), smtp=smtp)
        recipient = message.pop("recipient", "bob@one.test")
        self.send(server, recipient, **message)
        bounced = await_event(server, "bounced")
        self.assertEqual(host.messages, [])
        return bounced

    def test_an_international_address_needs_smtputf8(self):
        # Without 8BITMIME the address still decides: the message itself may be ASCII.
        for lacks in ("SMTPUTF8", ("SMTPUTF8", "8BITMIME")):
            bounced = self.bounce(lacks, recipient="j\u00fcrgen@one.test", mail="SMTPUTF8")
            self.assertRegex(bounced.reason, r"^553 5\.6\.7 ")

    def test_an_international_address_is_sent_if_the_next_hop_supports_it(self):
        host = self.host()
        server = self.start(extra=routed(host))
        self.send(server, "j\u00fcrgen@one.test", mail="SMTPUTF8")
        (received,) = self.await_messages(host, 1, server)
        self.assertEqual(received.recipients, ["TO:<j\u00fcrgen@one.test>"])
        self.assertIn(" SMTPUTF8", received.sender)

    def test_eight_bits_need_8bitmime_where_they_are_not_converted(self):
        message = text_message(body="gr\u00fc\u00dfe\r\n")
        bounced = self.bounce("8BITMIME", smtp='eight_bit = "bounce"', message=message, mail="BODY=8BITMIME")
        self.assertRegex(bounced.reason, r"^554 5\.6\.3 ")

    def test_a_message_larger_than_the_next_hop_says_is_not_sent(self):
        host = self.host(extensions=["SIZE 2000", "ENHANCEDSTATUSCODES"])
        server = self.start(extra=routed(host))
        self.send(server, "bob@one.test", message=text_message(body=("x" * 70 + "\r\n") * 100))
        bounced = await_event(server, "bounced", to="<bob@one.test>")
        self.assertRegex(bounced.reason, r"^552 5\.3\.4 ")
        self.assertFalse(any(command.startswith("MAIL") for command in host.sessions[0].commands))
        self.send(server, "carol@one.test")
        self.await_messages(host, 1, server)


class OutboundTls(OutboundCase):
    """STARTTLS with self-signed certificates and failing handshakes."""

    def setUp(self):
        super().setUp()
        self.tls = hosts.certificate(self.folder)

    def test_tls_is_used_if_offered_with_any_certificate(self):
        host = self.host(tls=self.tls)
        server = self.start(extra=routed(host))
        self.send(server, "bob@one.test")
        (received,) = self.await_messages(host, 1, server)
        self.assertTrue(received.session.is_secure)
        verbs = [command.split()[0] for command in received.session.commands]
        self.assertEqual(verbs[:4], ["EHLO", "STARTTLS", "EHLO", "MAIL"])

    def test_a_failed_handshake_falls_back_to_clear_text(self):
        for break_ in (hosts.hangup(b"220 go on\r\nnonsense that is no TLS\r\n"), hosts.hangup(), "454 4.7.0 not now"):
            host = self.host(tls=self.tls, script={"STARTTLS": break_})
            server = self.start(place=str(id(host)), extra=routed(host))
            self.send(server, "bob@one.test")
            (received,) = self.await_messages(host, 1, server)
            self.assertFalse(received.session.is_secure)
            self.assertEqual(mail_events(server, "deferred"), [])

    def test_required_tls_defers_mail_instead_of_clear_text(self):
        broken = {"STARTTLS": hosts.hangup(b"220 go on\r\nnonsense that is no TLS\r\n")}
        for host in (self.host(), self.host(tls=self.tls, script=broken)):
            server = self.start(place=str(id(host)), extra=routed(host), smtp='tls = "required"')
            self.send(server, "bob@one.test")
            deferred = await_event(server, "deferred", to="<bob@one.test>")
            self.assertRegex(deferred.reason, r"^451 4\.7\.5 ")
            commands = [command for session in host.sessions for command in session.commands]
            self.assertFalse(any(command.startswith("MAIL") for command in commands))

    def test_required_tls_delivers_if_tls_works(self):
        host = self.host(tls=self.tls)
        server = self.start(extra=routed(host), smtp='tls = "required"')
        self.send(server, "bob@one.test")
        (received,) = self.await_messages(host, 1, server)
        self.assertTrue(received.session.is_secure)

    def test_disabled_tls_is_not_used(self):
        host = self.host(tls=self.tls)
        server = self.start(extra=routed(host), smtp='tls = "never"')
        self.send(server, "bob@one.test")
        (received,) = self.await_messages(host, 1, server)
        self.assertNotIn("STARTTLS", received.session.commands)


class Lmtp(OutboundCase):
    """An LMTP transport of a local domain to a mailbox server."""

    def serving(self, host, **settings):
        extra = f'\n[transport.store]\ntype = "lmtp"\nnext_hop = "{_hop(host)}"\n'
        extra += '\n[[domain]]\nname = "store.test"\ntransport = "store"\n'
        return self.start(extra=extra, networks=[], **settings)

    def assert_each_has_an_outcome(self, host):
        server = self.serving(host, retry='first = "200ms", jitter = 0.0')
        self.send(server, "full@store.test", "gone@store.test", "here@store.test", sender="stranger@client.test")
        messages = self.await_messages(host, 2, server)
        self.assertEqual(len(messages[0].recipients), 3)
        self.assertEqual(messages[1].recipients, ["TO:<full@store.test>"])
        self.assertTrue(messages[0].session.commands[0].startswith("LHLO "))
        self.assertRegex(await_event(server, "deferred", to="<full@store.test>").reason, "^452 4.2.2 ")
        self.assertRegex(await_event(server, "bounced", to="<gone@store.test>").reason, "^550 5.1.1 ")
        for recipient in ("<here@store.test>", "<full@store.test>"):
            await_event(server, "delivered", to=recipient, transport="store")

    def script(self):
        later = hosts.once("452 4.2.2 full")

        def reply(session, recipient):
            if "full" in recipient:
                return later(session, recipient)
            return "550 5.1.1 gone" if "gone" in recipient else None

        return {"message": reply}

    def test_each_recipient_has_an_outcome_of_its_own_over_tcp(self):
        self.assert_each_has_an_outcome(self.host("127.0.0.2", lmtp=True, script=self.script()))

    def test_each_recipient_has_an_outcome_of_its_own_over_a_unix_socket(self):
        self.assert_each_has_an_outcome(self.host(path=self.folder / "lmtp", lmtp=True, script=self.script()))

    def test_a_missing_socket_defers_mail(self):
        path = self.folder / "lmtp"
        absent = self.host(path=path, lmtp=True)
        absent.stop()
        path.unlink()
        server = self.serving(absent, retry='first = "200ms", factor = 1.0, jitter = 0.0')
        self.send(server, "here@store.test", sender="stranger@client.test")
        self.assertRegex(await_event(server, "deferred", to="<here@store.test>").reason, r"^451 4\.4\.1 ")
        self.await_messages(self.host(path=path, lmtp=True), 1, server)


class Relaying(OutboundCase):
    def test_relaying_is_refused_without_permission(self):
        server = self.start(networks=[])
        with Client(server.port) as client:
            client.greet()
            reply = client.envelope("bob@elsewhere.test")
            self.assertTrue(reply.is_a(550, "5.7.1"), reply)
            self.assertEqual(client.say("RCPT TO:<alice@bench.test>").code, 250)

    def test_a_route_opens_no_relay(self):
        server = self.start(extra=routed(self.host(), domain="*"), networks=[])
        with Client(server.port) as client:
            client.greet()
            self.assertTrue(client.envelope("bob@one.test").is_a(550, "5.7.1"))

    def test_a_domain_stored_on_another_host_accepts_mail_from_all_clients(self):
        host = self.host()
        extra = f'\n[transport.onward]\ntype = "smtp"\nnext_hop = "{_hop(host)}"\n'
        extra += '\n[[domain]]\nname = "backed.test"\ntransport = "onward"\n'
        server = self.start(extra=extra, networks=[])
        self.send(server, "bob@backed.test", sender="stranger@client.test")
        self.await_messages(host, 1, server)
        with Client(server.port) as client:
            client.greet()
            self.assertTrue(client.envelope("bob@elsewhere.test").is_a(550, "5.7.1"))


class Queues(OutboundCase):
    """Named queues: which mail is in which, tested by holding some of them."""

    def serving(self, host, rules):
        extra = f'\n[[queue]]\nname = "held"\nconcurrency = 0\n{rules}\n'
        return self.start(extra=routed(host) + extra)

    def assert_holds(self, server, host, held, free):
        """Checks that of two messages, each given as arguments of `send`, one is held and one is
        delivered.
        """
        (to_held, more_held), (to_free, more_free) = held, free
        kept = self.send(server, to_held, **more_held)
        self.send(server, to_free, **more_free)
        self.await_messages(host, 1, server)
        await_that(lambda: server.queued() == 1, "one recipient left", server)
        self.assertIn(kept, server._queue("list"))
        self.assertEqual(mail_events(server, "delivered", to=f"<{to_held}>"), [])

    def test_a_queue_by_domain(self):
        host = self.host()
        server = self.serving(host, 'domains = ["slow.test", "*.slow.test"]')
        self.assert_holds(server, host, ("bob@at.slow.test", {}), ("bob@one.test", {}))

    def test_a_queue_by_sender(self):
        host = self.host()
        server = self.serving(host, 'senders = ["news@example.test", "@lists.test"]')
        held = ("bob@one.test", {"sender": "any@lists.test"})
        self.assert_holds(server, host, held, ("carol@one.test", {"sender": "other@example.test"}))

    def test_a_queue_by_header(self):
        host = self.host()
        server = self.serving(host, 'headers = ["List-Id: *"]')
        held = ("bob@one.test", {"message": b"List-Id: <news.test>\r\n" + text_message()})
        self.assert_holds(server, host, held, ("carol@one.test", {}))

    def test_header_rules_precede_sender_rules_and_those_precede_domain_rules(self):
        host = self.host()
        free = '\n[[queue]]\nname = "{}"\n{}\n'
        rules = 'senders = ["news@example.test"]\n' + free.format("bulk", 'headers = ["Precedence: bulk"]')
        server = self.serving(host, rules + free.format("domain", 'domains = ["one.test"]'))
        by_header = {"sender": "news@example.test", "message": b"Precedence: bulk\r\n" + text_message()}
        self.assert_holds(
            server, host, ("bob@one.test", {"sender": "news@example.test"}), ("carol@one.test", by_header)
        )  # fmt: skip

    def test_held_mail_is_delivered_when_the_queue_has_slots_again(self):
        host = self.host()
        server = self.serving(host, 'domains = ["slow.test"]')
        self.assert_holds(server, host, ("bob@slow.test", {}), ("bob@one.test", {}))
        server.terminate()
        text = server.config.read_text()
        server.config.write_text(text.replace("concurrency = 0", "concurrency = 1"))
        server.start()
        self.await_messages(host, 2, server)


if __name__ == "__main__":
    unittest.main()
