"""The server with real mail and a configuration made by `mailrace import postfix`.

    null client     local mail to root is sent to the relay host
    deferred        a list whose program is not known: mail waits, and none reaches a Maildir
    discarded       mail of a discarded domain is delivered nowhere
    refused         `error:` in transport_maps: the sender gets its text
"""

import pathlib
import re
import subprocess

from harness import Client, Mailrace, await_that
from outbound import OutboundCase, await_event, text_message

MASTER = "127.0.0.1:2525 inet n - n - - smtpd\nsmtp unix - - n - - smtp\nmailman unix - n n - - pipe flags=FR\n"


class ImportCase(OutboundCase):
    def serve(self, main, code, **tables):
        """A server with the imported configuration of main.cf and these tables."""
        server = Mailrace(self.folder)
        self._servers.append(server)
        user = "".join(re.findall(r"^user\s*=.*$", server.config.read_text(), re.M))
        postfix = self.folder / "postfix"
        postfix.mkdir()
        for name, text in {"main.cf": main.replace("$folder", str(postfix)), "master.cf": MASTER, **tables}.items():
            (postfix / name).write_text(text)
        argv = [str(server.binary), "import", "postfix", str(postfix), "--output", str(server.config), "--force"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        text = server.config.read_text().replace('"/var/lib/mailrace"', f'"{server.data}"')
        text = text.replace("127.0.0.1:2525", "127.0.0.1:0").replace("\ndata_dir", f"\n{user}\ndata_dir", 1)
        server.config.write_text(text)
        server.start()
        return server, done.stderr

    def inject(self, server, *recipients):
        """Submits mail as cron does."""
        argv = [str(server.binary), "--config", str(server.config), "inject", *recipients]
        subprocess.run(argv, input=text_message(), check=True, timeout=60)


class NullClient(ImportCase):
    def test_mail_of_programs_to_root_is_sent_to_the_relay_host(self):
        relay = self.host()
        main = f"myhostname = client.example.com\nmyorigin = example.com\nmydestination =\nrelayhost = [127.0.0.1]:{relay.port}\n"
        server, told = self.serve(main, 0)
        self.assertNotIn("differently", told)
        self.inject(server, "root")
        received = self.await_messages(relay, 1, server)[0]
        self.assertIn("root@example.com", received.recipients[0])
        self.assertFalse(list((server.data / "drop").glob("*rejected*/*")))


class DeferredMail(ImportCase):
    MAIN = """\
myhostname = mx.example.com
mydestination = example.com
alias_maps =
local_recipient_maps = inline:{list=x, bob=x}
relay_domains = thrown.example
relay_transport = discard:
transport_maps = hash:$folder/transport
"""

    def setUp(self):
        super().setUp()
        table = "list@example.com mailman:\ngone.example error:5.1.2 gone for good\n"
        self.server, self.told = self.serve(self.MAIN, 1, transport=table)

    def test_mail_for_a_list_waits_and_reaches_no_maildir(self):
        self.assertIn("Mail to list@example.com waits", self.told)
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.envelope("list@example.com", "bob@example.com").code, 250)
        self.inject(self.server, "list@example.com")
        self.inject(self.server, "bob@example.com")
        new = pathlib.Path(self.server.data) / "mail/example.com"
        await_that(lambda: (new / "bob/new").is_dir() and list((new / "bob/new").iterdir()), "bob's message", self.server)
        self.assertFalse((new / "list").exists())

    def test_mail_that_postfix_discarded_is_discarded(self):
        self.assertNotIn("thrown.example", self.told)
        self.send(self.server, "eve@thrown.example")
        await_event(self.server, "delivered")
        self.assertEqual(self.server.queued(), 0)

    def test_mail_that_postfix_refused_bounces_with_its_text(self):
        self.send(self.server, "eve@gone.example")
        self.assertIn("gone for good", str(await_event(self.server, "bounced")))
