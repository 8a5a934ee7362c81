"""Backpressure from the receiver of results: the next batch starts after the last one was acknowledged.

While a busy event loop has not processed the last batch, results of another one would only queue after it. So the
model thread waits for a bounded time, and the next batch grows: larger batches cost less time per row in both threads.
An idle receiver acknowledges at once, and the model thread never waits.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable

from batching.events import BatchDone, EngineEvent

PATIENCE_S = 0.05  # after this time the next batch starts without an acknowledgement


class ResultBackpressure:
    """Delivers events on the model thread and waits there for the receiver to `acknowledge` the last batch."""

    def __init__(self, deliver: Callable[[EngineEvent], None], patience_s: float = PATIENCE_S) -> None:
        self._deliver = deliver
        self._patience_s = patience_s
        self._delivered = 0  # batches; written by the model thread alone
        self._acknowledged = 0  # written by the receiver's thread alone
        self._waiting = False
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def deliver(self, event: EngineEvent) -> None:
        """Deliver an event."""
        if isinstance(event, BatchDone):
            self._delivered += 1
        self._deliver(event)

    def acknowledge(self) -> None:
        """Count one more received batch; called by the receiver's thread alone."""
        self._acknowledged += 1
        if self._waiting:
            self._waiting = False
            self._wakeups.put(None)

    @property
    def waits(self) -> bool:
        """Whether `wait` would wait: a batch is not acknowledged yet."""
        return self._acknowledged < self._delivered

    def wait(self) -> None:
        """Wait until every batch is acknowledged, at most `patience_s`; called by the model thread alone."""
        if not self.waits:
            return
        self._waiting = True
        if self._acknowledged < self._delivered:  # an `acknowledge` before the flag was set sent no wake-up
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=self._patience_s)
        self._waiting = False
