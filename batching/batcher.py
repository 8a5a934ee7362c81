"""The batcher: decides which streams' steps run in the next batch, and when that batch starts.

It owns the queue of waiting steps, one short queue per stream. It is pure: no thread, lock, clock or log. The caller
says what time it is, so the model thread and a simulation with a virtual clock drive this same object.

Four promises, whatever the policy:

1. a batch holds at most one step of a stream, because the second needs the state that the first leaves behind;
2. the steps of a stream run in the order in which they were pushed;
3. earliest deadline first, where a step's deadline is the moment it became ready plus its stream's budget;
4. nothing starves: deadlines are finite and fixed at birth, and every batch takes the earliest of all.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter

from batching.errors import AlreadyOpen, QueueFull, UnknownStream

StreamId = int


class Policy(enum.Enum):
    """When a batch starts, given that some step is ready and the model is free."""

    EAGER = "eager"
    """At once, with whatever is ready. While a batch runs, the steps of the next one gather, so batches grow with the
    load by themselves and an idle server adds no delay. Source: Deep Speech 2, section 7, "Batch Dispatch"
    (https://arxiv.org/abs/1512.02595)."""

    DEADLINE = "deadline"
    """As late as every member's deadline allows: fewer and fuller batches, paid for with the latency budget."""

    SINGLE = "single"
    """At once, one step at a time: the baseline that batching is measured against."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One step that waits. `item` is the caller's and never looked at; times are seconds of the caller's clock."""

    stream: StreamId
    item: object
    ready_s: float
    deadline_s: float


Lane = dict[StreamId, Pending]
_deadline = attrgetter("deadline_s")


@dataclass(frozen=True, slots=True)
class _Stream:
    budget_s: float
    lane: Lane
    steps: deque[Pending] = field(default_factory=deque)


class Batcher:
    """Waiting steps in, batches out; see the module docstring for what it promises.

    A stream is ready while it has a step waiting; its oldest one stands in its lane: live, or background for work
    that nobody listens to as it happens. `max_queued` bounds each stream's own queue, so that only the stream which
    outruns the model is refused, never its neighbours.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_batch: int,
        max_queued: int,
        background_rows: int = 8,
        margin_s: float = 0.005,
    ) -> None:
        """Take the bounds, each at least 1.

        `background_rows` bounds the background steps in a batch that live steps ride in: each one makes the batch
        slower for all, so those that can wait must not fill it. `margin_s` is how much before the last moment
        `DEADLINE` starts: the interval after which CPython makes a busy thread hand over the interpreter
        (sys.getswitchinterval), for a timer may fire that much late.
        """
        if min(max_batch, max_queued, background_rows) < 1:
            raise ValueError("max_batch, max_queued and background_rows must be at least 1")
        self._policy = policy
        self._max_batch = 1 if policy is Policy.SINGLE else max_batch
        self._max_queued = max_queued
        self._background_rows = background_rows
        self._margin_s = margin_s
        self._streams: dict[StreamId, _Stream] = {}
        self._live: Lane = {}
        self._background: Lane = {}
        self._open_live = 0
        self._queued = 0
        self._service = ServiceTimes()

    @property
    def queued(self) -> int:
        """Steps waiting, over all streams."""
        return self._queued

    @property
    def streams(self) -> int:
        """Streams open."""
        return len(self._streams)

    def open(self, stream: StreamId, *, budget_s: float, background: bool = False) -> None:
        """Admit a stream whose steps should be done `budget_s` after they are ready.

        Raises: AlreadyOpen; ValueError for a bad budget.
        """
        if stream in self._streams:
            raise AlreadyOpen(f"stream {stream} is open already")
        lane = self._background if background else self._live
        self._streams[stream] = _Stream(checked_budget(budget_s), lane)
        self._open_live += not background

    def close(self, stream: StreamId) -> int:
        """Forget a stream and drop its waiting steps. Returns: how many those were. Raises: UnknownStream."""
        closed = self._find(stream)
        del self._streams[stream]
        closed.lane.pop(stream, None)
        self._open_live -= closed.lane is self._live
        self._queued -= len(closed.steps)
        return len(closed.steps)

    def push(self, stream: StreamId, item: object, now: float) -> None:
        """Queue a step that is ready at `now`. Raises: UnknownStream, QueueFull."""
        owner = self._find(stream)
        if len(owner.steps) >= self._max_queued:
            raise QueueFull(f"stream {stream} has {self._max_queued} steps waiting, as many as it may")
        step = Pending(stream, item, now, now + owner.budget_s)
        owner.steps.append(step)
        owner.lane.setdefault(stream, step)
        self._queued += 1

    def next_batch(self, now: float) -> tuple[Pending, ...]:
        """Take the steps to run now, earliest deadline first; () = nothing to run now."""
        if now < self._start_at():
            return ()
        batch = self._choose()
        for step in batch:
            self._advance(step.stream)
        self._queued -= len(batch)
        return batch

    def wake_at(self, now: float) -> float | None:
        """When to ask for a batch again if nothing happens meanwhile; None = not before the next push."""
        if not self._live and not self._background:
            return None
        return max(now, self._start_at())

    def ran(self, rows: int, seconds: float) -> None:
        """Learn that a batch of `rows` steps took `seconds`."""
        self._service.learn(rows, seconds)

    def _start_at(self) -> float:
        """Say when waiting for a fuller batch ends; -inf = there is no reason to wait."""
        rows = len(self._live) + min(len(self._background), self._background_rows)
        if (
            self._policy is not Policy.DEADLINE
            or not self._live  # background work has budgets of many seconds: it rides along, it is not waited for
            or len(self._live) == self._open_live  # whoever could come is here
            or rows >= self._max_batch
        ):
            return -math.inf
        # Time the batch as if one more step joined: that is what waiting is for.
        earliest_s = min(step.deadline_s for lane in (self._live, self._background) for step in lane.values())
        return earliest_s - self._service.estimate(rows + 1) - self._margin_s

    def _choose(self) -> tuple[Pending, ...]:
        # Sorting everything that is ready looks wasteful beside a heap, and is not: steps enter a lane in order of
        # time, so nearly in order of deadline, which the sort exploits; under `EAGER` nearly all of them ride anyway;
        # and a heap would keep the steps of closed streams until they surface.
        ready = list(self._live.values())
        if ready:
            ready += heapq.nsmallest(self._background_rows, self._background.values(), key=_deadline)
        else:
            ready += self._background.values()
        ready.sort(key=_deadline)  # stable: of equal deadlines, the step that stood there first
        return tuple(ready[: self._max_batch])

    def _advance(self, stream: StreamId) -> None:
        """Drop the stream's oldest step; the next one, if any, joins the end of the lane."""
        owner = self._streams[stream]
        owner.steps.popleft()
        del owner.lane[stream]
        if owner.steps:
            owner.lane[stream] = owner.steps[0]

    def _find(self, stream: StreamId) -> _Stream:
        try:
            return self._streams[stream]
        except KeyError:
            raise UnknownStream(f"stream {stream} is not open") from None


def checked_budget(budget_s: float) -> float:
    """Return the budget. Raises: ValueError unless it is positive and finite: an endless one would starve."""
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s must be positive and finite, not {budget_s}")
    return budget_s


class ServiceTimes:
    """How long a batch takes, learned by size; sizes between two powers of two share a bucket."""

    WEIGHT = 1 / 8
    """Share of the newest measurement in the running mean. Source: RFC 6298, section 2, which smooths round trips."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def learn(self, rows: int, seconds: float) -> None:
        """Fold one measurement in."""
        bucket = self._bucket(rows)
        mean = self._seconds.get(bucket, seconds)
        self._seconds[bucket] = mean + self.WEIGHT * (seconds - mean)

    def estimate(self, rows: int) -> float:
        """Seconds that a batch of `rows` should take; inf before anything was measured.

        A size never seen is judged by the others, from above: a larger batch is not faster, and a smaller one scaled
        up in proportion is not either, because rows cost less together than apart.
        """
        bucket = self._bucket(rows)
        if bucket in self._seconds:
            return self._seconds[bucket]
        bounds = (seconds * 2 ** max(0, bucket - known) for known, seconds in self._seconds.items())
        return min(bounds, default=math.inf)

    @staticmethod
    def _bucket(rows: int) -> int:
        return (rows - 1).bit_length()  # 1 | 2 | 3–4 | 5–8 | 9–16 | …
