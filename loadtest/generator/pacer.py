"""One timer for all streams: calls functions at their scheduled time.

Owns the heap of scheduled calls. There is no task per stream, and no message waits for a result of another stream.
"""

from __future__ import annotations

import heapq
import itertools
import math
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

TICK_S = 0.001
"""Granularity of the event loop's timers (libuv counts milliseconds)."""


class Pacer:
    """Calls scheduled functions from the event loop; late ones in the order of their times."""

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._timer: TimerHandle | None = None
        self._wakes_s = math.inf

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Run `call` once at `when_s` or as soon as possible afterwards."""
        heapq.heappush(self._due, (when_s, next(self._order), call))
        if when_s < self._wakes_s:
            self._arm()

    def close(self) -> None:
        """Cancel all scheduled calls."""
        self._due.clear()
        self._disarm()

    def _fire(self) -> None:
        self._timer, self._wakes_s = None, -math.inf  # calls may add to the heap: arm once, at the end
        while self._due and self._due[0][0] <= self._clock():
            heapq.heappop(self._due)[2]()
        self._wakes_s = math.inf
        if self._due:
            self._arm()

    def _arm(self) -> None:
        self._disarm()
        self._wakes_s = self._due[0][0]
        self._timer = self._loop.call_later(max(TICK_S, self._wakes_s - self._clock()), self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wakes_s = None, math.inf
