"""Admission by slots or by estimated capacity, and a clock of the time that a thread computes or waits for a core.

Each model has an `Admission` with its own estimate: the number of streams that the machine can carry if all use that
model. So a stream costs 1 / estimate of the machine, and is admitted if the costs of all open streams leave enough for
it. `Machine` converts the streams of other models to an equivalent number of streams of this model, and `Admission`
adds them to the model's own. With one model the sum is its number of streams.

Models slow each other down, which raises the times used by each estimate, so a sum of costs near 1 is a conservative
limit.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from batching.capacity import PERIOD_S
from server.errors import ServerFull

RETURN_SHARE = 0.95  # once full, a replica admits again below this share of the limit, so that it does not flap
FREE_AT_ONCE = 32
"""Streams that may be admitted in a period even if the remaining capacity is small. Above this number, only half of the
remaining capacity is used per period, so that the cost of those streams is measured first. Otherwise a thousand clients
that reconnect at once would all be admitted.
"""
TAKEN = "all streams are taken"
FOLLOWING = "this server carries as many streams as it can"


class Estimator(Protocol):
    """An estimate of the live streams of one model that the server can carry.

    With one process a `Capacity`; with several, `CombinedBounds` of theirs.
    """

    def streams(self) -> int:
        """Number of live streams within the objective, at least 1 once anything was measured."""

    def reserved(self) -> int:
        """Number of streams that service times allow and that pressure excludes."""

    @property
    def slowdown(self) -> float:
        """Current time of batches as a multiple of their time in the warm-up."""

    def asked(self, streams: int) -> None:
        """Count streams that requested admission, whether they were admitted or not."""


class Admission:
    """Admits streams up to the number of slots, and with `follow` also up to the estimate of `capacity`.

    `used`: open live streams, plus the equivalent of those of other models (`Machine.load`). Uploads are not counted:
    their steps only fill batches where live ones are hardly slowed down, and their cost is part of the service times.
    """

    def __init__(self, slots: int, capacity: Estimator, *, follow: bool) -> None:
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
        """Number of streams that may be open now."""
        return min(self._slots, self._estimate) if self._follow else self._slots

    @property
    def estimate(self) -> int:
        """Estimated number of live streams that this replica can carry; 0 before any measurement."""
        return self._estimate

    def update(self) -> None:
        """Read the estimate again, after its inputs have changed."""
        self._estimate = self.capacity.streams()

    def full(self, used: int) -> bool:
        """Whether no live stream can enter."""
        return 0 < used >= self.limit

    def refuse_if_full(self, used: int) -> None:
        """Refuse a request before any work on it if no stream can enter. Raises: ServerFull."""
        if self.full(used):
            self.capacity.asked(1)
            raise ServerFull(FOLLOWING if self._follow else TAKEN)

    def check(self, used: int, wanted: int, now: float) -> None:
        """Admit `wanted` streams in addition to `used`. Raises: ServerFull; no stream is counted then."""
        self.capacity.asked(wanted)
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


@dataclass(frozen=True, slots=True)
class _Member:
    admission: Admission
    streams: Callable[[], int]


ROUNDING = 1e-9  # rounding error of sums of costs, so that a whole equivalent of streams is not rounded up


class Machine:
    """The load of all models on one machine: the cost of open streams, and the rows that the event loop receives."""

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self.rows = 0  # results received so far, of all models

    def join(self, admission: Admission, streams: Callable[[], int]) -> None:
        """Start counting a model's live streams; `streams` returns the number of open ones."""
        self._members.append(_Member(admission, streams))

    def leave(self, admission: Admission) -> None:
        """Stop counting a model's streams."""
        self._members = [member for member in self._members if member.admission is not admission]

    def load(self, admission: Admission) -> int:
        """Return a model's open streams plus the equivalent, in streams of that model, of all others."""
        own, others = 0, 0.0
        for member in self._members:
            streams = member.streams()
            if member.admission is admission:
                own = streams
            elif streams and member.admission.limit:
                others += streams / member.admission.limit
        return own + math.ceil(others * admission.limit - ROUNDING) if others else own

    def limit(self, of: Callable[[Admission], int]) -> int:
        """Return the possible number of streams at the present mix of models; `of` returns each model's own number.

        Without open streams, return that of the model that joined first.
        """
        open_streams = [(member.streams(), of(member.admission)) for member in self._members]
        used = [(streams, number) for streams, number in open_streams if streams and number]
        if not used:
            return open_streams[0][1]
        if len(used) == 1:
            return used[0][1]
        return int(sum(streams for streams, _ in used) / sum(streams / number for streams, number in used))


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
