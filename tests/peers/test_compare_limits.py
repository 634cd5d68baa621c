"""`mailrace bench compare` says of a run what limited it: here really a disk, and really the network.

The disk is a loop device whose file may be written at 4 MB/s only, by a limit of a control group; it is always busy, and no
processor is. The network is a tun interface that says that it has 2 Mbit/s; a load sends more than that through it. The
gauge of the processors stands still, since other tests may keep all of them busy, which would be the limit then.
Needs root, namespaces, loop devices and, for the disk, a control group that limits writing.
"""

import ctypes
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

from harness import folder
from peers.mailrace import BINARY
from spoilt_host import SpoiltHost, Unavailable

LOAD_SECONDS, RUN_SECONDS_MAX = 4, 300
OCTETS_PER_SECOND = 4 << 20
BLOCK_OCTETS = 1 << 20
FILES = ("one", "two", "three", "four")
INTERFACE, MEGABITS, ADDRESS, NEIGHBOUR = "slow0", 2, "10.9.8.1", "10.9.8.2"
DATAGRAM_OCTETS, DATAGRAMS, PAUSE_SECONDS = 1400, 60, 0.01  # 67 Mbit/s, or less on a busy machine
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 1, 0x1000
_SIOCETHTOOL, _ETHTOOL_GSET, _ETHTOOL_SSET = 0x8946, 1, 2
_SETTINGS_OCTETS, _SPEED_AT, _SPEED_HIGH_AT = 44, 12, 28  # struct ethtool_cmd
DONE = '{"done": 10, "seconds": 1, "latency": {"p50_us": 1, "p90_us": 2, "p99_us": 3, "p999_us": 4, "max_us": 5}}'
FILE = """\
[compare]
name  = "limited"
title = "A load that waits for one part of the machine"
rest  = "0s"

[[system]]
name  = "idle"
start = "echo ready; exec sleep 60"
ready = {{ log = "ready" }}

[[scenario]]
name = "limited"
load = '''{load} && echo '{done}' '''
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root, to make namespaces and a loop device")
class Limits(unittest.TestCase):
    def setUp(self):
        missing = [name for name in ("unshare", "nsenter", "mkfs.ext4", "ip", "losetup", "dd") if not shutil.which(name)]
        if missing:
            self.skipTest(f"not installed: {', '.join(missing)}")
        made = folder()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        try:
            self.host = SpoiltHost(self.folder)
        except Unavailable as why:
            self.skipTest(f"namespaces or loop devices cannot be used: {why}")
        self.addCleanup(self.host.end)
        (still := self.folder / "stat").write_text(pathlib.Path("/proc/stat").read_text())
        self.host.run("mount", "--bind", still, "/proc/stat")

    def assert_limited_by(self, expected, load, *wrapper):
        """A run with this load is limited by one part of the machine, and the table says so."""
        file = self.folder / "limited.toml"
        file.write_text(FILE.format(load=load, done=DONE))
        results = self.host.spool / "results"
        line = [*wrapper, BINARY, "bench", "compare", file, "--rounds", 1, "--folder", self.host.spool, "--output", results]
        said = self.host.run(*line, seconds_max=RUN_SECONDS_MAX).stdout
        result = json.loads((self.host.path(results) / "limited.json").read_text())
        [[run]] = [measured.values() for measured in result["cases"][0]["rounds"]]
        self.assertEqual(run["limit"], expected, said)
        self.assertRegex(said, rf"(?m)^.*\bidle\b.*\b{expected}\b", "the row of the system")

    def test_a_run_that_waits_for_the_disk_is_limited_by_the_disk(self):
        group = self.limited_group()
        self.host.run("losetup", "--direct-io=on", self.folder / self.host.disk)
        count = LOAD_SECONDS * OCTETS_PER_SECOND // BLOCK_OCTETS // len(FILES)
        writing = f"dd if=/dev/zero of={{folder}}/{{name}} bs={BLOCK_OCTETS} count={count} oflag=direct status=none &"
        # The disk has a request of one of them while another one waits for a processor.
        load = " ".join(writing.replace("{name}", name) for name in FILES) + " wait"
        join = ["sh", "-c", f'echo $$ >"{group}/cgroup.procs" && exec "$@"', "sh"]
        self.assert_limited_by("disk", load, *join)

    def test_a_run_that_fills_an_interface_is_limited_by_the_network(self):
        try:
            os.close(os.open("/dev/net/tun", os.O_RDWR))
        except OSError as why:
            self.skipTest(f"tun interfaces cannot be used: {why}")
        load = shlex.join([sys.executable, os.path.abspath(__file__), "send"])
        self.assert_limited_by("network", load, sys.executable, os.path.abspath(__file__), "through-tun")

    def limited_group(self):
        """A new control group whose processes write slowly to the disk with the file of the loop device."""
        device = whole_disk(self.folder)
        root, name = pathlib.Path("/sys/fs/cgroup"), f"mailrace-test-limits-{os.getpid()}"
        first = (root / "blkio" / name, "blkio.throttle.write_bps_device", f"{device} {OCTETS_PER_SECOND}")
        second = (root / name, "io.max", f"{device} wbps={OCTETS_PER_SECOND}")
        path, file, text = first if first[0].parent.exists() else second
        try:
            path.mkdir()
            self.addCleanup(remove_group, path)
            (path / file).write_text(text)
        except OSError as why:
            self.skipTest(f"no control group can limit writing to {device}: {why}")
        return path


def whole_disk(place):
    """The number of the disk with a place, as control groups take it."""
    number = os.stat(place).st_dev
    path = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if not path.exists():
        raise unittest.SkipTest(f"{place} is not on a disk")
    return ((path.parent if (path / "partition").exists() else path) / "dev").read_text().strip()


def remove_group(path):
    """Removes a group, once its last process has ended."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def run_through_tun(argv):
    """Runs a command beside an interface that says it is slow, whose packets are thrown away."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN | _IFF_NO_PI))
    set_speed()
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/24", "dev", INTERFACE], check=True)
    subprocess.run(["ip", "link", "set", INTERFACE, "up"], check=True)
    threading.Thread(target=discard, args=(tun,), daemon=True).start()
    # /sys of the first network namespace does not have the interface.
    line = ["unshare", "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh", *argv]
    return subprocess.run(line).returncode


def set_speed():
    """Sets what the interface says of its speed."""
    settings = ctypes.create_string_buffer(_SETTINGS_OCTETS)
    request = struct.pack("16sP16x", INTERFACE.encode(), ctypes.addressof(settings))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (_ETHTOOL_GSET, _ETHTOOL_SSET):  # the second one keeps what the first one has read
            struct.pack_into("I", settings, 0, command)
            struct.pack_into("H", settings, _SPEED_AT, MEGABITS)
            struct.pack_into("H", settings, _SPEED_HIGH_AT, 0)
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def discard(tun):
    """Reads packets until the end of the process."""
    while os.read(tun, 1 << 16):
        pass


def send():
    """Sends datagrams through the interface."""
    deadline = time.monotonic() + LOAD_SECONDS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        while time.monotonic() < deadline:
            for _ in range(DATAGRAMS):
                out.sendto(bytes(DATAGRAM_OCTETS), (NEIGHBOUR, 9))
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["through-tun"]:
        sys.exit(run_through_tun(sys.argv[2:]))
    elif sys.argv[1:] == ["send"]:
        send()
    else:
        unittest.main()
