"""No 250 before the message is on disk: seen in the system calls of the running server."""

import pathlib
import threading
import unittest

import syscalls
from harness import Client, Mailrace, folder, make_message

CONNECTIONS, MESSAGES = 8, 5


class Durability(unittest.TestCase):
    def test_no_250_is_sent_before_a_sync_that_began_after_the_message_was_written(self):
        with folder() as name:
            syscalls.skip_without_strace(self, name)
            server = Mailrace(pathlib.Path(name), concurrency=0)
            self.addCleanup(server.stop)
            log = pathlib.Path(name) / "strace"
            wrapper = ["strace", "-f", "-ttt", "-s", "4000000", "-e", f"trace={syscalls.CALLS}", "-o", str(log)]
            server.start(wrapper)
            tokens = self.send(server)
            server.stop()
            lines = log.read_text(errors="replace").splitlines()
            self.assertEqual(syscalls.violations(lines, tokens), [])

    def send(self, server):
        """Small messages and a spilled one, over several connections."""
        tokens, lock = [], threading.Lock()

        def client(number):
            with Client(server.port) as connection:
                connection.greet()
                for count in range(MESSAGES):
                    token = f"token-{number}-{count}-end"
                    body = "x" * 70 + "\r\n"
                    body *= 20_000 if (number, count) == (0, 2) else 20
                    # The token also ends the message, so that its last write is recognized.
                    reply = connection.deliver(make_message(token, f"{body}{token}\r\n"), "alice@bench.test")
                    assert reply.code == 250, reply
                    with lock:
                        tokens.append(token)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(tokens), CONNECTIONS * MESSAGES)
        return tokens


GOOD = """\
1 1.0 recvfrom(9, "MAIL..DATA\\r\\ntoken-a", 99, 0, NULL, NULL) = 20
2 1.1 pwritev(5, [{iov_base="token-a", iov_len=7}], 1, 0) = 7
2 1.2 fdatasync(5 <unfinished ...>
1 1.3 recvfrom(10, "NOOP", 99, 0, NULL, NULL) = 4
2 1.4 <... fdatasync resumed>)               = 0
1 1.5 sendto(9, "250 2.0.0 queued as 1\\r\\n", 23, 0, NULL, 0) = 23
""".splitlines()


class Checker(unittest.TestCase):
    """Tests of the checker itself."""

    def faults(self, *order):
        return syscalls.violations([GOOD[number] for number in order], ["token-a"])

    def test_a_sync_between_write_and_250_is_enough(self):
        self.assertEqual(self.faults(0, 1, 2, 3, 4, 5), [])

    def test_a_250_before_the_end_of_the_sync_is_found(self):
        self.assertNotEqual(self.faults(0, 1, 2, 5, 4), [])

    def test_a_sync_that_began_before_the_write_is_not_enough(self):
        self.assertNotEqual(self.faults(0, 2, 1, 4, 5), [])

    def test_a_sync_of_another_file_is_not_enough(self):
        other = [line.replace("fdatasync(5", "fdatasync(6") for line in GOOD]
        self.assertNotEqual(syscalls.violations(other, ["token-a"]), [])

    def test_a_failed_sync_is_not_enough(self):
        failed = [line.replace(")               = 0", ") = -1 EIO (Input/output error)") for line in GOOD]
        self.assertNotEqual(syscalls.violations(failed, ["token-a"]), [])

    def test_a_message_that_was_never_written_is_found(self):
        self.assertNotEqual(self.faults(0, 2, 4, 5), [])


if __name__ == "__main__":
    unittest.main()
