"""Number of replicas needed for the load. Pure: time and loads are arguments.

Scales up at once, because callers wait; down slowly, one at a time, because streams must end or move first.
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
    """Scaling rule. `share`: target load as a share of the limits."""

    least: int = 1
    most: int = 4
    share: float = 0.7
    down_after_s: float = 300.0

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if not 1 <= self.least <= self.most:
            raise ValueError(
                f"--least {self.least}, --most {self.most}: must be 1 replica or more, with --least <= --most"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"--share {self.share:g}: must be above 0 and at most 1")


class Scaling:
    """Applies the rule; records since when fewer replicas suffice."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._fewer_since_s: float | None = None

    def wanted(self, loads: Sequence[Load], present: int, now: float) -> int:
        """Return the wanted number of replicas; `present` are running or starting, `loads` are of running ones."""
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
        self._fewer_since_s = now  # the next replica drains after another `down_after_s`
        return present - 1

    def _needed(self, loads: Sequence[Load]) -> int:
        each = sum(load.limit for load in loads) / len(loads)
        return math.ceil(sum(load.active for load in loads) / (each * self.rule.share)) if each else 1

    def _bounded(self, count: int) -> int:
        return min(max(count, self.rule.least), self.rule.most)
