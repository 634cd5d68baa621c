"""Hostile and broken next hops: each message is delivered in the end.

    before the end of the content    the message is sent again, and delivered once
    after it, before the reply       the message may have been delivered: it is sent again for each failed reply
    kill -9 with much in flight      nothing is lost, and recorded outcomes are never attempted again
"""

import collections
import os
import re
import threading
import unittest

import hosts
from harness import Client, await_that, mail_files
from laboratory import bench
from outbound import SENDER, OutboundCase, await_event, mail_events, metrics, text_message
from peers.laboratory import Sink
from peers.mailrace import route

QUICK = 'first = "300ms", factor = 1.0, jitter = 0.0'
_TIMES = ", ".join(f'{step} = "700ms"' for step in ("connect", "banner", "command", "data", "block", "message"))
IMPATIENT = f"timeouts = {{ {_TIMES} }}"
FAULTS = {
    "drop": hosts.hangup(),
    "shutdown": hosts.hangup(b"421 4.3.2 going down\r\n"),
    "garbage": hosts.hangup(b"\xff\0\x80 this is no SMTP\r\n\r\n\r\n"),
    "endless": hosts.endless(b"250-and so on\r\n"),
    "stall": hosts.stall,
}
EARLY = ("connect", "EHLO", "MAIL", "RCPT", "DATA", "content")
KILL_ROUNDS = int(os.environ.get("MAILRACE_KILL_ROUNDS", "4"))
_MESSAGES = 3000
_REASON = re.compile(r"^4\d\d 4\.\d\.\d [^(]*(\((connection|message|EHLO|MAIL|RCPT|DATA)\)[^(]*)?$")  # in words
_FINAL = re.compile(r"^Final-Recipient: rfc822; (\S+)", re.M)


class Faults(OutboundCase):
    """One server, and a host for each fault in each stage, where it occurs once."""

    def run_all(self, stages):
        """Sends one message to each host; returns what each host received, by fault and stage."""
        once = {(fault, stage): hosts.once(FAULTS[fault]) for fault in FAULTS for stage in stages}
        cases = {case: self.host(script={case[1]: act}) for case, act in once.items()}
        routes = "".join(
            route(f"{fault}-{stage.lower()}.test", f"[127.0.0.1]:{host.port}") for (fault, stage), host in cases.items()
        )
        server = self.start(extra=routes, smtp=IMPATIENT, retry=QUICK)
        for fault, stage in cases:
            self.send(server, f"bob@{fault}-{stage.lower()}.test")
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assertEqual(mail_events(server, "bounced"), [])
        for event in mail_events(server, "deferred"):
            self.assertRegex(event.reason, _REASON)
        self.assertFalse(any(host.read_endless_reply for host in cases.values()), "the server read an endless reply")
        return cases, server

    def test_a_failure_before_the_message_was_accepted_causes_no_duplicate(self):
        cases, server = self.run_all(EARLY)
        for (fault, stage), host in cases.items():
            with self.subTest(fault=fault, stage=stage):
                self.assertEqual(len(host.messages), 1)
                self.assertEqual(len(host.accepted), 1)
                self.assertEqual(len(host.sessions), 2)
                self.assertLessEqual(len(mail_events(server, "deferred", to=f"<bob@{fault}-{stage.lower()}.test>")), 1)

    def test_a_failure_after_the_message_was_sent_causes_one_duplicate(self):
        cases, server = self.run_all(["message"])
        for (fault, stage), host in cases.items():
            with self.subTest(fault=fault, stage=stage):
                self.assertEqual((len(host.messages), len(host.accepted)), (2, 1))
                deferred = mail_events(server, "deferred", to=f"<bob@{fault}-message.test>")
                self.assertEqual(len(deferred), 1)

    def test_a_250_that_comes_too_late_costs_exactly_one_duplicate(self):
        second = threading.Event()
        host = self.host(script={"message": hosts.once(hosts.before(second, "250 2.0.0 taken, at last"))})
        server = self.start(extra=route("late.test", f"[127.0.0.1]:{host.port}"), smtp=IMPATIENT, retry=QUICK)
        self.send(server, "bob@late.test")
        deferred = await_event(server, "deferred", to="<bob@late.test>")
        self.assertIn("may have arrived", deferred.reason)
        await_event(server, "delivered", to="<bob@late.test>")
        second.set()
        await_that(lambda: len(host.accepted) == 2, "the late answer", server)
        self.assertEqual((server.queued(), len(host.messages)), (0, 2))
        self.assertEqual(len(mail_events(server, "delivered")), 1)

    def test_a_message_is_sent_again_only_to_recipients_that_failed(self):
        later = hosts.once("452 4.2.2 full")
        host = self.host(script={"RCPT": lambda session, to: later(session, to) if "<c@" in to else None})
        server = self.start(extra=route("some.test", f"[127.0.0.1]:{host.port}"), retry=QUICK)
        self.send(server, *(f"{name}@some.test" for name in "abcd"))
        first, second = self.await_messages(host, 2, server)
        self.assertEqual((len(first.recipients), second.recipients), (3, ["TO:<c@some.test>"]))

    def test_a_host_that_never_answers_does_not_delay_others(self):
        silent, quick = self.host(script={"connect": hosts.stall}), self.host()
        routes = route("silent.test", f"[127.0.0.1]:{silent.port}") + route("quick.test", f"[127.0.0.1]:{quick.port}")
        server = self.start(extra=routes)
        for number in range(50):
            self.send(server, f"user{number}@silent.test")
            self.send(server, f"user{number}@quick.test")
        self.await_messages(quick, 50, server)
        self.assertEqual(server.queued(), 50)
        self.assertEqual(silent.open_most, 1, "an unproven next hop gets one connection")


class PoisonMessages(OutboundCase):
    """Messages at which the next hop fails: it closes the connection in the middle. They used to
    stop all mail to that next hop for a minute and more.
    """

    POISON, GOOD = 5, 10

    def run_beside(self, *rules):
        """Sends poison messages, then good ones; returns the server after both."""
        sink = self.ending(Sink(self.folder, records=True, rules=rules))
        sink.start()
        server = self.start(extra=route("*", f"[127.0.0.1]:{sink.port}"), smtp=IMPATIENT)
        for number in range(self.POISON):
            self.send(server, f"user{number}@poison.test")
        for number in range(self.GOOD):
            self.send(server, f"user{number}@good.test")
            await_event(server, "delivered", to=f"<user{number}@good.test>")
            self.assertLessEqual(len(mail_events(server, "deferred")), self.POISON, "an attempt for each poison message")
        self.assertEqual(mail_events(server, "deferred", to="<user0@good.test>"), [])
        self.assertEqual(len(mail_events(server, "delivered")), self.GOOD)
        said = metrics(server)
        self.assertEqual([said[f'mailrace_next_hops{{state="{state}"}}'] for state in ("adopted", "dead")], [0, 0])
        await_that(lambda: len(mail_events(server, "deferred")) == self.POISON, "an attempt for each poison message", server)
        self.assertEqual({event.to for event in mail_events(server, "deferred")},
                         {f"<user{number}@poison.test>" for number in range(self.POISON)})  # fmt: skip
        self.assertEqual(server.queued(), self.POISON)
        return server

    def test_messages_at_which_the_next_hop_disconnects_stop_no_other_mail(self):
        server = self.run_beside("*@poison.test rcpt drop")
        for event in mail_events(server, "deferred"):
            self.assertIn("the server ended the connection", event.reason)

    def test_messages_at_which_the_next_hop_sends_garbage_stop_no_other_mail(self):
        self.run_beside("*@poison.test rcpt garbage")

    def test_messages_at_which_the_next_hop_falls_silent_stop_no_other_mail(self):
        server = self.run_beside("*@poison.test rcpt delay 10m")
        for event in mail_events(server, "deferred"):
            self.assertIn("no answer in time", event.reason)

    def test_messages_that_may_have_arrived_are_not_sent_again_at_once(self):
        server = self.run_beside("*@poison.test message drop")
        for event in mail_events(server, "deferred"):
            self.assertIn("may have arrived", event.reason)


class Stop(OutboundCase):
    def test_a_next_hop_that_stalls_does_not_keep_the_server_from_ending_in_order(self):
        # Open deliveries have half a minute to end; then they are aborted and repeated after the
        # next start.
        host = self.host(script={"MAIL": hosts.stall})
        server = self.start(extra=route("slow.test", f"[127.0.0.1]:{host.port}"))
        self.send(server, "bob@slow.test")
        await_that(lambda: host.sessions and len(host.sessions[0].commands) > 1, "MAIL", server)
        self.assertEqual(server.terminate(), 0)
        said = server.log.read_text()
        self.assertIn("message=stopped", said)
        self.assertNotIn("was not closed", said)
        host.script.clear()
        server.start()
        self.await_messages(host, 1, server)


class Load(OutboundCase):
    """Thousands of messages to a faulty sink, compared with the acknowledged ones."""

    def outbound(self, rules, destinations, **settings):
        """A server and its sink with this many next hops."""
        sink = self.ending(Sink(self.folder, everywhere=True, records=True, rules=rules))
        sink.start()
        routes = "".join(
            route(f"d{n}.test", f"[127.0.{n // 200 + 1}.{n % 200 + 1}]:{sink.port}") for n in range(1, destinations + 1)
        )
        return self.start(extra=routes + settings.pop("extra", ""), **settings), sink

    def load(self, server, count, destinations, ledger):
        addresses = self.folder / "addresses"
        addresses.write_text("".join(f"user@d{n}.test\n" for n in range(1, destinations + 1)))
        return bench("smtp", "--target", f"127.0.0.1:{server.port}", "--connections", 10, "--messages", count,
                     "--size", 1000, "--recipients-from", addresses, "--ledger", ledger)  # fmt: skip

    def held(self, ledger, sink):
        """The report of `bench verify`, which may have duplicates, and no other errors."""
        argv = ("verify", "--ledger", ledger, "--record", sink.record)
        try:
            held = bench(*argv)
        except AssertionError:
            held = bench(*argv, code=1)
        self.assertEqual((held["lost"], held["damaged"]), (0, 0), held)
        return held

    def test_nothing_is_lost_on_the_way_to_a_sink_that_fails_in_every_stage(self):
        rules = ("3% connect drop", "3% connect garbage", "3% helo drop", "3% mail defer 450 4.3.2 not now",
                 "3% rcpt drop", "3% data garbage", "3% data defer 421 4.3.2 going down", "3% message defer",
                 "2% message drop")  # fmt: skip
        server, sink = self.outbound(
            rules, 10, retry=QUICK, smtp='probe = { failures = 1000, first = "1s" }'
        )  # fmt: skip
        ledger, count = self.folder / "ledger", 2000
        self.load(server, count, 10, ledger)
        await_that(lambda: server.queued() == 0, "an empty queue", server, 90)
        self.assertEqual(mail_events(server, "bounced"), [])
        # A sink that closes instead of replying may have the message, so each such case may cause a
        # duplicate.
        in_doubt = len([event for event in mail_events(server, "deferred") if "may have arrived" in event.reason])
        sink.stop()
        held = self.held(ledger, sink)
        print(f"{count} messages, {held['doubled']} duplicates, {in_doubt} in doubt")
        self.assertEqual(held["messages"], count)
        self.assertGreater(in_doubt, 0, "the sink had too few faults to prove anything")
        self.assertLessEqual(held["doubled"], in_doubt)

    def test_kill_9_with_much_in_flight_loses_nothing(self):
        destinations, concurrency, unrecorded = 100, 1000, 500
        server, sink = self.outbound(
            ("* message delay 2s",), destinations, standard=f"concurrency = {concurrency}", retry=QUICK,
            smtp="concurrency = { start = 20 }", extra=f"\n[queues]\nunrecorded = {unrecorded}\n",
        )  # fmt: skip
        ledger, in_flight = self.folder / "ledger", []
        for round_ in range(KILL_ROUNDS):
            if round_:
                server.start()
            part = self.folder / f"ledger{round_}"
            self.load(server, _MESSAGES // KILL_ROUNDS, destinations, part)
            in_flight.append(await_that(lambda: self.in_flight(server, concurrency // 4), "much in flight", server))
            server.kill()
        server.start()
        await_that(lambda: server.queued() == 0, "an empty queue", server, 60)
        server.terminate()
        sink.stop()
        doubled = sum(
            self.held(self.folder / f"ledger{round_}", sink)["doubled"] for round_ in range(KILL_ROUNDS)
        )  # fmt: skip
        print(f"{_MESSAGES} messages, {in_flight} in flight at the kill, {doubled} duplicates")
        self.assertLessEqual(doubled, KILL_ROUNDS * (concurrency + unrecorded))
        outcomes = collections.Counter((event.id, event.to) for event in mail_events(server, "delivered"))
        again = [outcome for outcome, count in outcomes.items() if count > 1]
        self.assertEqual(again, [], "a recorded delivery was attempted again")

    def test_kill_9_during_bounces_leaves_one_notice_for_each_failure(self):
        refuses = self.host(script={"RCPT": "550 5.1.1 who is that"})
        server = self.start(
            extra=route("one.test", f"[127.0.0.1]:{refuses.port}") + '\n[bounce]\nper_sender = "0"\n', retry=QUICK
        )  # fmt: skip
        acknowledged = []
        for round_ in range(KILL_ROUNDS):
            if round_:
                server.start()
            with Client(server.port) as client:
                client.greet()
                for number in range(100):
                    recipient = f"user{round_}-{number}@one.test"
                    self.assertEqual(client.deliver(text_message(), recipient, sender=SENDER).code, 250)
                    acknowledged.append(recipient)
            server.kill()
        server.start()
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assertEqual(server.terminate(), 0)
        told = collections.Counter()
        for path in mail_files(server.maildir("alice") / "new"):
            told.update(_FINAL.findall(path.read_text()))
        self.assertEqual(told, collections.Counter(acknowledged))

    @staticmethod
    def in_flight(server, least):
        """The number of messages in flight, if it is at least `least`."""
        count = server._queue("list").count(": in flight")
        return count if count >= least else None


if __name__ == "__main__":
    unittest.main()
