"""Full or read-only disks: mail waits, senders get a temporary error, and everything recovers.

Each test has a small tmpfs, so all of them need root; otherwise they are skipped.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import unittest

from harness import Client, Mailrace, await_messages, await_that, folder, mail_files, make_message

_SMALL_SPOOL = '\n[spool]\nsegment = "4MiB"\nspare_segments = 2\nspace_min = "2MiB"\ninodes_min = 10\n'


@unittest.skipUnless(os.geteuid() == 0, "needs root, to mount a small file system")
class Disks(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def mount(self, megabytes):
        """A tmpfs that the server can write to."""
        place = self.folder / "small"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.skipTest(f"mount failed: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", str(place)], check=False)
        return place

    def serve(self, **settings):
        server = Mailrace(self.folder, retry_first="1s", **settings)
        self.addCleanup(server.stop)
        server.start()
        return server

    def send(self, server, message):
        with Client(server.port) as client:
            client.greet()
            return client.deliver(message, "alice@bench.test")

    def test_mail_for_a_full_disk_waits_and_is_delivered_when_there_is_space_again(self):
        small = self.mount(2)
        server = self.serve(maildirs=small)
        ballast = fill(small)
        self.assertEqual(self.send(server, make_message("waits", "x" * 70 + "\r\n" * 1000)).code, 250)
        self.await_deferral(server)
        self.assertEqual(mail_files(server.maildir("alice") / "new"), [])
        ballast.unlink()
        (path,) = await_messages(server, "alice", 1)
        self.assertIn(b"Subject: waits\r\n", path.read_bytes())
        server.wait_until_empty(30)

    def test_mail_for_a_read_only_disk_waits_and_is_delivered_when_it_can_be_written(self):
        small = self.mount(2)
        server = self.serve(maildirs=small)
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        self.assertEqual(self.send(server, make_message("waits")).code, 250)
        self.await_deferral(server)
        subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
        await_messages(server, "alice", 1)
        server.wait_until_empty(30)

    def test_a_full_spool_defers_mail_and_accepts_it_again_when_there_is_space(self):
        small = self.mount(48)
        shutil.chown(small, "nobody")
        server = self.serve(data=small, concurrency=0, extra=_SMALL_SPOOL)
        accepted = 0
        large = make_message("large", ("x" * 78 + "\r\n") * 6000)
        while (reply := self.send(server, large)).code == 250:
            accepted += 1
            self.assertLess(accepted, 200, "the disk is not full")
        self.assertIn(reply.code, (451, 452), reply)
        self.assertEqual(server.queued(), accepted)
        subprocess.run(["mount", "-o", "remount,size=96m", str(small)], check=True)
        await_that(lambda: self.send(server, large).code == 250, "mail is accepted again", server)
        self.assertEqual(server.queued(), accepted + 1)

    def test_a_spool_that_fills_during_a_burst_keeps_acknowledged_mail(self):
        small = self.mount(48)
        shutil.chown(small, "nobody")
        server = self.serve(data=small, concurrency=0, extra=_SMALL_SPOOL)
        accepted = 0
        with contextlib.suppress(EOFError, OSError), Client(server.port) as client:
            client.greet()
            for number in range(400):
                spilled = number % 5 == 0
                text = ("x" * 78 + "\r\n") * (20_000 if spilled else 4000)
                reply = client.deliver(make_message("burst", text), "alice@bench.test")
                accepted += reply.code == 250
        self.assertEqual(server.terminate(), 0)
        subprocess.run(["mount", "-o", "remount,size=96m", str(small)], check=True)
        server.start()
        self.assertGreaterEqual(server.queued(), accepted)
        self.assertGreater(accepted, 0)

    def await_deferral(self, server):
        """Waits until the log has a deferral; the message is still queued."""
        await_that(lambda: b"deferred" in server.log.read_bytes(), "an attempt is deferred", server)
        self.assertEqual(server.queued(), 1)


def fill(place):
    """Fills the free space; returns the file that uses it."""
    ballast = place / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return ballast


if __name__ == "__main__":
    unittest.main()
