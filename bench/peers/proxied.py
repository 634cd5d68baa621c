"""A proxy with the server behind it. Only the proxy is measured."""


class Proxied:
    """Both as one server: its port and its processes are those of the proxy."""

    def __init__(self, proxy, backend):
        self._proxy, self._backend = proxy, backend
        self.name, self.group = proxy.name, proxy.group

    @property
    def port(self):
        """The port of the proxy."""
        return self._proxy.port

    def start(self):
        """Starts both, the server first."""
        self._backend.start()
        self._proxy.start()

    def stop(self):
        """Ends both in any state."""
        try:
            self._proxy.stop()
        finally:
            self._backend.stop()

    def configuration(self):
        """Both configurations, for a report."""
        return f"{self._proxy.configuration().strip()}\n\n# The server behind the proxy\n\n{self._backend.configuration()}"
