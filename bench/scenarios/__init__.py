"""The scenarios, one module for each kind of load; each has a table `SCENARIOS`: name to Scenario."""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A scenario."""

    run: typing.Callable  # called with the options; returns whether every target was met
    sides: tuple = ()  # sides that can be run alone
    pairs: int = 5  # default number of rounds
    quick_shrink: int = 10  # what --quick divides every count by
