"""Reports to the owners of other domains: DMARC aggregate reports about mail that came in, and SMTP TLS
reports about hosts to which mail went. They are sent by a command, and read as their recipients read
them: from the mailbox, by Python's parsers for messages, gzip, XML and JSON.
"""

import datetime
import email
import email.policy
import gzip
import json
import pathlib
import subprocess
import unittest
import xml.etree.ElementTree

from harness import Client, ServerCase, await_that, folder, mail_files
from name_server import NameServer
from outbound import OutboundCase, await_event, mail_events, metrics, send
from peers.mailrace import Mailrace

PASSED, FAILED = "127.0.0.21", "127.0.0.22"  # clients, by SPF of the domains
SETTINGS = """
[sender_auth]
iprev = "off"
dmarc = "enforce"

[dns]
servers = ["{servers}"]
timeout = "1s"
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
        self.assertTrue(mail_events(self.server, "received", protocol="report"))

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


class TlsReports(OutboundCase):
    def test_a_host_without_tls_is_reported(self):
        names = self.names()
        host = self.host("127.0.0.61")
        names.domain("dest.test", host.address)
        names.txt("_smtp._tls.dest.test", "v=TLSRPTv1; rua=mailto:alice@bench.test")
        server = self.start(names=names, smtp=f"port = {host.port}", extra="[reports]\ntls = true\n")
        send(server, "bob@dest.test")
        await_event(server, "delivered", to="<bob@dest.test>")
        (sent,) = reports(server, "send", "dest.test")
        self.assertEqual((sent["kind"], sent["result"], sent["to"]), ("tls", "sent", "alice@bench.test"))
        message, file, text = received_report(self, server, "alice", "Report Domain: dest.test")
        self.assertEqual((message["tls-report-domain"], message.get_param("report-type")), ("dest.test", "tlsrpt"))
        self.assertEqual(file.get_content_type(), "application/tlsrpt+gzip")
        report = json.loads(text)
        self.assertEqual(report["organization-name"], "mx.bench.test")
        (policy,) = report["policies"]
        self.assertEqual(
            policy["policy"],
            {"policy-type": "no-policy-found", "policy-domain": "dest.test", "mx-host": ["mx1.dest.test"]},
        )
        summary = {"total-successful-session-count": 0, "total-failure-session-count": 1}
        self.assertEqual(policy["summary"], summary)
        (failure,) = policy["failure-details"]
        self.assertEqual(failure["result-type"], "starttls-not-supported")
        self.assertEqual((failure["receiving-mx-hostname"], failure["receiving-ip"]), ("mx1.dest.test", host.address))


if __name__ == "__main__":
    unittest.main()
