"""A proxy between NATS servers and one client. The servers themselves are those of the measurements."""

import select
import socket
import threading

from peers.nats import BINARY, NatsServers

__all__ = ["BINARY", "NatsServers", "TcpProxy"]


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
            except OSError:
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
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
