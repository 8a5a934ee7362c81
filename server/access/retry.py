"""When the clients that are refused should come back: each gets an appointment. Pure: told the time.

A refused handshake costs the server 0.15 ms at best (loadtest/LOG.md): a thousand clients that come again every second
would take a seventh of the event loop's time.
"""

from __future__ import annotations

import random

PER_S = 50.0
"""Appointments in a second."""
LONGEST_S = 30.0


class RetryAfter:
    """One replica's answer to "when?"."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._booked_s = 0.0  # the last appointment
        self._rng = rng or random.Random()

    def seconds(self, shortest_s: int, now: float) -> int:
        """Whole seconds to wait, `shortest_s` at least while few are refused; a crowd beyond bounds is spread."""
        self._booked_s = max(now + shortest_s, min(self._booked_s + 1 / PER_S, now + LONGEST_S))
        wait_s = self._booked_s - now
        if wait_s >= LONGEST_S:
            wait_s = self._rng.uniform(LONGEST_S / 2, LONGEST_S)
        return max(shortest_s, round(wait_s))
