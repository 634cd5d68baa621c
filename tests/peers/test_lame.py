"""Slow next hops: those that stall are moved to a queue of their own, and others are not delayed.

The initial queue has as many slots as there are slow next hops, so without the move nothing would
be delivered.
"""

import time
import unittest

import hosts
from harness import await_messages, await_that
from laboratory import bench
from outbound import OutboundCase, await_event, mail_events, metrics
from peers.laboratory import Sink
from peers.mailrace import route

LAME, QUICK, MESSAGES = 10, 90, 1800
_ADOPT = """
[[queue]]
name = "lame"
adopt = {{ failures = 2, slower_than = "{}", release_after = "{}", per_next_hop = 2 }}
"""
_SLOWER_SECONDS = 0.5


class Lame(OutboundCase):
    def sink(self, *rules):
        """A sink on all of 127.0.0.0/8 that ends with the test."""
        sink = self.ending(Sink(self.folder, everywhere=True, records=True, rules=rules))
        sink.start()
        return sink

    def seconds(self, place, server, sink, domains):
        """The time until all mail to the quick next hops has arrived; each slow one gets as much."""
        addresses = self.folder / f"{place}.addresses"
        addresses.write_text("".join(f"user@{domain}\n" for domain in domains))
        count = MESSAGES * len(domains) // QUICK
        server._queue("pause", "standard")
        bench("smtp", "--target", f"127.0.0.1:{server.port}", "--connections", 10, "--messages", count, "--size", 1000,
              "--recipients-from", addresses)  # fmt: skip
        expected = int(server._queue("list", "--count", "--destination", "quick*"))
        begin, before = time.monotonic(), arrived(sink)
        server._queue("resume", "standard")
        await_that(lambda: arrived(sink) - before >= expected, f"{expected} messages", server)
        return time.monotonic() - begin, count - expected

    def test_a_tenth_of_the_next_hops_that_stalls_does_not_slow_the_others(self):
        quick, lame = self.sink(), self.sink("* connect delay 10m")
        domains = {f"quick{n}.test": f"[127.0.1.{n}]:{quick.port}" for n in range(1, QUICK + 1)}
        domains |= {f"lame{n}.test": f"[127.0.2.{n}]:{lame.port}" for n in range(1, LAME + 1)}
        routes = "".join(route(*pair) for pair in domains.items())
        server = self.start(
            standard=f"concurrency = {LAME}", extra=routes + _ADOPT.format(f"{_SLOWER_SECONDS * 1000:.0f}ms", "1h")
        )  # fmt: skip
        without, _ = self.seconds("without", server, quick, [name for name in domains if name.startswith("quick")])
        beside, left = self.seconds("beside", server, quick, list(domains))
        print(f"{without:.1f} s without slow next hops, {beside:.1f} s with them")
        # The quick ones wait once until the slow ones are detected; the limit allows for a busy
        # machine.
        self.assertLess(beside, without * 1.5 + _SLOWER_SECONDS + 1)
        self.assertEqual(server.queued(), left)
        said = metrics(server)
        self.assertEqual(said['mailrace_next_hops{state="adopted"}'], LAME)
        self.assertLessEqual(said['mailrace_queue_attempts{queue="lame"}'], 2 * LAME)
        self.assertEqual(said['mailrace_queue_attempts{queue="standard"}'], 0)
        self.assertEqual(mail_events(server, "bounced"), [])

    def test_a_next_hop_that_has_recovered_is_released(self):
        refuses = {"connect": hosts.hangup()}
        host = self.host(script=refuses)
        server = self.start(
            retry='first = "200ms", factor = 1.0, jitter = 0.0', smtp='probe = { failures = 100 }',
            extra=route("one.test", f"[127.0.0.1]:{host.port}") + _ADOPT.format("10s", "1s"),
        )  # fmt: skip
        self.send(server, "bob@one.test")
        adopted = 'mailrace_next_hops{state="adopted"}'
        await_that(lambda: metrics(server)[adopted] == 1, "the adoption", server)
        refuses.clear()
        host.script.clear()
        self.await_messages(host, 1, server)
        await_that(lambda: metrics(server)[adopted] == 0, "the release", server)

    def test_an_unreachable_next_hop_is_not_tried_for_some_time(self):
        (place,) = hosts.reserved_addresses(1)
        self.addCleanup(place.close)
        address, port = place.getsockname()
        server = self.start(
            retry='first = "100ms", factor = 1.0, jitter = 0.0',
            smtp='probe = { failures = 3, first = "2s", factor = 1.0, longest = "2s" }',
            extra=route("one.test", f"[{address}]:{port}"),
        )  # fmt: skip
        self.send(server, "bob@one.test")
        dead = 'mailrace_next_hops{state="dead"}'
        await_that(lambda: metrics(server)[dead] == 1, "one dead next hop", server)
        # The log line is written when the outcome is durable; the next hop is dead before that.
        await_that(lambda: len(mail_events(server, "deferred")) == 3, "three attempts, and no more", server)
        host = self.ending(hosts.host_on(place))
        self.await_messages(host, 1, server)
        await_that(lambda: metrics(server)[dead] == 0, "no dead next hop", server)


    def test_mail_for_a_dead_next_hop_gets_a_delay_notice_and_bounces_in_time(self):
        (place,) = hosts.reserved_addresses(1)
        self.addCleanup(place.close)
        address, port = place.getsockname()
        server = self.start(
            retry='first = "200ms", factor = 1.0, jitter = 0.0, lifetime = "2s"',
            smtp='probe = { failures = 1, first = "10m", factor = 1.0, longest = "10m" }',
            extra=route("one.test", f"[{address}]:{port}") + '\n[bounce]\ndelay_notice_after = "800ms"\n',
        )  # fmt: skip
        self.send(server, "bob@one.test")
        await_that(lambda: metrics(server)['mailrace_next_hops{state="dead"}'] == 1, "one dead next hop", server)
        self.send(server, "carol@one.test")
        for recipient in ("<bob@one.test>", "<carol@one.test>"):
            reason = await_event(server, "bounced", to=recipient).reason
            self.assertIn("Connection refused", reason)
        contents = [path.read_text() for path in await_messages(server, "alice", 4)]
        for action in ("delayed", "failed"):
            self.assertEqual(sum(f"Action: {action}" in content for content in contents), 2)


def arrived(sink):
    """The number of messages that a sink has recorded."""
    with open(sink.record, "rb") as record:
        return sum(block.count(b"\n") for block in iter(lambda: record.read(1 << 20), b""))


if __name__ == "__main__":
    unittest.main()
