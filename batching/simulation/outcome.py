"""What a simulated load came to. Values, and how they are summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERCENTS = (50, 90, 95, 98, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds, of `count` steps."""

    p50: float
    p90: float
    p95: float
    p98: float
    p99: float
    max: float
    mean: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """Percentiles of at least one time."""
        times: NDArray[np.float64] = np.asarray(seconds, dtype=float) * 1e3
        p50, p90, p95, p98, p99 = (round(float(value), 3) for value in np.percentile(times, PERCENTS))
        largest, mean = round(float(times.max()), 3), round(float(times.mean()), 3)
        return cls(p50, p90, p95, p98, p99, largest, mean, len(times))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One load on one replica, over the measured part of the simulated time."""

    latency_ms: Percentiles | None
    """Of live steps, from the time that the message with their audio was due to the answer; None = there were none."""
    batches: dict[int, int]
    """How many batches had so many rows."""
    model_busy: float
    """Share of the time in which the model thread worked, or waited for the interpreter in the middle of a batch."""
    loop_busy: float
    """Share of the time in which the event loop worked."""
    stable: bool
    """Whether it kept up: what waits at the end is no more than a busy moment explains, and it did not grow."""
    background_steps: int
    """Steps of uploads."""
    seconds: float

    @property
    def mean_batch(self) -> float:
        """Rows of a batch, mean over batches."""
        count = sum(self.batches.values())
        return sum(rows * number for rows, number in self.batches.items()) / count if count else 0.0

    def batch_share(self, at_least: int) -> float:
        """Share of the *steps* that ran in batches of so many rows or more."""
        steps = sum(rows * number for rows, number in self.batches.items())
        return sum(rows * number for rows, number in self.batches.items() if rows >= at_least) / max(1, steps)
