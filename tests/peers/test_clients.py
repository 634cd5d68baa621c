"""Common clients deliver through the server into a Maildir."""

import pathlib
import smtplib
import subprocess
import tempfile
import unittest

from harness import ServerCase, make_message

BODY = "first line\r\n.a line that begins with a dot\r\n..\r\nlast line\r\n"


def run(*argv, text=None):
    """Runs a client; fails with its output."""
    done = subprocess.run(argv, input=text, capture_output=True, timeout=60)
    if done.returncode:
        raise AssertionError(f"{argv[0]} ended with {done.returncode}: {(done.stdout + done.stderr).decode()}")
    return done


class Clients(ServerCase):
    SERVER = {"users": ["swaks", "msmtp", "curl", "smtplib", "source", "first", "second", "plus", "sizes"]}

    def the_message(self, user):
        (path,) = self.await_messages(user, 1)
        return path.read_bytes()

    def test_swaks_delivers_to_a_maildir(self):
        run("swaks", "--server", "127.0.0.1", "--port", str(self.server.port), "--from", "a@client.test",
            "--to", "swaks@bench.test", "--header", "Subject: from swaks", "--body", BODY)  # fmt: skip
        content = self.the_message("swaks")
        self.assertIn(b"Subject: from swaks\r\n", content)
        self.assertIn(b"\r\n.a line that begins with a dot\r\n..\r\n", content)

    def test_msmtp_delivers_to_a_maildir(self):
        run("msmtp", "--file=/dev/null", "--host=127.0.0.1", f"--port={self.server.port}", "--tls=off", "--auth=off",
            "--from=a@client.test", "msmtp@bench.test", text=make_message("from msmtp", BODY))  # fmt: skip
        self.assertTrue(self.the_message("msmtp").endswith(BODY.encode()))

    def test_curl_delivers_to_a_maildir(self):
        with tempfile.NamedTemporaryFile() as message:
            message.write(make_message("from curl", BODY))
            message.flush()
            run("curl", "--silent", "--show-error", f"smtp://127.0.0.1:{self.server.port}", "--mail-from",
                "a@client.test", "--mail-rcpt", "curl@bench.test", "--upload-file", message.name)  # fmt: skip
        self.assertTrue(self.the_message("curl").endswith(BODY.encode()))

    def test_smtplib_delivers_to_a_maildir(self):
        with smtplib.SMTP("127.0.0.1", self.server.port) as client:
            client.sendmail("a@client.test", ["smtplib@bench.test"], make_message("from smtplib", BODY))
        self.assertTrue(self.the_message("smtplib").endswith(BODY.encode()))

    def test_smtp_source_delivers_each_of_its_messages_once(self):
        run("smtp-source", "-s", "5", "-m", "50", "-l", "2000", "-f", "a@client.test", "-t", "source@bench.test",
            f"127.0.0.1:{self.server.port}")  # fmt: skip
        self.server.wait_until_empty(30)
        self.assertEqual(len(self.await_messages("source", 50)), 50)

    def test_a_message_to_two_users_is_delivered_to_both_with_trace_fields(self):
        with smtplib.SMTP("127.0.0.1", self.server.port) as client:
            client.sendmail("a@client.test", ["first@bench.test", "second@bench.test"], make_message("to two"))
        for user in ("first", "second"):
            head = self.the_message(user).decode().split("\r\n\r\n")[0]
            self.assertTrue(head.startswith("Return-Path: <a@client.test>\r\n"), head)
            self.assertIn(f"Delivered-To: {user}@bench.test\r\n", head)
            self.assertIn("Received: from ", head)

    def test_a_plus_tag_is_delivered_to_the_user(self):
        with smtplib.SMTP("127.0.0.1", self.server.port) as client:
            client.sendmail("a@client.test", ["plus+list@bench.test"], make_message("tagged"))
        self.assertIn(b"Subject: tagged", self.the_message("plus"))

    def test_the_file_name_has_both_sizes(self):
        with smtplib.SMTP("127.0.0.1", self.server.port) as client:
            client.sendmail("a@client.test", ["sizes@bench.test"], make_message("sizes"))
        for path in self.await_messages("sizes", 1):
            sizes = dict(part.split("=") for part in path.name.split(",")[1:])
            content = path.read_bytes()
            self.assertEqual(int(sizes["S"]), len(content), path.name)
            self.assertEqual(int(sizes["W"]), len(content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")), path.name)
            self.assertEqual(pathlib.Path(path).stat().st_mode & 0o777, 0o600)


if __name__ == "__main__":
    unittest.main()
