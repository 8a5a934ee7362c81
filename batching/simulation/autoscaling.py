"""Rule by which a HorizontalPodAutoscaler chooses the number of replicas; a pure object, to which time is given.

Source: Kubernetes, pkg/controller/podautoscaler: `GetExternalPerPodMetricReplicas` and
`normalizeDesiredReplicasWithBehaviors`. The numbers are those of deploy/helm/tutti; a test compares them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

TOLERANCE = 0.1
"""A load within this share of the target changes nothing: the default of Kubernetes."""


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """Target and limits of an autoscaler."""

    fill: float = 0.6
    """Load in replicas for each replica: the rest is for streams that arrive while another replica starts."""
    least: int = 3
    most: int = 20
    sync_s: float = 15.0
    """Time between two decisions."""
    up_percent: float = 100.0
    """Most replicas added in `period_s`, in percent."""
    down_percent: float = 20.0
    """Most replicas removed in `period_s`, in percent; one is always allowed."""
    period_s: float = 60.0
    down_window_s: float = 300.0
    """The highest number wanted in this time counts when replicas are removed."""

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if not 0 < self.fill <= 1 or not 1 <= self.least <= self.most:
            raise ValueError(
                f"an autoscaler needs a fill ({self.fill:g}) above 0 and at most 1, "
                f"and at least one replica and no fewer at most ({self.least}, {self.most})"
            )


class Autoscaler:
    """Decides by a rule how many replicas there should be."""

    def __init__(self, rule: ScalingRule) -> None:
        self._rule = rule
        self._wanted: deque[tuple[float, int]] = deque()  # within the window
        self._changes: deque[tuple[float, int]] = deque()  # within the period

    def decide(self, now: float, replicas: int, load: float | None) -> int:
        """Return the new number, for `replicas` without the draining ones; a `load` of None changes nothing."""
        rule = self._rule
        self._forget(now)
        wanted = replicas if load is None else self._by_load(replicas, load)
        self._wanted.append((now, wanted))
        # Of the recommendations in the window only the highest allows fewer replicas.
        stable = wanted if wanted >= replicas else min(replicas, max(number for _, number in self._wanted))
        chosen = max(rule.least, min(rule.most, self._limited(replicas, stable)))
        if chosen != replicas:
            self._changes.append((now, chosen - replicas))
        return chosen

    def _by_load(self, replicas: int, load: float) -> int:
        if abs(load / (self._rule.fill * replicas) - 1) <= TOLERANCE:
            return replicas
        return math.ceil(load / self._rule.fill)

    def _limited(self, replicas: int, wanted: int) -> int:
        rule = self._rule
        if wanted > replicas:
            before = replicas - sum(change for _, change in self._changes if change > 0)
            return max(replicas, min(wanted, math.ceil(before * (1 + rule.up_percent / 100))))
        before = replicas - sum(change for _, change in self._changes if change < 0)
        return min(replicas, max(wanted, min(before - 1, math.floor(before * (1 - rule.down_percent / 100)))))

    def _forget(self, now: float) -> None:
        rule = self._rule
        for kept, seconds in ((self._wanted, rule.down_window_s), (self._changes, rule.period_s)):
            while kept and kept[0][0] <= now - seconds:
                kept.popleft()
