"""Arrival modes of streams, lengths of streams, and retry waits of refused clients.

Pure functions and values, used by `level.py`.
"""

from __future__ import annotations

import enum
import math
import random

RETRY_S = 1.0
"""Wait of a refused client if there is no Retry-After."""

JITTER = 0.25
"""Share by which a client's wait varies, so that clients do not retry in lockstep."""


class Arrivals(enum.Enum):
    """Arrival mode: when streams start."""

    FIXED = "fixed"  # a new stream follows each ended one: N streams are always live
    CHURN = "churn"  # Poisson arrivals, at the rate that keeps N streams live on average


def rate_hz(streams: int, mean_s: float) -> float:
    """Return the arrivals per second that keep `streams` of length `mean_s` live on average. Source: Little's law."""
    return streams / mean_s


def exponential_lengths_s(mean_s: float, count: int) -> tuple[float, ...]:
    """Return `count` quantiles of an exponential distribution, scaled to the given mean."""
    quantiles = [-math.log(1 - (number + 0.5) / count) for number in range(count)]
    scale = mean_s * count / sum(quantiles)
    return tuple(scale * quantile for quantile in quantiles)


def even_lengths_s(mean_s: float, count: int) -> tuple[float, ...]:
    """Return `count` lengths from 0.75 to 1.25 times the mean, so that streams do not end together."""
    return tuple(mean_s * (0.75 + 0.5 * (number + 0.5) / count) for number in range(count))


def retry_s(advised_s: float | None, rng: random.Random) -> float:
    """Return the wait of a refused client before its next handshake, with jitter."""
    wait_s = RETRY_S if advised_s is None else advised_s
    return wait_s * rng.uniform(1 - JITTER, 1 + JITTER)
