"""A service manager is notified when the server is ready and when it stops, and may pass sockets to
it.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest
import unittest.mock

from harness import Client, Mailrace, await_messages, await_that, folder, make_message
from peers.mailrace import route
from peers.smtp import free_port

# LISTEN_PID must be the process that gets the sockets, so a shell sets it to its own id and becomes
# the server.
BECOME = 'export LISTEN_PID=$$; exec "$@"'
UNIT = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "mailrace.service"
EXPOSURE_MAX = 2.5  # of systemd-analyze security: 0 is the most restricted, 10 the least


class Service(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        far = route("far.test", f"[127.0.0.1]:{free_port()}")
        self.server = Mailrace(self.folder, users=["alice"], networks=["127.0.0.0/8"], extra=far)
        self.addCleanup(self.server.stop)

    def listening(self):
        """A socket as systemd opens it; the server's listener is set to its address."""
        passed = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(passed.close)
        text = self.server.config.read_text()
        self.server.config.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{passed.getsockname()[1]}"))
        return passed

    def test_the_manager_is_notified_of_ready_and_stopping(self):
        path = str(self.folder / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            os.chmod(path, 0o777)  # the server gives up root before it sends
            manager.settimeout(60)
            port = self.listening_later()
            self.server.start(["env", f"NOTIFY_SOCKET={path}"])
            self.assertIn("READY=1", manager.recv(1000).decode().splitlines())
            with Client(port) as client:
                self.assertEqual(client.greet().code, 250)
            self.server.process.send_signal(signal.SIGTERM)
            self.assertIn("STOPPING=1", manager.recv(1000).decode().splitlines())
            self.assertEqual(self.server.process.wait(60), 0)

    def listening_later(self):
        """A free port, which the configuration then has."""
        passed = self.listening()
        passed.close()
        return passed_port(self.server)

    def test_the_manager_is_not_notified_if_the_server_cannot_bind(self):
        path = str(self.folder / "notify")
        self.listening()  # it stays open, so the port is in use
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            os.chmod(path, 0o777)
            with self.assertRaisesRegex(RuntimeError, "in use"):
                self.server.start(["env", f"NOTIFY_SOCKET={path}"])
            manager.setblocking(False)
            with self.assertRaises(BlockingIOError):
                manager.recv(1000)

    def test_a_socket_that_was_passed_is_served(self):
        passed = self.listening()
        self.start_with(passed)
        with Client(passed.getsockname()[1]) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("passed"), "alice@bench.test").code, 250)
        await_messages(self.server, "alice", 1)

    def test_a_server_that_only_drains_its_queue_closes_a_socket_that_was_passed(self):
        passed = self.listening()
        self.start_with(passed)
        with Client(passed.getsockname()[1]) as client:
            client.greet()
            # Its next hop is down, so it stays in the queue.
            self.assertEqual(client.deliver(make_message("waits"), "bob@far.test").code, 250)
        self.assertEqual(self.server.terminate(), 0)
        self.start_with(passed, self.server.start_draining)
        self.assertEqual(self.server.queued(), 1)
        address = passed.getsockname()
        passed.close()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)

    def test_clients_that_connected_before_the_start_are_served(self):
        passed = self.listening()
        with Client(passed.getsockname()[1]) as client:
            self.start_with(passed)
            self.assertEqual(client.greet().code, 250)

    def test_a_socket_without_a_listener_is_an_error_at_the_start(self):
        self.listening()
        other = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(other.close)
        expected = rf'inherited socket "smtp" listens on 127.0.0.1:{other.getsockname()[1]}, but no \[\[listener\]\]'
        self.listener_is_free()
        ended = self.run_with(other)
        self.assertRegex(ended.stderr, expected)
        self.assertNotEqual(ended.returncode, 0)

    def test_a_socket_that_is_not_listening_is_an_error(self):
        with socket.socket() as idle:
            idle.bind(("127.0.0.1", 0))
            ended = self.run_with(idle)
        self.assertRegex(ended.stderr, 'inherited socket "smtp" is not a listening TCP socket')

    def test_sockets_for_another_process_are_ignored(self):
        other = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(other.close)
        self.server.start(["env", "LISTEN_FDS=1", "LISTEN_PID=1", "LISTEN_FDNAMES=smtp"])
        with Client(self.server.port) as client:
            self.assertEqual(client.greet().code, 250)

    @unittest.skipUnless(shutil.which("systemd-socket-activate"), "systemd-socket-activate is not installed")
    def test_systemd_itself_passes_a_socket(self):
        port = self.listening_later()
        argv = ["systemd-socket-activate", f"--listen=127.0.0.1:{port}", "--fdname=smtp"]
        argv += [str(self.server.binary), "serve", "--config", str(self.server.config)]
        with open(self.server.log, "wb") as log:
            self.server.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.server.group.watch(self.server.process.pid)
        self.addCleanup(self.server.process.wait, 60)
        self.addCleanup(self.server.process.terminate)
        client = self.connected(port)
        with client:
            self.assertEqual(client.greet().code, 250)
        await_that(lambda: f"address=127.0.0.1:{port}" in self.server.log.read_text(), "its address", self.server)

    def connected(self, port):
        """A client, as soon as the port accepts connections."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return Client(port)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def listener_is_free(self):
        """Gives the listener of the configuration a free port."""
        text = self.server.config.read_text()
        self.server.config.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", text))

    def passing(self, passed):
        """A function that starts a program with this socket as descriptor 3."""
        environment = ["env", "LISTEN_FDS=1", "LISTEN_FDNAMES=smtp"]
        return [*environment, "sh", "-c", f"exec 3<&{passed.fileno()}; {BECOME}", "sh"]

    def start_with(self, passed, start=None):
        """Starts the server, by another function than its own if given."""
        os.set_inheritable(passed.fileno(), True)
        popen, argv = subprocess.Popen, self.passing(passed)

        def keeping(*arguments, **options):
            return popen(*arguments, **options, pass_fds=[passed.fileno()])

        with unittest.mock.patch("subprocess.Popen", keeping):
            (start or self.server.start)(argv)

    def run_with(self, passed):
        """A server that is expected to end on its own."""
        argv = [*self.passing(passed), str(self.server.binary), "serve", "--config", str(self.server.config)]
        return subprocess.run(argv, pass_fds=[passed.fileno()], capture_output=True, text=True, timeout=60)


class Unit(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_the_unit_is_as_restricted_as_a_mail_server_can_be(self):
        with folder() as made:
            root = pathlib.Path(made)
            unit = root / "mailrace.service"
            # The binary of this tree replaces the one that is not installed.
            unit.write_text(UNIT.read_text().replace("/usr/sbin/mailrace", "/bin/true"))
            verified = subprocess.run(
                ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
            )
            self.assertNotIn("mailrace.service", verified.stderr)
            rated = subprocess.run(
                ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            rating = re.search(r"Overall exposure level for \S+: ([\d.]+)", rated.stdout)
            self.assertIsNotNone(rating, rated.stdout + rated.stderr)
            self.assertLessEqual(float(rating[1]), EXPOSURE_MAX, rated.stdout)


def passed_port(server):
    """The port in a server's configuration."""
    return int(re.search(r"127\.0\.0\.1:(\d+)", server.config.read_text())[1])


if __name__ == "__main__":
    unittest.main()
