"""Shared by the tests of tables: directories and servers that end with the test, and queries to
both.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import unittest

from harness import WAIT_SECONDS_MAX, Client, await_that, folder
from ldap_server import LdapServer
from outbound import metrics
from peers import people
from peers.mailrace import Mailrace
from peers.slapd import Slapd

# Fails and recovers fast, and caches nothing for long.
QUICK = 'breaker = { probe = "100ms" }\n'
SHORT = 'cache = { ttl = "100ms", negative_ttl = "100ms", stale_if_error = "1h" }\n'


def table(name, kind, *lines, **values):
    """A table of the configuration; values are TOML, text in quotes."""
    texts = (f"{key} = {_toml(value)}" for key, value in values.items())
    return "\n".join(["", "[[table]]", f'name = "{name}"', f'type = "{kind}"', *texts, *lines, ""])


def ldap_table(name, url, *lines, **values):
    """A table in a directory of `people`."""
    usual = {"base": people.PEOPLE, "filter": "(mail={key})", "result": "mail", "timeout": "2s"}
    return table(name, "ldap", *lines, url=url, **(usual | values))


def _toml(value):
    return json.dumps(value) if isinstance(value, str | list) else str(value).lower()


def ending(case, end):
    """Calls `end` when the test, or the class of tests, has ended."""
    (case.addClassCleanup if isinstance(case, type) else case.addCleanup)(end)


def folder_for(case):
    """A folder that ends with the case."""
    made = folder()
    ending(case, made.cleanup)
    return pathlib.Path(made.name)


def slapd_for(case, users=20, **settings):
    """A directory that runs until the case ends."""
    slapd = Slapd(folder_for(case), users, **settings)
    ending(case, slapd.stop)
    slapd.start()
    return slapd


def server_for(case, *tables, mailboxes="people", **settings):
    """A server with these tables that runs until the case ends; by default `people` are its
    mailboxes.
    """
    server = Mailrace(folder_for(case), mailboxes=mailboxes, extra="".join(tables), **settings)
    ending(case, server.stop)
    server.start()
    return server


class TablesCase(unittest.TestCase):
    """Tests that make their own directories and servers."""

    def slapd(self, users=20, **settings):
        """A running directory."""
        return slapd_for(self, users, **settings)

    def ldap_server(self, entries=None, **settings):
        """A scripted directory."""
        one = LdapServer(entries, **settings)
        self.addCleanup(one.stop)
        return one

    def server(self, *tables, **settings):
        """A running server with these tables."""
        return server_for(self, *tables, **settings)

    def assert_reply(self, server, address, code, enhanced=""):
        """Checks the reply to a recipient."""
        said = reply(server, address)
        self.assertTrue(said.is_a(code, enhanced), f"{address}: {said!r}\n{server.log_tail()}")

    def assert_logged(self, server, *texts):
        """Waits for a log line that contains all these texts."""
        await_that(lambda: logged(server, *texts), f"a line with {texts}", server)

    def await_reply(self, server, address, code, seconds_max=WAIT_SECONDS_MAX):
        """Waits until a recipient gets this reply code."""
        await_that(lambda: reply(server, address).code == code, f"{code} for {address}", server, seconds_max)


def user(number):
    """The address of a user."""
    return people.address(number)


def reply(server, address):
    """The reply to RCPT with any address."""
    with Client(server.port) as client:
        client.greet()
        return client.envelope(address)


def logged(server, *texts):
    """The log lines that contain all these texts."""
    lines = server.log.read_text(errors="replace").splitlines()
    return [line for line in lines if all(text in line for text in texts)]


def values(server, name, key):
    """The values that the running server's table has for a key."""
    said = server.table("get", name, key)
    if said.returncode:
        raise AssertionError(f"{key}: {said.stderr.strip()}\n{server.log_tail()}")
    return said.stdout.splitlines()


def stats(server, name):
    """The counters of the running server's table."""
    said = server.table("stats", name, "--json")
    if said.returncode:
        raise AssertionError(f"table stats: {said.stderr.strip()}")
    return json.loads(said.stdout)


def counted(server, family, **labels):
    """A metric."""
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return metrics(server)[f"mailrace_{family}{{{text}}}"]


def replies_in_parallel(server, addresses, sessions=100):
    """The replies to these recipients, over this many connections in parallel."""
    with concurrent.futures.ThreadPoolExecutor(sessions) as pool:
        return list(pool.map(lambda address: reply(server, address), addresses))


class Load:
    """`mailrace bench smtp` to the users 1 to `users`, during a test."""

    def __init__(self, server, users, seconds, connections=10):
        argv = [str(server.binary), "bench", "smtp", "--target", f"127.0.0.1:{server.port}", "--size", "0",
                "--connections", str(connections), "--per-connection", "5", "--recipient", people.address("{}"),
                "--users", str(users), "--duration", f"{seconds}s", "--json"]  # fmt: skip
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, text=True, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()

    def runs(self):
        """Whether it is still running."""
        return self._process.poll() is None

    def summary(self):
        """Its summary at the end."""
        said, complaint = self._process.communicate(timeout=60)
        if self._process.returncode not in (0, 1):
            raise AssertionError(f"the load failed: {complaint}")
        return json.loads(said)
