"""A small authority that speaks ACME (RFC 8555): enough to issue a certificate by HTTP-01, and to misbehave.

It believes signatures, but compares the key authorization with the key of the account, and checks nonces.
The first good nonces are refused. tests/ecosystem/test_acme.py has a complete authority.
"""

import base64
import hashlib
import http.server
import json
import secrets
import ssl
import subprocess
import threading
import urllib.request

NONCES_REFUSED = 4  # a request is repeated twice, and then the attempt


def _decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _openssl(*words, at, data=None):
    return subprocess.run(["openssl", *words], cwd=at, input=data, check=True, capture_output=True).stdout


def thumbprint(jwk):
    """The thumbprint of a key (RFC 7638)."""
    members = json.dumps({name: jwk[name] for name in sorted(("crv", "kty", "x", "y"))}, separators=(",", ":"))
    return base64.urlsafe_b64encode(hashlib.sha256(members.encode()).digest()).decode().rstrip("=")


class Authority:
    """The authority. `fault` is what new orders get instead: (status, fields, problem)."""

    def __init__(self, at, http_port):
        self.folder, self.http_port, self.fault = at, http_port, None
        self.nonces, self.nonces_refused, self.orders, self.thumbprint = set(), 0, [], None
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "90")
        _openssl("req", "-x509", *key, "-subj", "/CN=Stub Authority", "-keyout", "ca.key", "-out", "ca.pem", at=at)
        _openssl("req", "-x509", *key, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                 "-addext", "basicConstraints=CA:FALSE", "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "own.key",
                 "-out", "own.pem", at=at)  # fmt: skip
        handler = type("BoundHandler", (_Handler,), {"authority": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(at / "own.pem", at / "own.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path, payload, key):
        """The reply to a signed request: (status, fields, content)."""
        kind, _, number = path.strip("/").partition("/")
        if kind == "account":
            self.thumbprint = thumbprint(key)
            return 201, {"Location": f"{self.url}/account/1"}, {"status": "valid"}
        if kind == "orders":
            if self.fault:
                return self.fault
            self.orders.append({"names": [name["value"] for name in payload["identifiers"]], "proved": set()})
            return self.order(len(self.orders) - 1, 201)
        order_number, _, name_number = number.partition("/")
        order = self.orders[int(order_number)]
        if kind == "authorization":
            return 200, {}, self.authorization(order_number, int(name_number))
        if kind == "challenge":
            self.prove(order, int(name_number))
            return 200, {}, self.authorization(order_number, int(name_number))["challenges"][0]
        if kind == "finalize":
            order["chain"] = self.issue(_decode(payload["csr"]))
        if kind == "chain":
            return 200, {"Content-Type": "application/pem-certificate-chain"}, order["chain"]
        return self.order(int(order_number))

    def order(self, number, status=200):
        order = self.orders[number]
        state = "valid" if "chain" in order else "ready" if len(order["proved"]) == len(order["names"]) else "pending"
        content = {"status": state, "finalize": f"{self.url}/finalize/{number}",
                   "authorizations": [f"{self.url}/authorization/{number}/{place}" for place in range(len(order["names"]))]}  # fmt: skip
        if "chain" in order:
            content["certificate"] = f"{self.url}/chain/{number}"
        return status, {"Location": f"{self.url}/order/{number}"}, content

    def authorization(self, number, place):
        order = self.orders[int(number)]
        state = "valid" if place in order["proved"] else "pending"
        challenge = {"type": "http-01", "url": f"{self.url}/challenge/{number}/{place}", "token": f"token-{number}-{place}",
                     "status": state}  # fmt: skip
        return {"identifier": {"type": "dns", "value": order["names"][place]}, "status": state, "challenges": [challenge]}

    def prove(self, order, place):
        token = f"token-{self.orders.index(order)}-{place}"
        url = f"http://127.0.0.1:{self.http_port}/.well-known/acme-challenge/{token}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            if reply.read().decode() == f"{token}.{self.thumbprint}":
                order["proved"].add(place)

    def issue(self, csr):
        (self.folder / "csr.der").write_bytes(csr)
        words = ("-inform", "DER", "-in", "csr.der", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "90")
        return _openssl("x509", "-req", *words, "-copy_extensions", "copy", at=self.folder).decode()


class _Handler(http.server.BaseHTTPRequestHandler):
    authority = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):  # noqa: N802
        self.reply(200, {}, None)

    def do_GET(self):  # noqa: N802
        paths = {"newNonce": "nonce", "newAccount": "account", "newOrder": "orders"}
        self.reply(200, {}, {name: f"{self.authority.url}/{path}" for name, path in paths.items()})

    def do_POST(self):  # noqa: N802
        authority = self.authority
        signed = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        protected, payload = json.loads(_decode(signed["protected"])), _decode(signed["payload"])
        is_known = protected["nonce"] in authority.nonces
        authority.nonces.discard(protected["nonce"])
        if not is_known or authority.nonces_refused < NONCES_REFUSED:
            authority.nonces_refused += 1
            return self.reply(400, {}, {"type": "urn:ietf:params:acme:error:badNonce", "detail": "another nonce, please"})
        return self.reply(*authority.answer(self.path, json.loads(payload or "{}"), protected.get("jwk")))

    def reply(self, status, fields, content):
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode() if content else b""
        kind = "application/problem+json" if status >= 400 else "application/json"
        self.authority.nonces.add(nonce := secrets.token_urlsafe(12))
        self.send_response(status)
        fields = {"Content-Type": kind, "Replay-Nonce": nonce, "Content-Length": len(body), **fields}
        for name, value in fields.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
