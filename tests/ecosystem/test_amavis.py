"""amavis as a content filter after the queue: what it lets through comes back once with its fields, and what it refuses
bounces with its text.
"""

import pathlib
import re
import unittest

from daemons import CLIENT, DaemonCase, can_run, header, spam, whole_message
from harness import await_messages, await_that
from outbound import EVERYONE, await_event, identity, mail_events
from peers.smtp import free_port
from recipes import recipe

USER = "amavis"
SERVERS = 2
# Debian's configuration, without its folders, without the network, and with its log in a file.
DEBIAN = [*sorted(pathlib.Path("/usr/share/amavis/conf.d").glob("*")), *sorted(pathlib.Path("/etc/amavis/conf.d").glob("*"))]
HERE = """\
use strict;
$MYHOME = '{home}';
$TEMPBASE = $ENV{{TMPDIR}} = $helpers_home = $MYHOME;
$QUARANTINEDIR = undef;
$pid_file = "$MYHOME/amavisd.pid";
$lock_file = "$MYHOME/amavisd.lock";
$enable_db = $enable_global_cache = 0;
$sa_local_tests_only = 1;
$mydomain = 'bench.test';
$myhostname = 'mx.bench.test';
$max_servers = {servers};
$log_level = 2;
$do_syslog = 0;
$LOGFILE = "$MYHOME/amavis.log";
1;
"""


@unittest.skipUnless(can_run("amavisd"), "amavis is not installed, or we are not root")
class Amavis(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.make_home(USER)
        port, cls.port_of_return = free_port(), free_port()
        texts = {"10024": str(port), "10025": str(cls.port_of_return), ".example.org": ".bench.test"}
        cls.recipe = recipe("amavis").with_texts(texts)
        made = cls.make_home()
        (made / "user").write_text(cls.recipe.files["/etc/amavis/conf.d/50-user"])
        (made / "here").write_text(HERE.format(home=cls.home, servers=SERVERS))
        files = [*(path for path in DEBIAN if path.name != "50-user"), made / "user", made / "here"]
        argv = ["amavisd", *(word for path in files for word in ("-c", path)), "foreground"]
        cls.start_daemon(cls.home, argv, port=port)

    def serve_filtered(self, **settings):
        """A server with the recipe."""
        return self.serve(self.recipe.toml.replace('"smtp"', settings.pop("type", '"smtp"'), 1), **settings)

    def test_mail_passes_it_once(self):
        for kind in ('"smtp"', '"lmtp"'):
            server = self.start_in(kind, networks=EVERYONE)
            self.send(server, "alice@bench.test", "bob@bench.test", message=whole_message("fine"))
            for user in ("alice", "bob"):
                content = await_messages(server, user, 1)[0].read_text()
                self.assertEqual(content.count("X-Spam-Status: No"), 1, content)
                self.assertIn("amavis", content)
            self.assertEqual(len(mail_events(server, "received")), 2)
            await_that(lambda: not server.queued(), "an empty queue", server)
            server.stop()

    def start_in(self, kind, **settings):
        """A server with this kind of transport, in a folder of its own."""
        return self.serve_filtered(type=kind, place=kind.strip('"'), **settings)

    def test_spam_bounces_with_its_text(self):
        server = self.serve_filtered(networks=EVERYONE)
        self.send(server, "bob@bench.test", message=spam())
        bounced = await_event(server, "bounced", to="<bob@bench.test>")
        self.assertRegex(bounced.reason, r"^554 5\.7\.0 Reject, id=.* spam")
        self.assertIn("5.7.0", await_messages(server, "alice", 1)[0].read_text())

    def test_banned_attachments_bounce(self):
        server = self.serve_filtered(networks=EVERYONE)
        part = "--b\r\nContent-Type: application/octet-stream\r\nContent-Disposition: attachment; filename=a.exe\r\n\r\nMZ\r\n"
        message = b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n'
        message += whole_message("parts", f"{part}--b--\r\n")
        self.send(server, "bob@bench.test", message=message)
        bounced = await_event(server, "bounced", to="<bob@bench.test>")
        self.assertRegex(bounced.reason, r"^554 5\.7\.0 Reject, id=.* BANNED")

    def test_it_knows_the_client(self):
        server = self.serve_filtered(networks=EVERYONE)
        reply = self.deliver(server, whole_message("stranger"), sender="stranger@client.test")
        self.assertEqual(reply.code, 250, reply)
        self.assertIn("x-spam-score", header(await_messages(server, "alice", 1)[0]))
        log = self.home / "amavis.log"  # it may write the line after it has sent the message
        clean = re.compile(r"Passed CLEAN.*<stranger@client\.test>.*")
        passed = await_that(lambda: clean.search(log.read_text()), "a line of amavis", server)[0]
        self.assertRegex(passed, rf"^Passed CLEAN {{\w+}}, \[{re.escape(CLIENT)}\]")
        self.assertIn(identity(reply), passed)


if __name__ == "__main__":
    unittest.main()
