"""Search for the highest number of streams that a server sustains, in few levels. Pure: results are arguments.

Starts from a guess and goes up by a factor, or down by growing ones, until the result lies between a good and a bad
level, then narrows the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CLOSE = 1.08
"""Relative distance of good and bad level at which the search ends; rounds vary by as much."""

MOST = 2_048


@dataclass(slots=True)
class Search:
    """Search: get `next_level`, run it, `add` its result."""

    first: int
    factor: float = 1.5
    levels: int = 8  # maximum number of levels
    good: int = 0  # highest sustained level
    bad: int | None = None  # lowest level that was not sustained
    tried: int = 0

    def next_level(self) -> int | None:
        """Return the streams of the next level; None if the result is precise enough, or after `levels` levels."""
        if self.tried >= self.levels:
            return None
        if not self.tried:
            return self.first
        level = self._between() if self.good and self.bad is not None else self._beyond()
        return None if level in (self.good, self.bad) or not 1 <= level <= MOST else level

    def add(self, level: int, *, sustained: bool) -> None:
        """Add the result of a level."""
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
        return min(self.bad - 1, max(1, round(self.bad / self.factor**self.tried)))  # ever larger steps down
