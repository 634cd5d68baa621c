"""Three NATS servers with JetStream on this machine, and a proxy between them and one client.

All of them listen on 127.0.0.1 only, and announce no addresses. MAILRACE_NATS_SERVER names another binary than
the one in PATH.
"""

import os
import select
import shutil
import socket
import subprocess
import threading
import time

from peers.smtp import free_port

BINARY = os.environ.get("MAILRACE_NATS_SERVER") or shutil.which("nats-server") or "/usr/sbin/nats-server"
_READY_SECONDS_MAX = 60.0

_CONFIG = """
server_name: "n{number}"
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{monitor}"
jetstream {{ store_dir: "{store}", max_memory_store: 64MB, max_file_store: 4GB }}
cluster {{
  name: "test"
  listen: "127.0.0.1:{route}"
  no_advertise: true
  routes: [{routes}]
}}
"""


class NatsServers:
    """Servers that keep three copies of each stream."""

    def __init__(self, folder, count=3):
        self.ports = [free_port() for _ in range(count)]
        self.monitors = [free_port() for _ in range(count)]
        routes = [free_port() for _ in range(count)]
        others = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
        self.folder, self.processes = folder, [None] * count
        for number in range(count):
            text = _CONFIG.format(
                number=number, client=self.ports[number], monitor=self.monitors[number], route=routes[number],
                routes=others, store=folder / f"nats-{number}",
            )  # fmt: skip
            (folder / f"nats-{number}.conf").write_text(text)

    @property
    def urls(self):
        """The addresses for clients."""
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    def start(self):
        """Starts all, and waits until they have elected a leader of JetStream."""
        for number in range(len(self.ports)):
            self.start_one(number)
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not all(self._is_healthy(port) for port in self.monitors):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                raise RuntimeError(f"the NATS servers are not ready: {(self.folder / 'nats-0.log').read_text()[-400:]}")
            time.sleep(0.05)

    def start_one(self, number):
        """Starts a server that does not run."""
        config = self.folder / f"nats-{number}.conf"
        with open(self.folder / f"nats-{number}.log", "ab") as log:
            self.processes[number] = subprocess.Popen([BINARY, "-c", str(config)], stdout=log, stderr=log)

    def kill_one(self, number):
        """Kills a server."""
        self.processes[number].kill()
        self.processes[number].wait(30)

    def stop(self):
        """Ends all."""
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(30)

    def _is_healthy(self, port):
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as connection:
                connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                connection.settimeout(5)
                return b" 200 " in connection.recv(100)
        except OSError:
            return False


class TcpProxy:
    """Passes connections on to `target` until it is cut off; then they hang, as in a split network."""

    def __init__(self, target):
        self._target = ("127.0.0.1", target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._passes, self._stopped = threading.Event(), threading.Event()
        self._passes.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Passes nothing any more; connections stay open."""
        self._passes.clear()

    def heal(self):
        """Passes what waits, and all that follows."""
        self._passes.set()

    def stop(self):
        """Closes everything."""
        self._stopped.set()
        self._passes.set()
        self._listener.close()

    def _accept(self):
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                continue
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client, server):
        with client, server:
            while not self._stopped.is_set():
                readable, _, _ = select.select([client, server], [], [], 1)
                self._passes.wait()
                for one in readable:
                    try:
                        data = one.recv(1 << 16)
                        (server if one is client else client).sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
