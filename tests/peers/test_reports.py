"""Reports to the owners of other domains: DMARC aggregate reports about mail that came in, and SMTP TLS
reports about hosts to which mail went, with and without policies. They are sent by a command, and read as
their recipients read them: from the mailbox, by Python's parsers for messages, gzip, XML and JSON. And what
becomes of reports that bounce.
"""

import datetime
import email
import email.policy
import gzip
import json
import os
import pathlib
import subprocess
import unittest
import unittest.mock
import xml.etree.ElementTree

from harness import Client, ServerCase, await_that, folder, mail_files
from name_server import MX, TXT, A, NameServer
from outbound import OutboundCase, await_event, mail_events, metrics, send
from peers.mailrace import Mailrace
from peers.smtp import free_port
from policy_host import POLICY, POLICY_ADDRESS, PolicyHost
from signed_zone import Authority

PASSED, FAILED = "127.0.0.21", "127.0.0.22"  # clients, by SPF of the domains
SETTINGS = """
[sender_auth]
iprev = "off"
dmarc = "enforce"

[dns]
servers = ["{servers}"]
timeout = "10s"
attempts = 1

[reports]
dmarc = true
organization = "Bench & Test"
contact = "reports@mx.bench.test"
spread = "1s"

[[signing.key]]
domain = "bench.test"
selector = "s1"
file = "{key}"
"""
NAMESPACE = "{urn:ietf:params:xml:ns:dmarc-2.0}"
# RFC 9990 appendix A: the elements of each element in their order; those after "?" may be missing, those
# after "*" may be repeated too.
SCHEMA = {
    "feedback": ["?version", "report_metadata", "policy_published", "*record"],
    "report_metadata": ["org_name", "email", "?extra_contact_info", "report_id", "date_range", "*error", "?generator"],
    "date_range": ["begin", "end"],
    "policy_published": ["domain", "?discovery_method", "?p", "?sp", "?np", "?adkim", "?aspf", "?fo", "?testing"],
    "record": ["row", "identifiers", "auth_results"],
    "row": ["source_ip", "count", "policy_evaluated"],
    "policy_evaluated": ["disposition", "dkim", "spf", "*reason"],
    "reason": ["type", "?comment"],
    "identifiers": ["header_from", "?envelope_from", "?envelope_to"],
    "auth_results": ["*dkim", "?spf"],
    "auth_results/dkim": ["domain", "selector", "result", "?human_result"],
    "auth_results/spf": ["domain", "?scope", "result", "?human_result"],
}
VALUES = {
    "disposition": {"none", "pass", "quarantine", "reject"},
    "policy_evaluated/dkim": {"pass", "fail"},
    "policy_evaluated/spf": {"pass", "fail"},
    "reason/type": {"local_policy", "mailing_list", "other", "policy_test_mode", "trusted_forwarder"},
    "p": {"none", "quarantine", "reject"},
    "adkim": {"r", "s"},
    "aspf": {"r", "s"},
    "testing": {"n", "y"},
    "discovery_method": {"psl", "treewalk"},
    "scope": {"mfrom"},
    "auth_results/dkim/result": {"none", "pass", "fail", "policy", "neutral", "temperror", "permerror"},
    "auth_results/spf/result": {"none", "neutral", "pass", "fail", "softfail", "temperror", "permerror"},
}


def faults(element, path=()):
    """What in the element and below it is not as the schema wants it."""
    name = element.tag.removeprefix(NAMESPACE)
    path = (*path, name)
    known = [rules for rules in ("/".join(path[-2:]), name) if rules in SCHEMA]
    if not element.tag.startswith(NAMESPACE):
        yield f"{element.tag} is in no namespace"
    if known and (len(element) or name not in ("dkim", "spf")):
        children = [child.tag.removeprefix(NAMESPACE) for child in element]
        position = 0
        for rule in SCHEMA[known[0]]:
            wanted = rule.lstrip("?*")
            count = 0
            while position < len(children) and children[position] == wanted:
                position, count = position + 1, count + 1
            if count > 1 and not rule.startswith("*") or count == 0 and not rule.startswith(("?", "*")):
                yield f"{name} has {count} of {wanted}: {children}"
        if position < len(children):
            yield f"{name} has {children[position]} in the wrong place: {children}"
    elif len(element):
        yield f"{name} has elements"
    for place in ("/".join(path[-3:]), "/".join(path[-2:]), name):
        if place in VALUES and not len(element) and element.text not in VALUES[place]:
            yield f"{place} is {element.text!r}"
    for child in element:
        yield from faults(child, path)


def reports(server, *words):
    """Runs a `reports` command; returns its objects."""
    argv = [str(server.binary), "reports", *words, "--json", "--config", str(server.config)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if said.returncode != 0:
        raise AssertionError(f"{words}: {said.stderr}")
    return [json.loads(line) for line in said.stdout.splitlines()]


def received_report(case, server, user, subject):
    """The message about `subject` in the mailbox, and the text of its file."""

    def found():
        files = mail_files(server.maildir(user, "bench.test") / "new")
        parsed = (email.message_from_bytes(file.read_bytes(), policy=email.policy.default) for file in files)
        return [message for message in parsed if subject in str(message["subject"])]

    message = await_that(found, f"the report about {subject}", server)[-1]
    text, file = message.iter_parts()
    case.assertEqual(text.get_content_type(), "text/plain")
    return message, file, gzip.decompress(file.get_content())


class DmarcReports(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.names = NameServer()
        cls.addClassCleanup(cls.names.stop)
        for domain, tags in {
            "good.test": "p=reject; sp=none; adkim=s; rua=mailto:alice@bench.test!1m",
            "small.test": "p=none; rua=mailto:alice@bench.test!1k",
            "foreign.test": "p=none; rua=mailto:bob@bench.test,https://foreign.test/",
            "again.test": "p=none; rua=mailto:alice@bench.test",
            "daily.test": "p=none; rua=mailto:alice@bench.test",
            "quiet.test": "p=none",
        }.items():
            cls.names.txt(f"_dmarc.{domain}", f"v=DMARC1; {tags}")
            cls.names.txt(domain, f"v=spf1 ip4:{PASSED} -all")
            if domain != "foreign.test":
                cls.names.txt(f"{domain}._report._dmarc.bench.test", "v=DMARC1")
        root = pathlib.Path(cls.folder.name)
        argv = ["openssl", "genrsa", "-out", str(root / "key.pem"), "2048"]
        subprocess.run(argv, check=True, capture_output=True)
        (root / "key.pem").chmod(0o644)  # the server may run as another user
        extra = SETTINGS.format(servers=cls.names.target, key=root / "key.pem")
        cls.server = Mailrace(root, users=["alice", "bob", "carol"], extra=extra)
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def send(self, domain, source=PASSED, sender=None, header=""):
        """The code of the reply to a message in the name of a domain."""
        message = f"{header}From: ann@{domain}\r\nSubject: hello\r\n\r\nHello.\r\n".encode()
        with Client(self.server.port, source=source) as client:
            client.greet()
            return client.deliver(message, "carol@bench.test", sender=sender or f"ann@{domain}").code

    def counted(self, domain):
        """What is counted about a domain: rows and messages."""
        return [(row["rows"], row["count"]) for row in reports(self.server, "show") if row["domain"] == domain]

    def test_a_report_is_sent_by_a_command_and_valid(self):
        hostile = 'DKIM-Signature: v=1; a=rsa-sha256; d=a<b>&"c; s=x; bh=AA==; h=from; b=AA==\r\n'
        unkeyed = "DKIM-Signature: v=1; a=rsa-sha256; d=good.test; s=no; bh=AA==; h=from; b=AA==\r\n"
        self.assertEqual(self.send("good.test"), 250)
        self.assertEqual(self.send("good.test"), 250)
        self.assertEqual(self.send("good.test", FAILED, header=hostile + unkeyed), 550)
        self.assertEqual(self.send("quiet.test"), 250)
        self.assertEqual(self.counted("good.test"), [(2, 3)])
        self.assertEqual(self.counted("quiet.test"), [])
        (sent,) = reports(self.server, "send", "good.test")
        self.assertEqual((sent["kind"], sent["result"], sent["to"]), ("dmarc", "sent", "alice@bench.test"))
        self.assertEqual(self.counted("good.test"), [])
        message, file, text = received_report(self, self.server, "alice", "Report Domain: good.test")
        self.assertEqual(message["from"], "Bench & Test <reports@mx.bench.test>")
        self.assertEqual(message["return-path"], "<>")
        self.assertIn("d=bench.test;", message["dkim-signature"])
        self.assertEqual(file.get_content_type(), "application/gzip")
        root = xml.etree.ElementTree.fromstring(text)
        self.assertEqual(list(faults(root)), [], text.decode())
        begin, end = (int(root.findtext(f".//{NAMESPACE}{name}")) for name in ("begin", "end"))
        self.assertEqual((begin % 86400, begin // 86400), (0, end // 86400))
        self.assertEqual(file.get_filename(), f"mx.bench.test!good.test!{begin}!{end}.xml.gz")
        self.assertIn(root.findtext(f".//{NAMESPACE}report_id"), str(message["subject"]))
        rows = {row.findtext(f".//{NAMESPACE}source_ip"): row for row in root.iter(f"{NAMESPACE}record")}
        for source, expected in {
            PASSED: {"count": "2", "disposition": "pass", "dkim": "fail", "spf": "pass"},
            FAILED: {"count": "1", "disposition": "reject", "dkim": "fail", "spf": "fail"},
        }.items():
            row = rows[source].find(f"{NAMESPACE}row")
            found = {name: row.findtext(f".//{NAMESPACE}{name}") for name in expected}
            self.assertEqual(found, expected)
        results = rows[FAILED].find(f"{NAMESPACE}auth_results")
        signatures = [dkim.findtext(f"{NAMESPACE}domain") for dkim in results.iter(f"{NAMESPACE}dkim")]
        self.assertEqual(signatures, ["good.test"])
        await_event(self.server, "received", protocol="report")

    def test_a_destination_that_has_not_agreed_gets_nothing(self):
        self.assertEqual(self.send("foreign.test"), 250)
        (sent,) = reports(self.server, "send", "foreign.test")
        self.assertEqual((sent["result"], sent["to"]), ("unverified", "bob@bench.test"))

    def test_a_report_that_is_too_large_is_not_sent(self):
        self.assertEqual(self.send("small.test"), 250)
        before = metrics(self.server)['mailrace_reports_total{result="too_large"}']
        self.assertEqual([sent["result"] for sent in reports(self.server, "send", "small.test")], ["too_large"])
        self.assertEqual(metrics(self.server)['mailrace_reports_total{result="too_large"}'], before + 1)

    def test_counts_survive_a_restart(self):
        self.assertEqual(self.send("again.test"), 250)
        self.assertEqual(self.counted("again.test"), [(1, 1)])
        self.assertEqual(self.server.terminate(), 0)
        self.server.start()
        self.assertEqual(self.send("again.test"), 250)
        self.assertEqual(self.counted("again.test"), [(1, 2)])

    def test_the_reports_of_a_day_are_sent_after_it(self):
        self.assertEqual(self.send("daily.test"), 250)
        self.assertEqual(self.server.terminate(), 0)
        (counts,) = (self.server.data / "reports").glob("*.jsonl")
        yesterday = datetime.date.fromisoformat(counts.stem) - datetime.timedelta(days=1)
        counts.rename(counts.with_stem(yesterday.isoformat()))
        self.server.start()
        _, _, text = received_report(self, self.server, "alice", "Report Domain: daily.test")
        root = xml.etree.ElementTree.fromstring(text)
        begin, end = (int(root.findtext(f".//{NAMESPACE}{name}")) for name in ("begin", "end"))
        self.assertEqual((begin % 86400, end - begin), (0, 86399))
        await_that(lambda: not self.counted("daily.test"), "the end of the report", self.server)

    def test_a_domain_without_counts_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "nothing was counted"):
            reports(self.server, "send", "nobody.test")


class TlsReportCase(OutboundCase):
    """Mail to dest.test, whose owner wants reports at alice@bench.test or where `reports_to` says."""

    def setUp(self):
        super().setUp()
        self.zone = self.names()
        self.zone.txt("_smtp._tls.dest.test", "v=TLSRPTv1; rua=mailto:alice@bench.test")

    def reporting(self, host, smtp="", dns="", **settings):
        """A server whose mail to dest.test goes to this host."""
        self.zone.domain("dest.test", host.address)
        extra = f"{dns}\n[reports]\ntls = true\n"
        return self.start(names=self.zone, smtp=f"port = {host.port}\n{smtp}", extra=extra, **settings)

    def forget_hosts(self):
        """Takes the hosts of dest.test out of the DNS."""
        self.zone.records.pop(("dest.test", MX))
        self.zone.records.pop(("mx1.dest.test", A))

    def policies(self, server):
        """The entries of the report that is sent now, by the type of their policy."""
        (sent,) = reports(server, "send", "dest.test")
        self.assertEqual((sent["kind"], sent["result"], sent["to"]), ("tls", "sent", "alice@bench.test"))
        message, file, text = received_report(self, server, "alice", "Report Domain: dest.test")
        self.assertEqual((message["tls-report-domain"], message.get_param("report-type")), ("dest.test", "tlsrpt"))
        self.assertEqual(file.get_content_type(), "application/tlsrpt+gzip")
        report = json.loads(text)
        self.assertEqual(report["organization-name"], "mx.bench.test")
        self.assertEqual({entry["policy"]["policy-domain"] for entry in report["policies"]}, {"dest.test"})
        return {entry["policy"]["policy-type"]: entry for entry in report["policies"]}

    def assert_counts(self, entry, successes, failures):
        """The sessions in an entry, and how often each failure is in it, by type and reason."""
        self.assertEqual(entry["summary"]["total-successful-session-count"], successes)
        self.assertEqual(entry["summary"]["total-failure-session-count"], sum(failures.values()))
        details = entry.get("failure-details", [])
        found = {(it["result-type"], it.get("failure-reason-code")): it["failed-session-count"] for it in details}
        self.assertEqual(found, failures)

    def deliver(self, server, *users):
        """Sends a message to each of these, and waits until it is there."""
        for user in users:
            send(server, f"{user}@dest.test")
            await_event(server, "delivered", to=f"<{user}@dest.test>")

    def wait(self, server, user="bob"):
        """Sends a message, and waits until it is deferred by a policy."""
        send(server, f"{user}@dest.test")
        self.assertIn(" 4.7.5 ", await_event(server, "deferred", to=f"<{user}@dest.test>").reason)


class TlsReports(TlsReportCase):
    def test_a_host_without_tls_is_reported(self):
        host = self.host("127.0.0.61")
        server = self.reporting(host)
        self.deliver(server, "bob")
        entry = self.policies(server)["no-policy-found"]
        self.assertEqual(entry["policy"]["mx-host"], ["mx1.dest.test"])
        self.assertNotIn("policy-string", entry["policy"])
        self.assert_counts(entry, 0, {("starttls-not-supported", None): 1})
        (failure,) = entry["failure-details"]
        self.assertEqual((failure["receiving-mx-hostname"], failure["receiving-ip"]), ("mx1.dest.test", host.address))

    def test_a_transport_without_tls_says_nothing_about_its_hosts(self):
        server = self.reporting(self.host("127.0.0.61"), 'tls = "never"')
        self.deliver(server, "bob")
        self.assertEqual(reports(server, "show"), [])

    def test_tlsa_records_that_are_met_not_met_unusable_and_out_of_reach(self):
        authority = Authority(self.folder / "ca")
        met = (3, 1, 1, authority.key_digest(authority.issue("mx1.dest.test")))
        strings = [f"3 1 1 {digest.hex()}" for digest in (met[3], bytes(32))]
        for case, record, proof, expected, policy in (
            ("met", met, "dane", {}, strings[:1]),
            ("not-met", (3, 1, 1, bytes(32)), None, {("validation-failure", None): 1}, strings[1:]),
            ("unusable", (0, 1, 1, met[3]), "encrypted", {("tlsa-invalid", None): 1}, None),
            ("broken", met, None, {("dnssec-invalid", None): 1}, None),
        ):
            with self.subTest(case):
                host = self.host("127.0.0.61", tls=authority.context("mx1.dest.test"))
                name = f"_{host.port}._tcp.mx1.dest.test"
                self.zone.signed |= {"dest.test", "mx1.dest.test", name}
                self.zone.tlsa(name, *record)
                self.zone.broken |= {name} if case == "broken" else set()
                settings = {"dns": "validating = true", "retry": 'first = "1h", jitter = 0.0', "place": case}
                server = self.reporting(host, **settings)
                if proof:
                    self.deliver(server, "bob")
                    self.assertEqual(mail_events(server, "delivered")[0].tls, proof)
                else:
                    self.wait(server)
                    await_that(lambda: reports(server, "show"), "the count", server)
                entries = self.policies(server)
                self.assertEqual(list(entries), ["tlsa"])
                self.assertEqual(entries["tlsa"]["policy"].get("policy-string"), policy)
                self.assert_counts(entries["tlsa"], 0 if expected else 1, expected)
                self.forget_hosts()


@unittest.skipUnless(os.geteuid() == 0, "port 443 of the policy host needs root")
class StsReports(TlsReportCase):
    """Reports about domains with an MTA-STS policy."""

    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder / "ca")
        trusted = unittest.mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(self.authority.file)})
        trusted.start()
        self.addCleanup(trusted.stop)

    def tls_host(self, name="mx1.dest.test", authority=None):
        """A host with a certificate for this name."""
        return self.host("127.0.0.61", tls=(authority or self.authority).context(name))

    def publish(self, mode, mx, authority=None):
        """Publishes a policy."""
        self.zone.txt("_mta-sts.dest.test", "v=STSv1; id=1;")
        self.zone.a("mta-sts.dest.test", POLICY_ADDRESS)
        certificate = (authority or self.authority).issue("mta-sts.dest.test")
        return self.ending(PolicyHost(certificate, POLICY.format(mode, mx)))

    def lines(self, mode, mx):
        """The policy as a report shows it."""
        return ["version: STSv1", f"mode: {mode}", f"mx: {mx}", "max_age: 86400"]

    def test_a_policy_that_is_met(self):
        for mode in ("enforce", "testing"):
            with self.subTest(mode):
                host = self.publish(mode, "*.dest.test")
                server = self.reporting(self.tls_host(), place=mode)
                self.deliver(server, "bob")
                entries = self.policies(server)
                self.assertEqual(list(entries), ["sts"])
                policy = entries["sts"]["policy"]
                self.assertEqual(policy["policy-string"], self.lines(mode, "*.dest.test"))
                self.assertEqual(policy["mx-host"], ["*.dest.test"])
                self.assert_counts(entries["sts"], 1, {})
                self.reset(host)

    def reset(self, host):
        """Ends the policy host and forgets the hosts of the domain, for the next ones."""
        host.stop()
        self._others.remove(host)
        self.zone.records.pop(("_mta-sts.dest.test", TXT))
        self.zone.records.pop(("mta-sts.dest.test", A))
        self.forget_hosts()

    def test_testing_reports_what_enforce_would_refuse_and_delivers_all_the_same(self):
        stranger = Authority(self.folder / "stranger")
        not_named = ("validation-failure", "mx-host-not-in-policy")
        for case, mx, make, expected in (
            ("not-named", "mx.elsewhere.test", self.tls_host, not_named),
            ("clear", "*.dest.test", lambda: self.host("127.0.0.61"), ("starttls-not-supported", None)),
            ("untrusted", "*.dest.test", lambda: self.tls_host(authority=stranger), ("certificate-not-trusted", None)),
            ("other-name", "*.dest.test", lambda: self.tls_host("x.test"), ("certificate-host-mismatch", None)),
        ):
            with self.subTest(case):
                host = self.publish("testing", mx)
                server = self.reporting(make(), place=case)
                self.deliver(server, "bob")
                entries = self.policies(server)
                self.assertEqual(list(entries), ["sts"])
                self.assertEqual(entries["sts"]["policy"]["policy-string"], self.lines("testing", mx))
                self.assert_counts(entries["sts"], 0, {expected: 1})
                (failure,) = entries["sts"]["failure-details"]
                self.assertEqual(failure["receiving-mx-hostname"], "mx1.dest.test")
                self.reset(host)

    def test_a_host_that_an_enforced_policy_does_not_name_is_reported_although_there_is_no_session(self):
        self.publish("enforce", "mx.elsewhere.test")
        server = self.reporting(self.tls_host(), retry='first = "1h", jitter = 0.0')
        self.wait(server)
        await_that(lambda: reports(server, "show"), "the count", server)
        entries = self.policies(server)
        self.assertEqual(entries["sts"]["policy"]["mx-host"], ["mx.elsewhere.test"])
        self.assert_counts(entries["sts"], 0, {("validation-failure", "mx-host-not-in-policy"): 1})
        (failure,) = entries["sts"]["failure-details"]
        self.assertEqual(failure["receiving-mx-hostname"], "mx1.dest.test")
        self.assertNotIn("receiving-ip", failure)

    def test_a_policy_that_cannot_be_fetched_is_reported_beside_the_session(self):
        stranger = Authority(self.folder / "stranger")
        for case, status, text, authority, expected in (
            ("absent", 404, None, None, "sts-policy-fetch-error"),
            ("invalid", 200, "no policy", None, "sts-policy-invalid"),
            ("untrusted", 200, None, stranger, "sts-webpki-invalid"),
        ):
            with self.subTest(case):
                host = self.publish("enforce", "*.dest.test", authority)
                host.status, host.policy = status, text or host.policy
                server = self.reporting(self.tls_host(), place=case)
                self.deliver(server, "bob")
                entries = self.policies(server)
                self.assert_counts(entries["no-policy-found"], 1, {})
                (failure,) = entries["sts"]["failure-details"]
                self.assertEqual((failure["result-type"], failure["failed-session-count"]), (expected, 1))
                self.assertTrue(failure["failure-reason-code"])
                self.assertNotIn("receiving-mx-hostname", failure)
                self.assertNotIn("policy-string", entries["sts"]["policy"])
                self.reset(host)


class UndeliverableReports(TlsReportCase):
    """Reports have the null sender, and no notice follows if one is refused."""

    def assert_vanishes(self, server, event):
        """The report ends with this event, and leaves nothing: no notice, no message, no count."""
        await_event(server, event, to="<reports@far.test>")
        await_that(lambda: metrics(server)["mailrace_queue_messages"] == 0, "an empty queue", server)
        received = mail_events(server, "received")
        self.assertEqual([mail.protocol for mail in received].count("report"), 1, received)
        self.assertEqual(len(received), 2, received)
        self.assertEqual(reports(server, "show"), [])
        for user in ("alice", "postmaster"):
            self.assertEqual(mail_files(server.maildir(user, "bench.test") / "new"), [])

    def send_report(self, far, **settings):
        """Has a report about dest.test sent to a host; returns the server."""
        self.zone.replace_txt("_smtp._tls.dest.test", "v=TLSRPTv1; rua=mailto:reports@far.test")
        self.zone.domain("far.test", far)
        self.zone.txt("_smtp._tls.far.test", "v=TLSRPTv1; rua=mailto:alice@bench.test")
        server = self.reporting(self.host("127.0.0.61", self.port), **settings)
        self.deliver(server, "bob")
        self.assertEqual([sent["result"] for sent in reports(server, "send", "dest.test")], ["sent"])
        return server

    def test_a_report_that_is_refused_vanishes(self):
        far = self.host("127.0.0.62", script={"RCPT": "550 5.1.1 nobody"})
        self.port = far.port
        server = self.send_report(far.address)
        self.assert_vanishes(server, "bounced")
        self.assertEqual(len(far.sessions), 1)

    def test_a_report_that_cannot_be_delivered_vanishes_after_its_lifetime(self):
        self.port = free_port()
        retry = 'first = "1s", factor = 1.0, jitter = 0.0, lifetime = "3s"'
        server = self.send_report("127.0.0.63", retry=retry)
        self.assert_vanishes(server, "bounced")

if __name__ == "__main__":
    unittest.main()
