"""Prediction of the share of peak of larger training runs from the parts of an update: compute, stragglers, all-reduce.

An update of P processes with a micro-batch each takes

    T(P) = compute + spread m(P) + 2 log2(P) latency + 2 (P - 1) / P bytes / bandwidth + optimizer,

where m(P) is the expected maximum of P standard normal values: an update ends with its slowest process. Share of peak
is that of one process times T(1) / T(P), as every process does the same work.

Assumptions: gradients take times that are normal and independent; every process has a core, and a link as fast as the
one measured, to itself (no contention in a switch, memory or cache); the optimizer is not divided further.
Source of m(P): Blom 1958, "Statistical Estimates and Transformed Beta-Variables".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from statistics import NormalDist, median, quantiles

import msgspec

PUBLISHED = {
    1: 0.55,
    8: 0.48,
    128: 0.28,
}  # share of peak of GPUs, reported in the papers on persistent RNNs and Deep Speech 2
PREDICTED = (1, 2, 4, 8, 16, 32, 64, 128)
IQR = 1.349  # interquartile range of the standard normal distribution


class Fitted(msgspec.Struct, frozen=True):
    """Parts of an update of one process, in seconds, and of one exchange of gradients."""

    compute_s: float
    spread_s: float  # standard deviation of `compute_s` between updates, from the interquartile range
    optimizer_s: float
    latency_s: float  # of a round
    bytes: int  # of the gradients
    bytes_per_s: float
    share_of_peak: float

    def update_s(self, processes: int) -> float:
        """Time of an update; `processes` is a power of two."""
        alone = self.compute_s + self.optimizer_s
        if processes == 1:
            return alone
        sent = 2 * (processes - 1) / processes * self.bytes
        reduced = 2 * log2(processes) * self.latency_s + sent / self.bytes_per_s
        return alone + self.spread_s * expected_maximum(processes) + reduced


class Predicted(msgspec.Struct, frozen=True):
    """Prediction for a number of processes, with what was published of GPUs where there is a figure."""

    processes: int
    update_s: float
    share_of_peak: float
    published: float | None


def expected_maximum(count: int) -> float:
    """Expected maximum of `count` independent standard normal values, within 2 %; 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def fit(
    compute_s: Sequence[float],
    *,
    optimizer_s: float,
    exchange_s: float,
    latency_s: float,
    size_bytes: int,
    share_of_peak: float,
) -> Fitted:
    """Fit to updates of one process (`compute_s`, one or more each) and to one exchange between two processes.

    Between two processes each sends `size_bytes` once, in two rounds, in `exchange_s` seconds.
    """
    low, _, high = quantiles(compute_s, n=4) if len(compute_s) > 1 else (0.0, 0.0, 0.0)
    sending_s = max(exchange_s - 2 * latency_s, 1e-6)
    return Fitted(
        compute_s=round(median(compute_s), 5),
        spread_s=round((high - low) / IQR, 5),
        optimizer_s=round(optimizer_s, 5),
        latency_s=round(latency_s, 7),
        bytes=size_bytes,
        bytes_per_s=round(max(size_bytes, 1) / sending_s, 1),
        share_of_peak=round(share_of_peak, 4),
    )


def predict(fitted: Fitted, processes: Sequence[int] = PREDICTED) -> tuple[Predicted, ...]:
    """Predict updates and shares of peak."""
    alone = fitted.update_s(1)
    times = [(count, fitted.update_s(count)) for count in processes]
    return tuple(
        Predicted(count, round(time, 4), round(fitted.share_of_peak * alone / time, 4), PUBLISHED.get(count))
        for count, time in times
    )
