"""The HTTP API of a real server, with Python's http.client, curl and raw bytes.

    Tokens      who may do what; tokens are revoked and expire while the server runs
    Reading     what the API shows is what the command line shows
    Acts        what the API does to the queue, and that the log says who did it
    Slow        requests whose answers take long, and those beside them
    Hostile     requests that are too large, slow, half, pipelined, of another type, or for other names
    Settings    where a listener of the API may be
"""

import http.client
import json
import re
import socket
import subprocess
import threading
import time
import unittest

from harness import WAIT_SECONDS_MAX, await_that
from outbound import OutboundCase, await_event, mail_events, metrics, text_message
from peers.certificate import certificate
from peers.mailrace import certificate_section, listener, route
from retrieval import ReaderConnection

JSON = {"Content-Type": "application/json"}
# What this server does not do.
UNCONFIGURED = ("/api/v1/cluster/", "/api/v1/acme", "/api/v1/reports")
ACTS = ("hold", "release", "retry", "remove", "bounce")
# What an act answers that is done to one recipient.
_ONE = {"recipients": 1, "in_attempt": 0}
# The types of JSON Schema.
KINDS = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, (str, bytes)),  # bytes: text that is not JSON
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_FAMILY = re.compile(r"# (HELP|TYPE) (\S+) (.*)")
_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)')


def run(server, *words, code=0):
    """What a command prints."""
    argv = [str(server.binary), *map(str, words), "--config", str(server.config)]
    done = subprocess.run(argv, cwd=server.folder, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
    if done.returncode != code:
        raise AssertionError(f"{argv[1:]}: {done.returncode}: {done.stderr}")
    return done.stdout


class ApiCase(OutboundCase):
    """A server with a listener of the API, and with two messages that wait: their next hop has replied
    450.
    """

    API = ""

    def setUp(self):
        super().setUp()
        self.hop = self.host(script={"RCPT": "450 4.2.1 later"})
        hop = f"[127.0.0.1]:{self.hop.port}"
        routes = route("one.test", hop) + route("two.test", hop)
        extra = routes + listener("http", "api = true") + f"\n[api]\n{self.API}\n"
        self.server = self.start(extra=extra, retry='first = "1h", jitter = 0.0')
        self.port = self.server.all_ports["http"][0]
        self.reader = self.token("read", "reader")
        self.operator = self.token("operate", "boss")

    def token(self, role, name, *options):
        """A new token: the last line of what the command prints."""
        return run(self.server, "token", "create", "--role", role, "--name", name, *options).splitlines()[-1]

    def ask(self, path, token=None, method="GET", content=None, fields=None):
        """The status, the fields and the content of a response, which is JSON if its type says so."""
        fields = dict(fields or {})
        if token:
            fields["Authorization"] = f"Bearer {token}"
        if content is not None and not isinstance(content, (str, bytes)):
            content, fields = json.dumps(content), JSON | fields
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS_MAX)
        try:
            connection.request(method, path, content, fields)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        return answer.status, answer.headers, json.loads(body) if body and "json" in answer.headers["Content-Type"] else body

    def get(self, path, token=None):
        """The content of a successful response."""
        status, _, body = self.ask(path, token or self.reader)
        self.assertEqual(status, 200, body)
        return body

    def post(self, path, content, token=None, status=200):
        """The content of the response to an act."""
        found, _, body = self.ask(path, token or self.operator, "POST", content)
        self.assertEqual(found, status, body)
        return body

    def defer_two(self):
        """Two messages that wait for a second attempt; returns the queue id of the first."""
        first = self.send(self.server, "bob@one.test")
        self.send(self.server, "carol@two.test")
        await_that(lambda: len(mail_events(self.server, "deferred")) == 2, "two deferred", self.server)
        return first

    def connect(self):
        """A connection for raw bytes."""
        connection = ReaderConnection(self.port)
        self.addCleanup(connection.close)
        return connection


class Tokens(ApiCase):
    def test_only_health_and_the_document_need_no_token(self):
        for path in ("/healthz", "/readyz", "/api/v1/openapi.json"):
            self.assertEqual(self.ask(path)[0], 200, path)
        for path in ("/metrics", "/api/v1/status", "/api/v1/recipients", "/api/v1/tables"):
            status, fields, problem = self.ask(path)
            self.assertEqual((status, fields["WWW-Authenticate"]), (401, 'Bearer realm="mailrace"'), path)
            self.assertEqual((fields["Content-Type"], problem["status"]), ("application/problem+json", 401))
            self.assertEqual(self.ask(path, self.reader)[0], 200, path)

    def test_a_reader_reads_no_mail_and_changes_nothing(self):
        kept = self.defer_two()
        self.assertEqual(self.ask(f"/api/v1/messages/{kept}", self.reader)[0], 200)
        self.assertEqual(self.ask(f"/api/v1/messages/{kept}/content", self.reader)[0], 403)
        document = self.get("/api/v1/openapi.json")
        for path, operations in document["paths"].items():
            if "post" in operations:
                path = path.replace("{queue}", "standard").replace("{table}", "everyone")
                self.assertEqual(self.ask(path, self.reader, "POST", {"all": True})[0], 403, path)
        self.assertEqual(self.server.queued(), 2)

    def test_a_token_is_accepted_and_refused_at_once(self):
        token = self.token("read", "guest")
        self.assertEqual(self.ask("/metrics", token)[0], 200)
        self.assertIn("guest", run(self.server, "token", "list"))
        self.assertNotIn(token, run(self.server, "token", "list", "--json"))
        run(self.server, "token", "create", "--role", "read", "--name", "guest", code=64)
        run(self.server, "token", "revoke", "guest")
        self.assertEqual(self.ask("/metrics", token)[0], 401)
        run(self.server, "token", "revoke", "guest", code=1)
        self.assertEqual(self.ask("/metrics", self.reader)[0], 200)

    def test_a_token_expires(self):
        token = self.token("read", "short", "--expires", "1s")
        await_that(lambda: self.ask("/metrics", token)[0] == 401, "the end of the token", self.server)

    def test_guesses_are_throttled_and_logged_and_lock_out_nobody(self):
        self.assertEqual(self.ask("/metrics", self.reader)[0], 200)
        guesses = [self.ask("/metrics", f"mailrace_{number:012x}_{'x' * 43}")[0] for number in range(20)]
        self.assertEqual(set(guesses), {401, 429})
        self.assertEqual(self.ask("/metrics", self.reader)[0], 200)
        refused = await_event(self.server, "login", result="refused")
        self.assertEqual((refused.mechanism, refused.client), ("TOKEN", "127.0.0.1"))

    def test_a_file_of_tokens_that_is_damaged_lets_nobody_in(self):
        (self.server.data / "api-tokens.json").write_text("[{")
        self.assertEqual(self.ask("/metrics", self.reader)[0], 503)
        self.assertEqual(self.ask("/healthz")[0], 200)


class Reading(ApiCase):
    API = 'page = 2\nhosts = ["bench.test"]'

    def test_metrics_are_those_of_status_as_openmetrics(self):
        text = self.get("/metrics").decode()
        self.assertTrue(text.endswith("\n# EOF\n"))
        types, samples = {}, {}
        for line in text.splitlines()[:-1]:
            if said := _FAMILY.fullmatch(line):
                if said[1] == "TYPE":
                    self.assertNotIn(said[2], types)
                    types[said[2]] = said[3]
                continue
            name, labels, value = _SAMPLE.fullmatch(line).groups()
            samples[name + (labels or "")] = float(value)
            family = re.sub(r"_(total|bucket|sum|count)$", "", name)
            kind = types.get(name) or types[family]
            self.assertEqual(name.endswith("_total"), kind == "counter", line)
        self.assertEqual(set(samples), set(metrics(self.server)))

    def test_a_list_says_how_many_messages_it_lacks_because_they_cannot_be_read(self):
        # A message of this size has a file of its own.
        damaged = self.send(self.server, "bob@one.test", message=text_message(body="0123456789\r\n" * 200_000))
        await_event(self.server, "deferred", to="<bob@one.test>")
        [body] = (self.server.data / "spool").rglob("body-*")
        body.unlink()
        page = self.get("/api/v1/recipients")
        self.assertEqual((page["recipients"], page["unreadable"], page["next"]), ([], 1, None))
        self.assertIn(f"unreadable=1 id={damaged} ", self.server.log_tail(1000))

    def test_lists_come_in_pages(self):
        self.defer_two()
        self.send(self.server, "bob@one.test", "eve@one.test", "joe@one.test")
        await_that(lambda: self.server.queued() == 5, "five recipients", self.server)
        found, cursor, pages = [], "", 0
        while cursor is not None:
            page = self.get(f"/api/v1/recipients?limit=100{cursor and '&cursor=' + cursor}")
            self.assertLessEqual(len(page["recipients"]), 2)
            found += page["recipients"]
            cursor, pages = page["next"], pages + 1
        rows = [json.loads(line) for line in run(self.server, "queue", "list", "--json").splitlines()]
        ordered = sorted((row["id"], row["recipient"]) for row in found)
        self.assertEqual(ordered, sorted((row["id"], row["recipient"]) for row in rows))
        self.assertGreaterEqual(pages, 3)

    def test_filters_are_those_of_queue_list(self):
        kept = self.defer_two()
        for filters, count in [
            ("sender=alice%40bench.test", 2),
            ("recipient=@two.test", 1),
            ("destination=one*", 1),
            ("state=waiting", 2),
            ("state=held,ready", 0),
            ("error=4.2.1+later", 2),
            (f"id={kept}", 1),
            ("older_than=1d", 0),
            ("larger_than=1B&queue=standard", 2),
        ]:
            self.assertEqual(len(self.get(f"/api/v1/recipients?{filters}")["recipients"]), count, filters)
        for filters in ("sendr=a", "sender=", "state=done", "limit=x", "cursor=x", "limit=1&limit=2", "sender=%zz"):
            self.assertEqual(self.ask(f"/api/v1/recipients?{filters}", self.reader)[0], 400, filters)
        self.assertEqual(self.ask("/api/v1/recipients?queue=none", self.reader)[0], 422)

    def test_a_message_is_shown_with_its_content(self):
        kept = self.defer_two()
        shown = self.get(f"/api/v1/messages/{kept}")
        self.assertEqual((shown["message"]["id"], shown["message"]["sender"]), (kept, "alice@bench.test"))
        [recipient] = shown["recipients"]
        self.assertEqual((recipient["recipient"], recipient["state"]), ("bob@one.test", "waiting"))
        printed = subprocess.run(
            [str(self.server.binary), "queue", "show", "--message", kept, "--config", str(self.server.config)],
            capture_output=True, timeout=WAIT_SECONDS_MAX, check=True,
        ).stdout  # fmt: skip
        path = f"/api/v1/messages/{kept}/content"
        status, fields, content = self.ask(path, self.operator)
        self.assertEqual((status, fields["Content-Type"], content), (200, "message/rfc822", printed))
        status, _, part = self.ask(path, self.operator, fields={"Range": "bytes=5-9"})
        self.assertEqual((status, part), (206, printed[5:10]))
        status, fields, content = self.ask(path, self.operator, "HEAD")
        self.assertEqual((status, int(fields["Content-Length"]), content), (200, len(printed), b""))
        for missing in ("7-0-1", "x", "..%2f..%2fetc%2fpasswd"):
            self.assertEqual(self.ask(f"/api/v1/messages/{missing}/content", self.operator)[0], 404, missing)

    def test_a_large_message_is_sent_while_it_leaves_the_queue(self):
        text = ("x" * 998 + "\r\n") * 3000
        kept = self.send(self.server, "bob@one.test", message=f"Subject: large\r\n\r\n{text}".encode())
        await_event(self.server, "deferred", id=kept)
        connection = self.connect()
        head = f"GET /api/v1/messages/{kept}/content HTTP/1.1\r\nHost: localhost\r\n"
        connection.write(f"{head}Authorization: Bearer {self.operator}\r\n\r\n".encode())
        status, fields = connection.response_head()
        self.assertEqual(status, 200)
        self.post("/api/v1/recipients/remove", {"all": True})
        await_event(self.server, "removed")
        content = connection.read(int(fields["Content-Length"]))
        self.assertEqual(len(content), int(fields["Content-Length"]))
        self.assertTrue(content.endswith(text.encode()), content[-100:])

    def test_queues_next_hops_tables_and_limits_are_shown(self):
        self.defer_two()
        [standard] = [row for row in self.get("/api/v1/queues")["queues"] if row["queue"] == "standard"]
        self.assertEqual((standard["waiting"], standard["held"], standard["paused"]), (2, 0, False))
        [hop] = self.get("/api/v1/next-hops")["next_hops"]
        self.assertIn(str(self.hop.port), hop["next_hop"])
        self.assertEqual(self.get(f"/api/v1/next-hops?cursor={hop['next_hop']}"), {"next_hops": [], "next": None})
        tables = self.get("/api/v1/tables")["tables"]
        self.assertIn("table", tables[0])
        name = tables[0]["table"]
        found = self.get(f"/api/v1/tables/{name}/lookup?key=bob@bench.test", self.operator)
        self.assertIn("found", found["answer"])
        self.assertEqual(self.get(f"/api/v1/tables/{name}/lookup?key=nobody", self.operator)["answer"], "not-found")
        self.assertEqual(self.ask("/api/v1/tables/none/lookup?key=x", self.operator)[0], 404)
        self.assertEqual(self.ask(f"/api/v1/tables/{name}/lookup", self.operator)[0], 400)
        # Its values may be hashes of passwords.
        self.assertEqual(self.ask(f"/api/v1/tables/{name}/lookup?key=bob@bench.test", self.reader)[0], 403)
        limits = self.get("/api/v1/limits")
        self.assertIn("load average", [gauge["gauge"] for gauge in limits["gauges"]])
        self.assertIn("load average", run(self.server, "load"))
        status = self.get("/api/v1/status")
        self.assertEqual(set(status), {"version", "adapts", "certificates", "metrics"})
        self.assertEqual(status["certificates"], [])
        self.assertEqual(set(status["metrics"]), set(metrics(self.server)))

    def test_next_hops_and_destinations_have_an_order(self):
        self.defer_two()
        self.send(self.server, "eve@one.test")
        await_that(lambda: self.server.queued() == 3, "three recipients", self.server)
        largest = self.get("/api/v1/destinations?order=recipients")["destinations"]
        self.assertEqual([(row["destination"], row["recipients"]) for row in largest], [("one.test", 2), ("two.test", 1)])
        self.assertIn(str(self.hop.port), largest[0]["next_hop"])
        first = self.get("/api/v1/destinations?limit=1")
        self.assertEqual([row["destination"] for row in first["destinations"]], ["one.test"])
        second = self.get(f"/api/v1/destinations?limit=1&cursor={first['next'].replace(' ', '%20')}")
        self.assertEqual([row["destination"] for row in second["destinations"]], ["two.test"])
        [hop] = self.get("/api/v1/next-hops?order=trouble")["next_hops"]
        self.assertIn(str(self.hop.port), hop["next_hop"])
        for path in ("destinations?order=recipients&cursor=x%20y", "destinations?cursor=x", "next-hops?order=trouble&cursor=x",
                     "next-hops?order=size", "history?span=year"):  # fmt: skip
            self.assertEqual(self.ask(f"/api/v1/{path}", self.reader)[0], 400, path)

    def test_an_explanation_is_that_of_the_command(self):
        kept = self.defer_two()
        found = self.get("/api/v1/explanation?address=bob@one.test&client=192.0.2.1")
        printed = run(self.server, "explain", "bob@one.test", "--client", "192.0.2.1")
        [recipient] = found["recipients"]
        route = recipient["route"]
        self.assertEqual((found["directory"], route["kind"], recipient["queue"]["rule"]["kind"]),
                         ({"kind": "remote"}, "hosts", "default"))  # fmt: skip
        self.assertIn(f"route: to {route['next_hop']}, transport {route['transport']}", printed)
        self.assertIn(f"1. {route['hosts'][0]['name']}: {route['hosts'][0]['endpoints'][0]}", printed)
        self.assertEqual(found["access"]["stages"], [])
        self.assertIn("access: no rules", printed)
        self.assertEqual(found["access"]["relaying"], {"client": "192.0.2.1", "refusal": "550 5.7.1"})
        self.assertIn("may not relay without login: 550 5.7.1 at RCPT", printed)
        for query in ("", "?address=x", "?address=bob@one.test&helo=x", "?address=bob@one.test&x=y"):
            self.assertEqual(self.ask(f"/api/v1/explanation{query}", self.reader)[0], 400, query)

    def test_an_explanation_of_a_message_has_states_and_obstacles_by_kind(self):
        kept = self.defer_two()
        self.post("/api/v1/pause", {"target": {"destination": "one.test"}})
        found = self.get(f"/api/v1/messages/{kept}/explanation")
        [recipient] = found["recipients"]
        self.assertEqual((recipient["recipient"], recipient["state"], recipient["attempts"]), ("bob@one.test", "waiting", 1))
        self.assertGreater(recipient["due"]["in_ms"], 0)
        [destination] = found["destinations"]
        self.assertIn({"kind": "destination-paused", "until": None}, destination["obstacles"])
        printed = run(self.server, "explain", kept)
        self.assertIn(f"waiting for its next attempt at {recipient['due']['at'][:13]}", printed)
        self.assertIn("waits: the destination is paused until it is resumed", printed)

    def test_an_address_is_verified_by_readers(self):
        found = self.get("/api/v1/verify?address=bob@one.test")
        self.assertEqual(found["verdict"], "deliverable")
        self.assertIn("bob@one.test: to ", found["why"])
        self.assertEqual(self.ask("/api/v1/verify?address=bob@one.test")[0], 401)
        self.assertEqual(self.ask("/api/v1/verify?address=bob@one.test", self.operator)[0], 200)
        for query in ("", "?address=x", "?address=bob@one.test&x=y"):
            self.assertEqual(self.ask(f"/api/v1/verify{query}", self.reader)[0], 400, query)

    def test_the_document_describes_every_answer_that_is_seen_here(self):
        self.defer_two()
        document = self.get("/api/v1/openapi.json")
        self.assertEqual(document["openapi"], "3.1.0")
        for path, operations in document["paths"].items():
            operation = operations.get("get")
            if operation is None or "{" in path or any(parameter["required"] for parameter in operation["parameters"]):
                continue
            [(kind, content)] = operation["responses"]["200"]["content"].items()
            if kind == "text/event-stream":
                continue
            status, fields, answer = self.ask(path, self.operator)
            if path.startswith(UNCONFIGURED):
                [(kind, content)] = operation["responses"]["422"]["content"].items()
                self.assertEqual(status, 422, path)
            else:
                self.assertEqual(status, 200, path)
            self.assertEqual(fields["Content-Type"], kind, path)
            self.check(document, content["schema"], answer, path)

    def check(self, document, schema, value, where):
        """Checks a value against a schema, as far as the document uses them."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.check(document, document["components"]["schemas"][name], value, f"{where} {name}")
        if "allOf" in schema:
            return [self.check(document, part, value, where) for part in schema["allOf"]]
        if choices := schema.get("oneOf") or schema.get("anyOf"):
            return self.check_choice(document, choices, value, where)
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        # Without a type, everything is allowed.
        self.assertTrue(not kinds or any(KINDS[kind](value) for kind in kinds), f"{where}: {value!r} is none of {kinds}")
        self.assertIn(value, schema.get("enum", [value]), where)
        if "object" in kinds and isinstance(value, dict):
            self.assertLessEqual(set(schema.get("required", [])), set(value), where)
            for name, member in schema.get("properties", {}).items():
                if name in value:
                    self.check(document, member, value[name], f"{where}.{name}")
        elif "array" in kinds and isinstance(value, list):
            for element in value:
                self.check(document, schema["items"], element, where)
        return None

    def check_choice(self, document, choices, value, where):
        """Checks that a value fits one of several schemas."""
        failures = []
        for schema in choices:
            try:
                return self.check(document, schema, value, where)
            except AssertionError as failure:
                failures.append(str(failure))
        return self.fail(f"{where}: {value!r} fits none of the choices: {failures}")


class Acts(ApiCase):
    def test_recipients_are_held_released_and_removed(self):
        self.defer_two()
        one = {"filter": {"destination": "one.test"}}
        self.assertEqual(self.post("/api/v1/recipients/hold", one | {"dry_run": True}), _ONE)
        self.assertEqual(self.post("/api/v1/recipients/hold", one), _ONE)
        await_event(self.server, "held", to="<bob@one.test>")
        held = "/api/v1/recipients?state=held"
        await_that(lambda: len(self.get(held)["recipients"]) == 1, "one held", self.server)
        self.hop.script.clear()
        self.assertEqual(self.post("/api/v1/recipients/release", {"all": True}), _ONE)
        self.await_messages(self.hop, 1, self.server)
        self.assertEqual(self.post("/api/v1/recipients/remove", {"filter": {"recipient": "carol@two.test"}}), _ONE)
        await_that(lambda: self.server.queued() == 0, "an empty queue", self.server)

    def test_recipients_are_retried_and_bounced(self):
        self.defer_two()
        self.hop.script.clear()
        self.assertEqual(self.post("/api/v1/recipients/retry", {"filter": {"destination": "one.test"}}), _ONE)
        # The next hop has the message before the queue knows it.
        await_that(lambda: self.server.queued() == 1, "one recipient", self.server)
        self.assertEqual(self.post("/api/v1/recipients/bounce", {"all": True}), _ONE)
        await_event(self.server, "bounced", to="<carol@two.test>")

    def test_an_act_says_how_many_recipients_it_leaves_out_in_an_attempt(self):
        self.defer_two()
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        self.hop.script["RCPT"] = lambda *_: go_on.wait(WAIT_SECONDS_MAX) and "450 4.2.1 later"
        self.post("/api/v1/recipients/retry", {"filter": {"destination": "one.test"}})
        await_that(lambda: self.get("/api/v1/recipients?state=in-flight")["recipients"], "an attempt", self.server)
        self.assertEqual(self.post("/api/v1/recipients/hold", {"all": True}), {"recipients": 1, "in_attempt": 1})
        self.assertEqual(
            run(self.server, "queue", "remove", "--destination", "one.test").splitlines(),
            ["0 recipients to be removed", "1 recipient left out: in an attempt"],
        )

    def test_every_act_is_logged_with_its_owner_and_its_result(self):
        self.defer_two()
        self.post("/api/v1/recipients/hold", {"all": True})
        self.post("/api/v1/queues/none/pause", {}, status=404)
        run(self.server, "queue", "retry", "--all")
        acts = await_that(lambda: len(found := self.acts()) >= 3 and found, "three acts in the log", self.server)
        self.assertEqual([act.by for act in acts[:2]], ["token boss from 127.0.0.1"] * 2)
        self.assertEqual([act.result for act in acts[:2]][0], "2 recipients")
        self.assertTrue(acts[1].result.startswith("failed: no such queue"), acts[1])
        self.assertTrue(acts[0].order.startswith("hold "), acts[0])
        self.assertRegex(acts[2].by, r"^uid \d+$")

    def acts(self):
        """The logged acts, without those that set up the test."""
        acts = mail_events(self.server, "info", message="operator action")
        return [act for act in acts if not act.order.startswith("token-created")]

    def test_the_log_has_tokens_and_those_who_read_mail(self):
        first = self.defer_two()
        self.assertIn(b"bob@one.test", self.get(f"/api/v1/messages/{first}/content", self.operator))
        self.ask(f"/api/v1/messages/{first}/content", self.reader)
        run(self.server, "queue", "show", first, "--message")
        run(self.server, "token", "revoke", "reader")
        acts = await_that(lambda: len(found := self.acts()) >= 3 and found, "three acts in the log", self.server)
        self.assertEqual([act.order.split()[0] for act in acts], ["content", "content", "token-revoked"])
        self.assertTrue(first in acts[0].order and acts[0].by.startswith("token boss "), acts[0])
        self.assertRegex(acts[1].by + acts[2].by, r"^uid \d+uid \d+$")
        created = mail_events(self.server, "info", message="operator action")[:2]
        self.assertEqual([json.loads(act.order.partition(" ")[2]) for act in created],
                         [{"name": "reader", "role": "read"}, {"name": "boss", "role": "operate"}])  # fmt: skip

    def test_without_a_filter_nothing_is_selected(self):
        self.defer_two()
        for act in ACTS:
            path = f"/api/v1/recipients/{act}"
            for content, status in [
                ({}, 422),
                ({"filter": {}}, 422),
                ({"all": True, "filter": {"queue": "standard"}}, 422),
                ({"filter": []}, 400),
                ({"filter": {"sendr": "x"}}, 400),
                ({"filter": {"sender": None}}, 400),
                ({"filter": {"queue": "standard"}, "dryrun": True}, 400),
                ([], 400),
                ("", 400),
                ("{", 400),
            ]:
                fields = JSON if isinstance(content, str) else {}
                found, _, problem = self.ask(path, self.operator, "POST", content, fields)
                self.assertEqual(found, status, (act, content, problem))
                self.assertTrue(problem["detail"], problem)
        self.assertEqual(self.server.queued(), 2)

    def test_a_queue_is_paused_and_resumed(self):
        def is_paused():
            return {row["queue"]: row["paused"] for row in self.get("/api/v1/queues")["queues"]}["standard"]

        for content in ({"all": True}, [], 1):
            self.assertEqual(self.post("/api/v1/queues/standard/pause", content, status=400)["status"], 400)
        self.assertEqual(self.post("/api/v1/queues/standard/pause", {}), {"done": True})
        self.assertTrue(is_paused())
        self.post("/api/v1/queues/standard/resume", {})
        self.assertFalse(is_paused())

    def test_a_reload_takes_effect_or_says_why_not(self):
        found = self.post("/api/v1/reload", {})
        self.assertEqual((found["source"], found["changes"]), (str(self.server.config), ["nothing has changed"]))
        text = self.server.config.read_text()
        self.server.config.write_text(text.replace("[api]\n", "[api]\npage = 1\n"))
        self.post("/api/v1/reload", {})
        self.defer_two()
        self.assertEqual(len(self.get("/api/v1/recipients?limit=10")["recipients"]), 1)
        self.server.config.write_text(text.replace("[api]\n", "[api]\nx = 1\n"))
        self.assertIn("x", self.post("/api/v1/reload", {}, status=422)["detail"])
        self.assertEqual(self.post("/api/v1/tables/none/accept-removals", {}, status=404)["status"], 404)


class Slow(ApiCase):
    """A table in a directory that accepts connections, and says nothing."""

    def setUp(self):
        self.directory = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.directory.close)
        url = f"ldap://127.0.0.1:{self.directory.getsockname()[1]}"
        self.API = f'''
[[table]]
name = "silent"
type = "ldap"
url = "{url}"
base = "dc=bench,dc=test"
filter = "(mail={{key}})"
result = "mail"
connect_timeout = "5m"
timeout = "5m"
wait = "5m"
'''
        super().setUp()

    def test_slow_requests_delay_neither_health_nor_metrics_and_further_ones_are_refused_after_a_time(self):
        self.directory.settimeout(WAIT_SECONDS_MAX)
        fields = f"Host: localhost\r\nAuthorization: Bearer {self.operator}\r\n\r\n"
        lookups = [self.connect() for _ in range(6)]
        for number, connection in enumerate(lookups):
            connection.write(f"GET /api/v1/tables/silent/lookup?key={number} HTTP/1.1\r\n{fields}".encode())
        accepted, _ = self.directory.accept()
        self.addCleanup(accepted.close)
        begin = time.monotonic()
        for path in ("/healthz", "/readyz", "/", "/dashboard.js", "/dashboard/acts.js", "/api/v1/openapi.json", "/metrics") * 2:
            self.assertEqual(self.ask(path, self.reader)[0], 200, path)
        self.assertLess(time.monotonic() - begin, WAIT_SECONDS_MAX, "the directory is awaited for minutes")
        status, fields, problem = self.ask("/api/v1/queues", self.reader)
        self.assertEqual((status, fields["Retry-After"]), (503, "60"), problem)
        self.assertIn("busy with other requests", problem["detail"])


class Hostile(ApiCase):
    API = 'hosts = ["mail.example.org"]\nconnections = 20'

    def test_an_act_needs_json(self):
        self.defer_two()
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            fields = {"Content-Type": kind} if kind else {}
            status, _, _ = self.ask("/api/v1/recipients/remove", self.operator, "POST", b'{"all": true}', fields)
            self.assertEqual(status, 415, kind)
        kind = {"Content-Type": "Application/JSON; charset=utf-8"}
        status, _, _ = self.ask("/api/v1/recipients/hold", self.operator, "POST", b'{"all": true}', kind)
        self.assertEqual(status, 200)

    def test_the_server_answers_for_its_own_names_only(self):
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "mx.bench.test.evil.example"):
            for path in ("/healthz", "/metrics", "/none"):
                self.assertEqual(self.ask(path, self.operator, fields={"Host": host})[0], 421, host)
        for host in ("mx.bench.test", "MAIL.example.org:1", "localhost", "[::1]:8025", "192.0.2.1"):
            self.assertEqual(self.ask("/metrics", self.operator, fields={"Host": host})[0], 200, host)

    def test_no_page_of_another_site_may_read_or_frame_an_answer(self):
        origin = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        for method, path, status in [("OPTIONS", "/api/v1/recipients/hold", 204), ("GET", "/api/v1/queues", 200)]:
            found, fields, _ = self.ask(path, self.operator, method, fields=origin)
            self.assertEqual(found, status)
            self.assertEqual([name for name in fields if name.lower().startswith("access-control")], [])
            self.assertEqual((fields["X-Frame-Options"], fields["Cache-Control"]), ("DENY", "no-store"))
            self.assertIn("frame-ancestors 'none'", fields["Content-Security-Policy"])

    def test_methods_and_paths_are_exact(self):
        for method, path, status in [
            ("POST", "/metrics", 405),
            ("GET", "/api/v1/recipients/hold", 405),
            ("PUT", "/api/v1/recipients/hold", 405),
            ("DELETE", "/api/v1/messages/x", 405),
            ("GET", "/index.html", 404),
            ("GET", "/api/v1/queues/", 404),
            ("GET", "/api/v2/queues", 404),
            ("GET", "/../../etc/passwd", 400),
            ("GET", "/api/v1/%2e%2e/%2e%2e/metrics", 200),
            ("GET", "/api/v1/%00", 400),
            ("GET", "/api/v1/queues?x=y", 400),
            ("PUT", "/api/v1/none", 404),
            ("OPTIONS", "/api/v1/none", 404),
        ]:
            found, fields, problem = self.ask(path, self.operator, method)
            self.assertEqual(found, status, (method, path, problem))
            if status == 405:
                is_act = path.startswith("/api/v1/recipients/")
                self.assertEqual(fields["Allow"], "POST, OPTIONS" if is_act else "GET, HEAD, OPTIONS", (method, path))
            if status >= 400:
                self.assertEqual(fields["Content-Type"], "application/problem+json", (method, path))

    def test_header_fields_cannot_be_put_into_an_answer(self):
        for path in (
            "/api/v1/messages/x%0d%0aX-Evil:%20y/content",
            "/api/v1/recipients?sendr%0d%0aX-Evil:%20y=1",
            "/api/v1/tables/x%22%0a/lookup?key=%0d%0aX-Evil:%20y",
        ):
            _, fields, _ = self.ask(path, self.operator)
            self.assertNotIn("X-Evil", fields)
        self.post("/api/v1/recipients/hold", {"filter": {"queue": "x\r\ninfo message=forged"}}, status=422)
        self.assertEqual(mail_events(self.server, "info", message="forged"), [])

    def test_an_oversized_request_is_refused_and_the_connection_closed(self):
        head = f"POST /api/v1/recipients/hold HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.operator}\r\n"
        for rest, status in [
            ("Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n", 413),
            ("Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + "ffff\r\n" + "x" * 0xFFFF + "\r\n8\r\n12345678\r\n", 413),
            ("X: " + "y" * 20_000 + "\r\n\r\n", 431),
            ("Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
            ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("Authorization: Bearer x\r\n\r\n", 400),
        ]:  # fmt: skip
            connection = self.connect()
            connection.write((head + rest).encode())
            self.assertEqual(connection.response()[0], status, rest[:60])
            self.assertEqual(connection.rest(), b"", rest[:60])
        self.assertEqual(self.ask("/healthz")[0], 200)

    def test_pipelined_requests_are_answered_in_order(self):
        self.defer_two()
        fields = f"Host: localhost\r\nAuthorization: Bearer {self.operator}\r\n"
        body = '{"all": true, "dry_run": true}'
        act = f"POST /api/v1/recipients/hold HTTP/1.1\r\n{fields}Content-Type: application/json\r\n"
        requests = [
            f"GET /healthz HTTP/1.1\r\n{fields}\r\n",
            f"{act}Content-Length: {len(body)}\r\n\r\n{body}",
            f"{act}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n",
            f"GET /none HTTP/1.1\r\n{fields}\r\n",
        ]
        connection = self.connect()
        connection.write("".join(requests).encode())
        answers = [connection.response() for _ in requests]
        self.assertEqual([status for status, _, _ in answers], [200, 200, 200, 404])
        self.assertEqual([json.loads(body) for _, _, body in answers[1:3]], [_ONE | {"recipients": 2}] * 2)

    def test_clients_that_say_nothing_or_stop_halfway_are_disconnected_and_stop_nobody(self):
        text = self.server.config.read_text()
        self.server.config.write_text(text + '\n[http]\nhead_time = "3s"\n')
        self.post("/api/v1/reload", {})
        begin = time.monotonic()
        silent = [self.connect() for _ in range(10)]
        half = self.connect()
        half.write(b"GET /healthz HTT")
        self.assertEqual(self.ask("/healthz")[0], 200)
        for connection in silent:
            connection.rest()
        self.assertIn(b"408", half.rest())
        self.assertLess(time.monotonic() - begin, WAIT_SECONDS_MAX, "the default")

    def test_more_connections_than_allowed_are_refused(self):
        open_ones = [self.connect() for _ in range(20)]
        for connection in open_ones:
            connection.get("/healthz", fields="")
            self.assertEqual(connection.response_head()[0], 421)  # bench.test is no name of the server
        last = self.connect()
        self.assertIn(b"503", last.rest())
        open_ones[0].close()
        await_that(lambda: self.ask("/healthz")[0] == 200, "a free connection", self.server)


class Settings(OutboundCase):
    def check(self, text):
        """What `mailrace check` says about a configuration with this listener."""
        server = self.configure(extra=text)
        argv = [str(server.binary), "check", "--config", str(server.config)]
        done = subprocess.run(argv, cwd=server.folder, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
        return done.returncode, done.stdout + done.stderr

    def test_other_hosts_reach_the_api_only_by_tls(self):
        open_listener = listener("http", "api = true").replace("127.0.0.1", "0.0.0.0")
        code, said = self.check(open_listener)
        self.assertEqual(code, 78, said)
        self.assertIn("needs TLS on addresses that other hosts can reach", said)
        chain, key = certificate(self.folder)
        secure = open_listener + 'tls = "implicit"\n' + certificate_section(chain, key)
        self.assertEqual(self.check(secure)[0], 0)

    def test_a_listener_of_the_api_serves_nothing_else(self):
        for line in ('files = "/srv"', "mailboxes = true", "auth = true", 'realm = "x"'):
            code, said = self.check(listener("http", "api = true", line))
            self.assertEqual(code, 78, said)
            self.assertIn("expected only without `api`", said)

    def test_the_api_is_served_over_tls(self):
        chain, key = certificate(self.folder)
        tls = listener("http", "api = true", 'tls = "implicit"') + certificate_section(chain, key)
        server = self.start(extra=tls)
        token = run(server, "token", "create", "--role", "read").splitlines()[-1]
        url = f"https://127.0.0.1:{server.all_ports['http'][0]}/metrics"
        options = ["--silent", "--show-error", "--insecure", "--noproxy", "*", "--fail"]
        argv = ["curl", *options, "--header", f"Authorization: Bearer {token}", url]
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
        self.assertTrue(answer.stdout.endswith("# EOF\n"), answer.stderr)


if __name__ == "__main__":
    unittest.main()
