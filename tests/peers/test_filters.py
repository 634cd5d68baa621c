"""Milters and policy services: what they are told, what their answers do to the mail, and mail whose
milter fails.

    changes    every change of the protocol, in a message that is delivered
    answers    refusals, quarantine, discard
    failures   a milter that is gone, stalls, or sends garbage; each action
    programs   mail of local programs; OpenDKIM signs
    policies   questions at each stage, and answers
"""

import contextlib
import pathlib
import socket
import struct
import subprocess
import threading
import time
import unittest

import dkim_verifier
from harness import Client, Mailrace, await_messages, await_that, folder, mail_files, make_message
from hosts import Host
from milter import Milter, frame, strings
from outbound import await_event, mail_events
from peers import opendkim
from peers.mailrace import route
from peers.smtp import free_port
from test_dkim_signing import Keys

USERS = ["alice", "bob", "carol"]


def section(port, *lines):
    """A milter on a port of this host."""
    return f'\n[[milter]]\nname = "test"\naddress = "127.0.0.1:{port}"\n' + "".join(f"{line}\n" for line in lines)


def garbage_server(answer):
    """A server that answers every connection with these bytes, and waits then."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        connections = []
        while True:
            try:
                connection, _ = listener.accept()
                connection.sendall(answer)
            except OSError:
                return
            connections.append(connection)

    threading.Thread(target=serve, daemon=True).start()
    return listener


class FilterCase(unittest.TestCase):
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

    def milter(self, *args, **named):
        made = Milter(*args, **named)
        self.addCleanup(made.close)
        return made

    def send(self, server, *recipients, message=None):
        with Client(server.port) as client:
            client.greet()
            return client.deliver(message or make_message("hello"), *(recipients or ["alice@bench.test"]))


class Changes(FilterCase):
    def test_every_change_is_in_the_delivered_message(self):
        def rules(_message):
            return [
                frame(b"p"),
                frame(b"h", strings("X-Added", "one\n two")),
                frame(b"i", struct.pack(">I", 0) + strings("X-First", "first")),
                frame(b"i", struct.pack(">I", 2) + strings("X-Third", "third")),
                frame(b"m", struct.pack(">I", 1) + strings("Subject", "changed")),
                frame(b"m", struct.pack(">I", 2) + strings("X-Old", "")),
                frame(b"e", strings("<carol@bench.test>", "RET=HDRS")),
                frame(b"+", strings("<bob@bench.test>")),
                frame(b"2", strings("<carol@bench.test>", "NOTIFY=NEVER")),
                frame(b"-", strings("<alice@bench.test>")),
                frame(b"b", b"new\nbody\r\n"),
                frame(b"b", b"..\r\n"),
            ]

        milter = self.milter(rules)
        server = self.serve(section(milter.port))
        message = b"X-Old: 1\r\nX-Old: 2\r\n" + make_message("hello")
        self.assertEqual(self.send(server, message=message).code, 250)
        for user in ("bob", "carol"):
            content = await_messages(server, user, 1)[0].read_bytes().replace(b"\r\n", b"\n")
            header, _, body = content.partition(b"\n\n")
            self.assertEqual(body, b"new\nbody\n..\n")
            names = [line.split(b":")[0] for line in header.split(b"\n") if line[:1] not in b" \t"]
            first = names.index(b"X-First")
            self.assertEqual(names[first + 1 : first + 3], [b"Received", b"X-Third"])
            self.assertIn(b"X-Old: 1\n", header)
            self.assertNotIn(b"X-Old: 2", header)
            self.assertIn(b"\nSubject: changed\n", header)
            self.assertTrue(header.endswith(b"X-Added: one\n two"), header)
        self.assertEqual(mail_files(server.maildir("alice") / "new"), [])
        self.assertEqual(await_event(server, "received").fields["from"], "<carol@bench.test>")

    def test_a_milter_sees_the_session_and_the_message(self):
        milter = self.milter(options=0x800)
        server = self.serve(section(milter.port))
        body = "x" * 70 + "\r\n"
        message = make_message("large", body * 20_000)
        with Client(server.port) as client:
            port = client.socket.getsockname()[1]
            client.greet()
            reply = client.envelope("alice@bench.test", "nobody@bench.test")
            self.assertEqual(reply.code, 550)
            client.say("DATA")
            client.write(message + b".\r\n")
            self.assertEqual(client.read().code, 250)
        [seen] = milter.messages
        self.assertEqual((seen.helo, seen.sender[0]), ("client.test", "<sender@client.test>"))
        self.assertEqual((seen.recipients, seen.refused), ([["<alice@bench.test>"]], [["<nobody@bench.test>"]]))
        self.assertEqual(seen.fields[-1], ("Subject", "large"))
        self.assertEqual(seen.body, (body * 20_000).encode())
        self.assertNotIn("Received", [name for name, _ in seen.fields])
        self.assertEqual((seen.macros["{client_addr}"], seen.macros["{client_port}"]), ("127.0.0.1", str(port)))
        self.assertEqual(seen.macros["j"], "mx.bench.test")
        await_event(server, "received", id=seen.macros["i"])

    def test_several_milters_see_the_changes_of_those_before(self):
        first = self.milter(lambda _: [frame(b"h", strings("X-One", "1"))])
        second = self.milter(lambda _: [frame(b"h", strings("X-Two", "2"))])
        server = self.serve(section(first.port) + section(second.port).replace('"test"', '"second"'))
        self.assertEqual(self.send(server).code, 250)
        self.assertIn(("X-One", "1"), second.messages[0].fields)
        self.assertNotIn(("X-Two", "2"), first.messages[0].fields)
        content = await_messages(server, "alice", 1)[0].read_bytes()
        self.assertIn(b"X-Two: 2", content)

    def test_connections_are_used_again(self):
        milter = self.milter()
        server = self.serve(section(milter.port))
        for sent in range(3):
            self.assertEqual(self.send(server).code, 250)
            await_that(lambda sent=sent: milter.commands.count("K") > sent, "the end of the session", server)
        # The next session may come between this command and the moment in which the connection is free.
        self.assertLess(milter.connections, 3)


class ChangedEnvelopes(FilterCase):
    """Arguments of ESMTP with which a milter changes the envelope; the mail goes to another host."""

    def host(self, **named):
        made = Host(**named)
        self.addCleanup(made.stop)
        return made

    @staticmethod
    def to_bob(sender, recipient):
        """The mail is from carol and to bob elsewhere, with these arguments."""
        return [
            frame(b"e", strings("<carol@bench.test>", sender)),
            frame(b"2", strings("<bob@away.test>", recipient)),
            frame(b"-", strings("<alice@bench.test>")),
        ]

    def test_the_next_hop_gets_the_arguments(self):
        wishes = ("RET=HDRS ENVID=QQ314159", "NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Rob@away.test")
        milter, host = self.milter(lambda _: self.to_bob(*wishes)), self.host()
        server = self.serve(section(milter.port) + route("away.test", f"[127.0.0.1]:{host.port}"))
        self.assertEqual(self.send(server).code, 250)
        await_that(lambda: host.messages, "the message at the next hop", server)
        [received] = host.messages
        self.assertEqual(received.sender.split()[0], "FROM:<carol@bench.test>")
        self.assertEqual({"RET=HDRS", "ENVID=QQ314159"} - set(received.sender.split()), set())
        [recipient] = received.recipients
        self.assertEqual({"NOTIFY=SUCCESS,FAILURE", "ORCPT=rfc822;Rob@away.test"} - set(recipient.split()), set())

    def test_notify_never_of_a_milter_causes_no_notice(self):
        def rules(message):
            is_quiet = ("Subject", "quiet") in message.fields
            return self.to_bob("", "NOTIFY=NEVER" if is_quiet else "")

        milter, host = self.milter(rules), self.host(script={"RCPT": "550 5.1.1 no such user"})
        server = self.serve(section(milter.port) + route("away.test", f"[127.0.0.1]:{host.port}"))
        self.assertEqual(self.send(server, message=make_message("quiet")).code, 250)
        self.assertEqual(await_event(server, "bounced", to="<bob@away.test>").bounce, "")
        self.assertEqual(self.send(server, message=make_message("loud")).code, 250)
        [notice] = await_messages(server, "carol", 1)
        self.assertIn(b"loud", notice.read_bytes())
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assertEqual(len(mail_files(server.maildir("carol") / "new")), 1)


class Answers(FilterCase):
    def test_a_milter_replies_to_unknown_commands(self):
        milter = self.milter(answers={b"U": frame(b"y", strings("503 5.5.1 no magic"))})
        server = self.serve(section(milter.port))
        with Client(server.port) as client:
            client.greet()
            self.assertIn("5.5.1 no magic", str(client.say("WIZ now")))
        self.assertIn("U", milter.commands)
        self.assertEqual(self.send(server).code, 250)

    def test_refusals_have_the_reply_of_the_milter(self):
        for code, answer, expected in [
            (b"M", frame(b"y", b"550 5.7.1 not you\0"), (550, "5.7.1 not you")),
            (b"R", frame(b"t"), (451, "4.7.1")),
            (b"E", frame(b"r"), (550, "5.7.1 Command rejected")),
        ]:
            milter = self.milter(answers={code: answer})
            made = folder()
            self.addCleanup(made.cleanup)
            self.folder = pathlib.Path(made.name)
            server = self.serve(section(milter.port))
            reply = self.send(server)
            self.assertEqual(reply.code, expected[0], reply)
            self.assertIn(expected[1], str(reply))
            self.assertEqual(mail_events(server, "received"), [])

    def test_quarantined_mail_is_held_and_discarded_mail_vanishes(self):
        def rules(message):
            return [frame(b"q", strings("odd"))] if ("Subject", "odd") in message.fields else []

        milter = self.milter(rules)
        server = self.serve(section(milter.port))
        self.assertEqual(self.send(server, message=make_message("odd")).code, 250)
        await_that(lambda: mail_events(server, "held"), "a held message", server)
        milter.answers[b"B"] = frame(b"d")
        self.assertEqual(self.send(server, message=make_message("gone")).code, 250)
        milter.answers.clear()
        self.assertEqual(self.send(server, message=make_message("fine")).code, 250)
        content = await_messages(server, "alice", 1)
        self.assertEqual(len(content), 1)
        self.assertIn(b"Subject: fine", content[0].read_bytes())


class Failures(FilterCase):
    def test_each_action_decides_about_mail_without_its_milter(self):
        port = free_port()
        for action, code, held in [("accept", 250, 0), ("defer", 451, 0), ("refuse", 550, 0), ("quarantine", 250, 1)]:
            made = folder()
            self.addCleanup(made.cleanup)
            self.folder = pathlib.Path(made.name)
            server = self.serve(section(port, f'on_failure = "{action}"'))
            self.assertEqual(self.send(server).code, code, action)
            if code == 250 and not held:
                await_messages(server, "alice", 1)
            if held:
                await_that(lambda: mail_events(server, "held"), "a held message", server)

    def test_hostile_milters_lose_no_mail(self):
        for answer in (b"HTTP/1.1 400 Bad Request\r\n", b"\0\0\0\x0dO\0\0", b"\xff\xff\xff\xff", b"\0\0\0\0", b""):
            listener = garbage_server(answer)
            self.addCleanup(listener.close)
            made = folder()
            self.addCleanup(made.cleanup)
            self.folder = pathlib.Path(made.name)
            server = self.serve(section(listener.getsockname()[1], 'connect_time = "300ms"', 'on_failure = "accept"'))
            self.assertEqual(self.send(server).code, 250)
            await_messages(server, "alice", 1)

    def test_a_milter_that_stalls_holds_up_only_its_own_sessions(self):
        listener = garbage_server(b"")
        self.addCleanup(listener.close)
        lines = ('exempt = ["127.0.0.2/32"]', 'connect_time = "60s"')
        server = self.serve(section(listener.getsockname()[1], *lines))
        with Client(server.port):
            with Client(server.port, source="127.0.0.2") as other:
                other.greet()
                started = time.monotonic()
                self.assertEqual(other.deliver(make_message("quick"), "alice@bench.test").code, 250)
                self.assertLess(time.monotonic() - started, 10)

    def test_a_milter_may_be_restarted_during_a_session(self):
        milter = self.milter(answers={b"M": b"\0\0\0\0"})
        server = self.serve(section(milter.port))
        with Client(server.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("one"), "alice@bench.test").code, 451)
            milter.answers.clear()
            self.assertEqual(client.deliver(make_message("two"), "alice@bench.test").code, 250)
        self.assertEqual(milter.connections, 2)


class Hostile(FilterCase):
    TIMES = ('command_time = "500ms"', 'message_time = "500ms"')
    HOSTILE = (
        ("another code", frame(b"\x01")),
        ("no code", b"\0\0\0\0"),
        ("a length without end", b"\xff\xff\xff\xffc"),
        ("a positive reply", frame(b"y", b"250 2.0.0 fine\0")),
        ("an action that only the end has, or one that is cut", frame(b"h", b"X-A\0no end")),
        ("the end of the connection", None),
        ("half an answer", b"\0\0\0\x01"),
    )

    def test_a_milter_that_breaks_the_protocol_at_any_step_defers_that_message_alone(self):
        milter = self.milter()
        server = self.serve(section(milter.port, *self.TIMES))
        for code in (b"C", b"H", b"M", b"R", b"T", b"L", b"N", b"B", b"E"):
            for what, answer in self.HOSTILE:
                with self.subTest(code=code, what=what):
                    milter.answers[code] = answer
                    self.assertEqual(self.send(server).code, 451)
                    milter.answers.clear()
        # On a busy machine, even a milter that behaves may be late.
        await_that(lambda: self.send(server).code == 250, "a milter in time", server)
        self.assertEqual(len(await_messages(server, "alice", 1)), 1)

    def test_answers_may_come_octet_by_octet(self):
        milter = self.milter(lambda _: [frame(b"h", strings("X-Slow", "yes")), frame(b"b", b"new\r\n")], is_slow=True)
        server = self.serve(section(milter.port))
        self.assertEqual(self.send(server).code, 250)
        content = await_messages(server, "alice", 1)[0].read_bytes()
        self.assertIn(b"X-Slow: yes", content)
        self.assertTrue(content.endswith(b"new\r\n") or content.endswith(b"new\n"), content)

    def test_a_body_without_end_is_limited(self):
        milter = self.milter(answers={b"E": frame(b"b", b"x" * 60_000) * 100 + frame(b"c")})
        server = self.serve(section(milter.port), limits='message = "1MiB"')
        self.assertEqual(self.send(server).code, 451)
        milter.answers.clear()
        self.assertEqual(self.send(server).code, 250)


class Programs(FilterCase):
    def test_mail_of_local_programs_is_shown_with_all_steps(self):
        milter = self.milter(lambda _: [frame(b"h", strings("X-Seen", "yes"))])
        server = self.serve(section(milter.port))
        argv = [str(server.binary), "inject", "--config", str(server.config), "bob@bench.test"]
        subprocess.run(argv, input=b"Subject: local\n\nHello.\n", timeout=60, check=True)
        self.assertIn(b"X-Seen: yes", await_messages(server, "bob", 1)[0].read_bytes())
        [seen] = milter.messages
        self.assertEqual((seen.helo, seen.recipients), ("localhost", [["<bob@bench.test>"]]))

    @unittest.skipUnless(opendkim.is_installed() and dkim_verifier.is_installed(), "OpenDKIM or dkimpy is not installed")
    def test_opendkim_signs(self):
        keys = Keys(self.folder)
        key, configuration = keys.files["rsa"], self.folder / "opendkim.conf"
        milter = opendkim.signer(keys.domain, key.name.partition(".")[0], key)
        configuration.write_text(milter.configuration())
        with open(self.folder / "opendkim.log", "wb") as log:
            argv = ["opendkim", "-f", "-x", str(configuration)]
            signer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(signer.wait, 20)
        self.addCleanup(signer.terminate)
        server = self.serve(section(milter.port))
        message = make_message("signed").replace(b"From: sender@client.test", b"From: alice@bench.test")

        def is_signed():
            return self.send(server, message=message).code == 250

        await_that(is_signed, "OpenDKIM to listen", server)
        for sent in range(2):
            content = await_messages(server, "alice", sent + 1)[-1].read_bytes()
            self.assertEqual(dkim_verifier.verified(content, keys.records), [True], content)
            self.assertEqual(self.send(server, message=message).code, 250)


class PolicyService:
    """Answers every question as `rules` says, which gets its attributes: with an action, or with bytes as they are; None
    closes the connection. Records the questions.
    """

    def __init__(self, rules):
        self.rules, self.questions = rules, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        question = {}
        with connection, contextlib.suppress(ConnectionResetError), connection.makefile("r") as lines:
            for line in lines:
                name, _, value = line.rstrip("\n").partition("=")
                if name:
                    question[name] = value
                    continue
                self.questions.append(question)
                said = self.rules(question)
                if said is None:
                    return
                connection.sendall(said if isinstance(said, bytes) else f"action={said}\n\n".encode())
                question = {}


class Policies(FilterCase):
    def policy(self, rules):
        made = PolicyService(rules)
        self.addCleanup(made.close)
        return made

    def section(self, service, *lines):
        return section(service.port, *lines).replace("[[milter]]", "[[policy_service]]")

    def test_a_service_is_asked_at_every_stage(self):
        service = self.policy(lambda question: "DUNNO")
        stages = '["connect", "helo", "mail", "rcpt", "data", "message"]'
        server = self.serve(self.section(service, f"stages = {stages}"))
        self.assertEqual(self.send(server).code, 250)
        states = [question["protocol_state"] for question in service.questions]
        self.assertEqual(states, ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "END-OF-MESSAGE"])
        last = service.questions[-1]
        self.assertEqual((last["recipient_count"], last["sender"]), ("1", "sender@client.test"))
        self.assertGreater(int(last["size"]), 50)
        self.assertEqual((last["client_address"], last["reverse_client_name"]), ("127.0.0.1", "localhost"))
        self.assertGreater(int(last["client_port"]), 1023)

    def test_answers_decide_about_recipients_that_exist(self):
        answers = {"alice@bench.test": "PREPEND X-Policy: seen", "bob@bench.test": "450 4.2.0 greylisted"}
        service = self.policy(lambda question: answers[question["recipient"]])
        server = self.serve(self.section(service))
        with Client(server.port) as client:
            client.greet()
            self.assertEqual(client.envelope("nobody@bench.test").code, 550)
            reply = client.say("RCPT TO:<bob@bench.test>")
            self.assertTrue(reply.is_a(450, "4.2.0"), reply)
            self.assertEqual(client.say("RCPT TO:<alice@bench.test>").code, 250)
            client.say("DATA")
            client.write(make_message("one") + b".\r\n")
            self.assertEqual(client.read().code, 250)
        self.assertIn(b"X-Policy: seen", await_messages(server, "alice", 1)[0].read_bytes())
        self.assertEqual(mail_files(server.maildir("bob") / "new"), [])
        self.assertEqual(len(service.questions), 2)

    def test_a_service_that_breaks_the_protocol_defers_that_recipient_alone(self):
        answers = [b"\n\n", b"action\n\n", b"\xff\xfe\n\n", b"x=y\n" * 5000, b"action=OK\n\naction=OK\n\n"]
        answers += [b"action=DUNNO\n", None]
        hostile = iter(answers)
        service = self.policy(lambda question: next(hostile, "DUNNO"))
        server = self.serve(self.section(service, 'answer_time = "500ms"'))
        for answer in answers:
            with self.subTest(answer=answer and answer[:20]):
                self.assertEqual(self.send(server).code, 451)
        # On a busy machine, even a service that behaves may be late.
        await_that(lambda: self.send(server).code == 250, "a service in time", server)
        self.assertEqual(len(await_messages(server, "alice", 1)), 1)

    def test_a_service_that_stalls_holds_up_only_its_own_sessions(self):
        service = self.policy(lambda question: time.sleep(60))
        lines = ('exempt = ["127.0.0.2/32"]', 'answer_time = "60s"')
        server = self.serve(self.section(service, *lines))
        with Client(server.port) as waiting, Client(server.port, source="127.0.0.2") as other:
            waiting.greet()
            waiting.say("MAIL FROM:<sender@client.test>")
            waiting.write(b"RCPT TO:<alice@bench.test>\r\n")
            await_that(lambda: service.questions, "a question", server)
            other.greet()
            started = time.monotonic()
            self.assertEqual(other.deliver(make_message("quick"), "alice@bench.test").code, 250)
            self.assertLess(time.monotonic() - started, 10)

    def test_names_of_restrictions_are_answers(self):
        service = self.policy(lambda question: "permit_sasl_authenticated, reject_unauth_destination")
        server = self.serve(self.section(service))
        self.assertEqual(self.send(server).code, 250)
        service.rules = lambda question: "permit_mynetworks, reject"
        self.assertTrue(self.send(server).is_a(554, "5.7.1"))

    def test_mail_is_redirected(self):
        service = self.policy(lambda question: "REDIRECT carol@bench.test")
        server = self.serve(self.section(service))
        self.assertEqual(self.send(server, "alice@bench.test", "bob@bench.test").code, 250)
        await_messages(server, "carol", 1)
        for user in ("alice", "bob"):
            self.assertEqual(mail_files(server.maildir(user) / "new"), [])

    def test_an_action_that_does_not_exist_defers(self):
        service = self.policy(lambda question: "ENCRYPT everything")
        server = self.serve(self.section(service))
        self.assertEqual(self.send(server).code, 451)
        await_that(lambda: "ENCRYPT" in server.log_tail(50), "the answer in the log", server)


if __name__ == "__main__":
    unittest.main()
