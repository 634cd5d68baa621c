"""Users in Redis, which is stopped, restarted, and holds keys of other types."""

import shutil
import unittest

from harness import Client, await_messages, await_that, make_message
from peers.redis_server import RedisServer
from tables import QUICK, SHORT, TablesCase, ending, folder_for, replies_in_parallel, server_for, stats, table, values

HOSTILE = ("alice@bench.test\r\nFLUSHALL", "*", "' OR ''='", "mailbox:alice@bench.test", "{key}", '"')
PASSWORD = "geheim"


def redis_for(case, **settings):
    """A server with a few users that runs until the case ends."""
    one = RedisServer(**settings)
    ending(case, one.stop)
    one.start()
    fill(one)
    return one


def fill(redis):
    """Stores the users."""
    redis.run("MSET", "mailbox:alice@bench.test", "a/alice", "mailbox:bob@bench.test", "")
    redis.run("HSET", "aliases:bench.test", "all", "alice@bench.test, bob@bench.test")
    redis.run("SADD", "domains", "bench.test")
    redis.run("SADD", "list:staff@bench.test", "alice@bench.test", "bob@bench.test")
    redis.run("LPUSH", "mailbox:odd@bench.test", "a list")


@unittest.skipUnless(shutil.which("redis-server"), "Redis is not installed")
class InRedis(TablesCase):
    """One Redis and one server for all tests that do not disturb them."""

    @classmethod
    def setUpClass(cls):
        cls.redis = redis = redis_for(cls)
        aliases = {"command": "hget", "key": "aliases:{domain}", "field": "{local}", "separator": ","}
        cls.server_ = server_for(
            cls,
            table("people", "redis", QUICK, url=redis.url, key="mailbox:{key}"),
            table("aliases", "redis", url=redis.url, **aliases),
            table("by_socket", "redis", url=redis.socket_url, key="mailbox:{key}"),
            table("second", "redis", url=redis.url.replace("127", "127.0.0.1:1,127", 1), key="mailbox:{key}"),
            table("domains", "redis", url=redis.url, command="sismember", key="domains"),
            table("lists", "redis", url=redis.url, command="smembers", key="list:{key}"),
            aliases="aliases",
        )

    def test_a_user_in_redis_is_accepted_and_others_are_unknown(self):
        self.assert_reply(self.server_, "alice@bench.test", 250)
        self.assert_reply(self.server_, "bob@bench.test", 250)
        self.assert_reply(self.server_, "eve@bench.test", 550, "5.1.1")

    def test_an_alias_with_several_targets_expands_to_all(self):
        with Client(self.server_.port) as client:
            client.greet()
            self.assertEqual(client.deliver(make_message("hello"), "all@bench.test").code, 250)
        for name in ("alice", "bob"):
            await_messages(self.server_, name, 1)

    def test_every_command_and_kind_of_connection_works(self):
        for name in ("people", "by_socket", "second"):
            with self.subTest(name):
                self.assertEqual(values(self.server_, name, "alice@bench.test"), ["a/alice"])
        self.assertEqual(values(self.server_, "domains", "bench.test"), [])
        self.assertEqual(self.server_.table("get", "domains", "other.test").returncode, 1)
        members = ["alice@bench.test", "bob@bench.test"]
        self.assertEqual(sorted(values(self.server_, "lists", "staff@bench.test")), members)

    def test_a_key_cannot_inject_commands(self):
        for key in HOSTILE:
            with self.subTest(key):
                said = self.server_.table("get", "people", key)
                self.assertEqual((said.returncode, said.stdout), (1, ""), said.stderr)
        self.assertEqual(values(self.server_, "people", "alice@bench.test"), ["a/alice"])

    def test_a_key_of_another_type_has_no_answer(self):
        self.assert_reply(self.server_, "odd@bench.test", 451, "4.3.0")
        self.assert_reply(self.server_, "alice@bench.test", 250)
        self.assert_logged(self.server_, "people", "WRONGTYPE")


@unittest.skipUnless(shutil.which("redis-server"), "Redis is not installed")
class RedisAway(TablesCase):
    """Each test has a Redis of its own."""

    def test_cached_users_are_accepted_during_an_outage_and_others_soon_after(self):
        redis = redis_for(self)
        server = self.server(table("people", "redis", QUICK, SHORT, url=redis.url, key="mailbox:{key}"))
        self.assert_reply(server, "alice@bench.test", 250)
        redis.kill()
        await_that(lambda: "backend fails" in server.table("get", "people", "alice@bench.test").stderr, "stale", server)
        self.assert_reply(server, "alice@bench.test", 250)
        self.assert_reply(server, "bob@bench.test", 451, "4.3.0")
        self.assert_logged(server, "people", f"127.0.0.1:{redis.port}", "refused")
        redis.start()
        fill(redis)
        self.await_reply(server, "bob@bench.test", 250, 5.0)

    def test_passwords(self):
        redis = redis_for(self, password=PASSWORD)
        file = folder_for(self) / "password"
        file.write_text(f"{PASSWORD}\n")
        file.chmod(0o644)
        login = lambda password: redis.url.replace("//", f"//:{password}@")
        server = self.server(
            table("people", "redis", QUICK, url=login("guessed"), key="mailbox:{key}"),
            table("right", "redis", url=login(PASSWORD), key="mailbox:{key}"),
            table("by_file", "redis", url=redis.url, password_file=str(file), key="mailbox:{key}"),
        )
        for name in ("right", "by_file"):
            self.assertEqual(values(server, name, "alice@bench.test"), ["a/alice"])
        self.assert_reply(server, "alice@bench.test", 451, "4.3.0")
        self.assert_logged(server, "people", "WRONGPASS")
        self.assertNotIn("guessed", server.log.read_text())

    def test_many_lookups_are_batched_and_none_is_deferred(self):
        redis = redis_for(self)
        redis.run("MSET", *(word for number in range(1, 301) for word in (f"mailbox:user{number}@bench.test", "x")))
        server = self.server(table("people", "redis", "cache = false", url=redis.url, key="mailbox:{key}"))
        replies = replies_in_parallel(server, [f"user{number}@bench.test" for number in range(1, 401)])
        self.assertEqual([one.code for one in replies], [250] * 300 + [550] * 100, server.log_tail())
        self.assertEqual(stats(server, "people")["keys_asked"], 400)


if __name__ == "__main__":
    unittest.main()
