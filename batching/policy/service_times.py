"""Measured service times by batch size, the only model facts that policies and capacity estimates use.

Pure. Sizes between two powers of two share a point, (mean rows, mean seconds); between points the time is interpolated
linearly, because a batch has a fixed cost and a cost per row.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

WEIGHT = 1 / 8
"""Weight of the newest measurement in a running mean. Source: RFC 6298, section 2 (smoothed round-trip times)."""

SPREAD_WEIGHT = 1 / 4
SPREADS = 4
"""Number of mean deviations that `at_worst` adds to the estimate. Source of both: the same section."""


class ServiceTimes:
    """Running means of seconds by rows; can start from an earlier measurement."""

    def __init__(self, table: Mapping[int, float] | None = None) -> None:
        """`table`: {rows: seconds} measured before. Raises: ValueError for a size below 1 or a time not positive."""
        self._places: dict[int, int] = {}  # bucket -> its index in the lists, in ascending order
        self._rows: list[float] = []  # means
        self._means: list[float] = []  # of seconds
        self._seconds: list[float] = []  # the same, made non-decreasing with the rows
        self._spread = 0.0  # mean deviation as a share of the estimate
        for rows, seconds in sorted((table or {}).items()):
            if rows < 1 or not 0 < seconds < math.inf:
                raise ValueError(f"service times need rows >= 1 and positive seconds, not {rows} rows: {seconds} s")
            self._set(rows, seconds)  # the largest of the sizes that share a point is kept

    @property
    def known(self) -> bool:
        """Whether there is any measurement."""
        return bool(self._rows)

    def learn(self, rows: int, seconds: float) -> None:
        """Add one measurement to the means."""
        place = self._places.get(_bucket(rows))
        if place is None:
            self._set(rows, seconds)
            expected = seconds
        else:
            expected = self.estimate(rows)
            self._rows[place] += WEIGHT * (rows - self._rows[place])
            self._means[place] += WEIGHT * (seconds - self._means[place])
            self._raise_from(place)
        if expected > 0:
            self._spread += SPREAD_WEIGHT * (abs(seconds - expected) / expected - self._spread)

    def estimate(self, rows: float) -> float:
        """Expected seconds of a batch of `rows`; inf without any measurement.

        Outside the measured sizes it overestimates: the smallest batch's time below them, time proportional to the
        rows above them.
        """
        if not self._rows:
            return math.inf
        i = bisect_left(self._rows, rows)
        if i == len(self._rows):
            return self._seconds[-1] * rows / self._rows[-1]
        if i == 0:
            return self._seconds[0]
        x0, x1, y0, y1 = self._rows[i - 1], self._rows[i], self._seconds[i - 1], self._seconds[i]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)

    def at_worst(self, rows: float) -> float:
        """Seconds that a batch of `rows` rarely exceeds: the estimate plus four mean deviations."""
        return self.estimate(rows) * (1 + SPREADS * self._spread)

    def per_row(self) -> float:
        """Seconds that one more row adds to a batch, mean over all measured sizes; inf without any measurement."""
        if not self._rows:
            return math.inf
        if len(self._rows) == 1:
            return self._seconds[0] / self._rows[0]
        return (self._seconds[-1] - self._seconds[0]) / (self._rows[-1] - self._rows[0])

    def extra_rows(self, share: float) -> float:
        """Rows that lengthen a batch by `share` of a one-row batch's time; 0 without any measurement."""
        per_row = self.per_row()
        if per_row == math.inf:
            return 0.0
        return share * self._seconds[0] / per_row if per_row else math.inf

    def extrapolate(self, rows: float) -> float:
        """As `estimate`, but above the largest measured size it grows by `per_row` for each row."""
        if not self._rows or rows <= self._rows[-1]:
            return self.estimate(rows)
        return self._seconds[-1] + (rows - self._rows[-1]) * self.per_row()

    def _set(self, rows: int, seconds: float) -> None:
        """Set the point of the bucket of `rows`."""
        bucket = _bucket(rows)
        if bucket not in self._places:
            place = sum(other < bucket for other in self._places)
            for values in (self._rows, self._means, self._seconds):
                values.insert(place, 0.0)
            self._places = {other: i for i, other in enumerate(sorted([*self._places, bucket]))}
        place = self._places[bucket]
        self._rows[place], self._means[place] = rows, seconds
        self._raise_from(place)

    def _raise_from(self, place: int) -> None:
        """Recompute `_seconds` from `place` on, after the mean there has changed."""
        longest = self._seconds[place - 1] if place else 0.0
        for i in range(place, len(self._means)):
            longest = max(longest, self._means[i])
            if i > place and self._seconds[i] == longest:
                return  # all later values are unchanged too
            self._seconds[i] = longest


def _bucket(rows: int) -> int:
    return (rows - 1).bit_length()  # 1 | 2 | 3–4 | 5–8 | 9–16 | …
