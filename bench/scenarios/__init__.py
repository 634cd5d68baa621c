"""What can be measured, one module for each kind of load. Each has a table `SCENARIOS`: name to Scenario."""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One of them."""

    run: typing.Callable  # of the options; whether every aim was met
    sides: tuple = ()  # that may be tried alone
    pairs: int = 5  # rounds, unless others are asked for
