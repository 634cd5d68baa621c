"""Instructions that a server executes for a message, counted by callgrind: the difference of two runs of
different length, so that start and end cancel out.

There is one session, so that no batch depends on the time.
"""

import dataclasses

from peers import callgrind

COUNTED = (500, 3500)  # messages of the two runs
NOTE = (
    f"Instructions are counted by callgrind with one session: the difference of runs with {COUNTED[1]:,} and "
    f"{COUNTED[0]:,} messages, for each message."
)


def of_a_message(side, place):
    """Instructions for a message; the binary of the side is a script of `callgrind.wrapped`."""
    few, many = (_of_run(side, place / str(count), count) for count in COUNTED)
    return (many - few) / (COUNTED[1] - COUNTED[0])


def _of_run(side, place, count):
    place.mkdir(parents=True)
    alone = {"sources": 1} if hasattr(side.load, "sources") else {}
    side = dataclasses.replace(side, load=dataclasses.replace(side.load, count=count, sessions=1, **alone))
    server = side.create(place)
    try:
        server.start()
        side.measure(server, place)
        return callgrind.instructions(server, place)
    finally:
        server.stop()
