"""Incoming mail whose sender is checked: signatures and chains by dkimpy, policies in a DNS of our own,
forged results, authors that cannot be told, and what enforcement does with each verdict.
"""

import re
import subprocess
import unittest

from harness import Client, await_that
from outbound import await_event, mail_events, metrics
from sender_case import FAILED, ID, PASSED, RELAYED, SenderAuthCase, dkimpy, message


class Observed(SenderAuthCase):
    def test_signatures_by_dkimpy_are_valid_until_the_message_changes(self):
        keys = (("rsa", self.keys.rsa, "rsa-sha256"), ("ed", self.keys.ed25519, "ed25519-sha256"))
        for selector, key, algorithm in keys:
            signed = dkimpy(message("ann@good.test"), "dkim", selector, "good.test", key, algorithm)
            found = self.results(signed)
            self.assertIn("dkim=pass header.d=good.test", found)
            self.assertIn("dmarc=pass (p=none) header.from=good.test", found)
            self.assertIn("spf=pass smtp.mailfrom=good.test", found)
            self.assertIn(f"iprev=pass (mail.good.test) policy.iprev={PASSED}", found)
            changed = signed.replace(b"world", b"there")
            self.assertIn("dkim=fail (the body has changed)", self.results(changed))

    def test_a_large_message_is_verified_from_its_file(self):
        body = "0123456789 abcdef  \t ghi\r\n" * 100_000
        signed = dkimpy(message("ann@good.test", body=body), "dkim", "rsa", "good.test", self.keys.rsa, "rsa-sha256")
        self.assertIn("dkim=pass", self.results(signed))
        forged = f"Authentication-Results: {ID}; dkim=pass\r\n".encode()
        stored = self.stored(forged + signed)
        self.assertNotIn(f"{ID}; dkim=pass", stored)
        self.assertTrue(stored.endswith(body.replace("\r\n", "\n")))

    def test_results_in_our_name_are_removed_and_others_stay(self):
        forged = (
            f"Authentication-Results: {ID}; dmarc=pass\r\n"
            f"authentication-RESULTS : (a) {ID.upper()} 1;\r\n\tdmarc=pass\r\n"
            f'Authentication-Results:\r\n "{ID}"; dmarc=pass\r\n'
            f"Authentication-Results: 1 {ID}; dmarc=pass\r\n"
            "Authentication-Results: other.test; dkim=pass header.d=kept.test\r\n"
        )
        stored = self.stored(message("ann@nobody.test", before=forged))
        self.assertIn("header.d=kept.test", stored)
        self.assertNotIn("dmarc=pass", stored)
        self.assertEqual(stored.lower().count(f"authentication-results: {ID}"), 1)

    def test_results_in_our_name_are_removed_from_mail_that_is_not_checked(self):
        forged = f"Authentication-Results: {ID}; dmarc=pass\r\nX-Other: kept\r\n"
        asked = len(self.names.asked)
        stored = self.stored(message("ann@strict.test", before=forged), source=RELAYED)
        self.assertNotIn("Authentication-Results", stored)
        self.assertIn("\nX-Other: kept\nFrom: ann@strict.test\n", stored)
        self.assertEqual(len(self.names.asked), asked)

    def test_temporary_failures_are_no_failures(self):
        signed = dkimpy(message("ann@broken.test"), "dkim", "rsa", "broken.test", self.keys.rsa, "rsa-sha256")
        found = self.results(signed, sender="ann@broken.test")
        for word in ("dkim=temperror", "dmarc=temperror", "spf=temperror"):
            self.assertIn(word, found)

    def test_the_chain_of_a_forwarder_is_valid(self):
        results = "Authentication-Results: list.test; dmarc=pass header.from=strict.test\r\n"
        content = message("ann@strict.test", before=results)
        sealed = dkimpy(content, "arc", "rsa", "list.test", self.keys.rsa, "list.test")
        found = self.results(sealed, sender="list@list.test")
        self.assertIn("arc=pass (i=1) header.d=list.test", found)
        self.assertIn("dmarc=fail (p=reject) (accepted by the seal of list.test) header.from=strict.test", found)
        self.assertIn("arc=fail", self.results(sealed.replace(b"world", b"there"), sender="list@list.test"))

    def test_verdicts_are_counted_and_logged(self):
        self.results(message("ann@good.test", subject="counted"))
        counts = metrics(self.server)
        self.assertGreaterEqual(counts['mailrace_sender_auth_total{method="spf",result="pass"}'], 1)
        self.assertGreaterEqual(counts['mailrace_sender_auth_total{method="dkim",result="none"}'], 1)
        self.assertIn('mailrace_sender_auth_limited_total{limit="time"}', counts)
        await_event(self.server, "received", auth="spf=pass dkim=none dmarc=pass arc=none iprev=pass")


class Enforced(SenderAuthCase):
    MODES = {"spf": "enforce", "dmarc": "enforce", "more": '[sender_auth.actions]\nspf = { fail = "accept" }'}

    def test_mail_is_treated_as_the_domain_of_the_author_wants(self):
        reply = self.send(message("ann@strict.test"), source=FAILED)
        self.assertEqual(repr(reply), "550 5.7.26 Not from strict.test, by its DMARC policy")
        self.assertEqual(self.send(message("ann@good.test"), source=FAILED).code, 250)
        stored = self.stored(message("ann@soft.test", subject="tagged"), source=FAILED)
        self.assertIn("\nX-Authentication-Warning: dmarc=fail\n", stored)
        signed = dkimpy(message("ann@strict.test"), "dkim", "rsa", "strict.test", self.keys.rsa, "rsa-sha256")
        self.assertEqual(self.send(signed, source=FAILED).code, 250)
        other = dkimpy(message("ann@strict.test"), "dkim", "rsa", "good.test", self.keys.rsa, "rsa-sha256")
        self.assertEqual(self.send(other, source=FAILED).code, 550)

    def test_an_author_that_cannot_be_told_is_refused(self):
        for author in (
            "ann@good.test\r\nFrom: eve@strict.test",
            "ann@good.test, eve@strict.test",
            "friends: eve@strict.test;",
            "eve@strict\r\n .test",
            "<eve@strict(x).test>",
            "=?utf-8?q?eve=40strict.test?=",
            "eve@strict.test <ann@good.test>",
        ):
            reply = self.send(message(author))
            self.assertTrue(reply.is_a(550, "5.7.1 "), f"{author!r}: {reply}")
        without = b"To: alice@bench.test\r\nSubject: x\r\n\r\nx\r\n"
        self.assertTrue(self.send(without).is_a(550, "5.7.1 "))

    def test_the_seal_of_a_trusted_forwarder_is_believed_and_no_other(self):
        results = "Authentication-Results: {}; dmarc=pass header.from=strict.test\r\n"
        for sealer, code in (("list.test", 250), ("stranger.test", 550)):
            content = message("ann@strict.test", before=results.format(sealer))
            sealed = dkimpy(content, "arc", "rsa", sealer, self.keys.rsa, sealer)
            self.assertEqual(self.send(sealed, source=FAILED).code, code, sealer)
        failed = message("ann@strict.test", before=results.format("list.test").replace("=pass", "=fail"))
        sealed = dkimpy(failed, "arc", "rsa", "list.test", self.keys.rsa, "list.test")
        self.assertEqual(self.send(sealed, source=FAILED).code, 550)

    def test_a_temporary_failure_is_deferred_by_default(self):
        reply = self.send(message("ann@broken.test"), source=FAILED)
        self.assertTrue(reply.is_a(451, "4.7.26 "), reply)


class Strict(SenderAuthCase):
    MODES = {
        "spf": "enforce",
        "dmarc": "enforce",
        "more": """
[sender_auth.actions]
spf = { fail = "refuse", temperror = "defer" }
dmarc = { quarantine = "hold", temperror = "defer" }
""",
    }

    def test_spf_refuses_and_defers(self):
        reply = self.send(message("ann@nobody.test"), sender="ann@strict.test", source=FAILED)
        self.assertTrue(reply.is_a(550, "5.7.23 SPF: fail for strict.test"), reply)
        reply = self.send(message("ann@nobody.test"), sender="ann@broken.test")
        self.assertTrue(reply.is_a(451, "4.7.24 "), reply)
        reply = self.send(message("ann@broken.test"))
        self.assertTrue(reply.is_a(451, "4.7.26 "), reply)

    def test_mail_is_held_where_the_operator_wants(self):
        self.assertEqual(self.send(message("ann@soft.test"), source=PASSED).code, 250)
        await_event(self.server, "held")


class Queued(SenderAuthCase):
    MODES = {
        "spf": "observe",
        "dmarc": "enforce",
        "more": """
[sender_auth.actions]
dmarc = { quarantine = { queue = "suspicious" } }

[[queue]]
name = "suspicious"
concurrency = 0

[[domain]]
name = "away.test"
transport = "away"

[transport.away]
type = "smtp"
next_hop = "[127.0.0.1]:1"
""",
    }

    def test_mail_goes_to_the_queue_of_its_verdict(self):
        for author in ("ann@soft.test", "ann@good.test"):
            with Client(self.server.port, source=PASSED) as client:
                client.greet()
                local_part = author.partition("@")[2].partition(".")[0]
                reply = client.deliver(message(author), f"{local_part}@away.test", sender="ann@good.test")
                self.assertEqual(reply.code, 250, reply)
        # The queue of the first message is held; the second one is tried at once.
        await_event(self.server, "deferred", to="<good@away.test>")
        self.assertEqual(mail_events(self.server, "deferred", to="<soft@away.test>"), [])
        self.assertEqual(self.server.queued(), 2)

    def test_a_queue_that_does_not_exist_is_an_error_of_the_configuration(self):
        config = self.server.config.with_name("faulty.toml")
        config.write_text(self.server.config.read_text().replace('{ queue = "suspicious" }', '{ queue = "suspicius" }'))
        argv = [str(self.server.binary), "check", "--config", str(config)]
        checked = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        self.assertEqual(checked.returncode, 78, checked.stderr)
        self.assertIn("suspicius", checked.stderr)


class Rules(SenderAuthCase):
    MODES = {
        "spf": "observe",
        "dmarc": "observe",
        "more": """
[[access]]
name = "friend"
senders = ["friend@strict.test"]
action = "accept"

[[access]]
name = "signed"
dkim_domains = ["good.test"]
action = "accept"

[[access]]
name = "no spf"
spf = ["fail", "softfail"]
dkim = ["none", "fail"]
action = "refuse"
reply = "550 5.7.1 neither SPF nor DKIM"
""",
    }

    def test_access_rules_ask_for_verdicts(self):
        reply = self.send(message("ann@strict.test"), sender="ann@strict.test", source=FAILED)
        self.assertEqual(repr(reply), "550 5.7.1 neither SPF nor DKIM")
        await_event(self.server, "refused", stage="message", rule="no spf")
        signed = dkimpy(message("ann@good.test"), "dkim", "rsa", "good.test", self.keys.rsa, "rsa-sha256")
        self.assertEqual(self.send(signed, sender="ann@strict.test", source=FAILED).code, 250)
        name = 'mailrace_access_rules_total{rule="signed"}'
        await_that(lambda: metrics(self.server)[name] == 1, "the rule to be counted", self.server)
        # A rule that has accepted before ends these too.
        reply = self.send(message("ann@strict.test"), sender="friend@strict.test", source=FAILED)
        self.assertEqual(reply.code, 250)
        self.assertEqual(self.send(message("ann@good.test")).code, 250)


class Reloaded(SenderAuthCase):
    def test_a_reload_turns_checks_off_and_on(self):
        text = self.server.config.read_text()
        self.results(message("ann@good.test"))
        off = re.sub(r'^(spf|dkim|dmarc|arc|iprev) = "observe"', r'\1 = "off"', text, flags=re.M)
        self.server.config.write_text(off)
        self.reload()
        asked = len(self.names.asked)
        self.assertNotIn("Authentication-Results", self.stored(message("ann@good.test")))
        self.assertEqual(len(self.names.asked), asked, "nothing is asked when everything is off")
        self.server.config.write_text(text)
        self.reload()
        self.results(message("ann@good.test"))

    def reload(self):
        argv = [str(self.server.binary), "reload", "--config", str(self.server.config)]
        subprocess.run(argv, capture_output=True, check=True, timeout=60)


del SenderAuthCase  # it has no tests

if __name__ == "__main__":
    unittest.main()
