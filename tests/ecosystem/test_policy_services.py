"""Policy services of Debian: postgrey greylists, and policyd-spf asks the DNS of the sender's domain."""

import os
import shlex
import time
import unittest

from daemons import CLIENT, DaemonCase, can_run, header, whole_message
from harness import await_messages
from name_server import NameServer
from peers.smtp import free_port
from recipes import recipe

DELAY_SECONDS = 2
# The library of policyd-spf asks the name servers of the system, by their well-known port.
RESOLVER = """\
import dns.resolver
dns.resolver.default_resolver = dns.resolver.Resolver(configure=False)
dns.resolver.default_resolver.nameservers = ["127.0.0.1"]
dns.resolver.default_resolver.port = {port}
"""


@unittest.skipUnless(can_run("postgrey"), "postgrey is not installed, or we are not root")
class Postgrey(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home, port = cls.make_home("postgrey"), free_port()
        cls.recipe = recipe("postgrey").with_texts({"10023": str(port)})
        (assignment,) = shlex.split(cls.recipe.files["/etc/default/postgrey"], comments=True)
        options = shlex.split(assignment.removeprefix("POSTGREY_OPTS="))
        argv = ["postgrey", *options, f"--delay={DELAY_SECONDS}", f"--dbdir={cls.home}", f"--pidfile={cls.home / 'pid'}"]
        cls.start_daemon(cls.home, argv, port=port, user="postgrey")

    def test_the_second_try_is_accepted_and_tells_of_the_delay(self):
        server = self.serve(self.recipe.toml)
        reply = self.deliver(server, whole_message("first"))
        self.assertTrue(reply.is_a(450, "4.2.0"), reply)
        self.assertIn("Greylisted", str(reply))
        self.assertEqual(self.deliver(server, whole_message("soon")).code, 450)
        deadline = time.monotonic() + 30
        while (reply := self.deliver(server, whole_message("later"))).code != 250:
            self.assertTrue(reply.code == 450 and time.monotonic() < deadline, reply)
            time.sleep(0.5)
        self.assertRegex(header(await_messages(server, "alice", 1)[0])["x-greylist"], r"^delayed \d+ seconds by postgrey")


@unittest.skipUnless(can_run("policyd-spf", "systemd-socket-activate"), "policyd-spf or systemd is not installed, or we are not root")
class PolicydSpf(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.make_home("policyd-spf")
        path = cls.home / "policyd-spf.sock"
        cls.recipe = recipe("policyd-spf").with_texts({"/run/policyd-spf.sock": str(path)})
        names = NameServer()
        cls.addClassCleanup(names.stop)
        names.txt("pass.test", f"v=spf1 ip4:{CLIENT} -all")
        names.txt("fail.test", "v=spf1 -all")
        names.a("mail.client.test", CLIENT)
        names.broken.add("broken.test")
        (cls.home / "sitecustomize.py").write_text(RESOLVER.format(port=names.target.rpartition(":")[2]))
        # The socket belongs to the user of the server, as SocketUser says in its unit.
        service = cls.recipe.files["/etc/systemd/system/policyd-spf@.service"]
        (program,) = (line.partition("=")[2] for line in service.splitlines() if line.startswith("ExecStart="))
        environment = {"PYTHONPATH": str(cls.home)}
        argv = ["systemd-socket-activate", "--accept", "--inetd", "-E", "PYTHONPATH", "-E", "HOME", "-l", path, program]
        daemon = cls.start_daemon(cls.home, argv, user="policyd-spf", **environment)
        daemon.await_that(path.exists, "made its socket")
        os.chmod(path, 0o666)

    def setUp(self):
        super().setUp()
        self.server = self.serve(self.recipe.toml)

    def test_a_pass_is_in_the_header(self):
        reply = self.deliver(self.server, whole_message("pass"), sender="a@pass.test")
        self.assertEqual(reply.code, 250, reply)
        self.assertRegex(header(await_messages(self.server, "alice", 1)[0])["received-spf"], "^Pass .*client-ip=" + CLIENT)

    def test_a_fail_is_refused_with_the_reason(self):
        reply = self.deliver(self.server, whole_message("fail"), sender="a@fail.test")
        self.assertTrue(reply.is_a(550, "5.7.23"), reply)
        self.assertIn("SPF fail", str(reply))

    def test_several_messages_use_one_connection(self):
        for sender in ("a@pass.test", "b@none.test", "c@pass.test"):
            reply = self.deliver(self.server, whole_message("many"), sender=sender)
            self.assertEqual(reply.code, 250, reply)
        paths = await_messages(self.server, "alice", 3)
        self.assertEqual(sorted(header(path)["received-spf"].split()[0] for path in paths), ["None", "Pass", "Pass"])


if __name__ == "__main__":
    unittest.main()
