"""Slow next hops do not hold up the others: a queue drains to 900 next hops with and without a hundred lame ones.

Each of the 900 takes its time over a message, so that draining lasts about a minute. Of the hundred, one half greets
after 30 seconds, the other half never does; as much mail waits for each of them as for each of the 900. What is timed
is the mail for the 900, from the release to the last message.
"""

import contest
import drain
import pairs
from contest import Contest
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


LAME = Contest(
    "Draining beside lame next hops",
    {"without": _side("without"), "with": _side("with", SLOW, MUTE)},
    (pairs.Target("with", "without", "rate", least=1 / SLOWER_MOST),),
    (
        *drain.NOTES,
        f"Each of {GOOD.count} next hops takes half a second over a message. `with` has {SLOW.count} more that greet "
        f"after 30 seconds, and {MUTE.count} that never greet. About {PER_HOP} messages of 2,000 bytes wait for each "
        "next hop; those for the lame ones do not count. The time is that from the release to the last message.",
    ),
)

SCENARIOS = contest.scenarios({"lame": LAME})
