"""The events and the history of a real server, and the files of its dashboard.

    Events      samples and log lines as server-sent events: who sees them, how they end
    History     samples of the last hour
    Dashboard   the page loads nothing from elsewhere
"""

import json
import re
import unittest

from harness import await_that
from test_api import ApiCase


class EventReader:
    """The events of an open stream."""

    def __init__(self, case, token, query=""):
        self.connection = case.connect()
        head = f"GET /api/v1/events{query} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        self.connection.write(head.encode())
        self.status, self.fields = self.connection.response_head()
        self.seen = set()

    def next(self, name):
        """The data of the next event with this name; EOFError at the end of the stream."""
        fields = {}
        while True:
            line = self.connection.line().decode()
            if line.startswith(":"):
                continue
            if line:
                field, value = line.split(": ", 1)
                fields[field] = value
                continue
            self.seen.add(fields.get("event"))
            if fields.get("event") == name:
                return json.loads(fields["data"])
            fields = {}


class Events(ApiCase):
    def test_an_operator_sees_samples_and_the_log(self):
        reader = EventReader(self, self.operator)
        self.assertEqual((reader.status, reader.fields["Content-Type"]), (200, "text/event-stream"))
        self.assertNotIn("Content-Length", reader.fields)
        kept = self.send(self.server, "bob@one.test")
        while (line := reader.next("log"))["event"] != "deferred":
            self.assertIn(line["event"], ("received", "login", "info"))
        self.assertEqual(line["id"], kept)
        while reader.next("sample")["queued"] != 1:
            pass

    def test_a_reader_sees_samples_only(self):
        reader = EventReader(self, self.reader)
        self.send(self.server, "bob@one.test")
        while reader.next("sample")["messages"] != 1:
            pass
        self.assertEqual(reader.seen, {"sample"})
        self.assertEqual(self.ask("/api/v1/events")[0], 401)

    def test_an_operator_can_do_without_the_log(self):
        reader = EventReader(self, self.operator, "?log=no")
        self.send(self.server, "bob@one.test")
        while reader.next("sample")["messages"] != 1:
            pass
        self.assertEqual(reader.seen, {"sample"})
        self.assertEqual(self.ask("/api/v1/events?log=maybe", self.operator)[0], 400)

    def test_all_readers_see_what_an_operator_does(self):
        reader = EventReader(self, self.reader)
        self.post("/api/v1/pause", {"target": {"queue": "standard"}})
        action = reader.next("action")
        self.assertEqual(action["result"], "done")
        self.assertIn("token boss", action["by"])
        self.assertIn("standard", action["order"])

    def test_a_stream_ends_when_the_server_stops(self):
        reader = EventReader(self, self.reader)
        reader.next("sample")
        self.server.stop()
        with self.assertRaises((EOFError, ConnectionError)):
            while True:
                reader.next("sample")

    def test_readers_that_never_read_are_limited_and_harm_nobody(self):
        readers = [EventReader(self, self.operator) for _ in range(32)]
        self.assertEqual({reader.status for reader in readers}, {200})
        self.assertEqual(self.ask("/api/v1/events", self.operator)[0], 503)
        for number in range(50):
            self.send(self.server, f"bob{number}@one.test")
        self.assertTrue(self.get("/api/v1/queues", self.operator)["queues"])
        for reader in readers:
            reader.connection.close()
        # A stream notices that its reader is gone when it sends the next event.
        await_that(lambda: EventReader(self, self.operator).status == 200, "a free place", self.server)

    def test_the_head_of_a_stream_can_be_asked_for(self):
        status, fields, body = self.ask("/api/v1/events", self.reader, "HEAD")
        self.assertEqual((status, fields["Content-Type"], body), (200, "text/event-stream", b""))


class HistoryOfServer(ApiCase):
    def test_samples_appear(self):
        self.send(self.server, "bob@one.test")
        # On a slow machine, there may be a sample from before the message.
        await_that(lambda: any(sample["messages"] for sample in self.get("/api/v1/history")["samples"]), "a sample", self.server)
        history = self.get("/api/v1/history?span=hour")
        self.assertEqual(history["step_seconds"], 10)
        sample = history["samples"][-1]
        self.assertEqual((sample["messages"], sample["queued"], sample["held"]), (1, 1, 0))
        self.assertGreater(sum(each["accepted"] for each in history["samples"]), 0)
        self.assertEqual(self.get("/api/v1/history?span=day"), {"step_seconds": 240, "samples": []})


class OverviewOfServer(ApiCase):
    def test_it_has_what_hurts_with_ages_and_errors_and_the_role_of_the_token(self):
        self.defer_two()
        overview = self.get("/api/v1/overview", self.reader)
        self.assertEqual((overview["role"], self.get("/api/v1/overview", self.operator)["role"]), ("read", "operate"))
        mail = overview["server"]["mail"]
        self.assertEqual({row["status"]["destination"] for row in mail["destinations"]}, {"one.test", "two.test"})
        for row in mail["destinations"]:
            self.assertEqual((row["status"]["recipients"], row["waiting"], row["held"]), (1, 1, 0))
            self.assertIn("4.2.1 later", row["error"])
            self.assertLess(row["oldest_age_seconds"], 60)
        self.assertEqual(mail["next_hops"][0]["status"]["recipients"], 2)
        self.assertEqual(overview["server"]["in_cluster"], False)

    def test_an_action_is_seen_at_once(self):
        self.defer_two()
        held = lambda: sum(row["held"] for row in self.get("/api/v1/overview")["server"]["mail"]["destinations"])
        self.assertEqual(held(), 0)
        self.post("/api/v1/pause", {"target": {"queue": "standard"}})
        queues = self.get("/api/v1/overview")["server"]["mail"]["queues"]
        self.assertEqual([queue["paused"] for queue in queues if queue["queue"] == "standard"], [True])
        self.post("/api/v1/recipients/hold", {"all": True})
        await_that(lambda: held() == 2, "two held", self.server)


class Dashboard(ApiCase):
    def scripts(self):
        """The script of the page and its parts, by path."""
        scripts, missing = {}, ["/dashboard.js"]
        while missing:
            path = missing.pop()
            status, fields, content = self.ask(path)
            self.assertEqual((status, fields["Content-Type"]), (200, "text/javascript; charset=utf-8"), path)
            scripts[path] = content.decode()
            parts = re.findall(r'from "(?:\./|/dashboard/)(\w+\.js)"', scripts[path])
            missing += [path for part in parts if (path := f"/dashboard/{part}") not in (*scripts, *missing)]
        return scripts

    def test_the_page_needs_no_token_and_loads_nothing_from_elsewhere(self):
        pages = {}
        for path, kind in (("/", "html"), ("/dashboard.css", "css"), ("/dashboard.js", "javascript"), ("/dashboard/acts.js", "javascript")):
            status, fields, content = self.ask(path)
            self.assertEqual((status, fields["Content-Type"]), (200, f"text/{kind}; charset=utf-8"))
            self.assertIn("script-src 'self'", fields["Content-Security-Policy"])
            self.assertNotIn("unsafe", fields["Content-Security-Policy"])
            self.assertEqual((fields["X-Frame-Options"], fields["X-Content-Type-Options"]), ("DENY", "nosniff"))
            pages[path] = content.decode()
        html = pages["/"]
        self.assertEqual(re.findall(r'(?:src|href)="([^#"]+)"', html), ["/dashboard.css", "/dashboard.js"])
        self.assertNotRegex(html, r"<script>|<style|\son\w+=|style=")
        scripts = self.scripts()
        self.assertEqual(len(scripts), 9)
        for script in scripts.values():
            self.assertNotRegex(script, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
        for page in (*pages.values(), *scripts.values()):
            self.assertEqual(set(re.findall(r"https?://[^\s\"']+", page)), set(re.findall(r"http://www\.w3\.org/2000/svg", page)))
        self.assertEqual(self.ask("/dashboard/other.js")[0], 404)

    def test_another_name_gets_no_page(self):
        self.assertEqual(self.ask("/", fields={"Host": "evil.example"})[0], 421)

    def test_the_script_uses_paths_that_exist(self):
        script = "\n".join(self.scripts().values())
        paths = set(self.get("/api/v1/openapi.json")["paths"])
        pattern = re.compile(r"[\"`](/(?:api|readyz)[^\"`?]*)")
        used = {re.sub(r"\$\{[^}]*\}", "*", path) for path in pattern.findall(script)}
        self.assertGreater(len(used), 8, used)
        for path in used:
            known = re.escape(path).replace(r"\*", "[^/]+")
            self.assertTrue(any(re.fullmatch(known, each) for each in paths), path)

if __name__ == "__main__":
    unittest.main()
