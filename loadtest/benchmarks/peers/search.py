"""Search for the most streams that a server sustains, in few levels. Pure: results of levels are arguments.

From the first guess up or down by a factor until a good and a bad level enclose the answer, then between them until
they lie close together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CLOSE = 1.08
"""Good and bad level this close are close enough: rounds differ from one another by as much."""

MOST = 2_048


@dataclass(slots=True)
class Search:
    """Ask for `next_level`, run it, `add` its result."""

    first: int
    factor: float = 1.5
    levels: int = 8  # at most
    good: int = 0  # the best level that was sustained
    bad: int | None = None  # the least that was not
    tried: int = 0

    def next_level(self) -> int | None:
        """The streams of the next level; None when the answer is known well enough, or time is up."""
        if self.tried >= self.levels:
            return None
        if not self.tried:
            return self.first
        level = self._between() if self.good and self.bad is not None else self._beyond()
        return None if level in (self.good, self.bad) or not 1 <= level <= MOST else level

    def add(self, level: int, *, sustained: bool) -> None:
        """Take the result of a level."""
        self.tried += 1
        if sustained:
            self.good = max(self.good, level)
        else:
            self.bad = level if self.bad is None else min(self.bad, level)

    def _between(self) -> int:
        assert self.bad is not None
        if self.bad <= max(self.good * CLOSE, self.good + 1):
            return self.good
        return round(math.sqrt(self.good * self.bad))

    def _beyond(self) -> int:
        if self.bad is None:
            return max(self.good + 1, round(self.good * self.factor))
        return min(self.bad - 1, round(self.bad / self.factor))
