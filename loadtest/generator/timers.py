"""One timer for all streams, which calls functions at their scheduled time: there is no task per stream.

Calls at any time come from a heap, so no message waits for a result of another stream. Streams that send a message at
the same interval each keep a place on a wheel, which turns once an interval. At each of its places, one tick apart, it
calls the streams that have this place, without a heap. New streams get the emptiest place: at any moment the sends are
as evenly spread over the interval as their number allows, as those of independent callers are on average.
"""

from __future__ import annotations

import heapq
import itertools
import math
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Protocol

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


class Rider(Protocol):
    """A stream on the wheel."""

    def due(self, due_s: float) -> None:
        """Send the message that is due at this clock time."""
        ...


class Wheel:
    """Calls each rider once an interval, at its place; late calls follow in the order of their times."""

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], float], interval_s: float) -> None:
        """Raises: ValueError for an interval shorter than a tick."""
        if interval_s < TICK_S:
            raise ValueError(f"interval_s {interval_s:g}: must be at least {TICK_S:g}")
        self._loop, self._clock = loop, clock
        count = round(interval_s / TICK_S)
        self._interval_s, self._tick_s = interval_s, interval_s / count
        self._places: list[list[Rider]] = [[] for _ in range(count)]
        self._joining: list[list[Rider]] = [[] for _ in range(count)]  # by place, until it comes
        self._sizes = [0] * count  # of both
        self._place_of: dict[Rider, int] = {}
        self._begin_s = clock()
        self._turn = 0  # number of the next tick; its place is this modulo the number of places
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        """Number of riders."""
        return len(self._place_of)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Riders at each place."""
        return tuple(self._sizes)

    def add(self, rider: Rider) -> float:
        """Give a rider a place; return when that comes next. The rider is first called one interval later."""
        self._skip_empty()
        count, least = len(self._places), min(self._sizes)
        turn = next(turn for turn in range(self._turn, self._turn + count) if self._sizes[turn % count] == least)
        slot = turn % count
        self._joining[slot].append(rider)
        self._sizes[slot] += 1
        self._place_of[rider] = slot
        self._arm()
        return self._due_s(turn)

    def remove(self, rider: Rider) -> None:
        """Call a rider no more; does nothing for one that is not on the wheel."""
        slot = self._place_of.pop(rider, None)
        if slot is None:
            return
        self._sizes[slot] -= 1
        joining = self._joining[slot]
        (joining if rider in joining else self._places[slot]).remove(rider)

    def close(self) -> None:
        """Remove all riders and cancel the timer."""
        for rider in tuple(self._place_of):
            self.remove(rider)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due_s(self, turn: int) -> float:
        return self._begin_s + turn * self._tick_s

    def _skip_empty(self) -> None:
        """Skip ticks without riders that are over."""
        now_turn = int((self._clock() - self._begin_s) / self._tick_s) + 1
        while self._turn < now_turn and self._place_of and not self._sizes[self._turn % len(self._places)]:
            self._turn += 1
        if not self._place_of:
            self._turn = max(self._turn, now_turn)

    def _fire(self) -> None:
        self._timer = None
        while self._place_of and (due_s := self._due_s(self._turn)) <= self._clock():
            slot = self._turn % len(self._places)
            for rider in tuple(self._places[slot]):
                rider.due(due_s)
            if self._joining[slot]:
                self._places[slot] += self._joining[slot]
                self._joining[slot] = []
            self._turn += 1
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the next place that has riders."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._place_of:
            return
        count = len(self._places)
        turn = next(turn for turn in range(self._turn, self._turn + count) if self._sizes[turn % count])
        self._timer = self._loop.call_later(max(TICK_S, self._due_s(turn) - self._clock()), self._fire)
