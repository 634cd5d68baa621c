"""Runs a set-up in the namespaces in which this is called, and leaves the result in the folder: SERVER NAME FOLDER."""

import pathlib
import pickle
import sys

from . import run
from .setup import Setup

_server, _name, _folder = *sys.argv[1:3], pathlib.Path(sys.argv[3])
(_folder / "result").write_bytes(pickle.dumps(run.run(Setup(_server, _name), _folder)))
