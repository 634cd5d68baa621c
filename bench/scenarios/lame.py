"""Slow next hops do not delay others: a queue drains to 900 next hops with and without a hundred
slow ones.

Each of the 900 delays a message, so that draining takes about a minute. Half of the hundred greet
after 30 seconds, the other half never; as much mail waits for each of them as for each of the 900.
The mail for the 900 is timed, from the release to the last message.
"""

import comparison
import drain
import pairs
from comparison import Comparison
from drain import Drain
from peers.laboratory import Source
from peers.outbound import Hops

from .accept import MESSAGE_DISK_OCTETS

PER_HOP = 120  # messages
GOOD = Hops(900, rules=("* message delay 500ms",))
SLOW = Hops(50, "slow{}.test", ("* connect delay 30s",))
MUTE = Hops(50, "mute{}.test", ("* connect delay 1h",))
SLOWER_MOST = 1.05


def _load(hops):
    recipient = f"user@{hops.domain}"
    return Source(hops.count * PER_HOP, octets=2000, recipient=recipient, users=hops.count)


def _side(name, *lame):
    server = drain.mailrace(GOOD, *lame, name=name)
    others = tuple(_load(hops) for hops in lame)
    return Drain(server, _load(GOOD), MESSAGE_DISK_OCTETS, others=others, of_middle=False)


LAME = Comparison(
    "Draining with slow next hops",
    {"without": _side("without"), "with": _side("with", SLOW, MUTE)},
    (pairs.Target("with", "without", "rate", least=1 / SLOWER_MOST),),
    (
        *drain.NOTES,
        f"Each of {GOOD.count} next hops delays each message by half a second. `with` has {SLOW.count} more that greet "
        f"after 30 seconds, and {MUTE.count} that never greet. About {PER_HOP} messages of 2,000 bytes wait for each "
        "next hop; those for the slow ones do not count. The time is from the release to the last message.",
    ),
)

SCENARIOS = comparison.scenarios({"lame": LAME})
