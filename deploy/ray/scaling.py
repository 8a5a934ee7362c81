"""Number of replicas that the load needs. Pure: time and loads are arguments.

Up at once, because callers wait; down slowly and one at a time, because streams must end or move first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a replica: open streams, and the lower of its configured and its estimated limit."""

    active: int
    limit: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The operator's rule. `share`: part of the limits up to which the fleet is filled."""

    least: int = 1
    most: int = 4
    share: float = 0.7
    down_after_s: float = 300.0

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if not 1 <= self.least <= self.most:
            raise ValueError("at least one replica, and at most no fewer than at least")
        if not 0 < self.share <= 1:
            raise ValueError("the share to fill lies above 0 and is 1 at most")


class Scaling:
    """Applies the rule; remembers since when fewer replicas are enough."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._fewer_since_s: float | None = None

    def wanted(self, loads: Sequence[Load], present: int, now: float) -> int:
        """The wanted number of replicas; `present` run or start, `loads` are of those that run."""
        if not loads:
            return max(self.rule.least, present)
        enough = self._bounded(self._needed(loads))
        if enough >= present:
            self._fewer_since_s = None
            return enough
        if self._fewer_since_s is None:
            self._fewer_since_s = now
        if now - self._fewer_since_s < self.rule.down_after_s:
            return present
        self._fewer_since_s = now  # the next replica leaves after another `down_after_s`
        return present - 1

    def _needed(self, loads: Sequence[Load]) -> int:
        each = sum(load.limit for load in loads) / len(loads)
        return math.ceil(sum(load.active for load in loads) / (each * self.rule.share)) if each else 1

    def _bounded(self, count: int) -> int:
        return min(max(count, self.rule.least), self.rule.most)
