"""Our server as Postfix sees it: posttls-finger(1) finds its TLSA record, which `mailrace dns` has printed, in a signed
zone that Unbound validates, and holds its certificate against it (DANE, RFC 7672).

Needs root: Postfix asks the name server of /etc/resolv.conf, which is another file in a mount namespace, and DNS and
SMTP have their own ports of loopback addresses.
"""

import os
import shutil
import subprocess
import unittest

from outbound import OutboundCase
from peers.mailrace import certificate_section
from signed_zone import Authority, Unbound, can_sign_zones

DOMAIN, HOST = "bench.test", "mx.bench.test"
_SERVER_ADDRESS, _RESOLVER_ADDRESS = "127.0.0.78", "127.0.0.79"
_DNS_PORT, _SMTP_PORT = 53, 25
# The C library believes the resolver's word that an answer is authentic only if it is told to.
_RESOLV_CONF = f"nameserver {_RESOLVER_ADDRESS}\noptions trust-ad\n"
_WITH_RESOLV_CONF = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


class PosttlsFinger(OutboundCase):
    """A server with STARTTLS, and a zone that has what it says a zone should have."""

    def setUp(self):
        super().setUp()
        if not shutil.which("posttls-finger") or os.geteuid() != 0:
            self.skipTest("posttls-finger of Postfix is not installed, or this is not root")
        if not can_sign_zones():
            self.skipTest("unbound or bind9-utils are not installed")
        self.authority = Authority(self.folder / "ca")
        self.certificate = self.authority.issue(HOST)
        names = self.names()
        names.a(HOST, _SERVER_ADDRESS)
        section = certificate_section(self.certificate, self.certificate)
        self.server = self.start(names=names, extra=section, address=f"{_SERVER_ADDRESS}:{_SMTP_PORT}")

    def printed_records(self):
        """The records of the zone that `mailrace dns` prints."""
        command = [str(self.server.binary), "dns", "--config", str(self.server.config), DOMAIN]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return [line for line in printed.splitlines() if line.partition(" ")[0].endswith(f"{DOMAIN}.")]

    def publish(self, records):
        """A resolver for these records and the address of the server."""
        records = [*records, f"mx A {_SERVER_ADDRESS}"]
        return self.ending(Unbound(self.folder / "unbound", DOMAIN, records, _RESOLVER_ADDRESS, _DNS_PORT))

    def finger(self):
        """What posttls-finger says of the domain, which must prove itself by DANE."""
        resolv_conf = self.folder / "resolv.conf"
        resolv_conf.write_text(_RESOLV_CONF)
        (postfix := self.folder / "postfix").mkdir()
        (postfix / "main.cf").write_text("compatibility_level = 3.6\n")
        command = ["unshare", "--mount", "sh", "-c", _WITH_RESOLV_CONF, str(resolv_conf),
                   "posttls-finger", "-c", "-l", "dane-only", "-L", "summary,verbose,certmatch", DOMAIN]  # fmt: skip
        environment = os.environ | {"MAIL_CONFIG": str(postfix)}
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        return said.stdout + said.stderr

    def test_the_certificate_is_verified_by_the_tlsa_record_that_we_print(self):
        records = self.printed_records()
        digest = self.authority.key_digest(self.certificate).hex()
        self.assertIn(f"_25._tcp.{HOST}. IN TLSA 3 1 1 {digest}", records)
        self.publish(records).start()
        said = self.finger()
        self.assertIn(f"Verified TLS connection established to {HOST}[{_SERVER_ADDRESS}]:{_SMTP_PORT}", said)
        self.assertIn(f"Matched DANE EE certificate at depth 0: 3 1 1 {digest.upper()}", said)

    def test_another_certificate_than_the_record_names_is_not_verified(self):
        records = self.printed_records()
        records = [" ".join([*line.split()[:6], "00" * 32]) if " TLSA " in line else line for line in records]
        self.publish(records).start()
        said = self.finger()
        self.assertIn(f"DNSSEC-signed TLSA record: _25._tcp.{HOST}: 3 1 1 {'00' * 32}", said)
        self.assertIn("no matching DANE TLSA records", said)
        self.assertIn("Untrusted TLS connection established", said)

    def test_a_record_that_somebody_changed_verifies_nothing(self):
        resolver = self.publish(self.printed_records())
        resolver.tamper("TLSA\t3 1 1", "TLSA\t3 0 1")
        resolver.start()
        said = self.finger()
        self.assertIn(f"TLSA lookup error for {HOST}:{_SMTP_PORT}", said)
        self.assertNotIn("established", said)


if __name__ == "__main__":
    unittest.main()
