"""Content rules: what each action does to mail of a real client, and messages made to hurt the rules.

    actions    each action, seen by the client and in the delivered message
    parts      attachments, fields of parts, and lines that are encoded
    scopes     listeners, local programs
    hostile    many parts, deep nesting, long boundaries and headers
"""

import base64
import pathlib
import subprocess
import time
import unittest

from harness import Client, Mailrace, await_messages, await_that, folder, mail_files, make_message
from outbound import await_event, mail_events
from peers.mailrace import listener, route

USERS = ["alice", "bob", "carol"]


def rule(*lines):
    """A content rule."""
    return "\n[[content]]\n" + "".join(f"{line}\n" for line in lines)


def on_subject(subject, *lines):
    """A rule about one subject."""
    return rule(f"matches = '^Subject: .*{subject}'", *lines)


def multipart(*parts, boundary="b"):
    """A message of these parts, each with its header."""
    opened = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts)
    return f"Subject: parts\r\nContent-Type: multipart/mixed; boundary={boundary}\r\n\r\n{opened}--{boundary}--\r\n".encode()


def file_part(name, content, media_type="application/octet-stream"):
    """A part with a file."""
    encoded = base64.encodebytes(content).decode().replace("\n", "\r\n")
    return (
        f'Content-Type: {media_type}\r\nContent-Disposition: attachment; filename="{name}"\r\n'
        f"Content-Transfer-Encoding: base64\r\n\r\n{encoded}"
    )


class ContentCase(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def serve(self, extra, **settings):
        """A running server with these sections."""
        server = Mailrace(self.folder, **({"users": USERS, "extra": extra} | settings))
        self.addCleanup(server.stop)
        server.start()
        return server

    def send(self, server, message, *recipients, port=None):
        with Client(port or server.port) as client:
            client.greet()
            return client.deliver(message, *(recipients or ["alice@bench.test"]))

    def received(self, server, user="alice", count=1):
        """The last message of a user, with LF."""
        return await_messages(server, user, count)[-1].read_bytes().replace(b"\r\n", b"\n")


class Actions(ContentCase):
    def test_refusals_name_their_rule_in_the_log_and_not_to_the_client(self):
        server = self.serve(
            on_subject("spam", 'name = "no spam"', 'action = "refuse"')
            + on_subject("advert", 'action = "refuse"', 'reply = "554 5.7.1 no advertisements"')
            + on_subject("later", 'action = "defer"')
        )
        self.assertTrue(self.send(server, make_message("SPAM")).is_a(550, "5.7.1 Message content rejected"))
        self.assertTrue(self.send(server, make_message("an advert")).is_a(554, "5.7.1 no advertisements"))
        self.assertTrue(self.send(server, make_message("later")).is_a(451, "4.7.1"))
        self.assertEqual(self.send(server, make_message("hello")).code, 250)
        self.received(server)
        refused = await_that(lambda: mail_events(server, "refused"), "the first refusal", server)
        self.assertEqual(refused[0].fields["rule"], "no spam")

    def test_mail_is_held_dropped_redirected_and_copied(self):
        server = self.serve(
            on_subject("hold", 'action = "hold"')
            + on_subject("drop", 'action = "discard"')
            + on_subject("redirect", 'action = "redirect"', 'to = "bob@bench.test"')
            + on_subject("copy", 'action = "bcc"', 'to = "carol@bench.test"')
        )
        for subject in ("hold", "drop", "redirect", "copy"):
            self.assertEqual(self.send(server, make_message(subject)).code, 250, subject)
        self.assertIn(b"Subject: redirect", self.received(server, "bob"))
        self.assertIn(b"Subject: copy", self.received(server, "carol"))
        self.assertIn(b"Subject: copy", self.received(server, "alice"))
        self.assertEqual(len(mail_files(server.maildir("alice") / "new")), 1)
        for event in ("held", "discarded"):
            await_event(server, event)
            self.assertEqual(len(mail_events(server, event)), 1)

    def test_fields_and_lines_are_changed_where_they_stand(self):
        server = self.serve(
            rule("matches = '^Subject: (.*)'", 'action = "replace"', 'text = "Subject: [list] $1"')
            + rule('fields = "X-Old"', 'action = "remove"')
            + rule("matches = '^From: (.*)'", 'action = "prepend"', 'text = "X-Author: $1"')
            + rule('in = "body"', "matches = 'secret'", 'action = "replace"', 'text = "(removed)"')
            + rule('in = "body"', "matches = '^-- $'", 'action = "remove"')
        )
        message = b"X-Old: 1\r\n" + make_message("hello", "one\r\n.the secret\r\n-- \r\nlast\r\n")
        message = message.replace(b"Subject: hello", b"X-Old: 2\r\n\tfolded\r\nSubject: hello\r\n world")
        self.assertEqual(self.send(server, message).code, 250)
        header, _, body = self.received(server).partition(b"\n\n")
        self.assertEqual(body, b"one\n(removed)\nlast\n")
        self.assertIn(b"\nSubject: [list] hello world", header)
        self.assertNotIn(b"X-Old", header)
        self.assertLess(header.index(b"X-Author: sender@client.test\n"), header.index(b"Received:"))

    def test_a_large_message_on_the_disk_is_changed_too(self):
        server = self.serve(rule('in = "body"', "matches = '^mark (.*)'", 'action = "replace"', 'text = "found $1"'))
        lines = "x" * 70 + "\r\n"
        self.assertEqual(self.send(server, make_message("large", "mark 1\r\n" + lines * 60_000)).code, 250)
        body = self.received(server).partition(b"\n\n")[2]
        self.assertEqual(body, b"found 1\n" + lines.replace("\r\n", "\n").encode() * 60_000)

    def test_a_warning_is_logged_and_a_list_gives_a_line_to_its_first_rule(self):
        server = self.serve(
            on_subject("fine", 'list = "l"', 'action = "accept"')
            + on_subject("offer", 'list = "l"', 'action = "refuse"')
            + on_subject("warn", 'name = "watch"', 'action = "warn"')
        )
        self.assertEqual(self.send(server, make_message("a fine offer, warn")).code, 250)
        self.assertEqual(self.send(server, make_message("an offer")).code, 550)
        await_that(lambda: "content rule 'watch' matches" in server.log_tail(50), "the warning", server)

    def test_a_rule_chooses_the_queue_and_a_sender_cannot(self):
        server = self.serve(
            on_subject("bulk", 'action = "queue"', 'queue = "slow"')
            + '\n[[queue]]\nname = "slow"\nconcurrency = 0\n'
            + route("away.test", "[127.0.0.1]:1"),
            networks=["127.0.0.0/8"],
        )
        self.assertEqual(self.send(server, make_message("bulk"), "x@away.test").code, 250)
        forged = b"X-Mailrace-Queue: slow\r\n" + make_message("other")
        self.assertEqual(self.send(server, forged, "y@away.test").code, 250)
        # The queue of the first message is held; the second one is tried at once.
        await_that(lambda: mail_events(server, "deferred", to="<y@away.test>"), "an attempt", server)
        self.assertEqual(mail_events(server, "deferred", to="<x@away.test>"), [])
        self.assertEqual(server.queued(), 2)

    def test_a_table_has_the_author(self):
        authors = self.folder / "authors"
        authors.write_text("bad@client.test x\nevil.test x\n")
        authors.chmod(0o644)
        server = self.serve(
            rule('fields = "From"', 'table = "authors"', 'action = "refuse"')
            + f'\n[[table]]\nname = "authors"\ntype = "text"\npath = "{authors}"\n'
        )
        for author, code in (("Bad <BAD@client.test>", 550), ("x@evil.test", 550), ("good@client.test", 250)):
            message = make_message("x").replace(b"From: sender@client.test", f"From: {author}".encode())
            self.assertEqual(self.send(server, message).code, code, author)


class Parts(ContentCase):
    def test_attachments_are_refused_by_name_type_and_size(self):
        server = self.serve(
            rule('attachment = { names = ["*.exe", "*.js"] }', 'action = "refuse"')
            + rule('attachment = { types = "image/*", larger_than = "1KiB" }', 'action = "hold"')
        )
        refused = [file_part("a.EXE", b"x"), file_part("=?utf-8?B?w6QuanM=?=", b"x")]
        inner = multipart(file_part("b.js", b"x"), boundary="inner").decode()
        refused.append(f"Content-Type: message/rfc822\r\n\r\n{inner}")
        for part in refused:
            self.assertEqual(self.send(server, multipart(part)).code, 550, part)
        self.assertEqual(self.send(server, multipart(file_part("a.png", bytes(1000), "image/png"))).code, 250)
        self.received(server)
        self.assertEqual(self.send(server, multipart(file_part("a.png", bytes(1025), "image/png"))).code, 250)
        await_that(lambda: mail_events(server, "held"), "the held message", server)

    def test_lines_are_compared_as_they_are_read(self):
        server = self.serve(rule('in = "body"', "matches = 'forbidden word'", 'action = "refuse"'))
        for encoding, text in (
            ("7bit", "a forbidden word"),
            ("quoted-printable", "a forbid=\r\nden=20word"),
            ("base64", base64.b64encode(b"a forbidden word").decode()),
        ):
            part = f"Content-Type: text/plain\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n{text}"
            self.assertEqual(self.send(server, multipart(part)).code, 550, encoding)
        self.assertEqual(self.send(server, make_message("x", "an allowed word\r\n")).code, 250)

    def test_fields_of_parts_and_enclosed_messages_have_rules(self):
        server = self.serve(
            rule('in = "mime"', "matches = '^Content-Type: text/html'", 'action = "refuse"', 'reply = "550 5.7.1 html"')
            + rule('in = "nested"', "matches = '^Subject: inner'", 'action = "refuse"', 'reply = "550 5.7.1 inner"')
        )
        html = "Content-Type: text/html\r\n\r\nx"
        self.assertIn("html", self.send(server, multipart(html)).text)
        enclosed = "Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nx"
        self.assertIn("inner", self.send(server, multipart(enclosed)).text)
        self.assertEqual(self.send(server, make_message("inner")).code, 250)


class Scopes(ContentCase):
    def test_a_rule_is_about_its_listeners_and_about_local_programs(self):
        server = self.serve(
            rule("clients = [\"192.0.2.0/24\"]", 'local_programs = false', 'action = "refuse"')
            + on_subject("x", 'users = false', "exempt = [\"127.0.0.2\"]", 'action = "prepend"', 'text = "X-Seen: yes"')
            + listener("smtp")
        )
        self.assertEqual(self.send(server, make_message("x")).code, 250)
        self.assertIn(b"X-Seen", self.received(server))
        with Client(server.port, source="127.0.0.2") as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("x"), "alice@bench.test").code, 250)
        self.assertNotIn(b"X-Seen", self.received(server, count=2))
        argv = [str(server.binary), "inject", "-C", str(server.config), "alice@bench.test"]
        subprocess.run(argv, input=b"Subject: x program\n\nhello\n", check=True, timeout=60)
        found = await_messages(server, "alice", 3)
        programs = [path.read_bytes() for path in found if b"x program" in path.read_bytes()]
        self.assertIn(b"X-Seen", programs[0])


class Hostile(ContentCase):
    def test_structures_made_to_hurt_get_a_clear_verdict_in_time(self):
        server = self.serve(
            rule('attachment = { names = ["*.exe"] }', 'action = "refuse"')
            + rule('in = ["header", "mime", "nested"]', "matches = 'never'", 'action = "refuse"')
            + rule('in = "body"', "matches = '(a+)+never'", 'action = "refuse"')
        )
        deep = "".join(
            f"Content-Type: multipart/mixed; boundary=b{level}x\r\n\r\n--b{level}x\r\n" for level in range(1000)
        )
        fine = multipart(*["Content-Type: text/plain\r\n\r\nx"] * 5000)
        for name, message, code in (
            ("10,000 parts and more", multipart(*["Content-Type: text/plain\r\n\r\nx"] * 10_001), 554),
            ("5,000 parts", fine, 250),
            ("nesting", deep.encode() + b"\r\n", 554),
            ("boundary", multipart("\r\nx", boundary="b" * 70_000), 554),
            ("header", f"X: {'x' * (256 << 10)}\r\n".encode() + make_message("x"), 552),
            ("regular expression", make_message("x", "a" * 900_000 + "\r\n"), 250),
            ("delimiters", multipart("\r\n" + "--\r\n--bx\r\n" * 100_000), 250),
        ):
            begin = time.monotonic()
            reply = self.send(server, message)
            self.assertEqual(reply.code, code, f"{name}: {reply}")
            self.assertLess(time.monotonic() - begin, 60, name)
        self.assertIn("too complex", self.send(server, deep.encode() + b"\r\n").text)


if __name__ == "__main__":
    unittest.main()
