"""A file system for one run: ext4 with a journal, or xfs, in an image file on a loop device.

The cost of a sync differs between file systems (ext4 may have no journal), and ratios must hold on
all of them. Creating one needs root and disk space for the data of the run; the image is sparse.
With the image in memory, where syncs take no time, a run shows what the processors allow, without
the noise of a disk.
"""

import contextlib
import os
import pathlib

from peers import machine

MEMORY = pathlib.Path("/dev/shm")
_EXT4, _XFS = ["mkfs.ext4", "-q", "-F"], ["mkfs.xfs", "-q", "-f"]
# How it is made, and where its image is: None is where runs are.
KINDS = {"ext4": (_EXT4, None), "xfs": (_XFS, None), "memory": (_EXT4, MEMORY)}
_IMAGE_OCTETS = 24 << 30


@contextlib.contextmanager
def chosen(kind):
    """Runs create their folders on a new file system of this kind; None keeps the default."""
    if kind is None:
        yield
        return
    if os.geteuid() != 0:
        raise RuntimeError("mounting a file system needs root")
    # Short names: the path of a control socket has at most 107 octets.
    with machine.run_folder("fs", KINDS[kind][1]) as folder, _mounted(folder, kind) as place:
        before = os.environ.get("MAILRACE_BENCH_DIR")
        os.environ["MAILRACE_BENCH_DIR"] = str(place)
        try:
            yield
        finally:
            _restore(before)


def _restore(before):
    if before is None:
        del os.environ["MAILRACE_BENCH_DIR"]
    else:
        os.environ["MAILRACE_BENCH_DIR"] = before


@contextlib.contextmanager
def _mounted(folder, kind):
    image, place = folder / "image", folder / "fs"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(_IMAGE_OCTETS)
    machine.run(*KINDS[kind][0], str(image))
    machine.run("mount", "-o", "loop,discard", str(image), str(place))
    try:
        yield place
    finally:
        machine.run("umount", str(place))
        image.unlink()
