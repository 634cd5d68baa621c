"""rspamd as a milter: spam is refused, likely spam is marked or greylisted, and other mail gets its fields."""

import base64
import re
import time
import unittest

from daemons import CLIENT, DaemonCase, can_run, header, spam, whole_message
from harness import Client, await_messages, await_that
from name_server import NameServer
from outbound import identity
from peers.mailrace import LOGINS, listener
from peers.smtp import free_port
from recipes import recipe

USER = "_rspamd"
LIKELY_SPAM = "YJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
GREYLIST_SECONDS = 2
# What the documents do not say: ports of the tests, the name server, no maps from the network, no compilation of patterns.
OPTIONS = """\
enable_test_patterns = true;
disable_hyperscan = true;
dns {{ nameserver = ["{names}"]; }}
"""
GREYLISTED = """\
DOUBTFUL { type = "header"; header = "subject"; regexp = true; map = "$LOCAL_CONFDIR/doubtful.map"; score = 5.0; }
"""


@unittest.skipUnless(can_run("rspamd", "redis-server"), "rspamd and redis-server are not installed, or we are not root")
class Rspamd(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.make_home(USER)
        cls.port, redis = free_port(), free_port()
        cls.start_daemon(
            cls.home, ["redis-server", "--port", redis, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            port=redis, user=USER,
        )  # fmt: skip
        names = NameServer()
        cls.addClassCleanup(names.stop)
        names.ptr(CLIENT, "mail.client.test")
        names.a("mail.client.test", CLIENT)
        texts = {"127.0.0.1:11332": f"127.0.0.1:{cls.port}", "127.0.0.1:6379": f"127.0.0.1:{redis}"}
        cls.recipe = recipe("rspamd").with_texts(texts)
        cls.write_configuration(names)
        argv = ["rspamd", "-f", "-c", "/etc/rspamd/rspamd.conf", "-u", USER, "-g", USER]
        for name, place in {"DBDIR": "db", "RUNDIR": "run", "LOGDIR": "log", "LOCAL_CONFDIR": "."}.items():
            argv.append(f"--var={name}={cls.home / place}")
        cls.start_daemon(cls.home, argv, port=cls.port)

    @classmethod
    def write_configuration(cls, names):
        """The files of the recipe, and those of the tests."""
        files = {name.removeprefix("/etc/rspamd/"): content for name, content in cls.recipe.files.items()}
        files["override.d/worker-proxy.inc"] = f'bind_socket = "127.0.0.1:{cls.port}";\n'
        for worker in ("normal", "controller"):
            files[f"override.d/worker-{worker}.inc"] = "enabled = false;\n"
        files["override.d/options.inc"] = OPTIONS.format(names=names.target)
        files["local.d/greylist.conf"] = f"timeout = {GREYLIST_SECONDS};\n"
        files["local.d/multimap.conf"], files["doubtful.map"] = GREYLISTED, "/doubtful/\n"
        for name, content in files.items():
            (path := cls.home / name).parent.mkdir(exist_ok=True)
            path.write_text(content)
        for name in ("db", "run", "log"):
            (cls.home / name).mkdir()
            (cls.home / name).chmod(0o777)

    def setUp(self):
        super().setUp()
        self.server = self.serve(self.recipe.toml)

    def test_spam_is_refused_with_its_text(self):
        reply = self.deliver(self.server, spam())
        self.assertTrue(reply.is_a(554, "5.7.1"), reply)
        self.assertRegex(str(reply), "(?i)spam|gtube")

    def test_likely_spam_is_marked(self):
        reply = self.deliver(self.server, spam("marked", LIKELY_SPAM))
        self.assertEqual(reply.code, 250, reply)
        fields = header(await_messages(self.server, "alice", 1)[0])
        self.assertEqual(fields["x-spam"], "Yes")

    def test_other_mail_gets_its_fields(self):
        reply = self.deliver(self.server, whole_message("fine"))
        self.assertEqual(reply.code, 250, reply)
        fields = header(await_messages(self.server, "alice", 1)[0])
        self.assertNotIn("x-spam", fields)
        self.assertIn("x-spamd-bar", fields)
        self.assertRegex(fields["authentication-results"], "^mx.bench.test;")

    def test_doubtful_mail_is_greylisted(self):
        message = whole_message("doubtful")
        reply = self.deliver(self.server, message)
        self.assertTrue(reply.is_a(451, "4.7.1"), reply)
        self.assertIn("Try again later", str(reply))
        deadline = time.monotonic() + 30
        while (reply := self.deliver(self.server, message)).code != 250:
            self.assertTrue(reply.code == 451 and time.monotonic() < deadline, reply)
            time.sleep(0.5)
        await_messages(self.server, "alice", 1)

    def test_it_knows_the_message_and_its_client(self):
        reply = self.deliver(self.server, whole_message("logged"))
        line = self.await_line(rf"qid: <{identity(reply)}>")
        self.assertIn(f"ip: {CLIENT}", line)
        self.assertRegex(line, "rcpts?: <alice@bench.test>")

    def test_it_knows_the_user(self):
        server = self.serve(self.recipe.toml + LOGINS + listener("submission"), place="submission")
        with Client(server.ports["submission"]) as client:
            client.greet()
            secret = base64.b64encode(b"\0alice@bench.test\0secret").decode()
            self.assertEqual(client.say(f"AUTH PLAIN {secret}").code, 235)
            reply = client.deliver(whole_message("mine"), "bob@bench.test", sender="alice@bench.test")
        self.assertEqual(reply.code, 250, reply)
        self.assertIn("user: alice@bench.test", self.await_line(rf"qid: <{identity(reply)}>"))

    def await_line(self, pattern):
        """The line of its log in which this is."""
        lines = lambda: (self.home / "log" / "rspamd.log").read_text().splitlines()
        return await_that(lambda: [line for line in lines() if re.search(pattern, line)], pattern, self.server)[-1]


if __name__ == "__main__":
    unittest.main()
