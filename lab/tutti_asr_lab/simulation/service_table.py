"""Service times of a device by batch rows: measured quantiles from which a simulation draws.

Owns the interpolation. Independent of queues and streams.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 256
"""Points of the distribution for a batch size: a draw is a random index; five points are above p98."""


@dataclass(frozen=True, slots=True)
class ServiceTable:
    """Table of service times: `seconds[i][k]` is the quantile `quantiles[k]` of the time of `rows[i]` steps."""

    rows: tuple[int, ...]
    quantiles: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Raises: ValueError for a table that is empty, unsorted or ragged, or has times that are not positive."""
        times = np.array(self.seconds, dtype=float)
        if times.shape != (len(self.rows), len(self.quantiles)) or not times.size:
            raise ValueError("a service table must have a row for each size and a column for each quantile")
        if not _rising(self.rows) or not _rising(self.quantiles) or self.rows[0] < 1:
            raise ValueError("sizes and quantiles of a service table must ascend, sizes must be at least 1")
        if not 0 <= self.quantiles[0] <= self.quantiles[-1] <= 1:
            raise ValueError(f"quantiles of a service table must be between 0 and 1, not {self.quantiles}")
        if not (np.isfinite(times).all() and (times > 0).all() and (np.diff(times, axis=1) >= 0).all()):
            raise ValueError("times of a service table must be positive and must not decrease with the quantile")

    @classmethod
    def constant(cls, seconds: Mapping[int, float]) -> ServiceTable:
        """Return a table with one time per batch size, from seconds by rows."""
        rows = tuple(sorted(seconds))
        return cls(rows, (0.5,), tuple((seconds[size],) for size in rows))

    @classmethod
    def of(cls, measured: Mapping[int, Sequence[float]], quantiles: Sequence[float]) -> ServiceTable:
        """Return a table of the quantiles of measured seconds by rows."""
        rows = tuple(sorted(measured))
        found = [np.quantile(measured[size], quantiles) for size in rows]
        return cls(rows, tuple(quantiles), tuple(tuple(float(value) for value in line) for line in found))

    def median(self, rows: float) -> float:
        """Median seconds of a batch of `rows`."""
        return float(np.interp(0.5, self.quantiles, self._quantiles_at(rows)))

    def mean(self, rows: int) -> float:
        """Mean seconds of a batch of `rows`, as the mean of `draws`."""
        return sum(self.draws(rows)) / DRAWS

    def draws(self, rows: int) -> list[float]:
        """`DRAWS` equally likely times of a batch of `rows`, ascending."""
        points = (np.arange(DRAWS) + 0.5) / DRAWS
        return [float(value) for value in np.interp(points, self.quantiles, self._quantiles_at(rows))]

    def _quantiles_at(self, rows: float) -> NDArray[np.float64]:
        """Interpolate between the measured sizes; extrapolate linearly above the largest."""
        if rows < 1:
            raise ValueError(f"rows of a batch must be at least 1, not {rows}")
        times = np.array(self.seconds, dtype=float)
        if len(self.rows) == 1:
            return np.asarray(times[0] * max(1.0, rows / self.rows[0]), dtype=np.float64)
        above = min(max(int(np.searchsorted(self.rows, rows)), 1), len(self.rows) - 1)
        low, high = self.rows[above - 1], self.rows[above]
        share = max(0.0, (rows - low) / (high - low))
        between = times[above - 1] + share * (times[above] - times[above - 1])
        # Noise in the table may make a larger batch look faster than the smallest.
        return np.asarray(np.maximum.accumulate(np.maximum(between, times[0])), dtype=np.float64)


def _rising(values: Sequence[float]) -> bool:
    return all(low < high for low, high in itertools.pairwise(values))
