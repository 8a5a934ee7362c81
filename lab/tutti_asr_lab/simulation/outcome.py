"""Results of a simulated load: percentiles, batch sizes, utilization. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERCENTS = (50, 90, 95, 98, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of the latency of `count` steps in milliseconds."""

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
        """Return the percentiles of at least one time in seconds."""
        times: NDArray[np.float64] = np.asarray(seconds, dtype=float) * 1e3
        p50, p90, p95, p98, p99 = (round(float(value), 3) for value in np.percentile(times, PERCENTS))
        largest, mean = round(float(times.max()), 3), round(float(times.mean()), 3)
        return cls(p50, p90, p95, p98, p99, largest, mean, len(times))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one load on one replica, for the measured part of the simulated time."""

    latency_ms: Percentiles | None
    """For live steps, from the due time of the message with their audio to the answer; None = no live steps."""
    batches: dict[int, int]
    """Number of batches by rows."""
    model_busy: float
    """Share of the time in which the model thread was busy, including waits for the interpreter lock within a batch."""
    loop_busy: float
    """Share of the time in which the event loop was busy."""
    stable: bool
    """Whether latency did not grow over the measured time (`simulator.GROWTH`)."""
    background_steps: int
    """Number of steps that are not timed: those with the last frames of streams that end."""
    seconds: float

    @property
    def mean_batch(self) -> float:
        """Mean rows of a batch."""
        count = sum(self.batches.values())
        return sum(rows * number for rows, number in self.batches.items()) / count if count else 0.0

    def batch_share(self, at_least: int) -> float:
        """Share of the *steps* that ran in batches of `at_least` rows."""
        steps = sum(rows * number for rows, number in self.batches.items())
        return sum(rows * number for rows, number in self.batches.items() if rows >= at_least) / max(1, steps)
