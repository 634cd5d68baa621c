"""Relays that want a login: Postfix with Dovecot's SASL, our own submission listener, and scripted
hosts for what these do not do: tokens, refusals, and relays that someone has tampered with.
"""

import base64
import os
import pathlib
import subprocess
import unittest

from harness import await_that, folder
from hosts import EXTENSIONS
from outbound import OutboundCase, await_event, mail_events
from peers import postfix
from peers.dovecot import PASSWORD, Dovecot
from signed_zone import Authority
from test_outbound import routed

_LOGIN = """
[transport.relay]
type = "smtp"
next_hop = "{hop}"
{tls}
auth = {{ {auth} }}

[[route]]
domain = "*"
transport = "relay"
"""
_RETRY = 'first = "1s", jitter = 0.0'
_NAME = "relay.bench.test"
_NOBODY = 65534
_SUBMISSIONS = "127.0.0.88:465"


def encoded(text):
    return base64.b64encode(text.encode()).decode()


class LoginCase(OutboundCase):
    def setUp(self):
        super().setUp()
        self.trust(Authority(self.folder / "ca"))
        self.password = self.secret("password", PASSWORD)

    def trust(self, authority):
        """Makes it the one that vouches for _NAME."""
        self.authority = authority
        self.verified = f'tls = "verified"\ntls_names = ["{_NAME}"]\ntls_ca_file = "{authority.file}"'

    def secret(self, name, text):
        """A file with a secret that the server's user can read; it replaces the one before."""
        path, new = self.folder / name, self.folder / f"{name}.new"
        new.write_text(f"{text}\n")
        new.replace(path)
        return path

    def relaying(self, hop, auth, tls=None, **settings):
        """A server that relays everything to this next hop, with a login."""
        tls = self.verified if tls is None else tls
        extra = _LOGIN.format(hop=hop, auth=auth, tls=tls) + settings.pop("more", "")
        return self.start(place=f"server-{len(self._servers)}", extra=extra, retry=_RETRY, **settings)

    def as_user(self, user, path=None):
        return f'user = "{user}", password_file = "{path or self.password}"'


@unittest.skipUnless(os.geteuid() == 0 and postfix.is_installed(), "Postfix needs root")
class PostfixWithDovecot(LoginCase):
    """An independent server with all mechanisms."""

    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        at = pathlib.Path(made.name)
        cls.relay_authority = Authority(at / "ca")
        certificate = cls.relay_authority.issue(_NAME)
        sasl = at / "sasl"
        service = f"auth_mechanisms = plain login scram-sha-256\nservice auth {{\n  unix_listener {sasl} {{\n    mode = 0666\n  }}\n}}\n"
        owner = at / "owner"  # Dovecot does not run as root
        owner.mkdir()
        os.chown(owner, _NOBODY, -1)
        dovecot = Dovecot(at, extra=service, owner=owner)
        cls.addClassCleanup(dovecot.stop)
        dovecot.start()
        lines = [
            "smtpd_sasl_auth_enable = yes", "smtpd_sasl_type = dovecot", f"smtpd_sasl_path = {sasl}",
            "smtpd_tls_security_level = may", "smtpd_tls_auth_only = yes", f"smtpd_tls_chain_files = {certificate}",
            "mynetworks = 127.0.0.2/32",
            "smtpd_relay_restrictions = permit_sasl_authenticated, reject",
            "smtpd_data_restrictions = check_client_access static:HOLD",
        ]  # fmt: skip
        cls.relay = postfix.Postfix(at, "tuned", lines)
        cls.addClassCleanup(cls.relay.stop)
        cls.relay.start()

    def setUp(self):
        super().setUp()
        self.trust(self.relay_authority)
        self.hop = f"[127.0.0.1]:{self.relay.port}"

    def test_each_mechanism_logs_in(self):
        for mechanism in ("SCRAM-SHA-256", "PLAIN", "LOGIN"):
            server = self.relaying(self.hop, f'{self.as_user("alice")}, mechanisms = ["{mechanism}"]')
            self.send(server, "bob@one.test")
            await_event(server, "delivered", to="<bob@one.test>")

    def test_a_wrong_password_defers_until_the_file_is_right(self):
        path = self.secret("other", "not the password")
        server = self.relaying(self.hop, self.as_user("alice", path), smtp="")
        self.send(server, "bob@one.test")
        deferred = await_event(server, "deferred", to="<bob@one.test>")
        self.assertRegex(deferred.reason, r'^454 4\.7\.0 .*login as "alice": 535 5\.7\.8 ')
        self.assertNotIn("not the password", server.log.read_text())
        self.secret("other", PASSWORD)
        subprocess.run([server.binary, "queue", "retry", "--all", "--config", server.config], capture_output=True)
        await_event(server, "delivered", to="<bob@one.test>")

    def test_without_a_login_it_refuses(self):
        server = self.start(extra=routed(hosts_of(self.hop)))
        self.send(server, "bob@one.test")
        bounced = await_event(server, "bounced", to="<bob@one.test>")
        self.assertRegex(bounced.reason, "^554 5.7.1 ")


def hosts_of(hop):
    """What `routed` needs of a host."""
    address, port = hop.removeprefix("[").split("]:")
    return type("Target", (), {"path": None, "address": address, "port": port})


class ScriptedRelays(LoginCase):
    """Relays that record what they get."""

    PLAIN = "AUTH PLAIN " + encoded(f"\0alice\0{PASSWORD}")

    def relay(self, *mechanisms, tls=True, script=None):
        extensions = [*EXTENSIONS, f"AUTH {' '.join(mechanisms)}"] if mechanisms else EXTENSIONS
        script = {"AUTH": "235 2.7.0 welcome"} | (script or {})
        context = self.authority.context(_NAME) if tls else None
        return self.host(extensions=extensions, tls=context, script=script)

    def hop(self, host):
        return f"[127.0.0.1]:{host.port}"

    def deferral(self, server):
        self.send(server, "bob@one.test")
        return await_event(server, "deferred", to="<bob@one.test>").reason

    def logins(self, host):
        return [word for session in host.sessions for word in session.commands if word.startswith("AUTH")]

    def test_the_login_is_sent_to_a_verified_host(self):
        host = self.relay("PLAIN")
        server = self.relaying(self.hop(host), self.as_user("alice"))
        self.send(server, "bob@one.test")
        (received,) = self.await_messages(host, 1, server)
        self.assertTrue(received.session.is_secure)
        self.assertEqual(self.logins(host), [self.PLAIN])

    def test_the_login_is_not_sent_to_a_host_with_another_name_or_without_tls(self):
        for tls, names in ((True, "other.bench.test"), (False, _NAME)):
            host = self.relay("PLAIN", tls=tls)
            server = self.relaying(self.hop(host), self.as_user("alice"), self.verified.replace(_NAME, names))
            self.assertRegex(self.deferral(server), r"^451 4\.7\.5 ")
            self.assertEqual(self.logins(host), [])

    def test_a_host_that_offers_no_login_defers(self):
        for mechanisms in ((), ("CRAM-MD5",)):
            host = self.relay(*mechanisms)
            server = self.relaying(self.hop(host), self.as_user("alice"))
            wanted = "need SCRAM-SHA-256 or PLAIN or LOGIN, server offers"
            self.assertIn(wanted, self.deferral(server))
            self.assertEqual((host.messages, self.logins(host)), ([], []))

    def test_less_security_has_to_be_asked_for(self):
        for tls, transport, auth in ((True, "", "required"), (False, 'tls = "never"', "offered")):
            host = self.relay("PLAIN", tls=tls)
            server = self.relaying(self.hop(host), f'{self.as_user("alice")}, tls = "{auth}"', transport)
            self.send(server, "bob@one.test")
            self.await_messages(host, 1, server)
            self.assertEqual(self.logins(host), [self.PLAIN])

    def test_senders_have_logins_and_connections_of_their_own(self):
        logins = self.folder / "logins"
        logins.write_text("alice@bench.test alice:secret\nbench.test all:se:cret\n")
        table = f'\n[[table]]\nname = "logins"\ntype = "text"\npath = "{logins}"\n'
        host = self.relay("PLAIN")
        auth = f'senders = "logins", {self.as_user("rest")}'
        server = self.relaying(self.hop(host), auth, f'{self.verified}\nidle = "30s"', more=table)
        senders = ("alice@bench.test", "carol@bench.test", "x@other.test", "alice@bench.test", "eve@bench.test")
        for count, sender in enumerate(senders, 1):
            self.send(server, "bob@one.test", sender=sender)
            self.await_messages(host, count, server)
        expected = [encoded(f"\0{login}") for login in ("alice\0secret", "all\0se:cret", "rest\0secret")]
        self.assertEqual([login.split()[2] for login in self.logins(host)], expected)
        by_session = [[message.session for message in host.messages].index(one.session) for one in host.messages]
        self.assertEqual(by_session, [0, 1, 2, 0, 1])

    def test_a_token_is_read_again_when_it_changes(self):
        host = self.relay("XOAUTH2", "PLAIN", script={"AUTH": self._check_token})
        path = self.secret("token", "expired")
        server = self.relaying(self.hop(host), f'user = "alice", token_file = "{path}"')
        reason = self.deferral(server)
        self.assertRegex(reason, r'login as "alice": 535 5\.7\.8 ')
        self.secret("token", "fresh")
        subprocess.run([server.binary, "queue", "retry", "--all", "--config", server.config], capture_output=True)
        self.await_messages(host, 1, server)
        log = server.log.read_text()
        self.assertFalse("expired" in log or "fresh" in log, log)

    @staticmethod
    def _check_token(session, argument):
        text = base64.b64decode(argument.split()[1]).decode()
        if text == "user=alice\x01auth=Bearer fresh\x01\x01":
            return "235 2.7.0 welcome"
        session.say("334 " + encoded('{"status":"401"}'))
        assert session._lines.readline() == b"\r\n"
        return "535 5.7.8 invalid token"

    def test_a_missing_file_defers(self):
        host = self.relay("PLAIN")
        server = self.relaying(self.hop(host), self.as_user("alice", self.folder / "absent"))
        self.assertRegex(self.deferral(server), r"^454 4\.7\.0 unable to read .*absent: ")
        self.assertEqual(host.sessions, [])


class OurOwnSubmission(LoginCase):
    """Two of our servers: one relays through the other's submission listeners."""

    def submission(self, implicit="127.0.0.1:0"):
        certificate = self.authority.issue(_NAME)
        listeners = "".join(
            f'\n[[listener]]\nprotocol = "submission"\naddress = "{address}"\ntls = "{tls}"\n'
            for tls, address in (("required", "127.0.0.1:0"), ("implicit", implicit))
        )
        extra = (
            f'{listeners}\n[[certificate]]\nchain = "{certificate}"\nkey = "{certificate}"\n'
            '\n[[table]]\nname = "submitters"\ntype = "static"\nvalues = ["{PLAIN}secret"]\n'
            '\n[auth]\npasswords = "submitters"\nmechanisms = ["PLAIN", "LOGIN", "SCRAM-SHA-256"]\n'
        )
        server = self.configure("submission", extra=extra)
        server.start()
        text = server.log.read_text()
        ports = [int(line.rpartition(":")[2]) for line in text.splitlines() if "protocol=submission" in line]
        return server, ports

    def test_each_mechanism_logs_in_by_starttls_and_implicit_tls(self):
        relay, (starttls, implicit) = self.submission()
        count = 0
        for port, extra in ((starttls, ""), (implicit, "implicit_tls = true")):
            for mechanism in ("SCRAM-SHA-256", "PLAIN", "LOGIN"):
                auth = f'{self.as_user("alice@bench.test")}, mechanisms = ["{mechanism}"]'
                server = self.relaying(f"[127.0.0.1]:{port}", auth, f"{self.verified}\n{extra}")
                self.send(server, "carol@one.test")
                await_event(server, "delivered", to="<carol@one.test>")
                count += 1
                await_that(lambda: len(mail_events(relay, "received")) == count, f"{count} messages", relay)

    @unittest.skipUnless(os.geteuid() == 0, "port 465 needs root")
    def test_port_465_alone_selects_implicit_tls(self):
        relay, (_, implicit) = self.submission(_SUBMISSIONS)
        self.assertEqual(implicit, 465)
        for count, extra in enumerate(("", "implicit_tls = true"), 1):
            hop = "[{}]:{}".format(*_SUBMISSIONS.split(":"))
            server = self.relaying(hop, self.as_user("alice@bench.test"), f"{self.verified}\n{extra}")
            self.send(server, "carol@one.test")
            await_event(server, "delivered", to="<carol@one.test>")
            await_that(lambda: len(mail_events(relay, "received")) == count, f"{count} messages", relay)


if __name__ == "__main__":
    unittest.main()
