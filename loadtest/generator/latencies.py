"""Collection of latencies during a level; percentiles and distribution afterwards."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

PERCENTILES = (50, 90, 95, 98, 99)
"""Reported percentiles; p98 as in Deep Speech 2."""

CDF_POINTS = 500
"""Points of a plotted distribution, more than a plot has pixels."""


class Spread(msgspec.Struct, frozen=True):
    """Percentiles, maximum and mean in milliseconds, of `count` measurements."""

    p50: float
    p90: float
    p95: float
    p98: float
    p99: float
    max: float
    mean: float
    count: int


class Latencies:
    """Latencies in seconds as float32: 27 MB for half an hour of 300 streams; precision 0.5 µs at 5 s."""

    __slots__ = ("_seconds", "add")

    def __init__(self) -> None:
        self._seconds = array("f")
        self.add: Callable[[float], None] = self._seconds.append

    @classmethod
    def merged(cls, parts: Iterable[Latencies]) -> Latencies:
        """Return all measurements of several parts."""
        whole = cls()
        for part in parts:
            whole._seconds.extend(part._seconds)
        return whole

    def __len__(self) -> int:
        return len(self._seconds)

    def spread(self) -> Spread | None:
        """Return the percentiles, each a measured value; None without measurements."""
        if not self._seconds:
            return None
        values = np.frombuffer(self._seconds, np.float32).astype(np.float64)
        at = np.percentile(values, PERCENTILES, method="inverted_cdf")
        p50, p90, p95, p98, p99 = map(_ms, at)
        return Spread(p50, p90, p95, p98, p99, max=_ms(values.max()), mean=_ms(values.mean()), count=len(values))

    def cdf(self) -> list[tuple[float, float]]:
        """Return (milliseconds, share of measurements at or below) in ascending order, thinned to `CDF_POINTS`."""
        values, counts = np.unique(np.frombuffer(self._seconds, np.float32).astype(np.float64), return_counts=True)
        if not len(values):
            return []
        shares = np.cumsum(counts) / counts.sum()
        points = np.arange(len(values))
        if len(values) > CDF_POINTS:
            wanted = np.linspace(1 / CDF_POINTS, 1.0, CDF_POINTS)
            points = np.unique(np.searchsorted(shares, wanted).clip(max=points[-1]))
        return [(_ms(values[number]), float(shares[number])) for number in points]


def _ms(seconds: float) -> float:
    return round(max(float(seconds) * 1e3, 0.0), 3)
