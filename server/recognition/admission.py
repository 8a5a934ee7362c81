"""Admission by slots or by estimated capacity, and the time a thread computes or waits for a core."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping

from batching.capacity import PERIOD_S, Capacity
from server.errors import ServerFull

RETURN_SHARE = 0.95  # once full, a replica admits again below this share of the limit, so that it does not flap
FREE_AT_ONCE = 32
"""Streams admitted within a period however small the room. Above it only half of the room is given away in a period, so
that the cost of those streams is measured first: a thousand clients that reconnect at once would all enter."""
TAKEN = "all streams are taken"
FOLLOWING = "this server carries as many streams as it can"


class Admission:
    """Admits streams up to the estimate of `capacity`, or, unless it is to `follow` that, up to the number of slots."""

    def __init__(self, slots: int, capacity: Capacity, *, follow: bool) -> None:
        self._slots = slots
        self.capacity = capacity
        self._follow = follow
        self._estimate = 0
        self._full = False
        self._admitted = 0
        self._may_enter = FREE_AT_ONCE
        self._since_s: float | None = None

    @property
    def limit(self) -> int:
        """Streams that may be open now."""
        return min(self._slots, self._estimate) if self._follow else self._slots

    @property
    def estimate(self) -> int:
        """Estimated number of live streams that this replica can carry; 0 before any measurement."""
        return self._estimate

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Take the service times by batch size that the warm-up measured."""
        self.capacity.warmed_up(step_s)
        self._estimate = self.capacity.streams()

    def look(self, now: float, busy_s: float, used: int) -> None:
        """Update the estimate if a period is over; see `Capacity.look`."""
        if self.capacity.look(now, busy_s, used):
            self._estimate = self.capacity.streams()

    def refuse_if_full(self, used: int) -> None:
        """Refuse a request before any work on it if no stream can enter. Raises: ServerFull."""
        if used and used >= self.limit:
            raise ServerFull(FOLLOWING if self._follow else TAKEN)

    def check(self, used: int, wanted: int, now: float) -> None:
        """Admit `wanted` streams beside `used`. Raises: ServerFull; only the hysteresis flag changes then."""
        if not self._follow:
            if used + wanted > self._slots:
                raise ServerFull(TAKEN)
            return
        room = int(self.limit * RETURN_SHARE if self._full else self.limit) - used
        self._full = room < wanted and used > 0  # a stream alone is always served
        if self._full:
            raise ServerFull(FOLLOWING)
        if self._since_s is None or now - self._since_s >= PERIOD_S:
            self._since_s, self._admitted, self._may_enter = now, 0, max(FREE_AT_ONCE, room // 2)
        if self._admitted + wanted > self._may_enter:
            raise ServerFull("too many streams come at once")
        self._admitted += wanted


class ThreadTime:
    """Seconds that the thread which first calls it has computed or waited for a core; only computed, without schedstat.

    Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/schedstat.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._tried = False

    def __call__(self) -> float:
        """Seconds so far."""
        if not self._tried:
            self._tried = True
            with contextlib.suppress(OSError):
                self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        if self._file is None:
            return time.thread_time()
        computed, waited, _ = os.pread(self._file, 64, 0).split()
        return (int(computed) + int(waited)) / 1e9

    def __del__(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
