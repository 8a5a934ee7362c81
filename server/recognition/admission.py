"""Admission by slots or by estimated capacity, and the time a thread computes or waits for a core."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping

from batching.capacity import PERIOD_S, Capacity
from server.errors import ServerFull

RETURN_SHARE = 0.95
"""Once full, streams must leave until so much of the limit is taken: an estimate that wavers must not flap."""
FREE_AT_ONCE = 32
"""Streams that may come within a period whatever the room. Beyond it half of the room is given away, so that what they
cost is seen before the other half goes: a thousand clients that come back together would all be let in otherwise."""
TAKEN = "all streams are taken"
FOLLOWING = "this server carries as many streams as it can"


class Admission:
    """One replica's rule. Unless it follows the `capacity`, every slot is given away, and nothing else is asked."""

    def __init__(self, slots: int, capacity: Capacity, *, follow: bool) -> None:
        self._slots = slots
        self.capacity = capacity
        self._follow = follow
        self._estimate = 0
        self._full = False
        self._came = 0
        self._may_come = FREE_AT_ONCE
        self._since_s: float | None = None

    @property
    def limit(self) -> int:
        """Streams that may be open now."""
        return min(self._slots, self._estimate) if self._follow else self._slots

    @property
    def estimate(self) -> int:
        """Live streams that this replica is thought to carry; 0 before anything is known."""
        return self._estimate

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Take the service times, by rows, that were measured before the first stream."""
        self.capacity.warmed_up(step_s)
        self._estimate = self.capacity.streams()

    def look(self, now: float, busy_s: float, used: int) -> None:
        """Bring the estimate up to date, as often as one likes; see `Capacity.look`."""
        if self.capacity.look(now, busy_s, used):
            self._estimate = self.capacity.streams()

    def refuse_if_full(self, used: int) -> None:
        """Say at once, before a request has cost anything, that nobody can come in. Raises: ServerFull."""
        if used and used >= self.limit:
            raise ServerFull(FOLLOWING if self._follow else TAKEN)

    def check(self, used: int, wanted: int, now: float) -> None:
        """Let `wanted` more streams in beside `used`. Raises: ServerFull, which changes nothing but the return."""
        if not self._follow:
            if used + wanted > self._slots:
                raise ServerFull(TAKEN)
            return
        room = int(self.limit * RETURN_SHARE if self._full else self.limit) - used
        self._full = room < wanted and used > 0  # a stream alone is always served
        if self._full:
            raise ServerFull(FOLLOWING)
        if self._since_s is None or now - self._since_s >= PERIOD_S:
            self._since_s, self._came, self._may_come = now, 0, max(FREE_AT_ONCE, room // 2)
        if self._came + wanted > self._may_come:
            raise ServerFull("too many streams come at once")
        self._came += wanted


class ThreadTime:
    """A clock of the thread that first reads it, in seconds. Where the system does not tell of waiting, of computing.

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
