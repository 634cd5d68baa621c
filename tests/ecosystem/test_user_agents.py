"""Mail user agents send through submission: nodemailer and mutt, with both kinds of TLS."""

import json
import os
import pathlib
import subprocess
import unittest

from harness import folder
from test_auth import PASSWORD, SubmissionCase, stored

_MODULES = "/usr/share/nodejs"
_NODEMAILER = """
const settings = JSON.parse(process.argv[1]);
const message = {from: "bob@bench.test", to: settings.to, subject: "sent by node", text: "It works, \\u00e4 ja."};
require("nodemailer").createTransport(settings.transport).sendMail(message)
  .then((said) => console.log(said.response), (error) => { console.error(error); process.exit(1); });
"""


class UserAgents(SubmissionCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.place = pathlib.Path(cls.folder.name)
        logins = cls.place / "logins"
        logins.write_text(f"bob {stored(PASSWORD, 'argon2id')}\n")
        cls.serve(f'\n[[table]]\nname = "logins"\ntype = "text"\npath = "{logins}"\n\n[auth]\npasswords = "logins"\n')

    def start_program(self, *argv, text="", **environment):
        done = subprocess.run(
            list(map(str, argv)), input=text, capture_output=True, text=True, timeout=60, cwd=self.place,
            env=os.environ | {"HOME": str(self.place)} | environment,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{self.server.log_tail()}")
        return done.stdout

    def await_message(self, subject):
        """The only message with this subject."""
        messages = [path.read_text() for path in self.await_messages("bob", 4)]
        (found,) = (text for text in messages if f"Subject: {subject}\n" in text)
        self.assertIn("with ESMTPSA\n", found)
        return found

    def settings(self, where, password=PASSWORD):
        """Settings of nodemailer."""
        transport = {
            "host": "127.0.0.1", "port": self.server.at[where], "secure": where == "submissions", "requireTLS": True,
            "auth": {"user": "bob", "pass": password}, "tls": {"rejectUnauthorized": False},
        }  # fmt: skip
        return json.dumps({"transport": transport, "to": "bob@bench.test"})

    def mutt(self, where, subject):
        scheme = "smtps" if where == "submissions" else "smtp"
        settings = {
            "smtp_url": f"{scheme}://bob@127.0.0.1:{self.server.at[where]}", "smtp_pass": PASSWORD,
            "from": "bob@bench.test", "certificate_file": self.place / "own.pem",
            "ssl_verify_host": "no", "ssl_force_tls": "yes", "copy": "no",
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in ("-e", f'set {name}="{value}"')]
        self.start_program("mutt", "-F", "/dev/null", *words, "-s", subject, "--", "bob@bench.test", text="It works.\n")

    def test_they_send_with_starttls_and_implicit_tls(self):
        for where in ("submission", "submissions"):
            said = self.start_program("node", "-e", _NODEMAILER, "--", self.settings(where), NODE_PATH=_MODULES)
            self.assertRegex(said, r"^250 2\.\d\.0 ")
            self.mutt(where, f"sent by mutt to {where}")
        for subject in ("sent by mutt to submission", "sent by mutt to submissions"):
            self.assertIn("It works.", self.await_message(subject))
        self.assertEqual(sum("Subject: sent by node" in path.read_text() for path in self.await_messages("bob", 4)), 2)

    def test_a_wrong_password_is_an_error(self):
        argv = ["node", "-e", _NODEMAILER, "--", self.settings("submissions", "wrong")]
        environment = os.environ | {"NODE_PATH": _MODULES}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(done.returncode, 1)
        self.assertIn("535 5.7.8", done.stderr)


if __name__ == "__main__":
    unittest.main()
