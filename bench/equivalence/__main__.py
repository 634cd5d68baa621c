"""Runs a set-up in the namespaces in which this is called, and leaves the result in the folder: NAME FOLDER."""

import pathlib
import pickle
import sys

from . import run

_name, _folder = sys.argv[1], pathlib.Path(sys.argv[2])
(_folder / "result").write_bytes(pickle.dumps(run.run(_name, _folder)))
