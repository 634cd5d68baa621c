"""What operators do to the traffic of a running server, by the API and by commands: pauses with an end, redirects that a
restart keeps, the history of a message, a drain before a stop, and the configuration.
"""

import json
import re
import socket
import subprocess
import time
import unittest

from harness import WAIT_SECONDS_MAX, Client, await_that
from outbound import await_event, mail_events, metrics
from test_api import ApiCase, run


class TrafficCase(ApiCase):
    """The same server, whose log is in a file that it can read."""

    def setUp(self):
        super().setUp()
        self.log_file = self.server.folder / "history.log"

    def await_next_hop(self):
        """The name of the only next hop."""
        rows = await_that(lambda: self.get("/api/v1/next-hops")["next_hops"], "a next hop", self.server)
        return rows[0]["next_hop"]

    def restart(self):
        """The server ends and starts again, with another port for the API."""
        self.assertEqual(self.server.terminate(), 0)
        self.server.start()
        self.port = self.server.all_ports["http"][0]


class Pauses(TrafficCase):
    def test_a_next_hop_is_paused_for_some_time_and_resumed(self):
        self.hop.script.clear()
        self.send(self.server, "bob@one.test")
        self.await_messages(self.hop, 1, self.server)
        name = self.await_next_hop()
        paused = self.post("/api/v1/pause", {"target": {"next_hop": name}, "for": "2h"})
        self.assertEqual((paused["target"], paused["known"]), ({"next_hop": name}, True))
        self.assertTrue(7100 <= paused["for_seconds"] <= 7200, paused)
        kept = self.send(self.server, "bob@one.test")
        [hop] = self.get("/api/v1/next-hops")["next_hops"]
        self.assertEqual((hop["paused"], hop["paused_until"]), (True, paused["until"]))
        self.assertIn("the next hop is paused and resumes at", run(self.server, "explain", kept))
        self.assertIn("the next hop is paused", run(self.server, "explain", "carol@one.test"))
        self.assertRegex(run(self.server, "queue", "pauses"), rf"next hop +{re.escape(name)} +(2h|11[0-9]m) +yes")
        self.assertEqual(metrics(self.server)['mailrace_pauses{kind="next_hop"}'], 1)
        await_that(lambda: self.server.queued() == 1, "one recipient in the queue", self.server)
        run(self.server, "queue", "resume", "--next-hop", name)
        self.await_messages(self.hop, 2, self.server)
        self.assertEqual(self.get("/api/v1/pauses"), {"pauses": []})
        run(self.server, "queue", "resume", "--next-hop", name, code=1)

    def test_a_pause_ends_by_itself(self):
        self.hop.script.clear()
        begin = time.monotonic()
        run(self.server, "queue", "pause", "--destination", "ONE.test", "--for", "6s")
        self.send(self.server, "bob@one.test")
        self.send(self.server, "carol@two.test")
        first = self.await_messages(self.hop, 1, self.server)
        self.assertEqual([message.recipients for message in first], [["TO:<carol@two.test>"]])
        self.await_messages(self.hop, 2, self.server)
        self.assertGreater(time.monotonic() - begin, 5.9)
        self.assertEqual(self.get("/api/v1/pauses"), {"pauses": []})

    def test_a_queue_is_paused_with_an_end(self):
        self.assertIn("paused until 2", run(self.server, "queue", "pause", "standard", "--for", "1h"))
        [standard] = [row for row in self.get("/api/v1/queues")["queues"] if row["queue"] == "standard"]
        self.assertTrue(standard["paused"] and standard["paused_until"])
        self.post("/api/v1/queues/standard/resume", {})
        run(self.server, "queue", "resume", "standard")
        for words in (["none"], ["--for", "1h"], ["standard", "--next-hop", "x"]):
            done = subprocess.run(
                [str(self.server.binary), "queue", "pause", *words, "--config", str(self.server.config)],
                capture_output=True, text=True, timeout=WAIT_SECONDS_MAX,
            )  # fmt: skip
            self.assertIn(done.returncode, (1, 64), done.stderr)
        for content, status in [
            ({"target": {"queue": "none"}}, 404),
            ({"target": {"next_hop": ""}}, 422),
            ({"target": {"next_hop": "x" * 2000}}, 422),
            ({"target": {"host": "x"}}, 400),
            ({"target": {"next_hop": "x"}, "for": "soon"}, 400),
            ({}, 400),
        ]:
            self.post("/api/v1/pause", content, status=status)


class Redirects(TrafficCase):
    def test_the_mail_of_a_next_hop_goes_to_another_one_also_after_a_restart(self):
        self.defer_two()
        other = self.host()
        name = self.await_next_hop()
        redirect = {"from": {"next_hop": name}, "to": f"[127.0.0.1]:{other.port}"}
        self.post("/api/v1/redirect", redirect)
        # What waits is due at once.
        self.await_messages(other, 2, self.server)
        self.assertEqual(self.get("/api/v1/redirects"), {"redirects": [redirect]})
        self.assertIn(str(other.port), run(self.server, "explain", "carol@one.test"))
        self.restart()
        self.send(self.server, "carol@one.test")
        self.await_messages(other, 3, self.server)
        self.assertIn(str(other.port), run(self.server, "queue", "redirects"))
        run(self.server, "queue", "redirect", "--next-hop", name, "--end")
        self.hop.script.clear()
        self.send(self.server, "carol@one.test")
        self.await_messages(self.hop, 1, self.server)
        await_event(self.server, "info", message="operator action", order="end-redirect")
        orders = [act.order.split()[0] for act in mail_events(self.server, "info", message="operator action")]
        self.assertEqual([order for order in orders if order != "token-created"], ["redirect", "end-redirect"])

    def test_the_mail_for_a_destination_is_redirected(self):
        self.defer_two()
        other = self.host()
        run(self.server, "queue", "redirect", "--destination", "one.test", "--to", f"[127.0.0.1]:{other.port}")
        [message] = self.await_messages(other, 1, self.server)
        self.assertEqual(message.recipients, ["TO:<bob@one.test>"])
        await_that(lambda: self.server.queued() == 1, "one recipient left", self.server)
        self.assertEqual(self.post("/api/v1/redirect/end", {"from": {"destination": "one.test"}}), {"done": True})
        self.post("/api/v1/redirect/end", {"from": {"destination": "one.test"}}, status=404)

    def test_what_is_no_next_hop_is_refused(self):
        source = {"destination": "one.test"}
        for content, status in [
            ({"from": source, "to": "550 5.1.1 no"}, 422),
            ({"from": source, "to": "host:0"}, 422),
            ({"from": source, "to": "[127.0.0.1]", "transport": "maildir"}, 422),
            ({"from": source, "to": "[127.0.0.1]", "transport": "none"}, 422),
            ({"from": source}, 400),
            ({"from": {"queue": "standard"}, "to": "[127.0.0.1]"}, 400),
        ]:
            self.post("/api/v1/redirect", content, status=status)
        self.assertEqual(self.get("/api/v1/redirects"), {"redirects": []})

    def test_a_damaged_file_of_redirects_keeps_the_server_from_starting(self):
        self.assertEqual(self.server.terminate(), 0)
        (self.server.data / "redirects.json").write_text("[{")
        with self.assertRaisesRegex(RuntimeError, "redirects.json: correct or remove it"):
            self.server.start()
        (self.server.data / "redirects.json").unlink()
        self.server.start()


class LogsOnAFullDisk(TrafficCase):
    def test_an_act_leaves_its_line_on_standard_error(self):
        text = self.server.config.read_text()
        self.assertEqual(self.server.terminate(), 0)
        # Every write to this device fails as on a full disk.
        self.server.config.write_text(f'{text}\n[log]\nto = "/dev/full"\n')
        self.server.start()
        self.port = self.server.all_ports["http"][0]
        self.post("/api/v1/queues/standard/pause", {})
        def traces():
            return [event.by for event in mail_events(self.server, "info", message="operator action", order="pause")]
        await_that(traces, "the line of the act", self.server)
        self.assertEqual(len(traces()), 1)
        self.assertTrue(traces()[0].startswith("token "), traces())
        self.assertGreater(metrics(self.server)["mailrace_log_lines_dropped_total"], 0)


class Histories(TrafficCase):
    def setUp(self):
        super().setUp()
        text = self.server.config.read_text()
        self.assertEqual(self.server.terminate(), 0)
        self.server.config.write_text(f'{text}\n[log]\nto = "{self.log_file}"\n')
        self.server.start()
        self.port = self.server.all_ports["http"][0]

    def test_a_message_has_its_history_also_when_it_is_finished(self):
        kept = self.send(self.server, "bob@one.test")
        path = f"/api/v1/messages/{kept}/history"

        def events():
            status, _, history = self.ask(path, self.reader)
            return [event["event"] for event in history["events"]] if status == 200 else []

        await_that(lambda: events() == ["received", "deferred"], "two events", self.server)
        self.hop.script.clear()
        self.post("/api/v1/recipients/retry", {"all": True})
        await_that(lambda: events() == ["received", "deferred", "delivered"], "three events", self.server)
        self.assertEqual(self.ask(f"/api/v1/messages/{kept}", self.reader)[0], 404)
        history = self.get(path)
        self.assertFalse(history["may_lack_earlier"])
        self.assertEqual(history["events"][1]["fields"]["to"], "<bob@one.test>")
        self.assertTrue(history["events"][1]["fields"]["reason"].startswith("450 4.2.1"), history)
        self.assertIn("delivered", run(self.server, "queue", "history", kept))
        self.assertEqual(json.loads(run(self.server, "queue", "history", "--json", kept)), history)
        self.assertEqual(self.ask("/api/v1/messages/7-0-1/history", self.reader)[0], 404)
        run(self.server, "queue", "history", "7-0-1", code=1)


class Stops(TrafficCase):
    def test_a_drain_lets_nobody_in_delivers_what_it_can_and_stops(self):
        self.hop.script.clear()
        self.post("/api/v1/pause", {"target": {"destination": "one.test"}})
        self.send(self.server, "bob@one.test")
        open_session = self.enterContext(Client(self.server.port))
        open_session.greet()
        run(self.server, "drain", "--within", "10m")
        await_that(lambda: self.ask("/readyz")[0] == 503, "a server that is not ready", self.server)
        self.assertIn("draining", self.ask("/readyz")[2]["detail"])
        with Client(self.server.port) as late:
            self.assertTrue(late.read().is_a(421, "4.3.2"))
        self.assertTrue(open_session.say("MAIL FROM:<alice@bench.test>").is_a(421, "4.3.2"))
        self.post("/api/v1/drain", {}, status=422)
        self.assertEqual(self.server.queued(), 1)
        self.post("/api/v1/resume", {"target": {"destination": "one.test"}})
        self.assertEqual(self.server.process.wait(60), 0)
        self.assertEqual(len(self.hop.accepted), 1)
        self.assertEqual(len(mail_events(self.server, "info", message="drain finished")), 1)

    def test_a_drain_does_not_wait_for_what_is_due_later(self):
        self.defer_two()
        self.post("/api/v1/drain", {"within": "10m"})
        self.assertEqual(self.server.process.wait(60), 0)
        self.server.start()
        self.assertEqual(self.server.queued(), 2)

    def test_a_drain_ends_with_its_time(self):
        self.post("/api/v1/pause", {"target": {"queue": "standard"}})
        self.send(self.server, "bob@one.test")
        self.post("/api/v1/drain", {"within": "2s"})
        self.assertEqual(self.server.process.wait(60), 0)
        self.assertEqual(mail_events(self.server, "info", message="drain finished"), [])


    def test_a_stop_does_not_wait_for_a_request_that_waits_for_a_name_server(self):
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(silent.close)
        silent.bind(("127.0.0.1", 0))
        text = self.server.config.read_text().replace('"127.0.0.1:1"', f'"127.0.0.1:{silent.getsockname()[1]}"')
        self.server.config.write_text(text.replace('timeout = "1s"', 'timeout = "25s"'))
        self.post("/api/v1/reload", {})
        connection = self.connect()
        head = "GET /api/v1/explanation?address=bob%40unknown.test HTTP/1.1\r\nHost: localhost\r\n"
        connection.write(f"{head}Authorization: Bearer {self.reader}\r\n\r\n".encode())
        silent.settimeout(WAIT_SECONDS_MAX)
        silent.recv(512)
        begin = time.monotonic()
        self.assertEqual(self.server.terminate(), 0)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(connection.response_head()[0], 503)


class Configurations(TrafficCase):
    def test_the_configuration_is_shown_without_its_secrets(self):
        text = self.server.config.read_text()
        document = self.get("/api/v1/config")
        self.assertEqual(document["source"], str(self.server.config))
        self.assertEqual(document["text"].count("\n"), text.count("\n"))
        self.assertIn('protocol = "http"', document["text"])
        table = '\n[[table]]\nname = "people2"\ntype = "postgres"\nurl = "postgres://mail:hushhush@127.0.0.1/mail"\n'
        self.server.config.write_text(f"{text}{table}query = \"select 1\"\n# password = 'hushhush'\n")
        self.ask("/api/v1/reload", self.operator, "POST", {})
        self.assertNotIn("hushhush", self.get("/api/v1/config")["text"])

    def test_a_text_is_checked_without_an_effect_and_without_a_look_at_files(self):
        text = self.server.config.read_text()
        self.assertTrue(self.post("/api/v1/config/check", {"text": text})["valid"])
        wrong = self.post("/api/v1/config/check", {"text": f"{text}\nx = 1\n"})
        self.assertEqual((wrong["valid"], wrong["warnings"]), (False, []))
        self.assertIn("1 error in the text", wrong["errors"])
        secret = self.server.folder / "secret"
        secret.write_text("hushhush\n")
        table = f'\n[[table]]\nname = "secret"\ntype = "text"\npath = "{secret}"\n'
        certificate = f'\n[[certificate]]\nchain = "{secret}"\nkey = "{secret}"\n'
        for more in (table, certificate):
            self.assertNotIn("hush", json.dumps(self.post("/api/v1/config/check", {"text": text + more})))
        self.post("/api/v1/config/check", {"text": "x" * 100_000}, status=413)
        for text in ("[" * 10_000, "a = " + "[" * 10_000, "a." * 5_000 + "b = 1", "\0", "a = 'x"):
            self.assertFalse(self.post("/api/v1/config/check", {"text": text})["valid"])
        self.assertEqual(self.ask("/api/v1/config/check", self.reader, "POST", {"text": ""})[0], 403)


class Refusals(TrafficCase):
    def test_an_act_with_the_wrong_role_is_logged(self):
        self.assertEqual(self.ask("/api/v1/recipients/remove", self.reader, "POST", {"all": True})[0], 403)
        refused = await_event(self.server, "warning", message="operator action")
        self.assertEqual((refused.by, refused.order), ("token reader from 127.0.0.1", "/api/v1/recipients/remove"))
        self.assertTrue(refused.result.startswith("refused: this path needs a token with the role operate"), refused)

    def test_an_act_with_a_wrong_token_is_logged(self):
        wrong = f"mailrace_{0:012x}_{'x' * 43}"
        self.assertEqual(self.ask("/api/v1/drain", wrong, "POST", {})[0], 401)
        refused = await_event(self.server, "warning", message="operator action")
        self.assertEqual((refused.by, refused.order), ("a wrong token from 127.0.0.1", "/api/v1/drain"))
        self.assertTrue(refused.result.startswith("refused: the token is wrong"), refused)


if __name__ == "__main__":
    unittest.main()
