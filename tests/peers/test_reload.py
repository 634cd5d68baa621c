"""A running server reloads its configuration: what changes when, and what is refused."""

import base64
import os
import pathlib
import re
import signal
import socket
import sqlite3
import subprocess
import threading
import unittest

from harness import Client, Mailrace, await_messages, await_that, folder, make_message
from outbound import OutboundCase, await_event, mail_events, metrics
from peers.mailrace import route
from peers.smtp import free_port
from test_tls import issue
from test_tls import section as certificate

RELOADS = 100
STRANGER, BALANCER = "127.0.0.31", "127.0.0.32"


def reload(server):
    """Runs the command to its end."""
    argv = [str(server.binary), "reload", "--config", str(server.config)]
    return subprocess.run(argv, cwd=server.folder, capture_output=True, text=True, timeout=60)


def edit(server, old, new):
    """Replaces a text of the configuration, which must exist."""
    text = server.config.read_text()
    assert old in text, old
    server.config.write_text(text.replace(old, new, 1))


def listener(port):
    """A section for another listener."""
    return f'\n[[listener]]\nprotocol = "smtp"\naddress = "127.0.0.1:{port}"\n'


class Reload(unittest.TestCase):
    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.server = Mailrace(pathlib.Path(made.name), users=["alice"], networks=["127.0.0.0/8"])
        self.addCleanup(self.server.stop)
        self.server.start()

    def taken_up(self):
        """The output of the command for a configuration that is accepted."""
        ended = reload(self.server)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), self.server.log_tail())
        return ended.stdout

    def refused(self, code):
        """The output of the command for a configuration that is refused; the server keeps running."""
        ended = reload(self.server)
        self.assertEqual((ended.returncode, ended.stdout), (code, ""), ended.stderr)
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("still there"), "alice@bench.test").code, 250)
        return ended.stderr

    def test_open_sessions_keep_their_limits_and_new_ones_have_others(self):
        with Client(self.server.port) as client:
            client.greet()
            edit(self.server, "[limits]\n", '[limits]\nmessage = "1KiB"\n')
            self.assertIn("[limits]", self.taken_up())
            self.assertEqual(client.deliver(make_message("large", "x\r\n" * 1000), "alice@bench.test").code, 250)
        with Client(self.server.port) as client:
            self.assertIn("SIZE 1024", client.greet().text)
            self.assertEqual(client.deliver(make_message("large", "x\r\n" * 1000), "alice@bench.test").code, 552)

    def test_new_sessions_accept_a_new_domain_and_refuse_a_removed_one(self):
        section = '\n[[domain]]\nname = "new.test"\nmailboxes = "people"\n'
        self.server.config.write_text(self.server.config.read_text() + section)
        people = self.server.folder / "people"
        people.write_text(people.read_text() + "bob@new.test bob\n")
        said = self.taken_up()
        self.assertIn("[[domain]]", said)
        self.assertIn('opened table "people"', said)
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("new"), "bob@new.test").code, 250)
        await_messages(self.server, "bob", 1, domain="new.test")
        edit(self.server, section, "")
        edit(self.server, 'networks = ["127.0.0.0/8"]', "networks = []")
        self.taken_up()
        with Client(self.server.port) as client:
            client.greet()
            self.assertEqual(client.say("MAIL FROM:<a@b.test>").code, 250)
            self.assertEqual(client.say("RCPT TO:<bob@new.test>").code, 550)
            self.assertEqual(client.say("RCPT TO:<alice@bench.test>").code, 250)

    def test_a_file_with_an_error_is_refused_with_line_and_column(self):
        edit(self.server, "[limits]\n", "[limits]\nreceived = 0\nsesions = 10\n")
        check = [str(self.server.binary), "check", "--config", str(self.server.config)]
        checked = subprocess.run(check, capture_output=True, text=True, timeout=60)
        told = self.refused(checked.returncode)
        self.assertEqual(told, checked.stderr)
        self.assertRegex(told, r"mailrace\.toml:\d+:\d+")

    def test_after_a_signal_an_error_is_only_in_the_log(self):
        edit(self.server, "[limits]\n", "[limits]\nsesions = 10\n")
        self.server.process.send_signal(signal.SIGHUP)
        line = re.compile(r"the configuration is refused.*sesions.*mailrace\.toml:\d+:\d+")
        await_that(lambda: line.search(self.server.log.read_text()), "a refusal in the log", self.server)
        edit(self.server, "sesions = 10", "sessions = 10")
        self.server.process.send_signal(signal.SIGHUP)
        line = re.compile(r"reloaded the configuration.*\[limits\]")
        await_that(lambda: line.search(self.server.log.read_text()), "a reload in the log", self.server)

    def test_changes_that_need_a_restart_are_listed_and_nothing_is_applied(self):
        edit(self.server, "[limits]\n", '[limits]\nmessage = "1KiB"\n')
        edit(self.server, "[[listener]]", "threads = 5\n\n[[listener]]")
        self.server.config.write_text(self.server.config.read_text() + '\n[spool]\nsegment = "8MiB"\n')
        self.assertEqual(self.refused(1), "mailrace: needs a restart: threads, [spool] segment\n")
        with Client(self.server.port) as client:
            self.assertNotIn("SIZE 1024", client.greet().text)

    def test_an_address_in_use_refuses_everything(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            edit(self.server, "[limits]\n", '[limits]\nmessage = "1KiB"\n')
            self.server.config.write_text(self.server.config.read_text() + listener(port))
            self.assertIn(f"listening on 127.0.0.1:{port}: Address", self.refused(74))
        with Client(self.server.port) as client:
            self.assertNotIn("SIZE 1024", client.greet().text)

    def test_a_listener_is_added_and_removed_and_its_sessions_continue(self):
        section = listener(port := free_port())
        self.server.config.write_text(self.server.config.read_text() + section)
        self.taken_up()
        with Client(port) as client:
            client.greet()
            edit(self.server, section, "")
            self.taken_up()
            self.assertEqual(client.deliver(make_message("goes on"), "alice@bench.test").code, 250)

            def closed():
                try:
                    Client(port).__exit__()
                except ConnectionError:
                    return True
                return False

            await_that(closed, "a closed port", self.server)
        with Client(self.server.port) as client:
            self.assertEqual(client.greet().code, 250)

    def test_a_listener_can_be_removed_and_added_again(self):
        section = listener(port := free_port())
        text = self.server.config.read_text()
        for _ in range(10):
            self.server.config.write_text(text + section)
            self.taken_up()
            with Client(port) as client:
                client.greet()
            self.server.config.write_text(text)
            self.taken_up()

    def test_a_certificate_that_was_written_just_now_is_read(self):
        chain, key = issue(self.server.folder, "own", "mx.test")
        edit(self.server, 'address  = "127.0.0.1:0"', 'address  = "127.0.0.1:0"\ntls = "starttls"')
        self.server.config.write_text(self.server.config.read_text() + certificate(chain, key))
        self.assertIn("[[certificate]]", self.taken_up())
        self.assertIn("nothing has changed", self.taken_up())
        issue(self.server.folder, "own", "mx.test")
        self.assertRegex(self.taken_up(), r": certificates$")

    def test_warnings_are_in_the_answer_and_in_the_log(self):
        edit(self.server, 'networks = ["127.0.0.0/8"]', 'networks = ["0.0.0.0/0"]')
        self.assertIn("open relay", self.taken_up())
        line = re.compile(r" warning .*open relay")
        await_that(lambda: line.search(self.server.log.read_text()), "a warning in the log", self.server)

    def test_an_access_rule_applies_to_new_sessions_and_keeps_its_count(self):
        rule = (
            f'\n[[access]]\nname = "not them"\nclients = ["{STRANGER}"]\naction = "refuse"\n'
            'reply = "554 5.7.1 not from here"\n'
        )
        counted = 'mailrace_access_rules_total{rule="not them"}'

        def told(source):
            with Client(self.server.port, source=source) as client:
                return repr(client.read())

        with Client(self.server.port, source=STRANGER) as client:
            client.greet()
            self.server.config.write_text(self.server.config.read_text() + rule)
            self.assertIn("[[access]]", self.taken_up())
            self.assertEqual(client.deliver(make_message("was there before"), "alice@bench.test").code, 250)
        self.assertEqual(told(STRANGER), "554 5.7.1 not from here")
        self.assertEqual(metrics(self.server)[counted], 1)
        await_that(lambda: 'rule="not them"' in self.server.log.read_text(), "the rule in the log", self.server)
        edit(self.server, "not from here", "go away")
        self.taken_up()
        self.assertEqual(told(STRANGER), "554 5.7.1 go away")
        self.assertEqual(metrics(self.server)[counted], 2)
        # The socket stays; only the required PROXY header changes.
        address = 'address  = "127.0.0.1:0"'
        edit(self.server, address, f'{address}\nproxy_from = ["{BALANCER}"]')
        self.assertIn("[[listener]]", self.taken_up())
        with Client(self.server.port, source=BALANCER) as client:
            client.write(f"PROXY TCP4 {STRANGER} 127.0.0.1 4711 25\r\n".encode())
            self.assertEqual(repr(client.read()), "554 5.7.1 go away")
        text = self.server.config.read_text()
        self.server.config.write_text(text[: text.index("[[access]]")])
        self.taken_up()
        self.assertTrue(told(STRANGER).startswith("220 "))
        self.assertNotIn(counted, metrics(self.server))

    def test_without_changes_nothing_is_replaced(self):
        self.assertIn("nothing has changed", self.taken_up())

    def test_the_service_manager_is_notified_of_the_reload_and_its_end(self):
        path = str(self.server.folder / "notify")
        self.server.terminate()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            os.chmod(path, 0o777)
            manager.settimeout(60)
            self.server.start(["env", f"NOTIFY_SOCKET={path}"])
            self.assertIn("READY=1", manager.recv(1000).decode().splitlines())
            self.taken_up()
            taken = manager.recv(1000).decode(), manager.recv(1000).decode()
            edit(self.server, "[[listener]]", "threads = 5\n\n[[listener]]")
            self.refused(1)
            refused = manager.recv(1000).decode(), manager.recv(1000).decode()
        for first, second in (taken, refused):
            self.assertRegex(first, r"^RELOADING=1\nMONOTONIC_USEC=\d+\n")
            self.assertIn("READY=1", second.splitlines())

    def test_both_signals_reopen_the_log(self):
        log = self.server.folder / "own.log"
        self.server.terminate()
        self.server.config.write_text(self.server.config.read_text() + f'\n[log]\nto = "{log}"\n')
        self.server.start()
        for number, sent in enumerate([signal.SIGUSR1, signal.SIGHUP]):
            log.rename(self.server.folder / f"old.{number}")
            self.server.process.send_signal(sent)
            await_that(lambda: log.exists() and "reopened the log" in log.read_text(), "a fresh log", self.server)

    def test_a_hundred_reloads_under_load_lose_nothing_and_refuse_no_session(self):
        done, refusals, sent = threading.Event(), [], [0] * 4

        def send(number):
            while not done.is_set():
                try:
                    with Client(self.server.port) as client:
                        client.greet()
                        replies = [client.deliver(make_message("load"), "alice@bench.test") for _ in range(3)]
                    sent[number] += sum(reply.code == 250 for reply in replies)
                    refusals.extend(reply for reply in replies if reply.code != 250)
                except (AssertionError, EOFError, OSError) as error:
                    refusals.append(error)

        threads = [threading.Thread(target=send, args=[number]) for number in range(4)]
        [thread.start() for thread in threads]
        text = self.server.config.read_text()
        people = (self.server.folder / "people").read_text()
        try:
            for number in range(RELOADS):
                extra = f'\n[[domain]]\nname = "d{number}.test"\n[[queue]]\nname = "q{number % 7}"\n'
                self.server.config.write_text(text.replace("[limits]\n", f"[limits]\nerrors = {10 + number}\n") + extra)
                if number % 10 == 0:
                    (self.server.folder / "people").write_text(f"{people}x{number}@bench.test x\n")
                self.taken_up()
        finally:
            done.set()
            [thread.join() for thread in threads]
        self.assertEqual(refusals, [])
        self.assertGreater(min(sent), 0)
        await_messages(self.server, "alice", sum(sent))
        self.assertEqual(len(list((self.server.maildir("alice") / "new").iterdir())), sum(sent))


class Users(unittest.TestCase):
    """Logins after a reload, in new and open sessions."""

    AUTH = """
[[table]]
name = "logins"
type = "text"
path = "{path}"

[auth]
passwords = "logins"
clear_text = true

[auth.throttle]
pair = {{ failures = 1, delay = "1h", longest = "1h" }}
"""

    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        at = pathlib.Path(made.name)
        self.logins = at / "logins"
        self.write("one")
        self.server = Mailrace(at, users=["alice"], extra=self.AUTH.format(path=self.logins))
        edit(self.server, 'protocol = "smtp"', 'protocol = "smtp"\nauth = true')
        self.addCleanup(self.server.stop)
        self.server.start()

    def write(self, password):
        self.logins.write_text(f"bob {{PLAIN}}{password}\neve {{PLAIN}}{password}\n")
        self.logins.chmod(0o644)

    def session(self):
        """A client after EHLO."""
        client = Client(self.server.port)
        self.addCleanup(client.__exit__)
        client.greet()
        return client

    def login(self, client, password, user="bob"):
        """The reply code of AUTH."""
        words = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
        return client.say(f"AUTH PLAIN {words}").code

    def relays(self, client, sender="bob@bench.test"):
        """The code at RCPT, which is 250 only for a user."""
        code = client.envelope("someone@elsewhere.test", sender=sender).code
        client.say("RSET")
        return code

    def taken_up(self):
        ended = reload(self.server)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), self.server.log_tail())
        return ended.stdout

    def test_a_new_password_applies_to_new_sessions_and_open_ones_stay_logged_in(self):
        user, before = self.session(), self.session()
        self.assertEqual(self.login(user, "one"), 235)
        self.write("another")
        self.assertIn('opened table "logins"', self.taken_up())
        self.assertEqual(self.relays(user), 250)
        self.assertEqual(self.login(before, "one"), 235, "an open session keeps its configuration")
        # The password was right a moment ago, but the cached login is gone.
        self.assertEqual(self.login(self.session(), "one"), 535)
        after = metrics(self.server)
        self.assertEqual(after['mailrace_auth_logins_total{result="ok"}'], 2, "counters continue")
        self.assertEqual(self.login(self.session(), "another", user="eve"), 235)

    def test_failed_logins_still_count_after_a_reload(self):
        self.assertEqual(self.login(self.session(), "a guess"), 535)
        self.assertEqual(self.login(self.session(), "one"), 454)
        for change in (lambda: self.write("another"), lambda: edit(self.server, "[limits]\n", "[limits]\nerrors = 7\n")):
            change()
            self.taken_up()
            self.assertEqual(self.login(self.session(), "another"), 454)
        edit(self.server, "failures = 1", "failures = 3")
        self.assertIn("[auth]", self.taken_up())
        self.assertEqual(self.login(self.session(), "another"), 235, "the new throttle starts a new count")

    def test_mechanisms_senders_and_disabled_logins_apply_to_new_sessions(self):
        old = self.session()
        self.assertEqual(self.login(old, "one"), 235)
        senders = '\n[[table]]\nname = "senders"\ntype = "static"\nvalues = ["bob@bench.test"]\n'
        self.server.config.write_text(self.server.config.read_text() + senders)
        edit(self.server, "[auth]\n", '[auth]\nmechanisms = ["PLAIN"]\nsenders = "senders"\n')
        self.assertIn("[auth]", self.taken_up())
        new = Client(self.server.port)
        self.addCleanup(new.__exit__)
        self.assertIn("\nAUTH PLAIN\n", new.greet().text)
        self.assertEqual(self.login(new, "one"), 235)
        self.assertEqual(self.relays(new), 250)
        self.assertEqual(new.say("MAIL FROM:<alice@bench.test>").code, 553)
        self.assertEqual(self.relays(old, sender="alice@bench.test"), 250)
        edit(self.server, "auth = true\n", "auth = true\nrequire_auth = true\n")
        self.assertIn("[[listener]]", self.taken_up())
        self.assertEqual(self.session().say("MAIL FROM:<bob@bench.test>").code, 530)
        text = self.server.config.read_text().replace("auth = true\nrequire_auth = true\n", "")
        self.server.config.write_text(re.sub(r"\[auth\]\n.*?(?=\n\[\[table)", "", text, flags=re.DOTALL))
        self.assertIn("[auth]", self.taken_up())
        self.assertEqual(self.login(self.session(), "one"), 502)
        self.assertEqual((self.relays(old), self.relays(new)), (250, 250))

    def test_a_missing_password_table_refuses_the_reload_and_logins_continue(self):
        text = self.server.config.read_text()
        for old, new, told in (
            ('passwords = "logins"', 'passwords = "nowhere"', "nowhere"),
            (f'path = "{self.logins}"', f'path = "{self.logins}.gone"', "logins.gone"),
        ):
            self.server.config.write_text(text)
            edit(self.server, old, new)
            edit(self.server, "[limits]\n", '[limits]\nmessage = "1KiB"\n')
            ended = reload(self.server)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn(told, ended.stderr)
            client = Client(self.server.port)
            self.addCleanup(client.__exit__)
            self.assertNotIn("SIZE 1024", client.greet().text)
            self.assertEqual(self.login(client, "one"), 235)


class ChangedRoutes(OutboundCase):
    """Changes for queued mail and next hops."""

    def setUp(self):
        super().setUp()
        self.one = self.host()

    def taken_up(self, server):
        ended = reload(server)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), server.log_tail())

    def test_mail_for_a_dead_host_uses_the_new_route(self):
        server = self.start(extra=route("one.test", f"[127.0.0.1]:{free_port()}"))
        self.send(server, "bob@one.test")
        await_event(server, "deferred", to="<bob@one.test>")
        text = server.config.read_text()
        server.config.write_text(re.sub(r"\[127\.0\.0\.1\]:\d+", f"[127.0.0.1]:{self.one.port}", text))
        self.taken_up(server)
        server._queue("retry", "--all")
        self.await_messages(self.one, 1, server)

    def test_mail_with_a_new_next_hop_is_due_now_without_the_old_error(self):
        # It used to wait as long as the old next hop required, an hour here, with its error.
        later = self.host(script={"RCPT": "450 4.2.1 later"})
        server = self.start(
            retry='first = "1h", jitter = 0.0',
            extra=route("one.test", f"[127.0.0.1]:{later.port}") + route("two.test", f"[127.0.0.1]:{free_port()}"),
        )  # fmt: skip
        self.send(server, "bob@one.test", "carol@two.test")
        await_that(lambda: len(mail_events(server, "deferred")) == 2, "two deferred", server)
        self.one.script["RCPT"] = "450 4.2.1 not yet"
        edit(server, f"[127.0.0.1]:{later.port}", f"[127.0.0.1]:{self.one.port}")
        self.taken_up(server)
        await_event(server, "deferred", to="<bob@one.test>", reason="450 4.2.1 not yet")
        listed = await_that(lambda: self.errors(server, "not yet"), "the new error", server)
        self.assertEqual([line for line in listed if "4.2.1 later" in line], [])
        self.assertEqual(len([line for line in listed if "Connection refused" in line]), 1, "carol's stays")
        self.assertEqual(len(mail_events(server, "deferred", to="<carol@two.test>")), 1)

    @staticmethod
    def errors(server, text):
        """The lines of the queue list, if one has this text."""
        listed = server._queue("list", "--json").splitlines()
        return listed if any(text in line for line in listed) else None

    def test_queued_mail_goes_to_the_new_host_of_the_mailbox(self):
        zone = self.names()
        zone.a("store.test", "127.0.0.1")
        (self.folder / "hosts").write_text(
            f"bob@shared.test store.test:{self.one.port}\ncarol@shared.test store.test:{free_port()}\n"
        )
        alone = '\n[[domain]]\nname = "shared.test"\n'
        table = f'\n[[table]]\nname = "hosts"\ntype = "text"\npath = "{self.folder}/hosts"\n'
        retry = 'first = "200ms", factor = 1.0, jitter = 0.0'
        server = self.start(names=zone, extra=table + alone, retry=retry)
        server._queue("pause", "local")
        self.send(server, "bob@shared.test")
        self.send(server, "carol@shared.test")
        self.assertEqual(server.queued(), 2)
        edit(server, alone, alone + 'hosts = "hosts"\n')
        self.taken_up(server)
        messages = self.await_messages(self.one, 1, server)
        self.assertEqual(messages[0].recipients, ["TO:<bob@shared.test>"])
        await_event(server, "deferred", to="<carol@shared.test>")
        edit(server, alone + 'hosts = "hosts"\n', alone)
        self.taken_up(server)
        server._queue("resume", "local")
        await_messages(server, "carol", 1, domain="shared.test")
        self.assertFalse((server.maildir("bob", "shared.test") / "new").exists())

    def test_a_queue_that_is_no_longer_held_delivers(self):
        server = self.start(extra=route("one.test", f"[127.0.0.1]:{self.one.port}"), standard="concurrency = 0")
        self.send(server, "bob@one.test")
        self.assertEqual(server.queued(), 1)
        edit(server, "concurrency = 0", "concurrency = 5")
        self.taken_up(server)
        self.await_messages(self.one, 1, server)
        listed = server._queue("list", "--by", "queue", "--json")
        self.assertRegex(listed, r'"concurrency":5\b.*"queue":"standard"|"queue":"standard".*"concurrency":5\b')

    def test_mail_of_a_removed_queue_moves_by_the_rules(self):
        section = '\n[[queue]]\nname = "slow"\nconcurrency = 0\ndomains = ["one.test"]\n'
        server = self.start(extra=route("one.test", f"[127.0.0.1]:{self.one.port}") + section)
        self.send(server, "bob@one.test", "carol@one.test")
        await_that(lambda: server._queue("list", "--count", "--queue", "slow").split()[0] == "2", "two wait", server)
        edit(server, section, "")
        self.taken_up(server)
        messages = self.await_messages(self.one, 1, server)
        self.assertEqual(sorted(messages[0].recipients), ["TO:<bob@one.test>", "TO:<carol@one.test>"])
        await_that(lambda: server.queued() == 0, "an empty queue", server)
        self.assertNotIn("slow", server._queue("list", "--by", "queue", "--json"))

    def test_a_table_that_has_not_changed_keeps_its_cache(self):
        section = (
            '\n[[table]]\nname = "hosted"\ntype = "sqlite"\npath = "{path}"\n'
            'query = "SELECT name FROM domains WHERE name = :key"\n'
            'cache = {{ ttl = "1h", negative_ttl = "1h", stale_if_error = "1h", entries = 100 }}\n'
            '[[domain]]\nnames = "hosted"\n'
        )
        path = self.folder / "hosted.db"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE domains (name TEXT)")
            database.execute("INSERT INTO domains VALUES ('hosted.test')")
        path.chmod(0o644)
        server = self.start(extra=section.format(path=path))
        self.send(server, "bob@hosted.test")
        before = server.table("stats", "hosted", "--json").stdout
        edit(server, "[limits]\n", "[limits]\nerrors = 7\n")
        self.taken_up(server)
        after = server.table("stats", "hosted", "--json").stdout
        entries = [int(re.search(r'"(?:entries|cached)":(\d+)', text)[1]) for text in (before, after)]
        self.assertGreater(entries[0], 0, before)
        self.assertEqual(entries[0], entries[1])


if __name__ == "__main__":
    unittest.main()
