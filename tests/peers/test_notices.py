"""Notices to senders: bounces, delays and successes (RFC 3461, RFC 3464), as requested, to local
and remote senders.

    failed      to the sender; a notice that fails itself goes to the postmaster or nowhere
    how many    all, except for mail from untrusted clients
    delayed     once, when a message has waited for long
    delivered   if SUCCESS was requested; `relayed` if the next hop does not support DSN
"""

import email
import email.policy
import subprocess
import unittest

from harness import Client, await_messages, await_that, mail_files
from hosts import EXTENSIONS
from outbound import OutboundCase, await_event, mail_events, metrics, text_message
from peers.mailrace import route

QUICK = 'first = "200ms", factor = 1.0, jitter = 0.0'


class Notice:
    """A report as parsed by its recipient."""

    def __init__(self, content):
        self.content = content
        self.message = email.message_from_bytes(content, policy=email.policy.default)
        self.text, report, self.original = self.message.iter_parts()
        self.of_message, *self.of_recipients = report.get_payload()

    @property
    def actions(self):
        """The action for each recipient."""
        return {part["Final-Recipient"].partition(";")[2].strip(): part["Action"] for part in self.of_recipients}


class NoticeCase(OutboundCase):
    def serving(self, *, script=None, extensions=EXTENSIONS, extra="", **settings):
        """A server, and the host of one.test."""
        self.one = self.host(script=script, extensions=extensions)
        return self.start(extra=route("one.test", f"[127.0.0.1]:{self.one.port}") + extra, **settings)

    def notices(self, server, count=1, user="alice"):
        """This many notices in a local mailbox, oldest first."""
        paths = sorted(await_messages(server, user, count), key=lambda path: path.stat().st_mtime_ns)
        return [Notice(path.read_bytes()) for path in paths]

    def assert_no_notice(self, server, user="alice"):
        """Checks that no notice is queued or delivered for this user."""
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assertEqual(mail_files(server.maildir(user) / "new"), [])


class Failures(NoticeCase):
    REFUSES = {"RCPT": "550 5.1.1 who is that"}

    def test_a_bounce_has_the_reply_of_the_next_hop(self):
        server = self.serving(script=self.REFUSES)
        identity = self.send(server, "bob@one.test", message=text_message(subject="important"))
        (notice,) = self.notices(server)
        self.assertTrue(notice.content.startswith(b"Return-Path: <>\r\n"))
        self.assertEqual(notice.message.get_content_type(), "multipart/report")
        self.assertEqual(notice.message.get_param("report-type"), "delivery-status")
        self.assertIn("mx.bench.test", notice.of_message["Reporting-MTA"])
        (recipient,) = notice.of_recipients
        self.assertEqual((recipient["Action"], recipient["Status"]), ("failed", "5.1.1"))
        self.assertEqual(recipient["Final-Recipient"], "rfc822; bob@one.test")
        self.assertEqual(recipient["Diagnostic-Code"], "smtp; 550 5.1.1 who is that")
        self.assertIn("127.0.0.1", recipient["Remote-MTA"])
        self.assertIn("Subject: important", notice.original.as_string())
        self.assertTrue(await_event(server, "bounced", id=identity).bounce)

    def test_one_notice_has_all_recipients_that_failed_in_one_attempt(self):
        server = self.serving(script=self.REFUSES)
        self.send(server, "a@one.test", "b@one.test")
        (notice,) = self.notices(server)
        self.assertEqual(notice.actions, {"a@one.test": "failed", "b@one.test": "failed"})

    def test_a_bounce_to_a_remote_sender_has_the_null_sender(self):
        home = self.host()
        server = self.serving(script=self.REFUSES, extra=route("home.test", f"[127.0.0.1]:{home.port}"))
        self.send(server, "bob@one.test", sender="carol@home.test")
        (received,) = self.await_messages(home, 1, server)
        self.assertEqual(received.sender.split()[0], "FROM:<>")
        self.assertEqual([recipient.split()[0] for recipient in received.recipients], ["TO:<carol@home.test>"])
        self.assertEqual(Notice(received.content).actions, {"bob@one.test": "failed"})

    def test_a_failed_message_with_the_null_sender_causes_no_notice(self):
        server = self.serving(script=self.REFUSES)
        self.send(server, "bob@one.test", sender="")
        self.assertEqual(await_event(server, "bounced", to="<bob@one.test>").bounce, "")
        self.assertEqual(server.queued(), 0)

    def test_a_bounce_that_fails_goes_to_the_postmaster(self):
        extra = '\n[bounce]\ndouble_bounces_to = "postmaster@bench.test"\n'
        extra += route("home.test", "[127.0.0.1]:{}")
        home = self.host(script=self.REFUSES)
        server = self.serving(script=self.REFUSES, extra=extra.format(home.port))
        self.send(server, "bob@one.test", sender="carol@home.test")
        (notice,) = self.notices(server, user="postmaster")
        self.assertEqual(notice.actions, {"carol@home.test": "failed"})
        await_that(lambda: server.queued() == 0, "an empty queue", server)

    def test_a_bounce_that_fails_is_dropped_without_a_postmaster(self):
        home = self.host(script=self.REFUSES)
        server = self.serving(script=self.REFUSES, extra=route("home.test", f"[127.0.0.1]:{home.port}"))
        self.send(server, "bob@one.test", sender="carol@home.test")
        self.assertEqual(await_event(server, "bounced", to="<carol@home.test>").bounce, "")
        self.assert_no_notice(server, "postmaster")

    def test_mail_that_is_not_delivered_within_its_lifetime_bounces(self):
        server = self.serving(script={"MAIL": "450 4.3.2 later"}, retry=QUICK + ', lifetime = "1s"')
        self.send(server, "bob@one.test")
        (notice,) = self.notices(server)
        self.assertEqual(notice.actions, {"bob@one.test": "failed"})
        self.assertIn("450 4.3.2 later", notice.of_recipients[0]["Diagnostic-Code"])
        self.assertTrue(mail_events(server, "deferred", to="<bob@one.test>"))


class Limits(NoticeCase):
    """The number of notices for one sender: all, unless the message came from an untrusted client."""

    REFUSES = Failures.REFUSES
    FEW = '\n[bounce]\nper_sender = "2/h"\n'

    def forwarding(self, **settings):
        """A server that trusts no client, and forwards mail for `away` to the host of one.test."""
        patterns = self.folder / "patterns"
        patterns.write_text("/^away@bench\\.test$/ bob@one.test\n")
        patterns.chmod(0o644)
        table = f'\n[[table]]\nname = "patterns"\ntype = "regexp"\npath = "{patterns}"\n'
        return self.serving(script=self.REFUSES, extra=table + settings.pop("extra", self.FEW), networks=[],
                            aliases="patterns", **settings)  # fmt: skip

    def assert_dropped(self, server, dropped, sender="alice@bench.test"):
        """Checks that exactly these messages cause no notice, and that log and metrics report it."""
        told = {event.id: event.bounce for event in mail_events(server, "bounced")}
        self.assertEqual({identity for identity, bounce in told.items() if not bounce}, set(dropped))
        lines = [line for line in server.log.read_text().splitlines() if "no notice sent: too many" in line]
        self.assertEqual(len(lines), len(dropped))
        for identity in dropped:
            (line,) = (line for line in lines if f"id={identity} " in line)
            self.assertIn(sender, line)
        self.assertEqual(metrics(server)["mailrace_notices_dropped_total"], len(dropped))

    def test_a_relay_network_gets_a_notice_for_every_failure(self):
        """Of 1,022 refused recipients of one sender, 922 used to be dropped."""
        server = self.serving(script=self.REFUSES, extra=self.FEW)
        count = 150
        with Client(server.port) as client:
            client.greet()
            for number in range(count):
                reply = client.deliver(text_message(), f"user{number}@one.test", sender="alice@bench.test")
                self.assertEqual(reply.code, 250)
        told = {name for notice in self.notices(server, count) for name in notice.actions}
        self.assertEqual(told, {f"user{number}@one.test" for number in range(count)})
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assert_dropped(server, [])

    def test_a_local_program_gets_a_notice_for_every_failure(self):
        server = self.serving(script=self.REFUSES, extra=self.FEW, networks=[])
        argv = [str(server.binary), "inject", "--config", str(server.config), "-f", "alice@bench.test"]
        for number in range(4):
            for to in (f"user{number}@one.test", f"nobody{number}@bench.test"):
                subprocess.run([*argv, to], input=b"Subject: x\n\nx\n", check=True, timeout=60)
        self.assertEqual(len(self.notices(server, 8)), 8)
        self.assert_dropped(server, [])

    def test_an_untrusted_client_gets_a_limited_number_of_notices_and_the_rest_is_logged(self):
        server = self.forwarding()
        sent = [self.send(server, "away@bench.test") for _ in range(5)]
        await_that(lambda: len(mail_events(server, "bounced")) == 5, "five failures", server)
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assertEqual(len(self.notices(server, 2)), 2)
        told = {event.id for event in mail_events(server, "bounced") if event.bounce}
        self.assertEqual(len(told), 2)
        self.assert_dropped(server, set(sent) - told)

    def test_a_crash_does_not_change_which_senders_are_trusted(self):
        server = self.forwarding(standard="concurrency = 0")
        strangers = [self.send(server, "away@bench.test") for _ in range(4)]
        server.kill()
        text = server.config.read_text()
        server.config.write_text(text.replace("networks = []", 'networks = ["127.0.0.0/8"]'))
        server.start()
        known = [self.send(server, "away@bench.test") for _ in range(4)]
        server.kill()
        server.config.write_text(text.replace("concurrency = 0", ""))
        server.start()
        await_that(lambda: len(mail_events(server, "bounced")) == 8, "eight failures", server)
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        told = {event.id for event in mail_events(server, "bounced") if event.bounce}
        self.assertEqual((len(told & set(strangers)), len(told & set(known))), (2, 4))
        self.assertEqual(len(self.notices(server, 6)), 6)
        self.assert_dropped(server, set(strangers) - told)

    def test_a_verp_sender_gets_a_notice_for_every_failure_from_any_client(self):
        server = self.forwarding(extra=self.FEW + 'verp = ["alice@bench.test"]\n')
        for _ in range(4):
            self.send(server, "away@bench.test")
        self.assertEqual(len(self.notices(server, 4)), 4)
        self.assert_dropped(server, [])


class Delays(NoticeCase):
    LATER = {"MAIL": "450 4.3.2 later"}

    def test_a_sender_gets_one_delay_notice(self):
        server = self.serving(
            script=self.LATER, retry=QUICK + ', lifetime = "2s"', extra='\n[bounce]\ndelay_notice_after = "500ms"\n'
        )  # fmt: skip
        self.send(server, "bob@one.test")
        delayed, failed = self.notices(server, 2)
        self.assertEqual((delayed.actions, failed.actions), ({"bob@one.test": "delayed"}, {"bob@one.test": "failed"}))
        self.assertEqual(delayed.of_recipients[0]["Status"], "4.3.2")
        self.assertIsNotNone(delayed.of_recipients[0]["Will-Retry-Until"])
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assertEqual(len(mail_files(server.maildir("alice") / "new")), 2)

    def test_without_notify_delay_there_is_no_delay_notice(self):
        server = self.serving(
            script=self.LATER, retry=QUICK + ', lifetime = "2s"', extra='\n[bounce]\ndelay_notice_after = "500ms"\n'
        )  # fmt: skip
        self.send(server, "bob@one.test", rcpt="NOTIFY=FAILURE")
        (notice,) = self.notices(server)
        self.assertEqual(notice.actions, {"bob@one.test": "failed"})


class RequestedNotices(NoticeCase):
    """Parameters of MAIL and RCPT (RFC 3461 section 4)."""

    REFUSES = Failures.REFUSES

    def test_notify_never_causes_no_notice(self):
        server = self.serving(script=self.REFUSES)
        self.send(server, "bob@one.test", rcpt="NOTIFY=NEVER")
        self.assertEqual(await_event(server, "bounced", to="<bob@one.test>").bounce, "")
        self.assert_no_notice(server)

    def test_notify_success_alone_causes_no_bounce(self):
        server = self.serving(script=self.REFUSES)
        self.send(server, "bob@one.test", rcpt="NOTIFY=SUCCESS")
        self.assertEqual(await_event(server, "bounced", to="<bob@one.test>").bounce, "")
        self.assert_no_notice(server)

    def test_success_of_a_local_delivery_is_reported(self):
        server = self.serving()
        self.send(server, "bob@bench.test", rcpt="NOTIFY=SUCCESS")
        (notice,) = self.notices(server)
        self.assertEqual(notice.actions, {"bob@bench.test": "delivered"})
        self.assertEqual(notice.of_recipients[0]["Status"][0], "2")

    def test_success_is_reported_by_a_next_hop_with_dsn(self):
        server = self.serving()
        wish = "NOTIFY=SUCCESS ORCPT=rfc822;Bob@one.test"
        self.send(server, "bob@one.test", mail="RET=HDRS ENVID=QQ314159", rcpt=wish)
        (received,) = self.await_messages(self.one, 1, server)
        self.assertEqual({"RET=HDRS", "ENVID=QQ314159"} - set(received.sender.split()), set())
        (recipient,) = received.recipients
        self.assertEqual({"NOTIFY=SUCCESS", "ORCPT=rfc822;Bob@one.test"} - set(recipient.split()), set())
        self.assert_no_notice(server)

    def test_a_next_hop_without_dsn_causes_a_relayed_notice(self):
        server = self.serving(extensions=["PIPELINING", "8BITMIME"])
        self.send(server, "bob@one.test", mail="RET=HDRS", rcpt="NOTIFY=SUCCESS")
        (notice,) = self.notices(server)
        self.assertEqual(notice.actions, {"bob@one.test": "relayed"})
        self.assertEqual(self.one.messages[0].recipients, ["TO:<bob@one.test>"])

    def test_a_bounce_has_the_original_recipient_and_envelope_id(self):
        server = self.serving(script=self.REFUSES)
        self.send(server, "bob@one.test", mail="ENVID=QQ+2B314159", rcpt="ORCPT=rfc822;Robert@former.test")
        (notice,) = self.notices(server)
        self.assertEqual(notice.of_message["Original-Envelope-Id"], "QQ+314159")
        self.assertEqual(notice.of_recipients[0]["Original-Recipient"], "rfc822; Robert@former.test")

    def test_ret_selects_how_much_of_the_message_is_returned(self):
        server = self.serving(script=self.REFUSES)
        message = text_message(subject="mine", body="the body that was sent\r\n")
        self.send(server, "bob@one.test", message=message, mail="RET=HDRS")
        (headers,) = self.notices(server)
        self.send(server, "bob@one.test", sender="carol@bench.test", message=message, mail="RET=FULL")
        (full,) = self.notices(server, user="carol")
        for notice, has_body in ((headers, False), (full, True)):
            self.assertIn(b"Subject: mine", notice.content)
            self.assertEqual(b"the body that was sent" in notice.content, has_body)
        self.assertEqual(headers.original.get_content_type(), "text/rfc822-headers")
        self.assertEqual(full.original.get_content_type(), "message/rfc822")


class Verp(NoticeCase):
    def test_each_recipient_gets_a_sender_address_of_its_own(self):
        server = self.serving(extra='\n[bounce]\nverp = ["alice@bench.test"]\n')
        self.send(server, "bob@one.test", "carol@one.test")
        came = {received.sender.split()[0]: received.recipients for received in self.await_messages(self.one, 2, server)}
        expected = {
            "FROM:<alice+bob=one.test@bench.test>": ["TO:<bob@one.test>"],
            "FROM:<alice+carol=one.test@bench.test>": ["TO:<carol@one.test>"],
        }
        self.assertEqual(came, expected)

    def test_our_bounces_go_to_the_sender_address_of_the_recipient(self):
        """It used to go to the plain sender, which did not identify the recipient."""
        home = self.host()
        server = self.serving(
            script=Failures.REFUSES,
            extra=route("home.test", f"[127.0.0.1]:{home.port}") + '\n[bounce]\nverp = ["news@home.test"]\n',
        )
        self.send(server, "bob@one.test", "carol@one.test", sender="news@home.test")
        came = {received.recipients[0].split()[0]: received for received in self.await_messages(home, 2, server)}
        expected = {f"TO:<news+{name}=one.test@home.test>": f"{name}@one.test" for name in ("bob", "carol")}
        self.assertEqual(
            {to: Notice(received.content).actions for to, received in came.items()},
            {to: {name: "failed"} for to, name in expected.items()},
        )

    def test_a_bounce_goes_to_the_plain_sender_if_the_verp_address_is_unknown(self):
        self.one = self.host(script=Failures.REFUSES)
        extra = route("one.test", f"[127.0.0.1]:{self.one.port}") + '\n[bounce]\nverp = ["alice@bench.test"]\n'
        server = self.configure(extra=extra)
        text = server.config.read_text()
        server.config.write_text(text.replace('name      = "bench.test"\n', 'name = "bench.test"\ndelimiter = ""\n', 1))
        server.start()
        self.send(server, "bob@one.test")
        (notice,) = self.notices(server)
        self.assertEqual(notice.message["To"], "alice@bench.test")

    def test_a_delay_notice_goes_to_the_plain_sender(self):
        """A list server counts mail to the other addresses as failures."""
        server = self.serving(
            script=Delays.LATER, retry=QUICK + ', lifetime = "2s"',
            extra='\n[bounce]\ndelay_notice_after = "500ms"\nverp = ["alice@bench.test"]\n',
        )  # fmt: skip
        self.send(server, "bob@one.test")
        delayed, failed = self.notices(server, 2)
        self.assertEqual(delayed.message["To"], "alice@bench.test")
        self.assertEqual(failed.message["To"], "alice+bob=one.test@bench.test")

    def test_other_senders_are_unchanged(self):
        server = self.serving(extra='\n[bounce]\nverp = ["alice@bench.test"]\n')
        self.send(server, "bob@one.test", "carol@one.test", sender="bob@bench.test")
        (received,) = self.await_messages(self.one, 1, server)
        self.assertEqual(received.sender.split()[0], "FROM:<bob@bench.test>")


if __name__ == "__main__":
    unittest.main()
