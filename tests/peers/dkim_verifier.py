"""Verifies DKIM signatures with dkimpy, in a process of Debian's own Python, which alone may have it.

    is_installed()              whether there is one, also for Ed25519
    verified(content, records)  for each signature from the top, whether it verifies; `records` are the
                                TXT records by name, with a trailing dot
"""

import functools
import json
import pathlib
import subprocess
import sys

_DEBIAN = "/usr/bin/python3"
_PYTHON = _DEBIAN if pathlib.Path(_DEBIAN).exists() else sys.executable


@functools.cache
def is_installed():
    return subprocess.run([_PYTHON, "-c", "import dkim, nacl"], capture_output=True).returncode == 0


def verified(content, records):
    query = {"content": content.decode("latin-1"), "records": {name: text.decode() for name, text in records.items()}}
    argv = [_PYTHON, __file__]
    done = subprocess.run(argv, input=json.dumps(query), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def _main():
    import dkim

    query = json.load(sys.stdin)
    content, records = query["content"].encode("latin-1"), query["records"]

    def published(name, timeout=5):
        text = records.get(name.decode())
        return text and text.encode()

    count = sum(name.lower() == b"dkim-signature" for name, _ in dkim.DKIM(content).headers)
    results = []
    for number in range(count):
        try:
            results.append(dkim.DKIM(content).verify(idx=number, dnsfunc=published))
        except dkim.DKIMException:
            results.append(False)
    print(json.dumps(results))


if __name__ == "__main__":
    _main()
