"""Submission with AUTH by real clients: each mechanism with STARTTLS and implicit TLS, refusals,
sender ownership, header fields that are added to messages, and logins by an LDAP bind.
"""

import base64
import pathlib
import smtplib
import ssl
import subprocess
import unittest

from harness import Client, ServerCase, await_that, folder, make_message
from outbound import metrics
from peers import people
from peers.mailrace import BINARY
from peers.slapd import Slapd
from test_tls import TlsMailrace, issue, listener, section, unverified_context

# In the order of the configuration; every test server has the first.
LISTENERS = ("smtp", "submission", "submissions")
PASSWORD = "tanstaaf, hm"
_SWAKS_AUTH_FAILED = 28
USERS = ["bob", "carol", "eve", "dora", "swaks", "msmtp", "curl", "lacks", "has", "chunks", "trusted", "out", "full"]


def stored(password, scheme):
    """A password as stored in a table, from the `hash` command."""
    argv = [str(BINARY), "password", "--scheme", scheme]
    done = subprocess.run(argv, input=f"{password}\n".encode(), capture_output=True, check=True, timeout=60)
    return done.stdout.decode().strip()


def plain(user, password):
    return base64.b64encode(f"\0{user}\0{password}".encode()).decode()


class SubmissionMailrace(TlsMailrace):
    """A server with one listener for servers and two for users."""

    names = LISTENERS


class SubmissionCase(ServerCase):
    @classmethod
    def serve(cls, auth, maildir=""):
        """A server with these settings of [auth]; no client is in a relay network. `maildir` are
        additional settings of its transport.
        """
        at = pathlib.Path(cls.folder.name)
        extra = listener("submission", "starttls") + listener("submission", "implicit") + auth
        extra += section(*issue(at, "own", "mx.bench.test"))
        cls.server = SubmissionMailrace(at, users=USERS, extra=extra)
        cls.addClassCleanup(cls.server.stop)
        text = cls.server.config.read_text()
        cls.server.config.write_text(text.replace('type = "maildir"\n', f'type = "maildir"\n{maildir}\n', 1))
        cls.server.start()

    def client(self, where="submission"):
        return Client(self.server.at[where])

    def session(self, where="submissions"):
        """A client with TLS after EHLO."""
        if where == "submissions":
            client = smtplib.SMTP_SSL("127.0.0.1", self.server.at[where], context=unverified_context())
        else:
            client = smtplib.SMTP("127.0.0.1", self.server.at[where])
            client.starttls(context=unverified_context())
        self.addCleanup(client.close)
        self.assertEqual(client.ehlo()[0], 250)
        return client

    def login(self, user, password=PASSWORD):
        client = self.session()
        code, text = client.docmd("AUTH", f"PLAIN {plain(user, password)}")
        return client, code, text.decode()

    def run_client(self, *argv, text=None):
        done = subprocess.run([str(word) for word in argv], input=text, capture_output=True, timeout=60)
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def the_message(self, user):
        (path,) = self.await_messages(user, 1)
        return path.read_bytes().decode()

    def await_log(self, words):
        await_that(lambda: words in self.server.log.read_text(errors="replace"), f"a line with {words}", self.server)


class Logins(SubmissionCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        at = pathlib.Path(cls.folder.name)
        schemes = {"bob": "argon2id", "carol": "scram-sha-256", "eve": "scram-sha-256", "dora": "scram-sha-256"}
        logins = "".join(f"{user} {stored(PASSWORD, scheme)}\n" for user, scheme in schemes.items())
        (at / "logins").write_text(logins)
        (at / "senders").write_text("bob bob@bench.test, @bob.test\ncarol @bench.test\ndora @bench.test\neve eve@bench.test\n")
        (at / "quotas").write_text("full@bench.test 1KiB\n")
        tables = "".join(
            f'\n[[table]]\nname = "{name}"\ntype = "text"\npath = "{at / name}"\n'
            for name in ("logins", "senders", "quotas")
        )
        offered = 'mechanisms = ["PLAIN", "LOGIN", "SCRAM-SHA-256"]'
        cls.serve(tables + f'\n[auth]\npasswords = "logins"\nsenders = "senders"\n{offered}\n', 'quota_table = "quotas"')

    def test_auth_is_offered_only_with_tls_and_only_on_submission_listeners(self):
        offered = "AUTH PLAIN LOGIN SCRAM-SHA-256"
        with self.client("submission") as client:
            self.assertNotIn("AUTH", client.greet().text)
            refused = client.say(f"AUTH PLAIN {plain('bob', PASSWORD)}")
            self.assertTrue(refused.is_a(538, "5.7.11"), refused.text)
        for where in ("submission", "submissions"):
            self.assertIn(offered, self.session(where).ehlo()[1].decode())
        with self.client("smtp") as client:
            client.greet()
            self.assertEqual(client.say("AUTH PLAIN").code, 502)

    def test_mail_without_a_login_is_refused(self):
        client = self.session()
        self.assertEqual(client.docmd("MAIL", "FROM:<bob@bench.test>"), (530, b"5.7.0 Authentication required"))

    def swaks(self, where, tls, mechanism, user, password):
        return self.run_client(
            "swaks", "--server", "127.0.0.1", "--port", self.server.at[where], *tls, "--auth", mechanism,
            "--auth-user", user, "--auth-password", password, "--from", "bob@bench.test",
            "--to", "swaks@bench.test")  # fmt: skip

    def test_swaks_logs_in_with_each_mechanism_and_each_kind_of_tls(self):
        kinds = {"submission": ["--tls"], "submissions": ["--tls-on-connect"]}
        for where, tls in kinds.items():
            for mechanism in ("PLAIN", "LOGIN"):
                code, said = self.swaks(where, tls, mechanism, "bob", PASSWORD)
                self.assertEqual(code, 0, said)
                code, said = self.swaks(where, tls, mechanism, f"nobody-{where}-{mechanism}", PASSWORD)
                self.assertEqual(code, _SWAKS_AUTH_FAILED, said)
                self.assertIn("535 5.7.8", said)
                # Without TLS nothing is offered, so swaks does not try.
                code, said = self.swaks("submission", [], mechanism, "bob", PASSWORD)
                self.assertEqual(code, _SWAKS_AUTH_FAILED, said)
                self.assertNotIn("AUTH ", said)
        for path in self.await_messages("swaks", 4):
            self.assertIn("with ESMTPSA\r\n", path.read_bytes().decode())
        self.await_log("protocol=ESMTPSA tls=TLSv1.3")

    def test_msmtp_logs_in_with_scram(self):
        for mechanism in ("plain", "scram-sha-256"):
            code, said = self.run_client(
                "msmtp", "--file=/dev/null", "--host=127.0.0.1", f"--port={self.server.at['submission']}", "--tls=on",
                "--tls-starttls=on", "--tls-certcheck=off", f"--auth={mechanism}", "--user=carol",
                f"--passwordeval=echo '{PASSWORD}'", "--from=carol@bench.test", "msmtp@bench.test",
                text=make_message(mechanism))  # fmt: skip
            self.assertEqual(code, 0, said)
        self.await_messages("msmtp", 2)
        self.await_log("login result=ok client=127.0.0.1 helo=localhost mechanism=SCRAM-SHA-256 user=carol")

    def test_curl_logs_in(self):
        for mechanism in ("PLAIN", "LOGIN"):
            code, said = self.run_client(
                "curl", "-sS", "-k", f"smtps://127.0.0.1:{self.server.at['submissions']}", "--login-options",
                f"AUTH={mechanism}", "-u", f"bob:{PASSWORD}", "--mail-from", "bob@bench.test", "--mail-rcpt",
                "curl@bench.test", "-T", "-", text=make_message("from curl"))  # fmt: skip
            self.assertEqual(code, 0, said)
        self.await_messages("curl", 2)

    def test_a_wrong_password_and_an_unknown_user_get_the_same_reply(self):
        for user, password in (("bob", "wrong"), ("nobody", PASSWORD), ("bob", "")):
            _, code, text = self.login(user, password)
            self.assertEqual((code, text), (535, "5.7.8 Authentication credentials invalid"), user)
        self.await_log("login result=refused client=127.0.0.1")
        self.assertNotIn("wrong", self.server.log.read_text(errors="replace"))

    def test_three_failures_end_the_session_and_five_block_the_client(self):
        client = self.session()
        codes = [client.docmd("AUTH", f"PLAIN {plain('eve', f'guess {n}')}")[0] for n in range(4)]
        self.assertEqual(codes, [535, 535, 535, 421])
        self.assertEqual([self.login("eve", f"guess {n}")[1] for n in range(4, 7)][-1], 454)
        _, code, text = self.login("eve")
        self.assertEqual((code, text), (454, "4.7.0 Too many failures, try again later"))
        counted = metrics(self.server)
        self.assertGreaterEqual(counted['mailrace_auth_logins_total{result="throttled"}'], 1)

    def test_failed_scram_logins_are_not_cleared_by_a_login_as_another_user(self):
        first = base64.b64encode(b"n,,n=victim,r=x").decode()
        told = []
        # One delay may end before the next attempt, but not all of them.
        while 454 not in told and len(told) < 9:
            client = self.session()
            told.append(client.docmd("AUTH", f"SCRAM-SHA-256 {first}")[0])
            if told[-1] == 334:
                self.assertEqual(client.docmd("A" * 13000), (500, b"5.5.6 Authentication Exchange line is too long"))
                self.assertEqual(client.docmd("AUTH", f"PLAIN {plain('carol', PASSWORD)}")[0], 235)
            client.close()
        self.assertEqual(told[-1], 454, told)
        self.await_log("mechanism=SCRAM-SHA-256 user=victim")

    def test_failures_are_logged_and_counted_and_a_repeated_password_is_not_hashed_again(self):
        before = metrics(self.server)
        client = self.session()
        for _ in range(3):
            self.assertEqual(client.docmd("AUTH", f"PLAIN {plain('frank', 'a guess')}")[0], 535)
        self.await_log(f"login result=refused client=127.0.0.1 helo={client.local_hostname} mechanism=PLAIN user=frank")
        with self.client("submission") as clear:
            clear.greet()
            self.assertEqual(clear.say(f"AUTH PLAIN {plain('frank', 'a guess')}").code, 538)
        self.await_log("stage=AUTH")
        self.assertNotIn("a guess", self.server.log.read_text(errors="replace"))
        after = metrics(self.server)
        grown = {key: after[key] - before[key] for key in after if key.startswith("mailrace_auth_")}
        # Tests of this class run one after the other.
        self.assertEqual(grown['mailrace_auth_logins_total{result="refused"}'], 3)
        self.assertEqual(grown["mailrace_auth_repeated_total"], 2)

    def test_a_user_gets_the_same_reply_for_a_full_mailbox(self):
        client, code, _ = self.login("carol")
        self.assertEqual(code, 235)
        client.docmd("MAIL", "FROM:<carol@bench.test> SIZE=99999")
        code, text = client.docmd("RCPT", "TO:<full@bench.test>")
        self.assertEqual((code, text), (452, b"4.2.2 <full@bench.test>: Mailbox full"))
        self.assertEqual(client.docmd("RCPT", "TO:<out@bench.test>")[0], 250)

    def test_only_logged_in_users_may_send_to_other_domains(self):
        client, code, _ = self.login("carol")
        self.assertEqual(code, 235)
        self.assertEqual(client.mail("carol@bench.test")[0], 250)
        self.assertEqual(client.rcpt("x@elsewhere.test")[0], 250)
        with self.client("smtp") as stranger:
            stranger.greet()
            stranger.say("MAIL FROM:<a@c.test>")
            self.assertTrue(stranger.say("RCPT TO:<x@elsewhere.test>").is_a(550, "5.7.1"))

    def test_users_may_only_use_their_own_sender_addresses(self):
        client, _, _ = self.login("bob")
        for sender, code in (
            ("bob@bench.test", 250), ("Bob@Bench.test", 250), ("anyone@bob.test", 250), ("", 250),
            ("carol@bench.test", 553), ("bob@sub.bob.test", 553),
        ):  # fmt: skip
            told = client.docmd("MAIL", f"FROM:<{sender}>")
            self.assertEqual(told[0], code, f"{sender}: {told}")
            client.docmd("RSET")
        told = client.docmd("MAIL", "FROM:<carol@bench.test>")[1]
        self.assertEqual(told, b"5.7.1 <carol@bench.test>: Sender address rejected: not owned by user bob")

    def test_missing_header_fields_are_added_once(self):
        client, _, _ = self.login("carol")
        client.sendmail("carol@bench.test", ["lacks@bench.test"], b"Subject: x\r\n\r\nHello.\r\n")
        head = self.the_message("lacks").split("\r\n\r\n")[0]
        self.assertRegex(head, r"\r\nDate: \w{3}, .* \+0000\r\nMessage-ID: <\S+@\S+>\r\nSubject: x$")
        own = b"date: Mon, 1 Jan 2024 00:00:00 +0000\r\nmessage-id: <own@c.test>\r\nSubject: x\r\n\r\nHello.\r\n"
        client.sendmail("carol@bench.test", ["has@bench.test"], own)
        self.assertTrue(self.the_message("has").endswith(own.decode()))
        self.assertEqual(self.the_message("has").lower().count("\r\ndate:"), 1)
        client.docmd("MAIL", "FROM:<carol@bench.test>")
        client.docmd("RCPT", "TO:<chunks@bench.test>")
        client.send(b"BDAT 9\r\nSubject: ")
        self.assertEqual(client.getreply()[0], 250)
        client.send(b"BDAT 10 LAST\r\nx\r\n\r\nDay\r\n")
        self.assertEqual(client.getreply()[0], 250)
        self.assertRegex(self.the_message("chunks"), r"\+0000\r\nMessage-ID: <\S+>\r\nSubject: x\r\n\r\nDay\r\n$")

    def test_no_header_fields_are_added_to_mail_of_other_servers(self):
        with self.client("smtp") as client:
            client.greet()
            self.assertEqual(client.deliver(b"Subject: x\r\n\r\nHello.\r\n", "out@bench.test").code, 250)
        self.assertNotIn("Date:", self.the_message("out").split("\r\n\r\n")[0])

    def test_smtplib_logs_in_after_starttls(self):
        client = self.session("submission")
        client.login("dora", PASSWORD)
        client.sendmail("dora@bench.test", ["dora@bench.test"], make_message("from smtplib"))
        head = self.the_message("dora").split("\r\n\r\n")[0]
        self.assertIn("with ESMTPSA\r\n", head)
        self.assertNotIn("authenticated as", head)


class Binds(SubmissionCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        at = pathlib.Path(cls.folder.name)
        entry = (
            f"\ndn: uid=trusted,{people.BASE}\nobjectClass: inetOrgPerson\nuid: trusted\ncn: T\nsn: T\n"
            f"mail: trusted@bench.test\nuserPassword: open sesame\n"
        )
        cls.slapd = Slapd(at, 10, private=True, extra=entry)
        cls.addClassCleanup(cls.slapd.stop)
        cls.slapd.start()
        table = (
            f'\n[[table]]\nname = "directory"\ntype = "ldap"\nurl = "{cls.slapd.url}"\nbase = "{people.BASE}"\n'
            'filter = "(uid={key})"\nbind_dn = "cn=admin,' + people.BASE + '"\npassword = "secret"\n'
        )
        cls.serve(table + '\n[auth]\nbind = "directory"\ntrace_users = true\n')

    def test_a_user_of_the_directory_logs_in_and_is_named_in_received_if_configured(self):
        client, code, text = self.login("trusted", "open sesame")
        self.assertEqual(code, 235, text)
        client.sendmail("trusted@bench.test", ["trusted@bench.test"], make_message("bound"))
        self.assertIn("\r\n\t(authenticated as trusted) id ", self.the_message("trusted"))

    def test_wrong_empty_and_unknown_are_refused(self):
        for user, password in (("trusted", "wrong"), ("trusted", ""), ("nobody", "open sesame"), ("*", "open sesame")):
            self.assertEqual(self.login(user, password)[1], 535, user)

    def test_a_bind_offers_no_scram(self):
        self.assertIn("AUTH PLAIN LOGIN\n", self.session().ehlo()[1].decode() + "\n")


if __name__ == "__main__":
    unittest.main()
