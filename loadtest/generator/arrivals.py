"""Arrivals of streams: the modes in which a level is filled, durations of streams, waits of refused clients.

Values and arithmetic only; `level.py` uses them.
"""

from __future__ import annotations

import enum
import math
import random

RETRY_S = 1.0
"""Wait of a refused client without a Retry-After."""

JITTER = 0.25
"""Share by which each client's wait is longer or shorter, so that they do not retry in lockstep."""


class Arrivals(enum.Enum):
    """What follows the end of a recording."""

    FIXED = "fixed"  # the next recording, on a connection of its own: N streams are live all the time
    ONCE = "once"  # nothing: N streams of one recording each
    CHURN = "churn"  # nothing; new streams arrive at random, at the rate that keeps N live on average


def rate_hz(streams: int, mean_s: float) -> float:
    """Arrivals a second that keep `streams` live on average, each for `mean_s`. Source: Little's law."""
    return streams / mean_s


def exponential_lengths_s(mean_s: float, count: int) -> tuple[float, ...]:
    """`count` durations that stand for an exponential distribution: its quantiles, scaled to have the mean."""
    quantiles = [-math.log(1 - (number + 0.5) / count) for number in range(count)]
    scale = mean_s * count / sum(quantiles)
    return tuple(scale * quantile for quantile in quantiles)


def even_lengths_s(mean_s: float, count: int) -> tuple[float, ...]:
    """`count` durations from three quarters to five quarters of the mean, so that streams do not end together."""
    return tuple(mean_s * (0.75 + 0.5 * (number + 0.5) / count) for number in range(count))


def retry_s(advised_s: float | None, rng: random.Random) -> float:
    """Wait of a refused client before its next handshake."""
    wait_s = RETRY_S if advised_s is None else advised_s
    return wait_s * rng.uniform(1 - JITTER, 1 + JITTER)
