"""How much work that can wait may run beside, and between, the steps of streams that cannot. Pure.

What a filling step costs the live ones is judged by the service times, so the bounds fit the machine: a few rows where
each row takes its time, many where a device does dozens at the price of one.
"""

from __future__ import annotations

from batching.service_times import ServiceTimes

RIDE_SHARE = 0.15
"""How much of a one-row batch's time the filling steps in a batch with due ones may add to it, so that live latency
rises by a fifth at most, what their answers cost the event loop included (loadtest/LOG.md). A batch holds what arrived
during the last one: with a fixed part `a`, and rows taking the share `u` of the time, it lasts a / (1 - u). So what is
added to `a` lengthens every batch in proportion, and an answer takes more than its batch."""

ALONE_SHARE = 0.5
"""The same for filling steps alone: a live step that comes meanwhile waits for one and a half one-row batches."""


class Filling:
    """The bounds, by what is known of the service times; before anything is, `background_rows` and no bound."""

    def __init__(self, service: ServiceTimes, *, background_rows: int, max_batch: int) -> None:
        self._service = service
        self._background_rows = background_rows
        self._max_batch = max_batch

    def riding(self) -> int:
        """Rows that may ride with due steps: one at least, or they would starve."""
        if not self._service.known:
            return self._background_rows
        return max(1, int(min(self._service.extra_rows(RIDE_SHARE), self._background_rows)))

    def alone(self) -> int:
        """Rows of a batch of their own, where a live step could come."""
        if not self._service.known:
            return self._max_batch
        return min(self._max_batch, 1 + int(min(self._service.extra_rows(ALONE_SHARE), self._max_batch)))

    def hold_s(self, rows: int, gap_s: float) -> float:
        """How long to wait before such a batch of `rows`, where a due step is expected every `gap_s`.

        If one would come before the batch ends, it pays to let it come and ride with it.
        """
        return 2 * gap_s if self._service.known and gap_s < self._service.estimate(rows) else 0.0
