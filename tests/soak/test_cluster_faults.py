"""Faults of a cluster that take longer than `make test` has: of nodes, of NATS servers, of the network between them, of
disks, clocks and operators. Mail flows through three nodes meanwhile, and the ledger of `cluster_load` holds at the end.

MAILRACE_NATS_SERVER names another nats-server, MAILRACE_OLD_BIN an older Mailrace to run beside the tested one.
"""

import glob
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time
import unittest

from cluster_load import LEASE_SECONDS, MARGIN_SECONDS, FaultCase, ShortStops, needs_root
from harness import Client, await_that
from nats_servers import NatsServers, TcpProxy
from outbound import text_message

# How long NATS servers may take to elect leaders of all streams.
_ELECTION_SECONDS = 15
_SLOW_SECONDS = 12
_STOPPED_SECONDS, _BETWEEN_SECONDS = 0.8, 0.2  # shorter than the lease and the time after which servers vote
_AWAY_SECONDS_MAX = 120
_STORE_MEGABYTES = 64
_CLOCK_OFFSETS = ("-7m", "+0", "+11m")
_FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
_OLD_BINARY = os.environ.get("MAILRACE_OLD_BIN", "")


class NodeFaults(FaultCase):
    def test_nodes_that_are_killed_with_their_disks_kept(self):
        self.start_all()
        for pause in (0, LEASE_SECONDS + 2 * MARGIN_SECONDS + 1, 1):
            victim = random.choice(self.servers)
            self.note_failure(victim)
            victim.kill()
            time.sleep(pause)
            self.restart(victim)
            self.await_mail(time.time())
        self.check_ledger()

    def test_a_rolling_restart_of_all_nodes_and_servers(self):
        self.noticed_after = _ELECTION_SECONDS
        self.start_all()
        for server in self.servers:
            self.note_failure(server, after=LEASE_SECONDS)
            self.command(server, "cluster", "drain")
            self.assertEqual(server.process.wait(60), 0)
            self.restart(server)
            self.await_mail(time.time())
        for number in range(3):
            self.nats.kill_one(number)
            self.nats.start_one(number)
            self.await_mail(time.time())
            await_that(self.nats.are_healthy, "the NATS servers are complete", self.servers[0], 60)
        self.check_ledger()

    @unittest.skipUnless(_FAKETIME, "faketime is missing: bench/peers/install soak")
    def test_wall_clocks_that_are_minutes_apart(self):
        self.servers = [self.node(name) for name in ("first", "second", "third")]
        for server, offset in zip(self.servers, _CLOCK_OFFSETS, strict=True):
            self.restart(server, with_clock(offset))
        self.load()
        times = [server.log.read_text().split("Z", 1)[0] for server in self.servers]
        self.assertEqual(len({re.sub(r":\d\d\.\d+$", "", time_) for time_ in times}), 3, times)
        self.note_failure(self.servers[0])
        self.servers[0].kill()
        self.await_takeover(*self.servers[1:])
        self.restart(self.servers[0], with_clock("+30m"))
        self.await_mail(time.time())
        self.check_ledger()

    @unittest.skipUnless(os.access(_OLD_BINARY, os.X_OK), "MAILRACE_OLD_BIN does not name an older version")
    def test_old_versions_beside_new_ones(self):
        """With other records: each node takes over the lanes of its own version, and those of the other one stay with it."""
        old = [self.node(name, binary=pathlib.Path(_OLD_BINARY).resolve()) for name in ("first", "second")]
        new = [self.node(name) for name in ("third", "fourth")]
        self.servers = [*old, *new]
        for server in self.servers:
            server.start()
        self.load()
        for (victim, heir), others in ((old, new), (new, old)):
            before = [takeovers(server) for server in others]
            self.note_failure(victim)
            victim.kill()
            self.await_takeover(heir)
            self.assertEqual([takeovers(server) for server in others], before)
            self.restart(victim)
            self.await_mail(time.time())
        self.check_ledger()


class ServerFaults(FaultCase):
    noticed_after = _SLOW_SECONDS + 2 * _ELECTION_SECONDS

    def test_the_leader_of_a_lanes_stream_is_killed(self):
        self.start_all()
        for _ in range(2):
            lane = next(row["lane"] for row in self.lanes(self.servers[0]) if row["role"] == "owner")
            leader = self.nats.leader_of(f"mailrace-test-{lane}")
            self.nats.kill_one(leader)
            self.await_mail(time.time(), seconds=_ELECTION_SECONDS + 60)
            self.nats.start_one(leader)
            await_that(self.nats.are_healthy, "the NATS servers are complete", self.servers[0], 60)
        self.check_ledger()

    def lanes(self, server):
        return [json.loads(line) for line in self.command(server, "cluster", "status", "--json").splitlines()]

    def test_two_of_three_servers_are_killed_and_come_back(self):
        self.noticed_after = _AWAY_SECONDS_MAX
        self.start_all()
        for number in (0, 1):
            self.nats.kill_one(number)
        await_that(lambda: len(self.mail.refused) >= 3, "mail is refused", self.servers[0], 60)
        self.assertEqual({code for _, code in self.mail.refused}, {451})
        begin = time.time()
        time.sleep(2 * LEASE_SECONDS)
        self.assertEqual(self.mail.count(begin), 0, "a 250 without a second copy")
        for number in (0, 1):
            self.nats.start_one(number)
        self.await_mail(time.time())
        self.check_ledger()

    def test_mail_flows_while_two_of_three_servers_are_away_if_copies_are_not_required(self):
        self.noticed_after = _AWAY_SECONDS_MAX
        self.start_all(extra="require = false\n")
        for number in (0, 1):
            self.nats.kill_one(number)
        await_that(lambda: "without a second copy" in self.servers[0].log.read_text(), "it notices", self.servers[0], 60)
        self.await_mail(time.time())
        # One of them starts alone, with a lane of the time alone on its disk.
        self.note_failure(self.servers[1])
        self.servers[1].kill()
        self.restart(self.servers[1])
        self.await_mail(time.time())
        for number in (0, 1):
            self.nats.start_one(number)
        self.await_mail(time.time())
        self.check_ledger()

    def test_a_server_that_stops_for_a_while(self):
        """As one whose disk stalls: its connections stay open, and it answers nothing."""
        self.start_all()
        for number in range(3):
            process = self.nats.processes[number]
            process.send_signal(signal.SIGSTOP)
            self.addCleanup(process.send_signal, signal.SIGCONT)
            time.sleep(_SLOW_SECONDS)
            process.send_signal(signal.SIGCONT)
            self.await_mail(time.time())
        self.check_ledger()

    def test_two_of_three_servers_whose_disks_are_slow(self):
        """Both stop for a moment, again and again: each record waits for one of them, and no vote replaces them."""
        self.start_all()
        begin = time.time()
        stops = self.ending(ShortStops(self.nats.processes[:2], _STOPPED_SECONDS, _BETWEEN_SECONDS))
        time.sleep(2 * _SLOW_SECONDS)
        self.await_mail(begin)
        stops.stop()
        self.assertGreater(self.mail.longest_wait(begin), _STOPPED_SECONDS / 2)
        self.assertEqual([code for _, code in self.mail.refused if code // 100 != 4], [])
        self.await_mail(time.time())
        self.check_ledger()

    def test_a_stream_that_is_deleted_by_mistake(self):
        self.start_all()
        lane = next(row["lane"] for row in self.lanes(self.servers[0]) if row["role"] == "owner")
        self.note_failure(self.servers[0], after=LEASE_SECONDS)
        self.nats.request(f"$JS.API.STREAM.DELETE.mailrace-test-{lane}")
        # Its owner ends, and copies what it has to a new stream when it is started again.
        await_that(lambda: self.servers[0].process.poll() is not None, "the owner ends", self.servers[0], 60)
        self.await_mail(time.time())
        self.check_ledger()


class SplitNetwork(FaultCase):
    """The routes between the servers can be cut. The first node uses the first server alone."""

    noticed_after = _AWAY_SECONDS_MAX

    def make_servers(self):
        return RoutedServers(self.folder)

    def test_both_halves_of_a_split(self):
        self.servers = [self.node("first", self.nats.urls[:1])]
        self.servers += [self.node(name, self.nats.urls[1:]) for name in ("second", "third")]
        for server in self.servers:
            server.start()
        self.load()
        self.nats.split()
        self.await_takeover(*self.servers[1:])
        cut_off = time.time()
        # Half of the split that has no majority.
        with Client(self.servers[0].port, timeout=60) as client:
            client.greet()
            self.assertEqual(client.deliver(text_message("late"), "late@far.test").code, 451)
        self.await_mail(time.time())
        accepted = [subject for subject, at in self.mail.accepted.items() if at > cut_off]
        self.assertEqual([subject for subject in accepted if subject.startswith("first-")], [])
        self.nats.heal()
        await_that(lambda: self.servers[0].process.poll() is not None, "the first node ends", self.servers[0], 60)
        self.await_mail(time.time())
        self.check_ledger()


class FullDisks(FaultCase):
    """The servers keep their streams on small file systems of their own."""

    noticed_after = _AWAY_SECONDS_MAX

    def make_servers(self):
        servers = NatsServers(self.folder)
        self.stores = [self.folder / f"nats-{number}" for number in range(3)]
        for store in self.stores:
            store.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_STORE_MEGABYTES}m", "mailrace", store], check=True)
            self.addCleanup(subprocess.run, ["umount", "--lazy", store], check=True)
        return servers

    @needs_root
    def test_full_disks_of_all_servers(self):
        self.start_all()
        for store in self.stores:
            fill(store / "filler")
        await_that(lambda: len(self.mail.refused) >= 3, "mail is refused", self.servers[0], 120)
        begin = time.time()
        time.sleep(2 * LEASE_SECONDS)
        self.assertEqual(self.mail.count(begin), 0, "a 250 without a second copy")
        for number, store in enumerate(self.stores):
            (store / "filler").unlink()
            # A server that could not write stores nothing more until it is started again.
            self.nats.kill_one(number)
            self.nats.start_one(number)
        self.await_mail(time.time())
        self.check_ledger()


class RoutedServers(NatsServers):
    """Servers whose routes to each other pass proxies. `split` cuts the first one off from the others."""

    def __init__(self, folder):
        super().__init__(folder)
        self._cut = []
        configurations = [folder / f"nats-{number}.conf" for number in range(3)]
        listens = [int(re.search(r'cluster \{\s.*?listen: "127\.0\.0\.1:(\d+)"', path.read_text(), re.S)[1])
                   for path in configurations]  # fmt: skip
        for number, path in enumerate(configurations):
            text = path.read_text()
            for other, port in enumerate(listens):
                proxy = TcpProxy(port)
                self._cut += [proxy] if 0 in (number, other) else []
                text = text.replace(f"nats-route://127.0.0.1:{port}", f"nats-route://127.0.0.1:{proxy.port}")
            path.write_text(text)

    def split(self):
        """Nothing passes between the first server and the others."""
        for proxy in self._cut:
            proxy.cut()

    def heal(self):
        """What waits passes, and all that follows."""
        for proxy in self._cut:
            proxy.heal()


def takeovers(server):
    """How many lanes it has taken over."""
    return server.log.read_text().count("took over a lane")


def with_clock(offset):
    """The command before one whose wall clock differs."""
    return ("env", f"LD_PRELOAD={_FAKETIME[0]}", f"FAKETIME={offset}", "FAKETIME_DONT_FAKE_MONOTONIC=1")


def fill(path):
    """Writes until the file system is full."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass


if __name__ == "__main__":
    unittest.main()
