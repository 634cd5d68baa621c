"""Files by HTTP with the programs of others: curl, wrk, and Python's http.client.

    Programs    what each of them asks for: ranges, conditions, logins, TLS, many connections
    Paths       no spelling of a path leads out of the folder
"""

import email
import filecmp
import hashlib
import http.client
import pathlib
import random
import subprocess
import unittest

from harness import WAIT_SECONDS_MAX, Mailrace, folder
from peers.certificate import certificate
from peers.dovecot import PASSWORD
from peers.mailrace import LOGINS, listener
from peers.wrk import Wrk
from retrieval import ReaderConnection

PAGE = b"<!DOCTYPE html>\n<title>page</title>\n<p>Hello.\n"
TEXT = b"".join(b"%03d " % number for number in range(256))
LARGE_OCTETS = 50 << 20
USER = "alice@bench.test"


class FilesCase(unittest.TestCase):
    """Tests that share one server with a listener for each way to serve the same folder."""

    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.place = pathlib.Path(made.name)
        cls.files = cls.place / "www"
        (cls.files / "sub").mkdir(parents=True)
        cls.fill()
        chain, key = certificate(cls.place)
        ways = ["sendfile = true", "sendfile = false", 'tls = "implicit"', "auth = true"]
        listeners = "".join(listener("http", f'files = "{cls.files}"', way) for way in ways)
        extra = listeners + LOGINS + f'\n[[certificate]]\nchain = "{chain}"\nkey = "{key}"\n'
        cls.server = Mailrace(cls.place, users=["alice"], extra=extra)
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()
        cls.clear, cls.copied, cls.secure, cls.private = cls.server.all_ports["http"]

    @classmethod
    def fill(cls):
        """Writes the files."""
        (cls.files / "index.html").write_bytes(PAGE)
        (cls.files / "text").write_bytes(TEXT)

    def run_curl(self, path, *words, port=None, scheme="http"):
        """What curl prints."""
        url = f"{scheme}://127.0.0.1:{port or self.clear}{path}"
        options = ["--silent", "--show-error", "--insecure", "--noproxy", "*", "--globoff", "--path-as-is"]
        done = subprocess.run(["curl", *options, *words, url], capture_output=True, timeout=WAIT_SECONDS_MAX)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def curl(self, path, *words, **named):
        """The status, the fields and the body of what curl gets."""
        head, _, body = self.run_curl(path, "--include", *words, **named).partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


class Programs(FilesCase):
    @classmethod
    def fill(cls):
        super().fill()
        large = random.Random(1).randbytes(LARGE_OCTETS)
        cls.large_sum = hashlib.sha256(large).digest()
        (cls.files / "large").write_bytes(large)

    def test_curl_gets_a_page_and_only_its_head_with_head(self):
        status, fields, body = self.curl("/")
        self.assertEqual((status, body), (200, PAGE))
        self.assertEqual(fields["Content-Type"], "text/html; charset=utf-8")
        status, of_head, body = self.curl("/", "--head")
        self.assertEqual((status, body), (200, b""))
        self.assertEqual(of_head | {"Date": ""}, fields | {"Date": ""})
        self.assertEqual(self.curl("/none")[0], 404)
        self.assertEqual(self.curl("/", "--request", "DELETE")[0], 405)
        status, fields, _ = self.curl("/sub")
        self.assertEqual((status, fields["Location"]), (301, "/sub/"))

    def test_curl_gets_one_range(self):
        octets = len(TEXT)
        ranges = {"0-9": (0, 10), "1000-": (1000, octets), "-7": (octets - 7, octets), "1020-99999": (1020, octets)}
        for asked, (begin, end) in ranges.items():
            status, fields, body = self.curl("/text", "--range", asked)
            self.assertEqual((status, body), (206, TEXT[begin:end]), asked)
            self.assertEqual(fields["Content-Range"], f"bytes {begin}-{end - 1}/{octets}")
        self.assertEqual(self.curl("/text", "--range", f"{octets}-")[0], 416)

    def test_curl_gets_several_ranges(self):
        status, fields, body = self.curl("/text", "--range", "0-3,500-503,-4")
        self.assertEqual((status, len(body)), (206, int(fields["Content-Length"])))
        message = email.message_from_bytes(f"Content-Type: {fields['Content-Type']}\r\n\r\n".encode() + body)
        self.assertEqual(message.get_content_type(), "multipart/byteranges")
        self.assertEqual([part.get_payload() for part in message.get_payload()], ["000 ", "125 ", "255 "])
        ranges = [part["Content-Range"] for part in message.get_payload()]
        self.assertEqual(ranges, [f"bytes {begin}-{begin + 3}/1024" for begin in (0, 500, 1020)])

    def test_curl_continues_a_download(self):
        path = self.place / "continued"
        path.write_bytes((self.files / "large").read_bytes()[:20_000_000])
        self.run_curl("/large", "--continue-at", "-", "--output", str(path))
        self.assertTrue(filecmp.cmp(path, self.files / "large", shallow=False))

    def test_curl_does_not_get_again_what_it_has(self):
        tag = self.place / "tag"
        self.assertEqual(self.curl("/text", "--etag-save", str(tag))[2], TEXT)
        status, fields, body = self.curl("/text", "--etag-compare", str(tag))
        self.assertEqual((status, body), (304, b""))
        self.assertEqual(fields["ETag"], tag.read_text().strip())
        self.assertEqual(self.curl("/text", "--header", 'If-None-Match: "other"')[0], 200)
        # From the field Last-Modified, which curl puts on the file.
        copy = self.place / "copy"
        self.run_curl("/text", "--remote-time", "--output", str(copy))
        self.assertEqual(self.curl("/text", "--time-cond", str(copy))[::2], (304, b""))
        self.assertEqual(self.curl("/text", "--time-cond", "Thu, 01 Jan 1970 00:00:10 GMT")[::2], (200, TEXT))

    def test_curl_logs_in(self):
        status, fields, _ = self.curl("/text", port=self.private)
        self.assertEqual((status, fields["WWW-Authenticate"][:6]), (401, "Basic "))
        self.assertEqual(self.curl("/text", "--user", f"{USER}:wrong", port=self.private)[0], 401)
        found = self.curl("/text", "--user", f"{USER}:{PASSWORD}", port=self.private)
        self.assertEqual(found[::2], (200, TEXT))

    def test_a_large_file_is_the_same_by_every_way(self):
        for port, scheme in ((self.clear, "http"), (self.copied, "http"), (self.secure, "https")):
            with self.subTest(scheme, port=port):
                copy = self.place / "large copy"
                self.run_curl("/large", "--output", str(copy), port=port, scheme=scheme)
                self.assertTrue(filecmp.cmp(copy, self.files / "large", shallow=False))

    def test_wrk_gets_no_error_over_a_hundred_connections(self):
        for page in ("index.html", "text"):
            self.assertGreater(Wrk(page, sessions=100, seconds=1).run(self.clear).count, 100)

    def test_python_gets_files_over_one_connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.clear, timeout=WAIT_SECONDS_MAX)
        self.addCleanup(connection.close)
        connection.connect()
        kept = connection.sock
        for method, path, status, length in (
            ("GET", "/text", 200, len(TEXT)), ("HEAD", "/text", 200, 0), ("GET", "/none", 404, None),
            ("GET", "/large", 200, LARGE_OCTETS), ("GET", "/", 200, len(PAGE)),
        ):  # fmt: skip
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
            self.assertEqual((response.status, len(body) if length is not None else None), (status, length), path)
            self.assertIs(connection.sock, kept, f"the connection ended after {method} {path}")
            if path == "/large":
                self.assertEqual(hashlib.sha256(body).digest(), self.large_sum)

    def test_pipelined_requests_are_answered_in_order(self):
        with ReaderConnection(self.clear) as connection:
            asked = [("GET", "/text"), ("HEAD", "/"), ("GET", "/none"), ("GET", "/large"), ("GET", "/")] * 2
            request = "{} {} HTTP/1.1\r\nHost: bench.test\r\n\r\n"
            connection.write("".join(request.format(*one) for one in asked).encode())
            responses = [connection.response(method) for method, _ in asked]
        self.assertEqual([status for status, _, _ in responses], [200, 200, 404, 200, 200] * 2)
        for text, head, _, large, page in (responses[:5], responses[5:]):
            self.assertEqual((text[2], head[2], page[2]), (TEXT, b"", PAGE))
            self.assertEqual(hashlib.sha256(large[2]).digest(), self.large_sum)


class Paths(FilesCase):
    SECRET = b"not for clients"
    OUT = [
        "/../secret", "/../../../../../../etc/passwd", "/sub/../../secret", "/./../secret", "//../secret",
        "/%2e%2e/secret", "/.%2e/secret", "/%2E./secret", "/..%2fsecret", "/%2e%2e%2Fsecret", "/sub%2f..%2f..%2fsecret",
        "/..%5csecret", "/..\\secret", "/%252e%252e/secret", "/..%c0%afsecret", "/..%00/secret", "/text%00/../../secret",
        "/..;/secret", "/link/secret", "/link/../secret", "/absolute", "/sub/up/secret",
    ]  # fmt: skip

    @classmethod
    def fill(cls):
        super().fill()
        (cls.place / "secret").write_bytes(cls.SECRET)
        (cls.files / "link").symlink_to(cls.place)
        (cls.files / "absolute").symlink_to("/etc/passwd")
        (cls.files / "sub/up").symlink_to("../..")
        (cls.files / "inner").symlink_to("sub/../text")

    def test_no_path_leads_out_of_the_folder(self):
        passwd = pathlib.Path("/etc/passwd").read_bytes()
        for path in self.OUT:
            status, _, body = self.curl(path)
            self.assertIn(status, (400, 403, 404), path)
            self.assertNotIn(self.SECRET, body, path)
            self.assertNotIn(passwd, body, path)

    def test_other_spellings_of_a_path_inside_are_found(self):
        for path in ("/text", "/./text", "/sub/../text", "/%74ext", "//text", "/sub/%2e%2e/text", "/inner"):
            self.assertEqual(self.curl(path)[::2], (200, TEXT), path)

    def test_hidden_files_are_not_served(self):
        (self.files / ".hidden").write_bytes(self.SECRET)
        for path in ("/.hidden", "/%2ehidden", "/sub/../.hidden"):
            self.assertEqual(self.curl(path)[0], 404, path)


if __name__ == "__main__":
    unittest.main()
