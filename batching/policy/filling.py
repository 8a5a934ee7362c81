"""Bounds on filling steps, those that can wait, in batches with due steps and in batches of their own. Pure.

While due steps miss their deadlines the filling ones wait, each until its own deadline at most: none starves.

The cost of a filling step to the live ones is estimated from service times, so the bounds fit the machine: a few rows
where each row takes its time, many where a device runs dozens in the time of one.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from batching.policy.service_times import ServiceTimes

RIDE_SHARE = 0.15
"""Time that filling steps may add to a batch with due ones, as a share of a one-row batch's time, so that live latency
rises by a fifth at most, their answers' cost on the event loop included (loadtest/LOG.md). A batch holds the steps that
arrived during the last one: with a fixed part `a`, and rows taking the share `u` of the time, it lasts a / (1 - u). So
time added to `a` lengthens every batch in proportion, and an answer takes longer than its batch."""

ALONE_SHARE = 0.5
"""The same for filling steps alone: a live step that comes meanwhile waits for up to one and a half one-row batches."""

LATE_SHARE = 0.5
"""Share of a batch's due steps that must miss their deadlines for filling ones to wait: a stream that asks for a budget
shorter than a batch shall not stop the others' uploads."""

WAIT_S = 1.0
"""How long filling steps wait after the last late batch: while a neighbour computes, late batches come in groups."""


class Filling:
    """The bounds, from measured service times; before the first measurement, `background_rows` and `max_batch`."""

    def __init__(self, service: ServiceTimes, *, background_rows: int, max_batch: int) -> None:
        self._service = service
        self._background_rows = background_rows
        self._max_batch = max_batch
        self._wait_until_s = -math.inf

    def watch(self, deadlines_s: Collection[float], now: float) -> None:
        """Let filling steps wait if a batch of due steps with these deadlines, taken now, comes too late."""
        if deadlines_s and self._service.known:
            done_s = now + self._service.estimate(min(len(deadlines_s), self._max_batch))
            late = sum([deadline_s < done_s for deadline_s in deadlines_s])
            if late >= LATE_SHARE * len(deadlines_s):
                self._wait_until_s = now + WAIT_S

    @property
    def wait_until_s(self) -> float:
        """Time until which filling steps wait; in the past = they need not."""
        return self._wait_until_s

    def riding(self) -> int:
        """Most filling rows in a batch with due steps; at least 1, or they would starve."""
        if not self._service.known:
            return self._background_rows
        return max(1, int(min(self._service.extra_rows(RIDE_SHARE), self._background_rows)))

    def alone(self) -> int:
        """Most rows of a batch of filling steps alone, while a live step could come."""
        if not self._service.known:
            return self._max_batch
        return min(self._max_batch, 1 + int(min(self._service.extra_rows(ALONE_SHARE), self._max_batch)))

    def hold_s(self, rows: int, gap_s: float) -> float:
        """Seconds to wait before a batch of `rows` filling steps alone, where a due step is expected every `gap_s`.

        If one would come before the batch ends, it pays to wait for it and join it.
        """
        return 2 * gap_s if self._service.known and gap_s < self._service.estimate(rows) else 0.0
