"""Mail programs read a mailbox by POP3, and get what was delivered, byte for byte."""

import contextlib
import mailbox
import os
import poplib
import re
import shlex
import ssl
import subprocess
import unittest

from harness import Client, Mailrace, await_messages, await_that, make_message
from laboratory import FolderCase
from peers.certificate import certificate
from peers.dovecot import PASSWORD, Dovecot
from peers.mailrace import LOGINS, listener

USER = "alice@bench.test"
BODIES = {
    "small": "Hello.\r\n",
    "empty": "",
    "dots": ".\r\n..\r\n.x\r\nx.\r\n",
    "eight bits": "gr\u00fc\u00dfe\r\n" * 20,
    "long": ("y" * 990 + "\r\n" + "." * 70 + "\r\n") * 300,
}
_SECONDS_MAX = 60
# Other warnings are about the limits of the process.
_DOVECOT_COMPLAINT = r"(?:Error|Fatal|Panic): |pop3\(.*Warning: "
_MUTT_FIELDS = re.compile(rb"^(?:Content-Length|Lines): \d+\n", re.M)


class Pop3Case(FolderCase):
    """A server with POP3 on a clear and a secure port, and delivered messages."""

    LINE_ENDS = "crlf"

    def setUp(self):
        super().setUp()
        chain, key = certificate(self.folder)
        maildir = f'line_ends = "{self.LINE_ENDS}"'
        extra = listener("pop3", 'tls = "starttls"') + listener("pop3", 'tls = "implicit"') + LOGINS
        extra += f'\n[[certificate]]\nchain = "{chain}"\nkey = "{key}"\n'
        self.server = Mailrace(self.folder, users=["alice"], extra=extra)
        text = self.server.config.read_text()
        self.server.config.write_text(text.replace('type = "maildir"', f'type = "maildir"\n{maildir}'))
        self.addCleanup(self.server.stop)
        self.server.start()
        clear, secure = self.server.all_ports["pop3"]
        self.clear, self.secure = clear, secure
        self.deliver(BODIES)

    def deliver(self, bodies):
        """Delivers messages one after the other, so that they have an order."""
        with Client(self.server.port) as client:
            client.greet()
            for subject, body in bodies.items():
                count = len(self.messages()) + 1
                reply = client.deliver(make_message(subject, body), USER)
                self.assertEqual(reply.code, 250, reply)
                await_that(lambda count=count: len(self.messages()) >= count, f"{count} messages", self.server)

    def messages(self):
        """The messages of the Maildir with CRLF line ends, in the order of their names."""
        parts = (self.server.maildir("alice") / part for part in ("new", "cur"))
        paths = [path for part in parts if part.exists() for path in part.iterdir()]
        return [_with_crlf(path.read_bytes()) for path in sorted(paths, key=lambda path: path.name)]

    def run_program(self, *command, **environment):
        """Runs a program in the folder of the test, which is its home, and returns what it prints."""
        variables = os.environ | {"HOME": str(self.folder)} | environment
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, timeout=_SECONDS_MAX, env=variables, stdin=subprocess.DEVNULL
        )
        self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
        return done.stdout

    def run_on_terminal(self, *command):
        """Runs a program that needs a terminal; what it shows there is ignored unless it fails."""
        line = " ".join(map(shlex.quote, command))
        self.run_program("script", "--quiet", "--return", "--command", line, "/dev/null", TERM="vt100")

    @contextlib.contextmanager
    def session(self):
        """A session of poplib that has logged in."""
        session = poplib.POP3("127.0.0.1", self.clear, timeout=_SECONDS_MAX)
        try:
            session.user(USER)
            session.pass_(PASSWORD)
            yield session
        finally:
            session.close()

    def private_file(self, name, text):
        """A configuration file that only its owner may read."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def assert_all_read(self, texts):
        """These are all messages; line ends do not matter, which programs change."""
        without_cr = lambda texts: sorted(text.replace(b"\r\n", b"\n").rstrip(b"\n") for text in texts)
        self.assertEqual(without_cr(texts), without_cr(self.messages()))


class Programs(Pop3Case):
    def test_poplib_in_clear_text_with_stls_and_over_tls(self):
        context = ssl._create_unverified_context()
        upgraded = poplib.POP3("127.0.0.1", self.clear, timeout=_SECONDS_MAX)
        upgraded.stls(context)
        secure = poplib.POP3_SSL("127.0.0.1", self.secure, timeout=_SECONDS_MAX, context=context)
        for session in (poplib.POP3("127.0.0.1", self.clear, timeout=_SECONDS_MAX), upgraded, secure):
            session.user(USER)
            session.pass_(PASSWORD)
            expected = self.messages()
            self.assertEqual(session.stat(), (len(expected), sum(map(len, expected))))
            sizes = [int(line.split()[1]) for line in session.list()[1]]
            self.assertEqual(sizes, [len(text) for text in expected])
            for number, text in enumerate(expected, 1):
                self.assertEqual(b"".join(line + b"\r\n" for line in session.retr(number)[1]), text)
            header, _, body = expected[-1].partition(b"\r\n\r\n")
            top = b"".join(line + b"\r\n" for line in session.top(len(expected), 2)[1])
            self.assertEqual(top, header + b"\r\n\r\n" + b"".join(body.splitlines(keepends=True)[:2]))
            session.quit()

    def test_curl(self):
        for number, text in enumerate(self.messages(), 1):
            url = f"pop3://127.0.0.1:{self.clear}/{number}"
            self.assertEqual(self.run_program("curl", "--silent", "--user", f"{USER}:{PASSWORD}", url), text)
            url = f"pop3s://127.0.0.1:{self.secure}/{number}"
            self.assertEqual(self.run_program("curl", "--silent", "--insecure", "--user", f"{USER}:{PASSWORD}", url), text)

    def test_fetchmail(self):
        out = self.folder / "fetched"
        out.mkdir()
        rules = self.private_file(
            "fetchmailrc",
            f"poll 127.0.0.1 protocol pop3 port {self.clear} auth password no dns\n"
            f"  user {USER} password {PASSWORD} keep fetchall no rewrite no mimedecode sslproto ''\n"
            f'  mda "cat > {out}/$$"\n',
        )
        self.run_program("fetchmail", "--invisible", "--nodetach", "--nosyslog", "-f", rules, "-i", str(self.folder / "ids"))
        self.assert_all_read(path.read_bytes() for path in out.iterdir())

    def test_getmail(self):
        out = self.folder / "got"
        out.mkdir()
        rules = self.private_file(
            "getmailrc",
            "[retriever]\ntype = SimplePOP3Retriever\nserver = 127.0.0.1\n"
            f"port = {self.clear}\nusername = {USER}\npassword = {PASSWORD}\n"
            "[destination]\ntype = MDA_external\npath = /bin/sh\nallow_root_commands = true\n"
            f"arguments = ('-c', 'cat > {out}/$$')\n"
            "[options]\ndelivered_to = false\nreceived = false\nread_all = true\nverbose = 0\n",
        )
        self.run_program("getmail", "--getmaildir", str(self.folder), "--rcfile", rules)
        self.assert_all_read(path.read_bytes() for path in out.iterdir())

    def test_mpop(self):
        maildir = mailbox.Maildir(self.folder / "popped")
        rules = self.private_file(
            "mpoprc",
            f"account default\nhost 127.0.0.1\nport {self.clear}\nuser {USER}\npassword {PASSWORD}\nauth user\ntls off\n"
            f"keep on\nreceived_header off\ndelivery maildir {self.folder}/popped\nuidls_file {self.folder}/uidls\n",
        )
        self.run_program("mpop", "--file", rules, "--quiet")
        self.assert_all_read(map(maildir.get_bytes, maildir.keys()))

    def test_mutt_with_stls_and_over_tls(self):
        for scheme, port in (("pop", self.clear), ("pops", self.secure)):
            maildir = mailbox.Maildir(self.folder / scheme)
            rules = self.private_file(
                "muttrc",
                f'set folder="{self.folder}" pop_user="{USER}" pop_pass="{PASSWORD}" pop_authenticators="user"\n'
                f'set certificate_file="{self.folder}/chain.pem" ssl_verify_host=no\n'
                "set mbox_type=Maildir copy=no confirmappend=no confirmcreate=no pop_delete=no quit=yes sleep_time=0\n"
                f'push "<tag-pattern>~A<enter><tag-prefix><copy-message><kill-line>={scheme}<enter><quit>"\n',
            )
            self.run_on_terminal("mutt", "-n", "-F", rules, "-f", f"{scheme}://127.0.0.1:{port}")
            # mutt adds two fields.
            self.assert_all_read(_MUTT_FIELDS.sub(b"", maildir.get_bytes(key)) for key in maildir.keys())

    def test_what_a_program_deletes_is_gone_when_it_quits_and_only_then(self):
        before = self.messages()
        with self.session() as session:
            session.dele(1)
        with self.session() as session:
            self.assertEqual(session.stat()[0], len(before))
            session.dele(2)
            session.quit()
        self.assertEqual(self.messages(), before[:1] + before[2:])

    def test_uids_survive_a_restart_and_a_second_session_is_refused(self):
        with self.session() as session:
            uids = session.uidl()[1]
            with self.assertRaisesRegex(poplib.error_proto, r"\[IN-USE\]"), self.session():
                pass
            session.quit()
        self.server.terminate()
        self.server.start()
        self.clear = self.server.all_ports["pop3"][0]
        with self.session() as session:
            self.assertEqual(session.uidl()[1], uids)
            session.quit()

    def test_a_wrong_password_is_refused_and_logged(self):
        session = poplib.POP3("127.0.0.1", self.clear, timeout=_SECONDS_MAX)
        session.user(USER)
        with self.assertRaisesRegex(poplib.error_proto, r"\[AUTH\]"):
            session.pass_("wrong")
        session.close()
        await_that(lambda: "result=refused" in self.server.log_tail(), "a line about the login", self.server)


class ProgramsWithLf(Programs):
    """The same with files that have LF line ends."""

    LINE_ENDS = "lf"


class InTurnWithDovecot(Pop3Case):
    """Dovecot and this server serve the same Maildir in turn, while mail comes in and is deleted."""

    ROUNDS = 4

    def setUp(self):
        super().setUp()
        self.dovecot = Dovecot(self.folder, self.server.maildirs, separate_index=False)
        self.addCleanup(self.dovecot.stop)
        self.dovecot.start()
        self.subjects = {}  # by unique id, also of deleted messages

    def read(self, port, delete=None):
        """The unique ids with the sizes that a server tells, in their order; checks that each message
        has them. Then deletes the message at this index.
        """
        session = poplib.POP3("127.0.0.1", port, timeout=_SECONDS_MAX)
        try:
            session.user(USER)
            session.pass_(PASSWORD)
            uids = [line.split()[1] for line in session.uidl()[1]]
            sizes = [int(line.split()[1]) for line in session.list()[1]]
            for number, (uid, size) in enumerate(zip(uids, sizes, strict=True), 1):
                text = b"".join(line + b"\r\n" for line in session.retr(number)[1])
                self.assertEqual(len(text), size)
                subject = re.search(rb"^Subject: (.*)\r$", text, re.M)[1]
                self.assertEqual(self.subjects.setdefault(uid, subject), subject, "a unique id has two messages")
            if delete is not None:
                session.dele(range(1, len(uids) + 1)[delete])
            session.quit()
        finally:
            session.close()
        self.assertEqual(len(set(uids)), len(uids))
        return list(zip(uids, sizes, strict=True))

    def test_unique_ids_stay_and_no_message_is_new_twice(self):
        self.deliver_and_read(self.clear, self.dovecot.port)

    def test_unique_ids_stay_if_dovecot_is_first(self):
        self.deliver_and_read(self.dovecot.port, self.clear)

    def deliver_and_read(self, *ports):
        """Each reads first in every other round, and deletes the last message before the other one
        has seen it; the other one sees the same, and deletes another one.
        """
        left, delivered = [], len(BODIES)
        for round_number in range(self.ROUNDS):
            first, second = ports[:: 1 if round_number % 2 == 0 else -1]
            listed = self.read(first, delete=-1)
            self.assertEqual(listed[: len(left)], left)
            self.assertEqual(len(self.subjects), delivered, "a message is new twice")
            self.assertEqual(self.read(second, delete=1), listed[:-1])
            left = listed[:1] + listed[2:-1]
            self.assertEqual(self.read(first), left)
            bodies = ("Hello.\r\n", ("z" * 70 + "\r\n") * 500, "Gone.\r\n")
            self.deliver({f"{number} of round {round_number}": body for number, body in enumerate(bodies)})
            delivered += len(bodies)
        self.assertEqual(len(set(self.subjects.values())), len(self.subjects))
        complaints = [line for line in self.dovecot.log().splitlines() if re.search(_DOVECOT_COMPLAINT, line)]
        self.assertEqual(complaints, [])
        self.assertNotIn("warning message=\"mailbox", self.server.log.read_text())


class InTurnWithDovecotAndLf(InTurnWithDovecot):
    """The same with files that have LF line ends."""

    LINE_ENDS = "lf"


def _with_crlf(text):
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


if __name__ == "__main__":
    unittest.main()
