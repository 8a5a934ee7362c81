"""Service times by batch size, measured in the warm-up: the only model facts that policies and capacity use.

Pure. Between two sizes the time is interpolated linearly, because a batch has a fixed cost and a cost per row.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

WORST = 2.0
"""Time of a batch under load that is rarely exceeded, as a multiple of its time in the warm-up: 1.3 to 1.7 times on
average at 300 to 700 streams (loadtest/results/capacity.json, `slowdown`)."""


class ServiceTimes:
    """Seconds by rows."""

    def __init__(self, table: Mapping[int, float] | None = None) -> None:
        """`table`: {rows: seconds}. Raises: ValueError for a size below 1 or a time not positive."""
        self._table: dict[int, float] = {}
        self._rows: list[int] = []
        self._seconds: list[float] = []  # made non-decreasing with the rows
        for rows, seconds in (table or {}).items():
            if rows < 1 or not 0 < seconds < math.inf:
                raise ValueError(f"service times need rows >= 1 and positive seconds, not {rows} rows: {seconds} s")
            self.measured(rows, seconds)

    @property
    def known(self) -> bool:
        """Whether there is any measurement."""
        return bool(self._rows)

    def measured(self, rows: int, seconds: float) -> None:
        """Set the time of a batch of this size."""
        self._table[rows] = seconds
        self._rows = sorted(self._table)
        self._seconds = list(accumulate([self._table[size] for size in self._rows], max))

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
        """Seconds that a batch of `rows` rarely exceeds."""
        return WORST * self.estimate(rows)

    def extra_rows(self, share: float) -> float:
        """Rows that lengthen a batch by `share` of a one-row batch's time; 0 without any measurement."""
        if not self._rows:
            return 0.0
        if len(self._rows) == 1:
            per_row = self._seconds[0] / self._rows[0]
        else:
            per_row = (self._seconds[-1] - self._seconds[0]) / (self._rows[-1] - self._rows[0])
        return share * self._seconds[0] / per_row if per_row else math.inf
