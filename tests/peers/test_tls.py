"""TLS for clients: real clients with optional and required STARTTLS and implicit TLS; certificate
selection and replacement at run time, and refusals.
"""

import hashlib
import os
import pathlib
import re
import smtplib
import socket
import ssl
import subprocess
import time
import unittest

from harness import WAIT_SECONDS_MAX, Client, ServerCase, await_that, folder, make_message
from outbound import metrics
from peers.mailrace import BINARY, Mailrace

_LISTENING = re.compile(rb"listening protocol=\w+ address=127\.0\.0\.1:(\d+)")
# In the order of the configuration; every test server has the first.
LISTENERS = ("starttls", "required", "implicit", "none", "lmtp")
USERS = ["swaks", "tlsc", "msmtp", "smtplib", "required", "implicit", "lmtp", "victim", "none"]


def listener(protocol, tls):
    return f'\n[[listener]]\nprotocol = "{protocol}"\naddress = "127.0.0.1:0"\ntls = "{tls}"\n'


def issue(at, name, *hosts):
    """Writes NAME.pem and NAME.key, readable by all: the server is nobody when it reads them again."""
    names = ",".join(f"DNS:{host}" for host in hosts)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
         "-subj", f"/CN={hosts[0]}", "-addext", f"subjectAltName={names}", "-keyout", at / f"{name}.key",
         "-out", at / f"{name}.pem"], check=True, capture_output=True)  # fmt: skip
    (at / f"{name}.key").chmod(0o644)
    return at / f"{name}.pem", at / f"{name}.key"


def section(chain, key):
    return f'\n[[certificate]]\nchain = "{chain}"\nkey = "{key}"\n'


def fingerprint(chain):
    """Of the first certificate in a file."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pathlib.Path(chain).read_text())).hexdigest()


def unverified_context(version_max=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version_max:
        context.maximum_version = version_max
    return context


class TlsMailrace(Mailrace):
    """A server with several listeners of one protocol, identified by their order."""

    names = LISTENERS  # in the order of the configuration

    def _has_listeners(self, logged):
        ports = [int(port) for port in _LISTENING.findall(logged)]
        if len(ports) < self.config.read_text().count("[[listener]]"):
            return False
        self.at = dict(zip(self.names, ports))
        self.ports = {"smtp": ports[0]}
        return True


class Tls(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        at = pathlib.Path(cls.folder.name)
        cls.first, cls.second = issue(at, "first", "mx.bench.test"), issue(at, "second", "mail.other.test", "*.w.test")
        cls.changing, cls.beside = issue(at, "changing", "changing.test"), issue(at, "beside", "beside.test")
        # Read by root at the start, and unreadable for the server afterwards.
        (at / "roots").mkdir(mode=0o700)
        hidden = issue(at / "roots", "hidden", "hidden.test")
        extra = "".join(listener("smtp", tls) for tls in LISTENERS[1:4]) + listener("lmtp", "starttls")
        extra += "".join(section(*files) for files in (cls.first, cls.second, cls.changing, cls.beside, hidden))
        extra += '\n[tls]\nreload_every = "100ms"\nhandshake_timeout = "2s"\n'
        cls.server = TlsMailrace(at, users=USERS, extra=extra)
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()

    def client(self, where="starttls"):
        return Client(self.server.at[where])

    def the_message(self, user):
        (path,) = self.await_messages(user, 1)
        return path.read_bytes().decode()

    def await_log(self, pattern, since=0):
        text = lambda: self.server.log.read_text(errors="replace")[since:]  # noqa: E731
        return await_that(lambda: re.search(pattern, text()), f"a line like {pattern}", self.server)

    def seen(self, name):
        """The certificate that a client gets for this server name."""
        with socket.create_connection(("127.0.0.1", self.server.at["implicit"]), WAIT_SECONDS_MAX) as plain:
            with unverified_context().wrap_socket(plain, server_hostname=name) as secure:
                return hashlib.sha256(secure.getpeercert(binary_form=True)).hexdigest()

    def run_client(self, *argv, text=None):
        done = subprocess.run([str(word) for word in argv], input=text, capture_output=True, timeout=60)
        said = (done.stdout + done.stderr).decode(errors="replace")
        self.assertEqual(done.returncode, 0, f"{said}\n{self.server.log_tail()}")
        return said

    def swaks(self, user, where, *options):
        return self.run_client("swaks", "--server", "127.0.0.1", "--port", self.server.at[where], "--from", "a@c.test",
                               "--to", f"{user}@bench.test", *options)  # fmt: skip

    def test_swaks_delivers_by_starttls_and_the_trace_and_the_log_show_it(self):
        said = self.swaks("swaks", "starttls", "--tls")
        self.assertIn("STARTTLS", said)
        head = self.the_message("swaks").split("\r\n\r\n")[0]
        self.assertRegex(head, r"with ESMTPS\r\n\t\(using TLSv1\.3 with cipher TLS_\w+\) id ")
        self.await_log(r"received .*protocol=ESMTPS tls=TLSv1\.3 cipher=TLS_\w+")

    def test_swaks_delivers_with_implicit_tls(self):
        self.swaks("tlsc", "implicit", "--tls-on-connect")
        self.assertIn("with ESMTPS\r\n", self.the_message("tlsc"))

    def test_msmtp_delivers_by_starttls_and_trusts_the_certificate(self):
        self.run_client("msmtp", "--file=/dev/null", "--host=127.0.0.1", f"--port={self.server.at['required']}", "--tls=on",
                        "--tls-starttls=on", "--tls-certcheck=off", "--auth=off", "--from=a@c.test", "msmtp@bench.test",
                        text=make_message("from msmtp"))  # fmt: skip
        self.assertIn("with ESMTPS\r\n", self.the_message("msmtp"))

    def test_smtplib_delivers_by_starttls_and_verifies_the_certificate(self):
        context = ssl.create_default_context(cafile=self.first[0])
        with smtplib.SMTP("127.0.0.1", self.server.at["starttls"]) as client:
            client._host = "mx.bench.test"  # the name that it requests and verifies
            self.assertTrue(client.ehlo()[0] == 250 and client.has_extn("starttls"))
            client.starttls(context=context)
            client.ehlo()
            self.assertFalse(client.has_extn("starttls"))
            client.sendmail("a@c.test", ["smtplib@bench.test"], make_message("from smtplib"))
        self.assertIn("with ESMTPS\r\n", self.the_message("smtplib"))

    def test_smtplib_delivers_with_tls_1_2(self):
        context = unverified_context(ssl.TLSVersion.TLSv1_2)
        with smtplib.SMTP_SSL("127.0.0.1", self.server.at["implicit"], context=context) as client:
            client.sendmail("a@c.test", ["implicit@bench.test"], make_message("from smtplib"))
        self.assertRegex(self.the_message("implicit"), r"\(using TLSv1\.2 with cipher TLS_ECDHE_\w+\)")

    def test_openssl_makes_its_handshake_by_starttls(self):
        said = self.run_client("openssl", "s_client", "-starttls", "smtp", "-connect",
                               f"127.0.0.1:{self.server.at['starttls']}", "-servername", "mail.other.test",
                               text=b"QUIT\r\n")  # fmt: skip
        self.assertIn("CN = mail.other.test", said)
        self.assertIn("TLSv1.3", said)

    def test_lmtp_offers_starttls(self):
        with self.client("lmtp") as client:
            self.assertEqual(client.read().code, 220)
            self.assertIn("STARTTLS", client.say("LHLO client.test").text)
            self.assertTrue(client.say("STARTTLS").is_a(220, "2.0.0"))
            with unverified_context().wrap_socket(client.socket) as secure:
                replies = secure.makefile("rb")
                lines = [b"LHLO c.test", b"MAIL FROM:<a@c.test>", b"RCPT TO:<lmtp@bench.test>", b"DATA"]
                secure.sendall(b"".join(line + b"\r\n" for line in lines))
                while not replies.readline().startswith(b"354"):
                    pass
                secure.sendall(make_message("by lmtp") + b".\r\n")
                self.assertEqual(replies.readline()[:3], b"250")
        self.assertIn("with LMTPS\r\n", self.the_message("lmtp"))

    def test_required_starttls_refuses_mail_in_clear_text(self):
        with self.client("required") as client:
            client.greet()
            for command in ("MAIL FROM:<a@c.test>", "HELO c.test", "RSET", "VRFY bob", "RCPT TO:<required@bench.test>"):
                self.assertTrue(client.say(command).is_a(530, "5.7.0 Must issue a STARTTLS command first"), command)
            self.assertEqual(client.say("NOOP").code, 250)
        self.swaks("required", "required", "--tls")
        self.the_message("required")

    def test_without_tls_starttls_is_not_offered(self):
        with self.client("none") as client:
            self.assertNotIn("STARTTLS", client.greet().text)
            self.assertEqual(client.say("STARTTLS").code, 502)
            self.assertEqual(client.deliver(make_message("in clear text"), "none@bench.test").code, 250)
        self.assertIn("with ESMTP id", self.the_message("none"))

    def test_input_after_starttls_is_discarded(self):
        for where in ("starttls", "required"):
            with self.client(where) as client:
                client.greet()
                injected = b"STARTTLS\r\nRSET\r\nMAIL FROM:<mallory@c.test>\r\nRCPT TO:<victim@bench.test>\r\n"
                client.write(injected)
                self.assertEqual(client.read().code, 220)
                self.assertTrue(client.read().is_a(554, "5.5.1"))
                self.assertTrue(client.is_closed())

    def test_clear_text_after_the_220_is_discarded(self):
        since = self.server.log.stat().st_size
        with self.client() as client:
            client.greet()
            self.assertEqual(client.say("STARTTLS").code, 220)
            client.write(b"RSET\r\nMAIL FROM:<mallory@c.test>\r\n")
            rest = b""
            while piece := client.socket.recv(4096):
                rest += piece
            self.assertNotIn(b"250", rest)
        self.await_log(r"insecure client=127\.0\.0\.1 helo=client\.test reason=", since)

    def test_the_session_starts_over_after_the_handshake(self):
        with self.client() as client:
            client.greet()
            client.say("STARTTLS")
            with unverified_context().wrap_socket(client.socket) as secure:
                replies = secure.makefile("rb")
                secure.sendall(b"MAIL FROM:<a@c.test>\r\n")
                self.assertEqual(replies.readline()[:9], b"503 5.5.1")
                secure.sendall(b"STARTTLS\r\n")
                self.assertEqual(replies.readline()[:3], b"503")

    def test_the_requested_server_name_selects_the_certificate(self):
        for name, files in (
            ("mx.bench.test", self.first), ("mail.other.test", self.second), ("a.w.test", self.second),
            ("a.b.w.test", self.first), ("nobody.test", self.first), (None, self.first),
        ):  # fmt: skip
            self.assertEqual(self.seen(name), fingerprint(files[0]), name)

    def test_a_certificate_is_replaced_while_the_server_runs(self):
        chain, key = self.changing
        before, since = fingerprint(chain), self.server.log.stat().st_size
        self.assertEqual(self.seen("changing.test"), before)
        other = issue(pathlib.Path(self.folder.name), "other", "changing.test")
        chain.write_text(other[0].read_text())
        self.await_log(r"error .*cannot use a changed certificate.*does not match", since)
        self.assertEqual(self.seen("changing.test"), before)
        self.renewed_beside()
        key.write_text(other[1].read_text())
        self.await_log(r"info .*reloaded a changed certificate.*changing\.test", since)
        self.assertEqual(self.seen("changing.test"), fingerprint(other[0]))

    def renewed_beside(self):
        """A certificate is replaced even if another one cannot be."""
        since = self.server.log.stat().st_size
        other = issue(pathlib.Path(self.folder.name), "another", "beside.test")
        for old, new in zip(self.beside, other):
            old.write_text(new.read_text())
        self.await_log(r"info .*reloaded a changed certificate.*beside\.test", since)
        self.assertEqual(self.seen("beside.test"), fingerprint(other[0]))

    @unittest.skipIf(os.geteuid(), "needs root, who alone may read what the server then may not")
    def test_a_certificate_that_cannot_be_checked_is_logged_once(self):
        pattern = r"error .*cannot read the files of a certificate.*hidden\.pem.*Permission denied"
        self.await_log(pattern)
        self.renewed_beside()
        self.assertEqual(len(re.findall(pattern, self.server.log.read_text())), 1)
        self.assertNotEqual(self.seen("hidden.test"), fingerprint(self.first[0]))

    def test_a_client_that_closes_first_gets_a_close_notify(self):
        with socket.create_connection(("127.0.0.1", self.server.at["implicit"]), WAIT_SECONDS_MAX) as plain:
            with unverified_context().wrap_socket(plain) as secure:
                self.assertEqual(secure.recv(4096)[:3], b"220")
                # Raises if the server does not answer a close_notify with its own.
                secure.unwrap().close()

    def test_tls_1_1_is_refused_and_logged(self):
        since = self.server.log.stat().st_size
        done = subprocess.run(
            ["openssl", "s_client", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0", "-connect",
             f"127.0.0.1:{self.server.at['implicit']}"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)  # fmt: skip
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, rb"alert (protocol version|handshake failure)")
        self.await_log(r"insecure client=127\.0\.0\.1 .*reason=", since)

    def test_clear_text_on_an_implicit_tls_port_gets_no_banner(self):
        since = self.server.log.stat().st_size
        with self.client("implicit") as client:
            client.write(b"EHLO client.test\r\n")
            rest = b""
            while piece := client.socket.recv(4096):
                rest += piece
            self.assertNotIn(b"220", rest)
        self.await_log(r"insecure client=127\.0\.0\.1 .*reason=", since)

    def test_a_missing_handshake_times_out(self):
        begin, since = time.monotonic(), self.server.log.stat().st_size
        with self.client("implicit") as client:
            self.assertTrue(client.is_closed())
        self.assertLess(time.monotonic() - begin, 20)
        self.await_log(r"insecure .*reason=\"handshake timed out after 2s\"", since)

    def test_metrics_count_handshakes(self):
        self.seen("mx.bench.test")
        self.assertGreater(metrics(self.server)['mailrace_tls_handshakes_total{result="TLSv1.3"}'], 0)


class Check(unittest.TestCase):
    """`mailrace check` reports errors in the files at their place in the configuration."""

    def setUp(self):
        self.made = folder()
        self.addCleanup(self.made.cleanup)
        self.at = pathlib.Path(self.made.name)
        self.sound = issue(self.at, "sound", "mx.bench.test")

    def check(self, text):
        config = self.at / "mailrace.toml"
        config.write_text(f'data_dir = "{self.at}/data"\n{text}')
        argv = [str(BINARY), "check", "--config", str(config)]
        done = subprocess.run(argv, cwd=self.at, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def test_a_valid_certificate_is_summarized(self):
        code, said = self.check(section(*self.sound))
        self.assertEqual(code, 0, said)
        self.assertIn("smtp on 127.0.0.1:2525, STARTTLS", said)
        self.assertRegex(said, "all local users can read .*sound.key, which contains a private key")
        self.sound[1].chmod(0o640)
        self.assertNotIn("warning: ", self.check(section(*self.sound))[1])

    def test_an_unusable_certificate_is_reported_with_its_line(self):
        other = issue(self.at, "other", "mx.bench.test")
        for files, place, words in (
            ((self.sound[0], other[1]), "mailrace.toml:5:7", "does not match"),
            ((self.at / "none.pem", other[1]), "mailrace.toml:4:9", "No such file"),
            ((self.sound[0], self.at / "none.key"), "mailrace.toml:5:7", "No such file"),
            ((self.sound[1], self.sound[1]), "mailrace.toml:4:9", "no valid certificate"),
            ((self.sound[0], self.sound[0]), "mailrace.toml:5:7", "no usable private key"),
        ):
            code, said = self.check(section(*files))
            self.assertNotEqual(code, 0)
            self.assertTrue(place in said and words in said, said)

    def test_a_name_that_no_client_can_request_is_reported_with_its_place(self):
        code, said = self.check(section(*self.sound) + 'names = ["mx.bench.test", "192.0.2.1", "[IPv6:::1]"]\n')
        self.assertNotEqual(code, 0)
        for words in ("`certificate.names` has an IP address", "mailrace.toml:6:27", "mailrace.toml:6:40"):
            self.assertIn(words, said)
        code, said = self.check(section(*self.sound) + 'names = ["m\u00fcnchen.test"]\n')
        self.assertEqual(code, 0, said)

    def test_an_expired_certificate_is_a_warning(self):
        old = (self.at / "old.pem", self.at / "old.key")
        request, extensions = self.at / "old.csr", self.at / "old.ext"
        extensions.write_text("subjectAltName=DNS:a\n")
        for argv in (
            ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=a", "-keyout",
             old[1], "-out", request],
            ["x509", "-req", "-days", "-1", "-in", request, "-signkey", old[1], "-out", old[0],
             "-extfile", extensions],
        ):  # fmt: skip
            subprocess.run(["openssl", *argv], check=True, capture_output=True)
        code, said = self.check(section(*old))
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"warning: .*mailrace\.toml:4: the certificate in .*old\.pem has expired")


if __name__ == "__main__":
    unittest.main()
