"""Retry times of refused clients, spread over time so that they do not all return at once."""

from __future__ import annotations

import random

RETRIES_PER_S = 50.0
LONGEST_S = 30.0


class RetryAfter:
    """`Retry-After` of one server: spreads refused clients over time at `RETRIES_PER_S`, up to `LONGEST_S` each."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._latest_s = 0.0  # time at which the last refused client should retry
        self._rng = rng or random.Random()
        self.processes = 1
        """Processes that refuse clients at the same time; each spreads its share."""

    def seconds(self, shortest_s: int, now: float) -> int:
        """Return whole seconds to wait: `shortest_s` while few are refused; random once `LONGEST_S` is reached."""
        self._latest_s = max(now + shortest_s, min(self._latest_s + self.processes / RETRIES_PER_S, now + LONGEST_S))
        wait_s = self._latest_s - now
        if wait_s >= LONGEST_S:
            wait_s = self._rng.uniform(LONGEST_S / 2, LONGEST_S)
        return max(shortest_s, round(wait_s))
