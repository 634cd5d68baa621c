"""What the tests of tables share: directories and servers that ask them, which end with the test, and what is asked of
both."""

import concurrent.futures
import json
import pathlib
import subprocess
import unittest

from harness import Client, await_that, folder
from ldap_server import LdapServer
from outbound import metrics
from peers import people
from peers.mailrace import Mailrace
from peers.slapd import Slapd

# Fast to fail and to recover, with nothing in a cache for long.
QUICK = 'breaker = { probe = "100ms" }\n'
SHORT = 'cache = { ttl = "100ms", negative_ttl = "100ms", stale_if_error = "1h" }\n'


def table(name, kind, *lines, **values):
    """A table of the configuration; values as they stand in TOML, text in quotes."""
    texts = (f"{key} = {_toml(value)}" for key, value in values.items())
    return "\n".join(["", "[[table]]", f'name = "{name}"', f'type = "{kind}"', *texts, *lines, ""])


def ldap_table(name, url, *lines, **values):
    """One in a directory of `people`."""
    usual = {"base": people.PEOPLE, "filter": "(mail={key})", "result": "mail", "timeout": "2s"}
    return table(name, "ldap", *lines, url=url, **(usual | values))


def _toml(value):
    return json.dumps(value) if isinstance(value, str | list) else str(value).lower()


def ending(case, end):
    """Calls `end` when the test, or the class of tests, is over."""
    (case.addClassCleanup if isinstance(case, type) else case.addCleanup)(end)


def place_for(case):
    """A folder that ends with the case."""
    made = folder()
    ending(case, made.cleanup)
    return pathlib.Path(made.name)


def slapd_for(case, users=20, **settings):
    """A directory that runs until the case ends."""
    slapd = Slapd(place_for(case), users, **settings)
    ending(case, slapd.stop)
    slapd.start()
    return slapd


def server_for(case, *tables, mailboxes="people", **settings):
    """A server with these tables that runs until the case ends, by default with `people` for its mailboxes."""
    server = Mailrace(place_for(case), mailboxes=mailboxes, extra="".join(tables), **settings)
    ending(case, server.stop)
    server.start()
    return server


class TablesCase(unittest.TestCase):
    """Tests that make directories and servers of their own."""

    def slapd(self, users=20, **settings):
        """A directory that runs."""
        return slapd_for(self, users, **settings)

    def ldap_server(self, entries=None, **settings):
        """A directory that plays a part."""
        one = LdapServer(entries, **settings)
        self.addCleanup(one.stop)
        return one

    def server(self, *tables, **settings):
        """A server with these tables that runs."""
        return server_for(self, *tables, **settings)

    def assert_reply(self, server, address, code, enhanced=""):
        """What is said to a recipient."""
        said = reply(server, address)
        self.assertTrue(said.is_a(code, enhanced), f"{address}: {said!r}\n{server.log_tail()}")

    def assert_logged(self, server, *texts):
        """A line of the log has all these texts, now or soon."""
        await_that(lambda: logged(server, *texts), f"a line with {texts}", server, 5)

    def await_reply(self, server, address, code, seconds_max=10.0):
        """Waits until a recipient is answered with this code."""
        await_that(lambda: reply(server, address).code == code, f"{code} for {address}", server, seconds_max)


def user(number):
    """The address of one of the users."""
    return people.address(number)


def reply(server, address):
    """What the server says to this recipient, whose address may be anything."""
    with Client(server.port) as client:
        client.greet()
        return client.envelope(address)


def logged(server, *texts):
    """The lines of the log that have all these texts."""
    lines = server.log.read_text(errors="replace").splitlines()
    return [line for line in lines if all(text in line for text in texts)]


def values(server, name, key):
    """What the running server's table says of a key."""
    said = server.table("get", name, key)
    if said.returncode:
        raise AssertionError(f"{key}: {said.stderr.strip()}\n{server.log_tail()}")
    return said.stdout.splitlines()


def stats(server, name):
    """What the running server's table counts."""
    said = server.table("stats", name, "--json")
    if said.returncode:
        raise AssertionError(f"table stats: {said.stderr.strip()}")
    return json.loads(said.stdout)


def counted(server, family, **labels):
    """One metric."""
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return metrics(server)[f"mailrace_{family}{{{text}}}"]


def replies_at_once(server, addresses, sessions=100):
    """What is said to these recipients, over so many connections at a time."""
    with concurrent.futures.ThreadPoolExecutor(sessions) as pool:
        return list(pool.map(lambda address: reply(server, address), addresses))


class Load:
    """`mailrace bench smtp` at the users from 1 to `users`, while something is done to the server."""

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
        """Whether it goes on."""
        return self._process.poll() is None

    def summary(self):
        """What it says in the end."""
        said, complaint = self._process.communicate(timeout=60)
        if self._process.returncode not in (0, 1):
            raise AssertionError(f"the load failed: {complaint}")
        return json.loads(said)
