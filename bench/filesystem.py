"""A file system made for one run: ext4 with a journal, or xfs, in a file of its own on a loop device.

What holds the temporary folder may sync cheaper or dearer than what others have (ext4 can be without a journal), and
ratios have to hold on each. Making one needs root, and room for what the run writes: the file is sparse.
"""

import contextlib
import os

from peers import machine

KINDS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_IMAGE_OCTETS = 24 << 30


@contextlib.contextmanager
def chosen(kind):
    """Runs have their folders on a fresh file system of that kind; None: where they have them anyway."""
    if kind is None:
        yield
        return
    if os.geteuid() != 0:
        raise RuntimeError("file systems can only be mounted by root")
    with machine.run_folder(kind) as folder, _mounted(folder, kind) as place:
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
    image, place = folder / f"{kind}.image", folder / kind
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(_IMAGE_OCTETS)
    machine.run(*KINDS[kind], str(image))
    machine.run("mount", "-o", "loop,discard", str(image), str(place))
    try:
        yield place
    finally:
        machine.run("umount", str(place))
        image.unlink()
