"""SpamAssassin with local rules only, by its milter: spam is refused, likely spam is marked."""

import shlex
import shutil
import unittest

from daemons import DaemonCase, can_run, header, spam, whole_message
from harness import await_messages
from peers.smtp import free_port
from recipes import recipe

USER = "debian-spamd"
MILTER_USER = "spamass-milter"
DOUBTFUL = "header DOUBTFUL Subject =~ /doubtful/\nscore DOUBTFUL 8\n"


@unittest.skipUnless(can_run("spamd", "spamass-milter"), "spamd and spamass-milter are not installed, or we are not root")
class SpamAssassin(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.make_home(USER)
        scanner, port = free_port(), free_port()
        texts = {"10026": str(port), "-p 783": f"-p {scanner}"}
        cls.recipe = recipe("SpamAssassin").with_texts(texts)
        site = cls.home / "site"
        # The plugins of the package, and none of the machine's own settings.
        shutil.copytree("/etc/spamassassin", site, ignore=lambda _, names: [name for name in names if not name.endswith(".pre")])
        (site / "local.cf").write_text(cls.recipe.files["/etc/spamassassin/local.cf"] + DOUBTFUL)
        argv = ["spamd", "--local", "--nouser-config", "--max-children", "2", "--listen", f"127.0.0.1:{scanner}"]
        argv += ["--siteconfigpath", site, "--pidfile", cls.home / "pid", "--helper-home-dir", cls.home, "--syslog", "stderr"]
        cls.start_daemon(cls.home, argv, port=scanner, user=USER)
        words = shlex.split(cls.recipe.files["/etc/default/spamass-milter"], comments=True)
        set_to = dict(word.split("=", 1) for word in words)
        argv = ["spamass-milter", "-p", set_to["SOCKET"], *shlex.split(set_to["OPTIONS"])]
        cls.start_daemon(cls.make_home(MILTER_USER), argv, port=port, user=MILTER_USER)

    def setUp(self):
        super().setUp()
        self.server = self.serve(self.recipe.toml)

    def test_spam_is_refused(self):
        reply = self.deliver(self.server, spam())
        self.assertTrue(reply.is_a(550, "5.7.1"), reply)
        self.assertIn("Blocked by SpamAssassin", str(reply))

    def test_likely_spam_is_marked(self):
        self.assertEqual(self.deliver(self.server, whole_message("doubtful")).code, 250)
        fields = header(await_messages(self.server, "alice", 1)[0])
        self.assertEqual((fields["x-spam-flag"], fields["subject"]), ("YES", "[spam] doubtful"))
        self.assertIn("DOUBTFUL", fields["x-spam-status"])

    def test_other_mail_is_scored(self):
        self.assertEqual(self.deliver(self.server, whole_message("fine")).code, 250)
        fields = header(await_messages(self.server, "alice", 1)[0])
        self.assertEqual((fields["x-spam-status"].split(",")[0], fields["subject"]), ("No", "fine"))
        self.assertNotIn("x-spam-flag", fields)


if __name__ == "__main__":
    unittest.main()
