"""Hostile and broken clients: each meets a limit, and others are not affected."""

import socket
import threading
import unittest

from harness import Client, ServerCase, mail_files, make_message

_LIMIT_OCTETS = 64 << 20  # how much memory any of these clients may use in the server


class Hostile(ServerCase):
    SERVER = {"users": ["alice", "bob", "nul"]}

    def setUp(self):
        self.resident = self.server.resident_bytes()

    def tearDown(self):
        super().tearDown()
        self.assertLess(self.server.resident_bytes() - self.resident, _LIMIT_OCTETS, "the server uses too much memory")

    def ready(self):
        client = Client(self.server.port)
        self.addCleanup(client.__exit__)
        client.greet()
        return client

    def test_a_client_that_sends_byte_by_byte_does_not_delay_others(self):
        finished = threading.Event()
        slow, codes = self.ready(), []

        def send_slowly():
            commands = b"MAIL FROM:<s@client.test>\r\nRCPT TO:<bob@bench.test>\r\nDATA\r\n"
            for part, replies in ((commands, 3), (make_message("slow") + b".\r\n", 1)):
                for byte in part:
                    slow.write(bytes([byte]))
                    finished.wait(0.005)
                codes.extend(slow.read().code for _ in range(replies))
            finished.set()

        crawler = threading.Thread(target=send_slowly)
        crawler.start()
        with Client(self.server.port) as quick:
            quick.greet()
            for _ in range(5):
                self.assertEqual(quick.deliver(make_message("quick"), "alice@bench.test").code, 250)
        self.assertFalse(finished.is_set(), "the slow client was not slow enough")
        crawler.join()
        self.assertEqual(codes, [250, 250, 354, 250])

    def test_an_endless_command_line_is_refused_and_needs_no_memory(self):
        client = self.ready()
        try:
            for _ in range(256):
                client.write(b"N" * 65536)
            client.write(b"\r\n")
            self.assertTrue(client.read().is_a(500, "5.5.2"))
            self.assertEqual(client.say("NOOP").code, 250)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a closed connection is also correct; tearDown checks that others are served

    def test_an_endless_header_is_refused_after_the_data(self):
        client = self.ready()
        client.envelope("alice@bench.test")
        self.assertEqual(client.say("DATA").code, 354)
        for number in range(64):
            client.write(b"X-%d: " % number + b"h" * 900 + b"\r\n")
            client.write((b" " + b"h" * 900 + b"\r\n") * 20)
        client.write(b"\r\nbody\r\n.\r\n")
        reply = client.read()
        self.assertTrue(reply.is_a(552, "5.3.4"), reply)
        self.assertEqual(client.deliver(make_message("after"), "bob@bench.test").code, 250)

    def test_a_message_with_a_too_large_declared_size_is_refused_at_mail(self):
        reply = self.ready().say("MAIL FROM:<s@client.test> SIZE=99000000000")
        self.assertTrue(reply.is_a(552, "5.3.4"), reply)

    def test_recipients_beyond_the_limit_are_deferred_and_the_others_accepted(self):
        client = self.ready()
        client.say("MAIL FROM:<s@client.test>")
        client.write(b"RCPT TO:<alice@bench.test>\r\n" * 1001)
        codes = [client.read() for _ in range(1001)]
        self.assertEqual({reply.code for reply in codes[:1000]}, {250})
        self.assertTrue(codes[1000].is_a(452, "4.5.3"), codes[1000])
        self.assertEqual(client.say("RSET").code, 250)

    def test_a_nul_in_a_command_is_refused_and_ends_the_connection(self):
        client = self.ready()
        client.write(b"NO\0OP\r\n")
        self.assertTrue(client.read().is_a(500, "5.5.2"))
        self.assertTrue(client.is_closed())

    def test_a_nul_in_a_message_is_kept(self):
        client = self.ready()
        self.assertEqual(client.deliver(make_message("nul", "a\0b\r\n"), "nul@bench.test").code, 250)
        (path,) = self.await_messages("nul", 1)
        self.assertTrue(path.read_bytes().endswith(b"\r\n\r\na\0b\r\n"))

    def test_a_client_that_stops_in_the_middle_of_its_data_leaves_nothing_behind(self):
        client = self.ready()
        client.envelope("alice@bench.test")
        client.say("DATA")
        client.write(make_message("unfinished"))
        client.socket.shutdown(socket.SHUT_WR)
        self.assertTrue(client.is_closed())
        self.server.wait_until_empty(30)
        for path in mail_files(self.server.maildir("alice") / "new"):
            self.assertNotIn(b"unfinished", path.read_bytes())

    def test_a_client_that_closes_its_side_after_the_last_dot_still_reads_its_250(self):
        client = self.ready()
        client.envelope("alice@bench.test")
        client.say("DATA")
        client.write(make_message("half closed") + b".\r\nQUIT\r\n")
        client.socket.shutdown(socket.SHUT_WR)
        self.assertEqual([client.read().code for _ in range(2)], [250, 221])

    def test_a_bare_line_feed_ends_no_message_and_is_refused(self):
        for smuggled in (b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r\n.\r"):
            client = self.ready()
            client.envelope("alice@bench.test")
            client.say("DATA")
            client.write(b"Subject: outer\r\n\r\nbody" + smuggled + b"MAIL FROM:<evil@client.test>\r\n.\r\n")
            reply = client.read()
            self.assertTrue(reply.is_a(550, "5.6.0"), f"{smuggled}: {reply}")
            self.assertEqual(client.say("NOOP").code, 250, f"{smuggled}: the rest was executed as commands")

    def test_a_client_that_sends_before_the_354_is_disconnected(self):
        client = self.ready()
        commands = b"MAIL FROM:<s@client.test>\r\nRCPT TO:<bob@bench.test>\r\nDATA\r\n"
        client.write(commands + make_message("too early") + b".\r\n")
        self.assertEqual([client.read().code for _ in range(2)], [250, 250])
        self.assertTrue(client.read().is_a(554, "5.5.0"))
        self.assertTrue(client.is_closed())

    def test_a_client_with_too_many_errors_is_disconnected(self):
        client = self.ready()
        replies = []
        try:
            for _ in range(50):
                replies.append(client.say("BOGUS"))
        except (EOFError, OSError):
            pass
        self.assertLess(len(replies), 50)
        self.assertTrue(replies[-1].is_a(421, "4.7.0"), replies[-1])


class Strict(ServerCase):
    """The strict settings, where Postfix has them too."""

    SERVER = {
        "users": ["alice", "bob"],
        "limits": 'data_rate_min = "100KB"\ndata_rate_window = "1s"\nbody_memory = "128KiB"\nmessage_wait = "20s"',
        "extra": '[smtp]\nstrict_addresses = true\nnul = "refuse"\nenforce_sync = false\n',
    }

    def ready(self):
        client = Client(self.server.port)
        self.addCleanup(client.__exit__)
        client.greet()
        return client

    def test_a_nul_in_a_message_is_refused(self):
        client = self.ready()
        self.assertTrue(client.deliver(make_message("nul", "a\0b\r\n"), "bob@bench.test").is_a(550, "5.6.0"))
        self.assertEqual(client.deliver(make_message("none"), "bob@bench.test").code, 250)

    def test_an_address_needs_angle_brackets(self):
        client = self.ready()
        self.assertTrue(client.say("MAIL FROM:a@client.test").is_a(501, "5.5.4"))
        self.assertEqual(client.say("MAIL FROM:<a@client.test>").code, 250)
        self.assertTrue(client.say("RCPT TO:<bob@bench.test.>").is_a(501, "5.1.3"))

    def test_a_client_may_send_before_the_354_if_configured(self):
        client = self.ready()
        commands = b"MAIL FROM:<s@client.test>\r\nRCPT TO:<bob@bench.test>\r\nDATA\r\n"
        client.write(commands + make_message("early") + b".\r\n")
        self.assertEqual([client.read().code for _ in range(4)], [250, 250, 354, 250])

    def test_a_slow_message_yields_its_memory_to_another(self):
        slow, quick = self.ready(), self.ready()
        slow.envelope("bob@bench.test")
        self.assertEqual(slow.say("DATA").code, 354)
        slow.write(b"Subject: slow\r\n")
        message = make_message("quick", "A line of a message that comes at once.\r\n" * 5000)
        self.assertEqual(quick.deliver(message, "alice@bench.test").code, 250)
        self.assertTrue(slow.read().is_a(421, "4.4.2"))
        self.assertTrue(slow.is_closed())


if __name__ == "__main__":
    unittest.main()
