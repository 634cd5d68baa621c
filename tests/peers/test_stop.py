"""SIGTERM: the server finishes open messages, sends 421 to other clients, and loses nothing."""

import errno
import os
import pathlib
import signal
import subprocess
import unittest

from harness import Client, Mailrace, await_that, folder, make_message


def opened(pipe):
    """A pipe opened for writing, once it has a reader."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


class Stop(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.server = Mailrace(pathlib.Path(made.name), concurrency=0)
        self.addCleanup(self.server.stop)
        self.server.start()

    def test_a_session_between_messages_gets_421_and_is_closed(self):
        with Client(self.server.port) as client:
            client.greet()
            self.server.process.send_signal(signal.SIGTERM)
            reply = client.read()
            self.assertTrue(reply.is_a(421, "4.3.2"), reply)
            self.assertTrue(client.is_closed())
        self.assertEqual(self.server.process.wait(30), 0)

    def test_a_message_whose_data_has_begun_is_still_accepted(self):
        with Client(self.server.port) as client, Client(self.server.port) as idle:
            idle.greet()
            self.begin_data(client)
            self.server.process.send_signal(signal.SIGTERM)
            self.assertEqual(idle.read().code, 421)
            client.write(make_message("half")[40:] + b".\r\n")
            self.assertEqual(client.read().code, 250)
        self.assertEqual(self.server.process.wait(30), 0)
        self.server.start()
        self.assertEqual(self.server.queued(), 1)

    def test_a_late_client_gets_a_reply_or_is_refused(self):
        with Client(self.server.port) as client, Client(self.server.port) as idle:
            idle.greet()
            self.begin_data(client)
            self.server.process.send_signal(signal.SIGTERM)
            self.assertEqual(idle.read().code, 421)
            # A message is still open, so the server is running: it may refuse or disconnect, but
            # not stay silent.
            for number in range(3):
                try:
                    with Client(self.server.port, timeout=5) as late:
                        self.assertTrue(late.is_closed())
                except (ConnectionRefusedError, ConnectionResetError):
                    pass
                except TimeoutError:
                    self.fail(f"late client {number} was neither answered nor refused within 5 s")

    def test_queued_mail_survives_a_stop(self):
        with Client(self.server.port) as client:
            client.greet()
            for number in range(20):
                self.assertEqual(client.deliver(make_message(str(number)), "alice@bench.test").code, 250)
        self.assertEqual(self.server.terminate(), 0)
        self.server.start()
        self.assertEqual(self.server.queued(), 20)

    def test_sigterm_ends_the_start_and_other_signals_do_not(self):
        self.server.terminate()
        # Opening this table blocks until there is a writer.
        table = self.server.folder / "slow"
        os.mkfifo(table, 0o644)
        section = f'\n[[table]]\nname = "slow"\ntype = "text"\npath = "{table}"\n'
        self.server.config.write_text(self.server.config.read_text() + section)
        argv = [str(self.server.binary), "serve", "--config", str(self.server.config)]
        with subprocess.Popen(argv, cwd=self.server.folder, stderr=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            writer = await_that(lambda: opened(table), "a reader of the pipe", self.server)
            try:
                for sent in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
                    process.send_signal(sent)
                self.assertEqual(process.wait(30), 0)
            finally:
                os.close(writer)
            self.assertIn("stopped during the start", process.stderr.read())

    def begin_data(self, client):
        """Starts a transaction and sends the first 40 bytes of data."""
        client.greet()
        client.envelope("alice@bench.test")
        self.assertEqual(client.say("DATA").code, 354)
        client.write(make_message("half")[:40])


if __name__ == "__main__":
    unittest.main()
