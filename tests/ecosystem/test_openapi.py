"""What programs of others make of the API's OpenAPI document: a validator reads it, schemathesis makes requests from it
that may and may not be answered, and a client that is generated from it works the queue. These programs are in a virtual
environment of Python that `bench/peers/install ecosystem` makes.
"""

import json
import pathlib
import re
import subprocess
import unittest

from harness import await_that
from outbound import mail_events
from test_api import ACTS, ApiCase

PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "target/peers/python/bin"
# Requests of each kind for each operation.
EXAMPLES = 25
PROGRAM_SECONDS_MAX = 600
# They end the server, last 15 minutes, or have no document of ours.
LEFT_OUT = ("/api/v1/drain", "/api/v1/events")
# Requests that fit the document may be understood and refused: 422, with the reason. Where parameters are addresses, domains,
# durations, sizes or cursors, or parts of the path, which JSON Schema cannot describe, they may be malformed too.
_ACCEPTED = ["2xx", 401, 403, 404, 422, 503]
_WITH_FORMATS = (
    "/api/v1/explanation", "/api/v1/verify", "/api/v1/recipients", "/api/v1/destinations", "/api/v1/cluster/recipients",
    "/api/v1/cluster/summary", "/api/v1/cluster/explanation", "/api/v1/pause", "/api/v1/redirect",
    "/api/v1/drain", "/api/v1/next-hops", *(f"/api/v1/recipients/{act}" for act in ACTS),
)  # fmt: skip
CONFIGURATION = f"""
[checks]
positive_data_acceptance.expected-statuses = {json.dumps(_ACCEPTED)}
[[operations]]
include-path = {json.dumps(_WITH_FORMATS)}
checks.positive_data_acceptance.expected-statuses = {json.dumps([*_ACCEPTED, 400])}
[[operations]]
include-path-regex = "[{{]"
checks.positive_data_acceptance.expected-statuses = {json.dumps([*_ACCEPTED, 400])}
"""
# Works the queue with nothing but the generated client. Arguments: the address of the API, and an operator's token.
WORK = """
import sys
import time
from mailrace_client import AuthenticatedClient
from mailrace_client.api.default import hold, release, remove, recipients, queues, message
from mailrace_client.models import ActRequest, RecipientFilter, RecipientStateFilter

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2], raise_on_unexpected_status=True)
page = recipients.sync(client=client, state=[RecipientStateFilter.WAITING])
found = {row.recipient: row.id for row in page.recipients}
assert set(found) == {"bob@one.test", "carol@two.test"}, found
assert message.sync(found["bob@one.test"], client=client).message.sender == "alice@bench.test"
one = ActRequest(filter_=RecipientFilter(destination="one.test"))
assert hold.sync(client=client, body=one).recipients == 1
end = time.monotonic() + 20
while not recipients.sync(client=client, state=[RecipientStateFilter.HELD]).recipients:
    assert time.monotonic() < end, "it is not held"
    time.sleep(0.05)
assert release.sync(client=client, body=one).recipients == 1
assert remove.sync(client=client, body=ActRequest(filter_=RecipientFilter(id=[found["carol@two.test"]]))).recipients == 1
refused = remove.sync(client=client, body=ActRequest())
assert refused.status == 422, refused
print(" ".join(sorted(queue.queue for queue in queues.sync(client=client).queues)))
"""


def program(name, *words, cwd, code=0, text=None):
    """What a program prints, given that text; its exit status must be that."""
    argv = [str(PROGRAMS / name), *map(str, words)]
    done = subprocess.run(
        argv, cwd=cwd, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PROGRAM_SECONDS_MAX
    )
    if done.returncode != code:
        raise AssertionError(f"{name}: {done.returncode}\n{done.stdout}")
    return done.stdout


@unittest.skipUnless((PROGRAMS / "schemathesis").exists(), "schemathesis is not installed in target/peers/python")
class OpenApi(ApiCase):
    def setUp(self):
        super().setUp()
        self.defer_two()
        self.document = self.server.folder / "openapi.json"
        self.document.write_text(json.dumps(self.get("/api/v1/openapi.json")))

    def test_the_document_is_valid(self):
        self.assertIn("OK", program("openapi-spec-validator", self.document, cwd=self.server.folder))

    def test_no_request_gets_an_answer_that_is_not_documented(self):
        left_out = [word for path in LEFT_OUT for word in ("--exclude-path", path)]
        configuration = self.server.folder / "schemathesis.toml"
        configuration.write_text(CONFIGURATION)
        found = program(
            "schemathesis", "--config-file", configuration, "run", self.document, "--url", f"http://127.0.0.1:{self.port}", "--header", f"Authorization: Bearer {self.operator}", "--checks", "all", "--continue-on-failure", "--phases",
            "examples,coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", 1, "--workers", 1, "--no-color", *left_out,
            cwd=self.server.folder,
        )  # fmt: skip
        self.assertRegex(found, r"[1-9]\d* passed|No issues found")
        # It is still there.
        self.assertEqual(self.ask("/healthz")[0], 200)

    def test_a_generated_client_works_the_queue(self):
        program(
            "openapi-python-client", "generate", "--path", self.document, "--meta", "none", "--output-path",
            self.server.folder / "mailrace_client", cwd=self.server.folder,
        )  # fmt: skip
        queues = program("python", "-c", WORK, f"http://127.0.0.1:{self.port}", self.operator, cwd=self.server.folder)
        self.assertIn("standard", queues.split())
        await_that(lambda: self.server.queued() == 1, "one recipient", self.server)
        await_that(lambda: mail_events(self.server, "removed"), "the removed recipient", self.server)
        acts = [event.order for event in mail_events(self.server, "info", message="operator action")]
        words = [re.match(r"[\w-]+", order)[0] for order in acts]
        self.assertEqual([word for word in words if word != "token-created"], ["hold", "release", "remove"])


if __name__ == "__main__":
    unittest.main()
