"""`mailrace tune apply` and `tune revert` are really killed, at each step in turn: strace sends SIGKILL before a chosen
system call, which then does not happen. Whatever the step, one `tune revert` puts back every file byte by byte.

The host is a tree of files. The steps here are those that change names; `tests/soak` also takes each write and sync.
"""

import pathlib
import re
import subprocess
import unittest

from harness import folder
from peers.mailrace import BINARY
from syscalls import skip_without_strace

SECONDS_MAX = 60
CONFIG = '# ours\r\ndata_dir = "/var/lib/mailrace"\r\n[limits]\r\nsessions = 20 # few\r\n# no line end'
FILES = {
    "etc/mailrace/mailrace.toml": (CONFIG, 0o640),
    "etc/sysctl.d/60-mailrace.conf": ("vm.swappiness = 10\r\nnet.core.somaxconn = 200", 0o400),
    "proc/sys/net/core/somaxconn": ("128\n", 0o644),
    "proc/sys/net/ipv4/tcp_rmem": ("4096\t131072\t131072\n", 0o644),
}
KNOBS = ("net.core.somaxconn", "net.ipv4.tcp_rmem", "nofile=65536", "limits.sessions")
CALL = re.compile(r"^(?:\d+ +)?(\w+)\(.*\) += (-?\d+)", re.M)


class Kills(unittest.TestCase):
    CALLS = ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir")

    def setUp(self):
        made = folder()
        self.addCleanup(made.cleanup)
        self.place = pathlib.Path(made.name)
        skip_without_strace(self, self.place)
        self.numbers = iter(range(10_000))

    def host(self):
        """A new host; returns its root."""
        root = self.place / str(next(self.numbers))
        for name, (text, mode) in FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text.encode())
            (root / name).chmod(mode)
        (root / "var/lib").mkdir(parents=True)
        return root

    def tune(self, root, *words, strace=()):
        """Runs a command of `mailrace tune`, maybe under strace."""
        tracer = ["strace", "-f", "-qq", *strace] if strace else []
        line = [*tracer, BINARY, "--config", root / "etc/mailrace/mailrace.toml", "tune", *words, "--root", root, "--yes"]
        return subprocess.run(list(map(str, line)), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX)

    def apply(self, root, **how):
        return self.tune(root, "apply", *KNOBS, **how)

    def revert(self, root, **how):
        return self.tune(root, "revert", **how)

    def succeed(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def steps(self, root, command):
        """Runs a command to its end; returns its steps: the name and the number of each call that succeeded."""
        log, numbers, steps = self.place / "trace", {}, []
        wanted = ",".join(f"?{name}" for name in self.CALLS)
        self.succeed(command(root, strace=("-o", log, "-e", f"trace={wanted}")))
        for name, result in CALL.findall(log.read_text()):
            numbers[name] = numbers.get(name, 0) + 1
            if int(result) >= 0:
                steps.append((name, numbers[name]))
        return steps

    def kill_at(self, root, command, step):
        """Runs a command that is killed before this step."""
        name, number = step
        inject = f"inject={name}:signal=SIGKILL:when={number}"
        done = command(root, strace=("-o", "/dev/null", "-e", f"trace={name}", "-e", inject))
        self.assertEqual(done.returncode, -9, f"{step}: {done.stdout}{done.stderr}")

    def test_after_a_kill_at_any_step_of_apply_one_revert_restores_everything(self):
        root = self.host()
        original = tree(root)
        steps = self.steps(root, self.apply)
        applied = tree(root)
        self.assertNotEqual(applied, original)
        self.assertGreater(len(steps), 8, steps)
        interrupted = 0
        for step in steps:
            root = self.host()
            self.kill_at(root, self.apply, step)
            interrupted += tree(root) not in (original, applied)
            self.succeed(self.revert(root))
            self.assertEqual(tree(root), original, step)
        self.assertGreater(interrupted, 5)

    def test_after_a_kill_at_any_step_of_revert_the_next_one_restores_everything(self):
        root = self.host()
        original = tree(root)
        self.succeed(self.apply(root))
        steps = self.steps(root, self.revert)
        self.assertEqual(tree(root), original)
        self.assertGreater(len(steps), 8, steps)
        for step in steps:
            root = self.host()
            self.succeed(self.apply(root))
            self.kill_at(root, self.revert, step)
            self.succeed(self.revert(root))
            self.assertEqual(tree(root), original, step)


def tree(root):
    """Everything below the root: mode, owner and content by path."""
    found = {}
    for path in root.rglob("*"):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = (about.st_mode, about.st_uid, about.st_gid, content)
    return found


if __name__ == "__main__":
    unittest.main()
