"""Mailman 3 with its lists in the domain of users: subscriptions are confirmed by mail, posts are distributed, and
the rest of the domain is delivered to mailboxes. Routes are the table that Mailman writes for Postfix.
"""

import email
import pathlib
import re
import subprocess
import unittest

from daemons import DaemonCase, can_run, header, whole_message
from harness import await_messages, await_that, mail_files
from outbound import EVERYONE, await_event, mail_events
from peers.smtp import free_port
from recipes import recipe
from test_reload import reload

USER = "list"
POST = "announce@bench.test"
# What the documents do not say: the folder and the ports of the tests, and a site without a web service.
SITE = """\
[mailman]
site_owner: postmaster@bench.test
layout: test
run_tasks_every: 1h

[paths.test]
var_dir: {home}
bin_dir: /usr/lib/mailman3/bin

[webservice]
port: {web}

[logging.root]
level: info

[runner.rest]
start: no

[runner.nntp]
start: no

[runner.archive]
start: no

"""


@unittest.skipUnless(can_run("mailman-wrapper"), "Mailman 3 is not installed, or we are not root")
class Mailman(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.make_home(USER)
        cls.lmtp, cls.smtp = free_port(), free_port()
        texts = {
            "8024": str(cls.lmtp), "smtp_port: 25": f"smtp_port: {cls.smtp}", "example.org": "bench.test",
            "/etc/mailman3/postfix.cfg": str(cls.home / "postfix.cfg"),
            "/var/lib/mailman3/data": str(cls.home / "data"),
        }  # fmt: skip
        cls.recipe = recipe("Mailman 3", "transports.md").with_texts(texts)
        by_name = {pathlib.Path(name).name: content for name, content in cls.recipe.files.items()}
        cls.configuration = cls.home / "mailman.cfg"
        cls.configuration.write_text(SITE.format(home=cls.home, web=free_port()) + by_name["mailman.cfg"])
        (cls.home / "postfix.cfg").write_text(by_name["postfix.cfg"])
        cls.mailman("create", "--domain", "--owner", "carol@bench.test", POST)
        # In place of the group of Mailman, in which the server's user should be.
        (cls.home / "data").chmod(0o755)
        (cls.home / "data" / "postfix_lmtp").chmod(0o644)
        argv = ["/usr/lib/mailman3/bin/master", "-C", cls.configuration]
        cls.start_daemon(cls.home, argv, port=cls.lmtp, user=USER)

    @classmethod
    def mailman(cls, *words, text=None):
        """What a command prints."""
        argv = ["/usr/lib/mailman3/bin/mailman", "-C", str(cls.configuration), *words]
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=120, cwd=cls.home, user=USER,
            env={"HOME": str(cls.home), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def setUp(self):
        super().setUp()
        users = self.folder / "users"
        users.write_text("".join(f"{name}@bench.test {name}\n" for name in ("alice", "bob", "carol", "postmaster")))
        users.chmod(0o644)
        # Only the domain's table is of the tests' own.
        sections = self.recipe.toml.replace('\n[[domain]]\nname = "bench.test"\nmailboxes = "recipients"\n', "")
        assert sections != self.recipe.toml
        table = f'\n[[table]]\nname = "users"\ntype = "text"\npath = "{users}"\n'
        settings = {"users": None, "mailboxes": "recipients", "networks": EVERYONE, "address": f"127.0.0.1:{self.smtp}"}
        self.server = self.serve(table + sections, **settings)

    def subscribe(self, *members):
        """Makes members, without asking them."""
        self.mailman("addmembers", "-", POST, text="".join(f"{one}@bench.test\n" for one in members))

    def test_posts_are_distributed_and_others_are_delivered(self):
        self.subscribe("alice", "bob")
        self.send(self.server, POST, "carol@bench.test", message=post("one"))
        for user in ("alice", "bob"):
            paths = await_that(lambda: with_subject(self.server, user, "one"), f"the post for {user}", self.server, 60)
            fields = header(paths[0])
            self.assertEqual(fields["list-post"], f"<mailto:{POST}>")
            self.assertIn("announce-bounces", paths[0].read_text())
        (own,) = await_messages(self.server, "carol", 1)
        self.assertNotIn("list-id", header(own))

    def test_a_subscription_is_confirmed_by_mail(self):
        question = post("", "postmaster", "announce-join@bench.test")
        self.send(self.server, "announce-join@bench.test", sender="postmaster@bench.test", message=question)
        (asked,) = await_that(
            lambda: with_subject(self.server, "postmaster", "confirm"), "the question", self.server, 60
        )  # fmt: skip
        question = email.message_from_bytes(asked.read_bytes())
        (address,) = re.findall(r"announce-confirm\+[0-9a-f]+@bench\.test", question["From"])
        answer = post(f"Re: {question['Subject']}", "postmaster", address)
        self.send(self.server, address, sender="postmaster@bench.test", message=answer)
        await_that(
            lambda: "postmaster@bench.test" in self.mailman("members", POST), "the subscription", self.server, 60
        )  # fmt: skip

    def test_a_bounce_reaches_the_list_with_its_tag(self):
        self.send(self.server, "announce-bounces+nobody=far.test@bench.test", sender="bob@bench.test", message=post("bounce"))
        delivered = await_that(
            lambda: mail_events(self.server, "delivered", to="<announce-bounces+nobody=far.test@"), "the delivery", self.server
        )  # fmt: skip
        self.assertEqual(delivered[0].transport, "lmtp")

    def test_a_new_list_is_known_after_a_reload(self):
        with self.assertRaisesRegex(AssertionError, "550 5.1.1"):
            self.send(self.server, "news@bench.test")
        self.mailman("create", "news@bench.test")
        (self.home / "data" / "postfix_lmtp").chmod(0o644)
        reload(self.server)
        self.send(self.server, "news@bench.test", message=post("first", to="news@bench.test"))
        await_event(self.server, "delivered", to="<news@bench.test>", transport="lmtp")

    def test_what_is_no_list_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "550 5.1.1"):
            self.send(self.server, "announce-nothing@bench.test")


def post(subject, author="alice", to=POST):
    """A message to the list, or to an address of it."""
    message = whole_message(subject).replace(b"Sender <sender@client.test>", f"{author}@bench.test".encode())
    return message.replace(b"To: alice@bench.test", f"To: {to}".encode())


def with_subject(server, user, words):
    """The messages whose subject has these words."""
    paths = mail_files(server.maildir(user) / "new")
    return [path for path in paths if words in header(path).get("subject", "")]


if __name__ == "__main__":
    unittest.main()
