"""Routing: by DNS, with and without answers, and by configuration.

    MX           hosts in order of preference; the next one if one refuses, is busy, or has no address
    no MX        the domain's own address
    never        null MX, no such domain, only ourselves: bounces right away
    soon         mail hosts that stay without addresses
    not now      SERVFAIL, no answer: the mail waits
    fixed        routes and literals need no DNS for the domain
"""

import socket
import unittest

import hosts
from harness import await_that
from name_server import MX
from outbound import OutboundCase, await_event, mail_events

QUICK = 'first = "300ms", factor = 1.0, jitter = 0.0'


class ByName(OutboundCase):
    """A server, a DNS server and three addresses with the same port, as mail hosts have."""

    def setUp(self):
        super().setUp()
        self.zone = self.names()
        self.places = hosts.reserved_addresses(3)
        for place in self.places:
            self.addCleanup(place.close)
        self.port = self.places[0].getsockname()[1]
        self.addresses = [place.getsockname()[0] for place in self.places]

    def serving(self, **settings):
        return self.start(smtp=f"port = {self.port}", names=self.zone, **settings)

    def host_at(self, number, **named):
        """A host on one of the addresses; number 0 is 127.0.0.2."""
        return self.ending(hosts.host_on(self.places[number], **named))

    def test_the_preferred_host_gets_the_mail(self):
        first, second = self.host_at(0), self.host_at(1)
        self.zone.mx("dest.test", 20, "second.test")
        self.zone.mx("dest.test", 10, "first.test")
        self.zone.a("first.test", "127.0.0.2")
        self.zone.a("second.test", "127.0.0.3")
        server = self.serving()
        self.send(server, "bob@dest.test")
        (received,) = self.await_messages(first, 1, server)
        self.assertEqual(received.recipients, ["TO:<bob@dest.test>"])
        self.assertTrue(received.content.endswith(b"\r\n\r\nHello.\r\n"))
        event = await_event(server, "delivered", to="<bob@dest.test>")
        self.assertEqual((event.relay, event.reply), (f"first.test[127.0.0.2]:{self.port}", "250 2.0.0 taken"))
        self.assertEqual(second.sessions, [])

    def test_hosts_of_equal_preference_take_turns(self):
        both = [self.host_at(0), self.host_at(1)]
        for number, host in enumerate(("one.test", "two.test")):
            self.zone.mx("dest.test", 10, host)
            self.zone.a(host, self.addresses[number])
        server = self.start(smtp=f'port = {self.port}\nidle = "0s"', names=self.zone)
        for number in range(100):
            self.send(server, f"user{number}@dest.test")
        await_that(lambda: sum(len(host.accepted) for host in both) == 100, "100 messages", server)
        # Each connection chooses a host. The probability that about ten choose the same is some
        # tenths of a per cent, so a second load may decide.
        for host in (host for host in both if not host.accepted):
            for number in range(100):
                self.send(server, f"user{number}@dest.test")
            self.await_messages(host, 1, server)

    def test_after_a_refused_connection_the_next_host_is_used(self):
        self.zone.domain("dest.test", self.addresses[0], self.addresses[1])
        second = self.host_at(1)
        server = self.serving()
        self.send(server, "bob@dest.test")
        self.await_messages(second, 1, server)
        await_event(server, "delivered", relay="mx2.dest.test[127.0.0.3]")
        self.assertEqual(mail_events(server, "deferred"), [])

    def test_after_a_busy_host_the_next_host_is_used(self):
        self.zone.domain("dest.test", self.addresses[0], self.addresses[1], self.addresses[2])
        busy = self.host_at(0, script={"connect": hosts.hangup(b"421 4.3.2 not now\r\n")})
        closed = self.host_at(1, script={"connect": "554 5.3.2 never"})
        third = self.host_at(2)
        server = self.serving()
        self.send(server, "bob@dest.test")
        self.await_messages(third, 1, server)
        self.assertTrue(busy.sessions and closed.sessions)
        self.assertEqual(mail_events(server, "deferred") + mail_events(server, "bounced"), [])

    def test_after_a_host_without_an_address_the_next_host_is_used(self):
        self.zone.mx("dest.test", 10, "nowhere.test")
        self.zone.mx("dest.test", 20, "second.test")
        self.zone.a("second.test", self.addresses[1])
        second = self.host_at(1)
        server = self.serving()
        self.send(server, "bob@dest.test")
        self.await_messages(second, 1, server)

    def test_a_domain_without_mx_is_its_own_host(self):
        self.zone.a("dest.test", self.addresses[0])
        host = self.host_at(0)
        server = self.serving()
        self.send(server, "bob@dest.test")
        self.await_messages(host, 1, server)
        self.assertIn(("dest.test", MX), self.zone.asked)

    def test_an_answer_that_is_too_large_for_a_datagram_is_read_in_full(self):
        for number in range(60):
            self.zone.mx("dest.test", 20, f"a-rather-long-name-of-a-mail-host-{number}.dest.test")
        self.zone.mx("dest.test", 10, "best.test")  # the last one in the answer
        self.zone.a("best.test", self.addresses[0])
        host = self.host_at(0)
        server = self.serving()
        self.send(server, "bob@dest.test")
        self.await_messages(host, 1, server)

    def test_mail_to_a_domain_with_a_null_mx_bounces_right_away(self):
        self.zone.null_mx("none.test")
        server = self.serving()
        self.send(server, "bob@none.test")
        bounced = await_event(server, "bounced", to="<bob@none.test>")
        self.assertTrue(bounced.reason.startswith("556 5.1.10 "), bounced)
        self.await_notice(server, bounced, b"Status: 5.1.10\r\n")

    def test_mail_to_a_domain_that_does_not_exist_bounces_right_away(self):
        server = self.serving()
        self.send(server, "bob@nowhere.test")
        bounced = await_event(server, "bounced", to="<bob@nowhere.test>")
        self.assertTrue(bounced.reason.startswith("550 5.1.2 "), bounced)
        self.await_notice(server, bounced, b"Final-Recipient: rfc822; bob@nowhere.test\r\n")

    def test_mail_to_mail_hosts_that_stay_without_addresses_bounces_after_a_few_lookups(self):
        self.zone.mx("gone.test", 10, "mx1.gone.test")
        self.zone.mx("gone.test", 20, "mx2.gone.test")
        server = self.serving(retry=QUICK, extra='ttl_max = "500ms"\nnegative_ttl_max = "500ms"\n'
                              'no_address_lookups = 2\nno_address_time = "500ms"\n')  # fmt: skip
        self.send(server, "bob@gone.test")
        bounced = await_event(server, "bounced", to="<bob@gone.test>")
        self.assertTrue("no address for any MX host of gone.test" in bounced.reason, bounced)
        self.assertTrue(mail_events(server, "deferred", to="<bob@gone.test>")[0].reason.startswith("451 4.4.4 "))
        self.await_notice(server, bounced, b"Status: 5.4.4\r\n")

    def test_later_attempts_continue_with_untried_hosts(self):
        """Every attempt used to try the same first hosts."""
        for number in range(1, 8):
            self.zone.mx("dest.test", number, f"mx{number}.dest.test")
            self.zone.a(f"mx{number}.dest.test", self.addresses[1])  # nothing listens there
        self.zone.mx("dest.test", 8, "mx8.dest.test")
        self.zone.a("mx8.dest.test", self.addresses[0])
        last = self.host_at(0)
        server = self.start(smtp=f"port = {self.port}\naddresses_tried = 4", names=self.zone, retry=QUICK)
        self.send(server, "bob@dest.test")
        self.await_messages(last, 1, server)
        await_event(server, "delivered", relay="mx8.dest.test[127.0.0.2]")
        reasons = [event.reason for event in mail_events(server, "deferred", to="<bob@dest.test>")]
        self.assertEqual(len(reasons), 2, reasons)
        self.assertTrue(all("(4 of 8 addresses tried" in reason for reason in reasons), reasons)

    def test_mail_that_would_loop_back_to_us_is_not_sent(self):
        # Hosts of our own and worse preference are not used (RFC 5321 section 5.1).
        host = self.host_at(0)
        self.zone.mx("dest.test", 10, "mx.bench.test")
        self.zone.mx("dest.test", 20, "backup.test")
        self.zone.a("mx.bench.test", self.addresses[0])
        self.zone.a("backup.test", self.addresses[0])
        server = self.serving()
        self.send(server, "bob@dest.test")
        bounced = await_event(server, "bounced", to="<bob@dest.test>")
        self.assertTrue(bounced.reason.startswith("554 5.4.6 "), bounced)
        self.assertEqual(host.sessions, [])

    def test_mail_waits_while_the_name_server_fails_and_leaves_when_it_has_recovered(self):
        self.zone.broken.add("dest.test")
        self.zone.domain("dest.test", self.addresses[0])
        host = self.host_at(0)
        server = self.serving(retry='first = "500ms", factor = 1.0, jitter = 0.0')
        self.send(server, "bob@dest.test")
        deferred = await_event(server, "deferred", to="<bob@dest.test>")
        self.assertTrue(deferred.reason.startswith("451 4.4.3 "), deferred)
        self.assertEqual((server.queued(), host.sessions), (1, []))
        self.zone.broken.clear()
        server.terminate()  # a failure is cached for half a minute, but only in memory
        server.start()
        self.await_messages(host, 1, server)

    def test_mail_waits_while_the_name_server_is_silent(self):
        self.zone.silent.update({"dest.test", "mx1.slow.test"})
        self.zone.domain("slow.test", self.addresses[0])
        server = self.serving(dns_timeout="200ms")
        self.send(server, "bob@dest.test", "bob@slow.test")
        for recipient in ("<bob@dest.test>", "<bob@slow.test>"):
            deferred = await_event(server, "deferred", to=recipient)
            self.assertTrue(deferred.reason.startswith("451 4.4.3 "), deferred)
        self.assertEqual(server.queued(), 2)

    def test_a_domain_without_answers_does_not_delay_others(self):
        self.zone.silent.add("dest.test")
        self.zone.domain("quick.test", self.addresses[0])
        host = self.host_at(0)
        server = self.serving(dns_timeout="60s")
        self.send(server, "bob@dest.test")
        await_that(lambda: ("dest.test", MX) in self.zone.asked, "a query for the silent domain", server)
        self.send(server, "bob@quick.test")
        self.await_messages(host, 1, server)
        self.assertEqual(mail_events(server, "deferred"), [])

    def await_notice(self, server, bounced, line):
        """Waits for the notice in the sender's mailbox, which must have this line."""
        await_event(server, "delivered", id=bounced.bounce)
        (path,) = (server.maildir("alice") / "new").iterdir()
        self.assertIn(line, path.read_bytes())


class Fixed(OutboundCase):
    def test_a_route_asks_no_dns_about_the_domain(self):
        zone, host, below = self.names(), self.host("127.0.0.2"), self.host("127.0.0.3")
        route = '\n[[route]]\ndomain = "{}"\nnext_hop = "{}"\n'
        routes = route.format("partner.test", f"[127.0.0.2]:{host.port}")
        routes += route.format("*.partner.test", f"[127.0.0.3]:{below.port}")
        server = self.start(names=zone, extra=routes)
        self.send(server, "bob@partner.test", "bob@sales.partner.test")
        self.await_messages(host, 1, server)
        (received,) = self.await_messages(below, 1, server)
        self.assertEqual(received.recipients, ["TO:<bob@sales.partner.test>"])
        self.assertEqual(zone.asked, [])

    def test_a_route_to_a_name_uses_its_address_and_not_its_mx(self):
        zone, host = self.names(), self.host("127.0.0.2")
        zone.mx("relay.test", 10, "wrong.test")
        zone.a("relay.test", "127.0.0.2")
        server = self.start(
            names=zone, extra=f'\n[[route]]\ndomain = "*"\nnext_hop = "relay.test:{host.port}"\n'
        )  # fmt: skip
        self.send(server, "bob@anywhere.test")
        self.await_messages(host, 1, server)
        self.assertNotIn(("relay.test", MX), zone.asked)

    def test_a_route_to_the_mx_of_another_domain(self):
        zone, host = self.names(), self.host("127.0.0.2")
        zone.domain("provider.test", "127.0.0.2")
        server = self.start(
            names=zone, smtp=f"port = {host.port}", extra='\n[[route]]\ndomain = "*"\nnext_hop = "mx:provider.test"\n'
        )  # fmt: skip
        self.send(server, "bob@anywhere.test")
        self.await_messages(host, 1, server)

    def test_an_address_literal_names_its_host(self):
        host = self.host("127.0.0.2")
        server = self.start(smtp=f"port = {host.port}")
        self.send(server, "bob@[127.0.0.2]")
        (received,) = self.await_messages(host, 1, server)
        self.assertEqual(received.recipients, ["TO:<bob@[127.0.0.2]>"])

    def test_mail_leaves_from_the_source_address_that_is_configured(self):
        host = self.host("127.0.0.2")
        server = self.start(smtp=f'port = {host.port}\nsource = ["127.0.0.9"]\nhelo = "out.bench.test"')
        self.send(server, "bob@[127.0.0.2]")
        (received,) = self.await_messages(host, 1, server)
        self.assertEqual((received.session.client, received.session.commands[0]), ("127.0.0.9", "EHLO out.bench.test"))

    def test_an_address_of_ipv6_is_reached(self):
        if not socket.has_ipv6:
            self.skipTest("the machine has no IPv6")
        zone, host = self.names(), self.ipv6_host()
        zone.mx("dest.test", 10, "six.test")
        zone.a("six.test", "::1")
        server = self.start(names=zone, smtp=f"port = {host.port}")
        self.send(server, "bob@dest.test")
        self.await_messages(host, 1, server)

    def ipv6_host(self):
        try:
            return self.host("::1")
        except OSError as error:
            self.skipTest(f"the machine has no loopback of IPv6: {error}")


if __name__ == "__main__":
    unittest.main()
