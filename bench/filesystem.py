"""Accepting on other file systems: ext4 with a journal, and xfs, each in a file of its own on a loop device.

Many machines' root file system syncs cheaper than a journalled one, or dearer; the ratios must hold on each. Needs
root.
"""

import contextlib
import dataclasses
import os

from peers import machine
from peers.smtp import Load

from . import Scenario, accept

KINDS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_IMAGE_OCTETS = 6 << 30
_SINK_COUNT = 20_000


def scenario(options):
    """One round of accept-many on each."""
    if os.geteuid() != 0:
        raise RuntimeError("file systems can only be mounted by root")
    one = dataclasses.replace(options, pairs=1)
    met = True
    with machine.run_folder("filesystems") as folder:
        machine.require_space(folder, _IMAGE_OCTETS)
        for kind in KINDS:
            with mounted(folder, kind) as place:
                met &= _contest(kind).measure(f"filesystems-{kind}", place, one).finish(options)
    return met


def _contest(kind):
    sink = dataclasses.replace(accept.MANY.sides["sink"], load=Load(_SINK_COUNT))
    return dataclasses.replace(
        accept.MANY,
        title=f"Accepting on {kind}, on a loop device",
        sides=accept.MANY.sides | {"sink": sink},
        notes=(*accept.NOTES, "One round only: it shows whether the ratios hold, not by how much."),
    )


@contextlib.contextmanager
def mounted(folder, kind):
    """A fresh file system of that kind."""
    image, place = folder / f"{kind}.image", folder / kind
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(_IMAGE_OCTETS)
    machine.run(*KINDS[kind], str(image))
    machine.run("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        machine.run("umount", str(place))
        image.unlink()


SCENARIOS = {"filesystems": Scenario(scenario, tuple(accept.MANY.sides))}
