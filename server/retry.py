"""When the clients that are refused should come back: later the more of them there are. Pure: told the time.

A refused handshake costs the event loop a third of a millisecond (loadtest/LOG.md). A thousand clients that come again
every second would take as much of it as three hundred streams.
"""

from __future__ import annotations

import random
from collections import deque

WINDOW_S = 1.0
WANTED_PER_S = 50.0
"""Refusals that may come at the shortest wait; they cost the loop less than 2 % of its time."""
LONGEST_S = 30.0


class RetryAfter:
    """One replica's answer to "when?"; spread, so that those who were refused together do not return together."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._refused_s: deque[float] = deque()
        self._rng = rng or random.Random()

    def seconds(self, shortest_s: int, now: float) -> int:
        """Count a refusal; return the whole seconds to wait, `shortest_s` at least while few are refused."""
        while self._refused_s and self._refused_s[0] <= now - WINDOW_S:
            self._refused_s.popleft()
        self._refused_s.append(now)
        crowd = len(self._refused_s) / (WINDOW_S * WANTED_PER_S)
        if crowd <= 1:
            return shortest_s
        wait_s = min(shortest_s * crowd, LONGEST_S)
        return max(shortest_s, round(self._rng.uniform(wait_s, 2 * wait_s)))
