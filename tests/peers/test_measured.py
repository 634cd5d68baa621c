"""What bench/run puts beside the server when it measures: stand-ins for filters do their part of the protocol, and open
dashboards get what a browser gets.
"""

import pathlib
import smtplib
import time
import unittest

from harness import WAIT_SECONDS_MAX, Mailrace, await_that, folder
from peers.api import ApiClient, Dashboards, create_token
from peers.laboratory import Source
from peers.mailrace import listener
from peers.stand_in import FilteredServer, StandIn, are_built
from peers.waiting_sessions import WaitingSessions

MESSAGES = 20
_MORE_MESSAGES = 500
_EVENTS_OCTETS_MIN = 2000  # more than the head of an answer
ASKED = (("milter", "milter_stub", "end"), ("milter", "milter_stub", "each"), ("policy_service", "policy_stub"))


class MeasuredCase(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def started(self, server):
        """The server, which runs until the end of the test."""
        self.addCleanup(server.stop)
        server.start()
        return server


@unittest.skipUnless(are_built(), "the stand-ins are examples of the crate `filter`, which are not built")
class StandIns(MeasuredCase):
    def filtered(self, kind, name, *words):
        place = self.folder / "-".join((name, *words))
        place.mkdir()
        stand_in = StandIn(place, name, *words)
        section = f'\n[[{kind}]]\naddress = "{stand_in.address}"\n'
        return self.started(FilteredServer(stand_in, Mailrace(place, concurrency=0, extra=section)))

    def test_all_mail_passes_a_milter_and_a_policy_service(self):
        for asked in ASKED:
            with self.subTest(asked):
                server = self.filtered(*asked)
                Source(MESSAGES, sessions=2).run(server.port)
                server.check_kept(MESSAGES)

                # The kernel may count in ticks, which a short load does not fill.
                def is_busy(server=server):
                    Source(_MORE_MESSAGES, sessions=2).run(server.port)
                    return server.stand_in.group.cpu_seconds() > 0

                await_that(is_busy, "CPU of the stand-in", server)

    def test_sessions_wait_for_a_milter_that_never_answers(self):
        server = self.filtered("milter", "milter_stub", "never")
        with WaitingSessions(server.port, 3, 1000) as waiting:
            time.sleep(1)
            waiting.check()
            server.stand_in.stop()
            with self.assertRaisesRegex(RuntimeError, "wait no more"):
                await_that(waiting.check, "a reply", server)

    def test_without_a_stand_in_no_message_passes(self):
        server = self.filtered("milter", "milter_stub", "end")
        server.stand_in.stop()
        with smtplib.SMTP("127.0.0.1", server.port, timeout=WAIT_SECONDS_MAX) as client:
            with self.assertRaises(smtplib.SMTPSenderRefused):
                client.sendmail("sender@bench.test", "user@bench.test", "Subject: x\r\n\r\n")


class OpenDashboards(MeasuredCase):
    def test_dashboards_get_events_and_lists(self):
        server = self.started(Mailrace(self.folder, concurrency=0, extra=listener("http", "api = true")))
        token, port = create_token(server, "bench"), server.ports["http"]
        client = ApiClient(port, token)
        self.addCleanup(client.close)
        self.assertEqual([queue["held"] for queue in client.ask("/api/v1/queues")["queues"]], [0, 0, 0])
        with self.assertRaisesRegex(RuntimeError, "404"):
            client.timed("/api/v1/messages/7-0-1")
        with Dashboards(port, token, 2) as dashboards:
            await_that(lambda: dashboards.answers >= 10, "answers", server, 120)
            await_that(lambda: dashboards.event_octets > _EVENTS_OCTETS_MIN, "events", server)
            dashboards.check()


if __name__ == "__main__":
    unittest.main()
