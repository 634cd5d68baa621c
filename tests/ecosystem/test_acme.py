"""Certificates from a real authority (pebble): by both challenges, renewed, refused, from one that is dead,
and with a kill in between. The server starts at once with a certificate of its own.
"""

import json
import pathlib
import re
import ssl
import stat
import subprocess
import unittest

from harness import WAIT_SECONDS_MAX, Client, await_that, folder
from outbound import metrics
from pebble import IS_INSTALLED, WHY_NOT, Pebble
from peers.mailrace import Mailrace, listener

NAMES = ["mx.bench.test", "mail.bench.test"]
PLACEHOLDER = "Mailrace placeholder"


def certificate_text(der):
    """What openssl says of a certificate."""
    argv = ["openssl", "x509", "-inform", "DER", "-noout", "-issuer", "-serial", "-ext", "subjectAltName", "-pubkey"]
    return subprocess.run(argv, input=der, check=True, capture_output=True).stdout.decode()


@unittest.skipUnless(IS_INSTALLED, WHY_NOT)
class Acme(unittest.TestCase):
    def make(self, challenge="http-01", names=NAMES, **pebble):
        """A server and its authority, neither of them started."""
        made = folder()
        self.addCleanup(made.cleanup)
        at = pathlib.Path(made.name)
        self.pebble = Pebble(at, **pebble)
        self.addCleanup(self.pebble.stop)
        extra = f"""
[acme]
directory    = "{self.pebble.directory}"
ca_file      = "{self.pebble.ca_file}"
contact      = ["postmaster@bench.test"]
accept_terms = true
challenge    = "{challenge}"

[[certificate]]
acme = {json.dumps(names)}
"""
        extra += listener("http", port=self.pebble.http_port)
        extra += listener("http", 'tls = "implicit"', port=self.pebble.tls_port)
        self.server = Mailrace(at, users=["alice"], extra=extra)
        self.addCleanup(self.server.stop)

    def presented(self):
        """What openssl says of the certificate after STARTTLS."""
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.say("STARTTLS").code, 220)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(client.socket, server_hostname=NAMES[0]) as secure:
                return certificate_text(secure.getpeercert(binary_form=True))

    def await_issued(self, is_it=lambda text: PLACEHOLDER not in text):
        """Waits until clients get such a certificate, and returns what openssl says of it."""
        found = []

        def probe():
            found[:] = [self.presented()]
            return is_it(found[0])

        await_that(probe, "a certificate of pebble", self.server, 2 * WAIT_SECONDS_MAX)
        return found[0]

    def command(self, *words):
        argv = [str(self.server.binary), *words, "--config", str(self.server.config)]
        done = subprocess.run(argv, cwd=self.server.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def status(self):
        (row,) = map(json.loads, self.command("acme", "status", "--json").splitlines())
        return row

    def await_failure(self, count=1):
        return await_that(lambda: (row := self.status())["failures"] >= count and row, "a failure", self.server)

    def path(self, extension):
        return self.server.data / "acme" / f"{NAMES[0]}.{extension}"

    def check_issues(self, challenge):
        self.make(challenge)
        checked = self.command("check")
        self.assertIn(f"for {', '.join(NAMES)}, obtained from localhost by {challenge}", checked)
        self.assertIn("has not been issued yet", checked)
        self.server.start()
        self.assertIn(PLACEHOLDER, self.presented(), "before the first certificate")
        self.assertEqual(metrics(self.server)["mailrace_certificate_placeholders"], 1)
        self.pebble.start()
        self.command("acme", "renew")
        text = self.await_issued()
        self.assertIn("Pebble Intermediate CA", text)
        for name in NAMES:
            self.assertIn(f"DNS:{name}", text)
        row = self.status()
        self.assertEqual((row["names"], row["failures"], row["error"]), (NAMES, 0, None))
        self.assertIn("Pebble", row["issuer"])
        self.assertLess(row["next_attempt"], row["expires"])
        told = metrics(self.server)
        self.assertEqual(told["mailrace_certificate_placeholders"], 0)
        expiry = [value for name, value in told.items() if name.startswith("mailrace_certificate_expiry_seconds{")]
        self.assertEqual(len(expiry), 1)
        for path in self.path("pem").parent.iterdir():
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600, path)
        self.assertFalse(self.path("order").exists())
        self.assertNotIn("obtained from localhost by {challenge}\nwarning", self.command("check"))
        self.assertIn("mx.bench.test,mail.bench.test", self.command("acme", "status"))

    def test_a_certificate_is_issued_by_http(self):
        self.check_issues("http-01")

    def test_a_certificate_is_issued_by_tls(self):
        self.check_issues("tls-alpn-01")

    def test_a_renewal_needs_no_restart_and_ends_no_session(self):
        self.make()
        self.pebble.start()
        self.server.start()
        first = self.await_issued()
        with Client(self.server.port) as client:
            client.greet()
            self.assertIn("1 certificate to be renewed now", self.command("acme", "renew", NAMES[1]))
            second = self.await_issued(lambda text: text != first)
            key = re.compile("-----BEGIN PUBLIC KEY-----[^-]+")
            self.assertEqual(key.findall(second), key.findall(first), "TLSA records stay true")
            self.assertEqual(client.say("NOOP").code, 250)

    def test_a_certificate_is_renewed_before_its_end(self):
        self.make(life=24)
        self.pebble.start()
        self.server.start()
        first = self.await_issued()
        self.await_issued(lambda text: text != first and PLACEHOLDER not in text)

    def test_a_restart_orders_nothing_anew(self):
        self.make()
        self.pebble.start()
        self.server.start()
        first = self.await_issued()
        self.server.terminate()
        self.server.start()
        self.assertEqual(self.presented(), first)
        self.assertEqual(self.status()["failures"], 0)

    def test_a_refusal_is_told_and_the_server_goes_on(self):
        names = [NAMES[0], "blocked.example"]
        self.make(names=names, blocked=["blocked.example"])
        self.pebble.start()
        self.server.start()
        row = self.await_failure()
        self.assertIn("blocked.example", row["error"])
        self.assertIn("cannot obtain a certificate", self.server.log.read_text())
        self.assertIn(PLACEHOLDER, self.presented())

    def test_a_name_that_leads_elsewhere_is_told(self):
        self.make()
        self.pebble.start()
        # The authority asks at a port on which nobody listens.
        text = self.server.config.read_text().replace(f"127.0.0.1:{self.pebble.http_port}", "127.0.0.1:0")
        self.server.config.write_text(text)
        self.server.start()
        self.assertRegex(self.await_failure()["error"], r"the authority cannot verify \S+\.bench\.test: .*refused")

    def test_a_dead_authority_is_left_alone_also_after_a_restart(self):
        self.make()
        self.server.start()
        before = self.await_failure()
        self.assertIn("unable to connect to localhost", before["error"])
        self.server.kill()
        self.server.start()
        after = self.status()
        self.assertEqual((after["failures"], after["next_attempt"][:19]), (1, before["next_attempt"][:19]))
        self.assertIn(PLACEHOLDER, self.presented())

    def test_a_kill_in_the_middle_of_an_order_loses_nothing(self):
        self.make(environment={"PEBBLE_VA_NOSLEEP": "", "PEBBLE_VA_SLEEPTIME": "2", "PEBBLE_AUTHZREUSE": "0"})
        self.pebble.start()
        self.server.start()
        await_that(self.path("order").exists, "an order", self.server)
        self.server.kill()
        order = json.loads(self.path("order").read_text())
        self.server.start()
        text = self.await_issued()
        self.assertIn("Pebble", text)
        self.assertFalse(self.path("order").exists())
        self.assertEqual(order["names"], NAMES)

    def test_an_authority_that_has_forgotten_the_account_gets_another_one(self):
        self.make()
        self.pebble.start()
        self.server.start()
        first = self.await_issued()
        self.pebble.stop()
        self.pebble.start()
        self.command("acme", "renew")
        self.assertIn("Pebble", self.await_issued(lambda text: text != first))

    def test_a_reload_obtains_what_is_new(self):
        self.make(names=NAMES[:1])
        self.pebble.start()
        self.server.start()
        self.assertNotIn(NAMES[1], self.await_issued())
        text = self.server.config.read_text().replace(json.dumps(NAMES[:1]), json.dumps(NAMES))
        self.server.config.write_text(text)
        self.assertIn("[[certificate]]", self.command("reload"))
        self.await_issued(lambda text: f"DNS:{NAMES[1]}" in text)


if __name__ == "__main__":
    unittest.main()
