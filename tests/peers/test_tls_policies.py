"""TLS to other servers with Postfix as the host: verified certificates, DANE, MTA-STS, and that mail
waits, and never goes in clear text, if the host does not prove what it must; DANE in a signed zone that
Unbound validates; and `mailrace dns`.

Needs root for Postfix, and for the policy host, which listens on port 443 of a loopback address.
"""

import os
import re
import shutil
import subprocess
import unittest
import unittest.mock

from outbound import OutboundCase, await_event, mail_events, metrics
from peers.postfix import Postfix
from policy_host import POLICY, POLICY_ADDRESS, PolicyHost
from signed_zone import Authority, Unbound, can_sign_zones
from test_dkim_signing import Keys

_VERIFIED = """
[transport.partner]
type = "smtp"
next_hop = "{next_hop}"
tls = "verified"
tls_ca_file = "{ca}"

[[route]]
domain = "dest.test"
transport = "partner"
"""

_SERVES_POLICY = """
[[listener]]
protocol = "http"
address = "{address}:443"
tls = "implicit"
files = "{files}"

[[certificate]]
chain = "{certificate}"
key = "{certificate}"
"""


class PostfixCase(OutboundCase):
    """A Postfix that offers TLS for mx.dest.test, and a zone that leads there."""

    def setUp(self):
        super().setUp()
        if not shutil.which("postfix") or os.geteuid() != 0:
            self.skipTest("postfix is not installed, or this is not root")
        self.authority = Authority(self.folder / "ca")
        self.certificate = self.authority.issue("mx.dest.test")
        self.postfix = self.start_postfix(f"smtpd_tls_chain_files = {self.certificate}",
                                          "smtpd_tls_security_level = may")  # fmt: skip
        self.zone = self.names()
        self.zone.mx("dest.test", 10, "mx.dest.test")
        for name in ("mx.dest.test", "other.dest.test"):
            self.zone.a(name, "127.0.0.1")

    def start_postfix(self, *lines):
        postfix = Postfix(self.folder / "postfix", "tuned", ["mydestination = dest.test", "local_transport = discard:", *lines])
        self.addCleanup(postfix.stop)
        postfix.start()
        return postfix

    def server(self, extra="", smtp=""):
        smtp = f"port = {self.postfix.port}\n{smtp}"
        return self.start(names=self.zone, smtp=smtp, extra=extra, retry='first = "1h", jitter = 0.0')

    def assert_delivered(self, server, proof):
        self.send(server, "bob@dest.test")
        self.assertEqual(await_event(server, "delivered", to="<bob@dest.test>").tls, proof)

    def assert_waits(self, server, why):
        self.send(server, "bob@dest.test")
        self.assertRegex(await_event(server, "deferred", to="<bob@dest.test>").reason, rf"^451 4\.7\.5 .*{why}")
        self.assertEqual(mail_events(server, "delivered"), [])

    def explanation(self, server, address="bob@dest.test"):
        argv = [str(server.binary), "explain", "--config", str(server.config), address]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


class TlsPolicies(PostfixCase):
    """Verified transports, DANE and MTA-STS with a scripted DNS."""

    def test_a_verified_host_has_a_certificate_for_its_name(self):
        extra = _VERIFIED.format(next_hop=f"mx.dest.test:{self.postfix.port}", ca=self.authority.file)
        server = self.server(extra)
        self.assert_delivered(server, "verified")
        self.assertIn("TLS: verified, certificate for mx.dest.test", self.explanation(server))

    def test_mail_waits_for_a_host_with_a_certificate_for_another_name(self):
        extra = _VERIFIED.format(next_hop=f"other.dest.test:{self.postfix.port}", ca=self.authority.file)
        self.assert_waits(self.server(extra), "not valid for name")

    def test_mail_waits_for_a_host_whose_authority_is_not_trusted(self):
        stranger = Authority(self.folder / "stranger")
        extra = _VERIFIED.format(next_hop=f"mx.dest.test:{self.postfix.port}", ca=stranger.file)
        self.assert_waits(self.server(extra), "invalid peer certificate")

    def test_required_tls_authenticates_nobody(self):
        self.assert_delivered(self.server(smtp='tls = "required"'), "encrypted")

    def sign(self, digest):
        tlsa = f"_{self.postfix.port}._tcp.mx.dest.test"
        self.zone.signed |= {"dest.test", "mx.dest.test", tlsa}
        self.zone.tlsa(tlsa, 3, 1, 1, digest)
        return tlsa

    def test_a_host_with_tlsa_records_has_the_certificate_that_they_name(self):
        self.sign(self.authority.key_digest(self.certificate))
        server = self.server("validating = true")
        self.assert_delivered(server, "dane")
        self.assertIn("TLS: dane, by 1 TLSA record of mx.dest.test", self.explanation(server))
        self.assertEqual(metrics(server)['mailrace_relayed_total{tls="dane"}'], 1)

    def test_mail_waits_for_a_host_with_another_certificate_than_its_tlsa_records_name(self):
        self.sign(bytes(32))
        self.assert_waits(self.server("validating = true"), "matches no TLSA record")

    def test_mail_waits_while_the_tlsa_records_cannot_be_looked_up(self):
        self.zone.broken.add(self.sign(bytes(32)))
        self.assert_waits(self.server("validating = true"), "the lookup of its TLSA records failed")

    def test_tlsa_records_of_a_resolver_that_is_not_called_validating_do_not_count(self):
        self.sign(bytes(32))
        self.assert_delivered(self.server(), "encrypted")

    def test_mail_waits_for_a_host_with_tlsa_records_that_offers_no_tls(self):
        self.sign(bytes(32))
        plain = self.host()
        port = self.postfix.port
        self.zone.tlsa(f"_{plain.port}._tcp.mx.dest.test", 3, 1, 1, bytes(32))
        self.zone.signed.add(f"_{plain.port}._tcp.mx.dest.test")
        self.postfix.port = plain.port
        self.assert_waits(self.server("validating = true"), "TLS is required but not offered")
        self.postfix.port = port
        self.assertEqual(plain.messages, [])

    def publish(self, mode, mx):
        self.zone.txt("_mta-sts.dest.test", "v=STSv1; id=1;")
        self.zone.a("mta-sts.dest.test", POLICY_ADDRESS)
        trusted = unittest.mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(self.authority.file)})
        trusted.start()
        self.addCleanup(trusted.stop)
        certificate = self.authority.issue("mta-sts.dest.test")
        return self.ending(PolicyHost(certificate, POLICY.format(mode, mx)))

    def test_an_enforced_policy_is_met_by_a_host_that_it_names_and_outlives_a_restart(self):
        host = self.publish("enforce", "*.dest.test")
        server = self.server()
        self.assert_delivered(server, "mta-sts")
        self.assertIn("MTA-STS policy of dest.test: enforce, id 1", self.explanation(server))
        self.assertEqual(host.requests, 1)
        self.assertTrue((server.data / "mta-sts/dest.test").is_file())
        server.terminate()
        self.zone.records.pop(("_mta-sts.dest.test", 16))
        server.start()
        self.send(server, "carol@dest.test")
        self.assertEqual(await_event(server, "delivered", to="<carol@dest.test>").tls, "mta-sts")
        self.assertEqual(host.requests, 1)

    def test_mail_waits_if_an_enforced_policy_does_not_name_the_host(self):
        self.publish("enforce", "mx.elsewhere.test")
        server = self.server()
        self.assert_waits(server, "the domain's MTA-STS policy does not name it")
        self.assertIn("mail waits", self.explanation(server))

    def test_mail_waits_if_the_certificate_is_not_for_the_host_of_an_enforced_policy(self):
        self.publish("enforce", "*.dest.test")
        self.zone.records.pop(("dest.test", 15))
        self.zone.mx("dest.test", 10, "other.dest.test")
        self.assert_waits(self.server(), "not valid for name")

    def test_a_testing_policy_and_one_that_is_switched_off_change_nothing(self):
        self.publish("testing", "mx.elsewhere.test")
        self.assert_delivered(self.server(), "encrypted")

    def test_a_policy_counts_no_more_where_the_transport_says_so(self):
        host = self.publish("enforce", "mx.elsewhere.test")
        self.assert_delivered(self.server(smtp="mta_sts = false"), "encrypted")
        self.assertEqual(host.requests, 0)


    def test_our_own_server_serves_a_policy(self):
        host = self.publish("enforce", "mx.dest.test")
        host.stop()
        self._others.remove(host)
        certificate = self.authority.folder / "mta-sts.dest.test.pem"
        files = self.folder / "files/.well-known"
        files.mkdir(parents=True)
        (files / "mta-sts.txt").write_text(POLICY.format("enforce", "mx.dest.test"))
        extra = _SERVES_POLICY.format(address=POLICY_ADDRESS, files=files.parent, certificate=certificate)
        self.start("policy-host", names=self.zone, extra=extra)
        self.assert_delivered(self.server(), "mta-sts")


class ValidatedZone(PostfixCase):
    """The same Postfix in a signed zone that a real Unbound validates."""

    def setUp(self):
        super().setUp()
        if not can_sign_zones():
            self.skipTest("unbound or bind9-utils are not installed")

    def zone_with(self, digest):
        digest = digest.hex().upper()
        records = ["@ MX 10 mx", "mx A 127.0.0.1", "@ MX 20 alias", "alias CNAME mx",
                   f"_{self.postfix.port}._tcp.mx TLSA 3 1 1 {digest}"]  # fmt: skip
        return self.ending(Unbound(self.folder / "unbound", "dest.test", records))

    def serve(self, unbound):
        unbound.start()
        self.zone = unbound
        return self.server("validating = true")

    def test_a_host_has_the_certificate_that_the_signed_records_name(self):
        server = self.serve(self.zone_with(self.authority.key_digest(self.certificate)))
        self.assert_delivered(server, "dane")
        explanation = self.explanation(server)
        self.assertIn("1. mx.dest.test: 127.0.0.1", explanation)
        # The second host is an alias of the first, and has its records.
        self.assertEqual(explanation.count("TLS: dane, by 1 TLSA record of mx.dest.test"), 2, explanation)

    def test_mail_waits_if_the_signed_records_name_another_certificate(self):
        self.assert_waits(self.serve(self.zone_with(bytes(32))), "matches no TLSA record")

    def test_mail_waits_if_somebody_changes_the_records(self):
        unbound = self.zone_with(self.authority.key_digest(self.certificate))
        unbound.tamper("TLSA\t3 1 1", "TLSA\t3 0 1")
        self.assert_waits(self.serve(unbound), "the lookup of its TLSA records failed")


class Records(OutboundCase):
    """`mailrace dns`."""

    def setUp(self):
        super().setUp()
        self.zone = self.names()
        authority = Authority(self.folder / "ca")
        self.certificate = authority.issue("mx.bench.test")
        self.digest = authority.key_digest(self.certificate)
        extra = f'\n[[certificate]]\nchain = "{self.certificate}"\nkey = "{self.certificate}"\n'
        self.keys = Keys(self.folder)
        self.server = self.configure(names=self.zone, extra=extra + self.keys.section())

    def dns(self, *argv, server=None):
        server = server or self.server
        command = [str(server.binary), "dns", "--config", str(server.config), "bench.test", *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def publish(self):
        self.zone.mx("bench.test", 10, "mx.bench.test")
        self.zone.a("mx.bench.test", "127.0.0.1")
        self.zone.ptr("127.0.0.1", "mx.bench.test")
        self.zone.txt("bench.test", "v=spf1 a:mx.bench.test -all")
        self.zone.txt("_dmarc.bench.test", "v=DMARC1; p=reject")
        for name, value in self.keys.records.items():
            self.zone.txt(name.rstrip("."), value.decode())

    def test_it_prints_what_should_be_published(self):
        self.publish()
        printed = self.dns()
        self.assertEqual(printed.returncode, 0, printed.stderr)
        for line in ["bench.test. IN MX 10 mx.bench.test.", 'bench.test. IN TXT "v=spf1 mx -all"',
                     "1.0.0.127.in-addr.arpa. IN PTR mx.bench.test.",
                     f"_25._tcp.mx.bench.test. IN TLSA 3 1 1 {self.digest.hex()}"]:  # fmt: skip
            self.assertIn(line, printed.stdout.splitlines())
        for selector in self.keys.files:
            self.assertIn(f'\n{selector}._domainkey.bench.test. IN TXT ', printed.stdout)
        self.assertIn('_smtp._tls.bench.test. IN TXT "v=TLSRPTv1; rua=mailto:postmaster@bench.test"', printed.stdout)

    def test_the_check_finds_what_is_missing_and_what_differs(self):
        checked = self.dns("--check")
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertIn("missing  bench.test. IN MX 10 mx.bench.test.", checked.stdout)
        self.assertIn("mx.bench.test has no address", checked.stdout)
        self.publish()
        checked = self.dns("--check")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertIn("ok       bench.test. IN MX 10 mx.bench.test.", checked.stdout)
        self.assertIn("optional _25._tcp.mx.bench.test. IN TLSA", checked.stdout)
        self.zone.tlsa("_25._tcp.mx.bench.test", 3, 1, 1, bytes(32))
        checked = self.dns("--check")
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertIn(f"published: 3 1 1 {bytes(32).hex()}", checked.stdout)
        self.zone.tlsa("_25._tcp.mx.bench.test", 3, 1, 1, self.digest)
        self.assertEqual(self.dns("--check").returncode, 0)
        self.zone.broken.add("_dmarc.bench.test")
        self.assertEqual(self.dns("--check").returncode, 69)

    def assert_fault(self, line, fault, server=None):
        checked = self.dns("--check", server=server)
        self.assertEqual(checked.returncode, 1, checked.stdout)
        # A long record, and what is published, are on further lines.
        pattern = rf"^differs  {re.escape(line)}.*\n(?: .*\n)*? +fault: (.*)$"
        found = re.search(pattern, checked.stdout, re.M)
        self.assertIsNotNone(found, checked.stdout)
        self.assertIn(fault, found[1])

    def test_the_check_judges_what_the_records_say(self):
        self.publish()
        for text, fault in [
            ("v=spf1 -all", "fail for mail from 127.0.0.1, an address of this server"),
            ("v=spf1 ip4:192.0.2.1 ~all", "softfail for mail from 127.0.0.1"),
            ("v=spf1 include:nowhere.test -all", "permerror for mail from 127.0.0.1"),
            ("v=spf1 mx: -all", "its syntax is invalid"),
            ("v=spf1; mx -all", "receivers ignore it: expected v=spf1, and then a space"),
        ]:
            self.zone.replace_txt("bench.test", text)
            self.assert_fault("bench.test. IN TXT", fault)
        self.zone.replace_txt("bench.test", "v=spf1 mx -all")
        self.assertEqual(self.dns("--check").returncode, 0)
        self.zone.replace_txt("_dmarc.bench.test", "v=DMARC1; p=rejct")
        self.assert_fault("_dmarc.bench.test. IN TXT", "`p=rejct`: expected none, quarantine or reject")
        self.zone.replace_txt("_dmarc.bench.test", "v=DMARC1; p=none")
        self.zone.txt("_smtp._tls.bench.test", "v=TLSRPTv1; rua=postmaster")
        self.assert_fault("_smtp._tls.bench.test. IN TXT", "expected mailto:")

    def test_the_check_holds_published_keys_against_the_private_ones(self):
        self.publish()
        name = "ed25519._domainkey.bench.test"
        self.zone.replace_txt(name, "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
        self.assert_fault(f"{name}. IN TXT", "belongs to another private key")
        self.zone.records.pop((name, 16))
        checked = self.dns("--check")
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertIn(f"missing  {name}. IN TXT", checked.stdout)

    def test_what_cannot_be_judged_is_noted(self):
        relayed = self.configure("relayed", names=self.zone, smtp='next_hop = "relay.bench.test"')
        self.publish()
        self.zone.replace_txt("bench.test", "v=spf1 a:relay.bench.test -all")
        checked = self.dns("--check", server=relayed)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        self.assertIn("note     mail to other domains leaves by relay.bench.test: SPF is not judged", checked.stdout)
        self.assertIn("note     no DKIM record: no key signs for bench.test", checked.stdout)


if __name__ == "__main__":
    unittest.main()
