"""Hands results from the model thread to their receiver; a batch begins once the results of the last were taken up.

While the receiver, a busy event loop, has not taken up the last batch, the results of another one would only wait
behind it. So the model thread waits, for a bounded time, and the next batch grows: larger batches cost thread and loop
less. A receiver that is free takes results up at once, and the model thread never waits.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable

from batching.events import BatchDone, EngineEvent

PATIENCE_S = 0.05  # a receiver that has not taken a batch after so long is no reason to let steps wait longer


class Handover:
    """Delivers events on the model thread, and waits there until the receiver has `taken` the last batch."""

    def __init__(self, deliver: Callable[[EngineEvent], None], patience_s: float = PATIENCE_S) -> None:
        self._deliver = deliver
        self._patience_s = patience_s
        self._delivered = 0  # batches; the model thread alone counts them
        self._taken = 0  # the receiver alone
        self._waiting = False
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def deliver(self, event: EngineEvent) -> None:
        """Deliver an event."""
        if isinstance(event, BatchDone):
            self._delivered += 1
        self._deliver(event)

    def taken(self) -> None:
        """Note that the receiver has one batch more in hand; the receiver's thread alone calls it."""
        self._taken += 1
        if self._waiting:
            self._waiting = False
            self._wakeups.put(None)

    def wait(self) -> None:
        """Wait until every batch was taken, at most the patience; the model thread alone calls it."""
        if self._taken >= self._delivered:
            return
        self._waiting = True
        if self._taken < self._delivered:  # a `taken` before the flag was set sent no wake-up
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=self._patience_s)
        self._waiting = False
