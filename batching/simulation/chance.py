"""Random factors of a simulation: how single events differ from the calibration's means."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from batching.simulation.calibration import Spread, Spreads
from batching.simulation.service_table import DRAWS


class Chance:
    """Draws factors from measured spreads, all from one seed."""

    def __init__(self, spreads: Spreads, seed: int) -> None:
        random = Random(seed).random
        self.wake = _drawing(spreads.wake, random)
        """Factor of the time that a sleeping thread takes to wake up."""
        self.loop = _drawing(spreads.loop, random)
        """Factor of the event loop's time for the results of a batch."""


def _drawing(spread: Spread, random: Callable[[], float]) -> Callable[[], float]:
    factors = spread.factors()
    return lambda: factors[int(random() * DRAWS)]
