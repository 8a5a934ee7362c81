"""The batcher: decides which streams' steps run in the next batch, and when that batch starts.

It owns the queues of waiting steps, one short queue per stream. It is pure: no thread, lock, clock or log. The time is
an argument, so the model thread and a simulation with a virtual clock drive the same object.

Background work is any step that can wait: steps of background streams (uploads), and early steps (from live streams
that send faster than real time). All other steps are due.

Guarantees under every policy:

1. A batch holds at most one step of a stream, because the second step needs the state after the first. For a model that
   runs several steps per call, it holds at most one chunk of a stream, and all its chunks have one length (`Chunks`).
2. The steps of a stream run in the order in which they were pushed.
3. Earliest deadline first. A step's deadline is its due time plus its stream's budget; a chunk's is that of its first
   step.
4. No starvation: deadlines are finite and never change, and every batch with due steps contains the earliest deadline.
5. Background work joins a batch of due steps only while the slowdown stays small (`BackgroundLimits`), and runs in
   separate batches while no step is due. While due steps miss their deadlines, background work waits; each of its steps
   runs once its deadline is the earliest.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from batching.errors import AlreadyOpen, QueueFull, UnknownStream
from batching.policy.background import BackgroundLimits
from batching.policy.chunks import Chunks
from batching.policy.pace import NEVER_S, NO_PACE, Pace
from batching.policy.service_times import ServiceTimes

StreamId = int


class Policy(enum.Enum):
    """When a batch starts once a step is due and the model is free."""

    EAGER = "eager"
    """At once, with all steps that are ready. Steps that arrive while a batch runs form the next one, so batches grow
    with the load and an idle server adds no delay. Source: Deep Speech 2, section 7, "Batch Dispatch"
    (https://arxiv.org/abs/1512.02595)."""

    DEADLINE = "deadline"
    """As late as the earliest deadline allows: fewer and fuller batches at the cost of latency."""

    SINGLE = "single"
    """At once, one step at a time: the baseline for measurements of batching."""


class Pending(NamedTuple):
    """One waiting step. `item` belongs to the caller and is opaque here; times are seconds of the caller's clock."""

    stream: StreamId
    item: object
    ready_s: float
    due_s: float
    """`ready_s`, or later for an early step (`Pace`)."""
    deadline_s: float
    starts_chunk: bool = False
    """It can only be the first step of a chunk, because the state before it is exported or reset."""


ReadyQueue = dict[StreamId, Pending]
"""Oldest waiting step of each stream of one class, in order of entry."""
_deadline = attrgetter("deadline_s")
_new_tuple = tuple.__new__  # creates a named tuple in half the time of its own constructor


@dataclass(slots=True)
class _Stream:
    budget_s: float
    background: bool
    queue: ReadyQueue  # holds the oldest of `steps`
    steps: deque[Pending] = field(default_factory=deque)
    in_time_s: float = NEVER_S  # theoretical arrival time of the next step
    starts_chunk: bool = False  # so is the next step


class Batcher:
    """Queues steps and forms batches; its guarantees are in the module docstring.

    A stream is ready while it has a waiting step. Its oldest step is in one of three ready queues: live (due), early or
    background. `max_queued` bounds the queue of each stream, so a stream that sends faster than the model runs fails
    alone.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_batch: int,
        max_queued: int,
        background_rows: int = 8,
        pace: Pace = NO_PACE,
        margin_s: float = 0.005,
        service: ServiceTimes | None = None,
        chunk_steps: Sequence[int] = (1,),
    ) -> None:
        """Raises: ValueError for a bound below 1.

        `background_rows`: most background steps in a batch with due ones, in addition to `BackgroundLimits`. `pace`:
        when steps of live streams are due. `margin_s`: under `DEADLINE`, seconds before the last moment at which a
        batch starts, because a timer may fire that late; the default is CPython's switch interval
        (sys.getswitchinterval), after which a busy thread releases the interpreter lock. `service`: service times
        measured before. `chunk_steps`: lengths of chunks that the model runs, ascending, the first 1.
        """
        if min(max_batch, max_queued, background_rows) < 1:
            raise ValueError("max_batch, max_queued and background_rows must be at least 1")
        self._policy = policy
        self._max_batch = 1 if policy is Policy.SINGLE else max_batch
        self._max_queued = max_queued
        self._pace = pace
        self._interval_s = pace.interval_s  # 0 = every step is due when pushed
        self._margin_s = margin_s
        self._streams: dict[StreamId, _Stream] = {}
        self._live: ReadyQueue = {}
        self._early: ReadyQueue = {}
        self._background: ReadyQueue = {}
        self._open_live = 0
        self.queued = 0
        """Number of waiting steps of all streams."""
        self._none_due_since_s: float | None = None  # time of the first call that found no step due
        self.service = service or ServiceTimes()
        self._limits = BackgroundLimits(self.service, background_rows=background_rows, max_batch=self._max_batch)
        self._chunks = Chunks(chunk_steps, self.service, max_rows=self._max_batch)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def open(self, stream: StreamId, *, budget_s: float, background: bool = False) -> None:
        """Open a stream whose steps should be answered within `budget_s` of their due time.

        Raises: AlreadyOpen; ValueError for a budget that is not positive and finite.
        """
        if stream in self._streams:
            raise AlreadyOpen(f"stream {stream} is already open")
        self._streams[stream] = _Stream(
            checked_budget(budget_s), background, self._background if background else self._live
        )
        self._open_live += not background

    def close(self, stream: StreamId) -> int:
        """Remove a stream and drop its waiting steps. Returns: the number dropped. Raises: UnknownStream."""
        closed = self._find(stream)
        del self._streams[stream]
        closed.queue.pop(stream, None)
        self._open_live -= not closed.background
        self.queued -= len(closed.steps)
        return len(closed.steps)

    def waiting(self, stream: StreamId) -> int:
        """Number of waiting steps of this stream. Raises: UnknownStream."""
        return len(self._find(stream).steps)

    def push(self, stream: StreamId, item: object, now: float) -> None:
        """Queue a step that is ready at `now`. Raises: UnknownStream, QueueFull."""
        owner = self._streams.get(stream) or self._find(stream)
        steps = owner.steps
        if len(steps) >= self._max_queued:
            raise QueueFull(f"stream {stream} already has {self._max_queued} waiting steps, the maximum")
        due_s = now
        if not owner.background and self._interval_s:
            if owner.in_time_s <= now:  # nearly all steps: the result of `Pace.due`, inlined
                owner.in_time_s = now + self._interval_s
            else:
                due_s, owner.in_time_s = self._pace.due(now, owner.in_time_s)
        step = _new_tuple(Pending, (stream, item, now, due_s, due_s + owner.budget_s, owner.starts_chunk))
        owner.starts_chunk = False
        if not steps:
            self._enqueue_head(owner, step, now)
        steps.append(step)
        self.queued += 1

    def start_new_chunk(self, stream: StreamId) -> None:
        """Do not merge steps pushed from now on into a chunk with waiting ones. Raises: UnknownStream."""
        self._find(stream).starts_chunk = True

    def next_batch(self, now: float) -> tuple[Pending, ...]:
        """Remove and return the steps to run now, earliest deadline first; () = nothing to run now.

        The steps of a chunk are in consecutive rows, the same number for each stream (`steps_each`).
        """
        self._promote_due(now)
        if self._live and (self._policy is not Policy.DEADLINE or now >= self._start_at()):
            most = self._max_background_rows(now) if self._early or self._background else 0
            batch = self._choose(self._live, most)
            if self._chunks.most_streams and len(self._streams[batch[0].stream].steps) > 1:
                batch = self._burst(batch, now) or batch
        elif now >= self._background_at(now):
            batch = self._choose({}, self._max_rows_without_live())
        else:
            return ()
        if len(batch) < self.queued and len(batch) <= self._chunks.most_streams and steps_each(batch) == 1:
            batch = self._lengthened(batch, now)
        self._remove(batch, now)
        return batch

    def background_waits(self, now: float) -> bool:
        """Whether all background work waits because due steps miss their deadlines."""
        waiting = self._early or self._background
        return bool(waiting) and self._open_live > len(self._early) and now < self._limits.wait_until_s

    def wake_at(self, now: float) -> float | None:
        """Time of the next call of `next_batch` if nothing is pushed or closed before; None = not before a push."""
        self._promote_due(now)
        moment = min(self._start_at() if self._live else math.inf, self._background_at(now))
        return None if moment == math.inf else max(now, moment)

    def measured(self, rows: int, seconds: float, steps: int = 1) -> None:
        """Set the service time of a batch size: `rows` rows took `seconds`, with `steps` of each stream."""
        if steps == 1:
            self.service.measured(rows, seconds)
        else:
            self._chunks.measured(rows // steps, steps, seconds)

    def _promote_due(self, now: float) -> None:
        """Move early steps that are now due to the live queue; record since when no step has been due."""
        if self._early:
            for step in [step for step in self._early.values() if step.due_s <= now]:
                del self._early[step.stream]
                self._enqueue_head(self._streams[step.stream], step, now)
        if self._live:
            self._none_due_since_s = None
        elif self._none_due_since_s is None:
            self._none_due_since_s = now

    def _max_background_rows(self, now: float) -> int:
        """Most background steps, which wait, in a batch with the due ones."""
        deadlines_s = [step.deadline_s for step in self._live.values()]
        self._limits.watch(deadlines_s, now)
        if now >= self._limits.wait_until_s:
            return self._limits.max_rows_with_live()
        return int(self._earliest_background_s() <= min(deadlines_s))

    def _earliest_background_s(self) -> float:
        return min(step.deadline_s for queue in (self._early, self._background) for step in queue.values())

    def _start_at(self) -> float:
        """Time until which a batch of due steps waits for more steps; -inf = it does not wait."""
        if self._policy is not Policy.DEADLINE:
            return -math.inf
        rows = len(self._live) + min(len(self._early) + len(self._background), self._limits.max_rows_with_live())
        every_live_stream_is_ready = len(self._live) + len(self._early) == self._open_live
        if every_live_stream_is_ready or rows >= self._max_batch:
            return -math.inf
        queues = (self._live, self._early, self._background)
        earliest_s = min(step.deadline_s for queue in queues for step in queue.values())
        # Use the time of a batch with one more step, because the wait is for one more.
        return earliest_s - self.service.at_worst(rows + 1) - self._margin_s

    def _background_at(self, now: float) -> float:
        """Time at which background work alone may start; inf = not before the next push, close or due step."""
        waiting = len(self._early) + len(self._background)
        if not waiting:
            return math.inf
        rows = min(waiting, self._max_rows_without_live())
        in_time = self._open_live - len(self._early)  # live streams whose next step could be due at any moment
        until_s = min(self._limits.wait_until_s, self._earliest_background_s()) if in_time else -math.inf
        if self._live:  # a batch of due steps waits: run background work meanwhile if it ends in time
            fits = now >= until_s and now + self.service.at_worst(rows) <= self._start_at()
            return now if fits else math.inf
        gap_s = self._pace.step_s / in_time if in_time else math.inf
        assert self._none_due_since_s is not None  # set by `_promote_due`
        return max(until_s, self._none_due_since_s + self._limits.hold_s(rows, gap_s))

    def _max_rows_without_live(self) -> int:
        """Most rows of a batch of background work alone."""
        return self._max_batch if self._open_live == len(self._early) else self._limits.max_rows_without_live()

    def _choose(self, live: ReadyQueue, max_background: int) -> tuple[Pending, ...]:
        # Sorting all ready steps is no slower than a heap here: steps enter a queue in order of time, so they are
        # nearly sorted by deadline; under `EAGER` nearly all of them are chosen anyway; and a heap would keep steps of
        # closed streams until they reach its top.
        ready = list(live.values())
        if self._early or self._background:
            ready += heapq.nsmallest(max_background, [*self._early.values(), *self._background.values()], key=_deadline)
        ready.sort(key=_deadline)  # stable: first come, first served among equal deadlines
        return tuple(ready) if len(ready) <= self._max_batch else tuple(ready[: self._max_batch])

    def _lengthened(self, batch: tuple[Pending, ...], now: float) -> tuple[Pending, ...]:
        """Return the batch with chunks instead of single steps where the rules of `Chunks` allow them."""
        owners = [self._streams[step.stream] for step in batch]
        due = [step for step, owner in zip(batch, owners, strict=True) if owner.queue is self._live]
        if len(due) < len(batch) and self.background_waits(now):
            return batch  # its background step runs only because its deadline is the earliest; the next step's is not
        most = self._chunks.most(len(batch))
        for owner in owners:
            most = self._runnable(owner, most, now)
            if most == 1:
                return batch
        steps = self._chunks.longest(
            len(batch),
            most,
            others=self._open_live > sum(not owner.background for owner in owners),
            free_s=self._start_at() - now if self._live and not due else math.inf,
            deadlines_in_s=[step.deadline_s - now for step in due],
        )
        return tuple([step for owner in owners for step in itertools.islice(owner.steps, steps)])

    def _burst(self, batch: tuple[Pending, ...], now: float) -> tuple[Pending, ...]:
        """Return the chunk that runs before the other steps of a batch, () if there is none (`Chunks.burst`)."""
        owners, most = [self._streams[step.stream] for step in batch], self._chunks.most(1)
        due = [self._runnable(owner, most, now) if owner.queue is self._live else 0 for owner in owners]
        if min(due) > 1:
            return ()
        rows, steps = self._chunks.burst(due, [step.deadline_s - now for step in batch])
        return tuple([step for row in rows for step in itertools.islice(owners[row].steps, steps)])

    def _runnable(self, owner: _Stream, most: int, now: float) -> int:
        """Steps of this stream that could run as one chunk now, at most `most`."""
        may_wait = owner.queue is not self._live
        for i, step in enumerate(itertools.islice(owner.steps, 1, most), 1):
            if step.starts_chunk or not (may_wait or step.due_s <= now):
                return i
        return min(most, len(owner.steps))

    def _remove(self, batch: tuple[Pending, ...], now: float) -> None:
        """Remove the batch's steps from their streams; each stream's next step, if any, enters a ready queue."""
        streams = self._streams
        for step in batch:
            owner = streams[step.stream]
            steps = owner.steps
            del owner.queue[step.stream]
            steps.popleft()
            if steps:
                self._enqueue_head(owner, steps[0], now)
        self.queued -= len(batch)

    def _enqueue_head(self, owner: _Stream, step: Pending, now: float) -> None:
        """Append a stream's oldest step to the ready queue of its class."""
        owner.queue = self._background if owner.background else self._live if step.due_s <= now else self._early
        owner.queue[step.stream] = step

    def _find(self, stream: StreamId) -> _Stream:
        try:
            return self._streams[stream]
        except KeyError:
            raise UnknownStream(f"stream {stream} is not open") from None


def steps_each(batch: Sequence[Pending]) -> int:
    """Number of steps of each stream in a batch that is not empty."""
    first = batch[0].stream
    if len(batch) == 1 or batch[1].stream != first:
        return 1
    return next((i for i, step in enumerate(batch) if step.stream != first), len(batch))


def checked_budget(budget_s: float) -> float:
    """Return the budget. Raises: ValueError unless it is positive and finite: an infinite one could starve."""
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s must be positive and finite, not {budget_s}")
    return budget_s
