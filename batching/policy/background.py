"""Limits on background work, in batches with due steps and in batches of its own. Pure.

Background work is steps of background streams and early steps of live streams. While due steps miss their deadlines,
each background step waits at most until its deadline, so it cannot starve.

The cost of a background row to live streams is estimated from service times, so the limits fit the machine: a few rows
where time grows with each row, many where a device runs dozens in the time of one.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from batching.policy.service_times import ServiceTimes

WITH_LIVE_SHARE = 0.15
"""Time that background rows may add to a batch with due steps, as a share of a one-row batch's time. Live latency then
rises by at most a fifth, including the event loop's time for the additional answers (loadtest/LOG.md). A batch holds
the steps that arrived during the last one: with a fixed time `a`, and rows taking the share `u` of the time, it lasts
a / (1 - u). So time added to `a` lengthens every batch in proportion, and latency rises by more than that time."""

WITHOUT_LIVE_SHARE = 0.5
"""The same for batches of background work alone: a live step that arrives then waits at most 1.5 one-row batches."""

LATE_SHARE = 0.5
"""Share of a batch's due steps that must miss their deadlines before background work waits, so that one stream with a
budget shorter than a batch does not stop all uploads."""

WAIT_S = 1.0
"""Time that background work waits after the last late batch: while another process computes, late batches come in
groups."""


class BackgroundLimits:
    """The limits, from measured service times; before the first measurement, `background_rows` and `max_batch`."""

    def __init__(self, service: ServiceTimes, *, background_rows: int, max_batch: int) -> None:
        self._service = service
        self._background_rows = background_rows
        self._max_batch = max_batch
        self._wait_until_s = -math.inf

    def watch(self, deadlines_s: Collection[float], now: float) -> None:
        """Make background work wait if a batch of due steps with these deadlines, started now, would be late."""
        if deadlines_s and self._service.known:
            done_s = now + self._service.estimate(min(len(deadlines_s), self._max_batch))
            late = sum([deadline_s < done_s for deadline_s in deadlines_s])
            if late >= LATE_SHARE * len(deadlines_s):
                self._wait_until_s = now + WAIT_S

    @property
    def wait_until_s(self) -> float:
        """Time until which background work waits; in the past = it does not wait."""
        return self._wait_until_s

    def max_rows_with_live(self) -> int:
        """Most background rows in a batch with due steps; at least 1, or they would starve."""
        if not self._service.known:
            return self._background_rows
        return max(1, int(min(self._service.extra_rows(WITH_LIVE_SHARE), self._background_rows)))

    def max_rows_without_live(self) -> int:
        """Most rows of a batch of background work alone, while a live step could arrive."""
        if not self._service.known:
            return self._max_batch
        return min(self._max_batch, 1 + int(min(self._service.extra_rows(WITHOUT_LIVE_SHARE), self._max_batch)))

    def hold_s(self, rows: int, gap_s: float) -> float:
        """Seconds to wait before a batch of `rows` background steps alone, if a due step is expected every `gap_s`.

        If a due step would arrive before the batch ends, waiting for it and joining its batch is better.
        """
        return 2 * gap_s if self._service.known and gap_s < self._service.estimate(rows) else 0.0
