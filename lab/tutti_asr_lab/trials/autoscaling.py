"""Rule by which a HorizontalPodAutoscaler chooses the number of replicas. Pure: time is an argument.

Source: Kubernetes, pkg/controller/podautoscaler: `GetExternalPerPodMetricReplicas` and
`normalizeDesiredReplicasWithBehaviors`. The numbers are those of deploy/helm/tutti; a test compares them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

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

    def wanted(self, load: float) -> int:
        """Return the number of replicas that carry this load at the target, without the limits."""
        return math.ceil(load / self.fill)

    def faster(self, factor: float) -> ScalingRule:
        """Return the rule with all times divided by `factor`."""
        return replace(
            self,
            sync_s=self.sync_s / factor,
            period_s=self.period_s / factor,
            down_window_s=self.down_window_s / factor,
        )


def load_in_replicas(replicas: Iterable[tuple[float, float]]) -> float | None:
    """Return the load by which the chart's HPA and KEDA scale; None without replicas.

    `replicas`: open channels and most channels of each replica that takes new streams. A load of 2.1 equals that of 2.1
    full replicas.
    """
    counted = list(replicas)
    if not counted:
        return None
    return sum(active for active, _ in counted) / (sum(most for _, most in counted) / len(counted))


class AgedLoad:
    """The load as an autoscaler sees it, `age_s` after the replicas had it."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._loads: deque[tuple[float, float | None]] = deque()  # by the time at which they are seen
        self._seen: float | None = None

    def see(self, now: float, load: float | None) -> float | None:
        """Take the load of now; returns the newest one that is old enough, None before the first."""
        self._loads.append((now + self._age_s, load))
        while self._loads and self._loads[0][0] <= now:
            self._seen = self._loads.popleft()[1]
        return self._seen


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
        return self._rule.wanted(load)

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
