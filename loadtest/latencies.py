"""Latencies as an HDR histogram: exact to 0.1 %, and cheap enough to record every step.

Knows nothing of what is measured.
"""

from __future__ import annotations

import msgspec
from hdrh.histogram import HdrHistogram

LONGEST_US = 60_000_000
"""A minute: whatever takes longer is recorded as that."""

PERCENTILES = (50, 90, 95, 98, 99)
"""What is reported: Deep Speech 2 reported p98."""

DIGITS = 3
"""Significant digits kept: 0.1 % of a latency."""


class Spread(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds, of `count` measurements."""

    p50: float
    p90: float
    p95: float
    p98: float
    p99: float
    max: float
    mean: float
    count: int


class Latencies:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, LONGEST_US, DIGITS)

    def add(self, seconds: float) -> None:
        """Record one; less than a microsecond, and negative ones, count as one microsecond."""
        self._histogram.record_value(min(max(1, round(seconds * 1e6)), LONGEST_US))

    def spread(self) -> Spread | None:
        """The percentiles; None when nothing was recorded."""
        histogram = self._histogram
        if not histogram.get_total_count():
            return None
        p50, p90, p95, p98, p99 = (_ms(histogram.get_value_at_percentile(at)) for at in PERCENTILES)
        return Spread(
            p50=p50,
            p90=p90,
            p95=p95,
            p98=p98,
            p99=p99,
            max=_ms(histogram.max_value),
            mean=_ms(histogram.get_mean_value()),
            count=histogram.total_count,
        )

    def cdf(self) -> list[tuple[float, float]]:
        """(milliseconds, share of measurements at or below) for each value that occurred."""
        histogram = self._histogram
        total = max(1, histogram.total_count)
        return [
            (_ms(item.value_iterated_to), item.total_count_to_this_value / total)
            for item in histogram.get_recorded_iterator()
        ]


def _ms(microseconds: float) -> float:
    return round(microseconds * 1e-3, 3)
