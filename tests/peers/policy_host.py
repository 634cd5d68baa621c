"""The host of MTA-STS policies: HTTPS on port 443, which needs root, of a loopback address that only this process uses."""

import http.server
import os
import ssl
import threading

POLICY_ADDRESS = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
POLICY = "version: STSv1\nmode: {}\nmx: {}\nmax_age: 86400\n"


class PolicyHost:
    """Serves a policy by HTTPS."""

    def __init__(self, certificate, policy):
        host = self
        self.policy, self.requests, self.status = policy, 0, 200

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # noqa: N802
                host.requests += 1
                self.send_response(host.status)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(host.policy)))
                self.end_headers()
                self.wfile.write(host.policy.encode())

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer((POLICY_ADDRESS, 443), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        """Closes its socket."""
        self._server.shutdown()
        self._server.server_close()
