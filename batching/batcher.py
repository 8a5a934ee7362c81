"""The batcher: decides which streams' steps run in the next batch, and when that batch starts.

It owns the queue of waiting steps, one short queue per stream. It is pure: no thread, lock, clock or log. The time is
an argument, so the model thread and a simulation with a virtual clock drive this same object.

Five promises, whatever the policy:

1. a batch holds at most one step of a stream, because the second needs the state that the first leaves behind; or at
   most one chunk, of a model that takes several steps at once, and then all its streams have chunks alike (`Chunks`);
2. the steps of a stream run in the order in which they were pushed;
3. earliest deadline first, where a step's deadline is the moment at which it is due plus its stream's budget, and a
   chunk's is that of its first step;
4. nothing starves: deadlines are finite and fixed at birth, and every batch with due steps takes the earliest of all;
5. steps that can wait, of background streams or ahead of their time, only fill batches: they join due steps as far as
   they hardly slow them down (`Filling`), and run in batches of their own while no step is due. While due steps miss
   their deadlines they wait altogether, each until its own deadline is the earliest of all.
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
from batching.policy.chunks import Chunks
from batching.policy.filling import Filling
from batching.policy.pace import NEVER_S, PLAIN, Pace
from batching.policy.service_times import ServiceTimes

StreamId = int


class Policy(enum.Enum):
    """When a batch starts, given that some step is due and the model is free."""

    EAGER = "eager"
    """At once, with whatever is ready. While a batch runs, the steps of the next one gather, so batches grow with the
    load by themselves and an idle server adds no delay. Source: Deep Speech 2, section 7, "Batch Dispatch"
    (https://arxiv.org/abs/1512.02595)."""

    DEADLINE = "deadline"
    """As late as every member's deadline allows: fewer and fuller batches, paid for with the latency budget."""

    SINGLE = "single"
    """At once, one step at a time: the baseline that batching is measured against."""


class Pending(NamedTuple):
    """One waiting step. `item` is the caller's and opaque here; times are seconds of the caller's clock."""

    stream: StreamId
    item: object
    ready_s: float
    due_s: float
    """`ready_s`; later for a step that came ahead of its time (`Pace`)."""
    deadline_s: float
    starts_chunk: bool = False
    """It may be the first of a chunk alone: the state before it is asked for, or does not matter."""


ReadyQueue = dict[StreamId, Pending]
"""The oldest waiting step of each stream of one class, in order of entry."""
_deadline = attrgetter("deadline_s")
_new_tuple = tuple.__new__  # makes a named tuple in half of the time that its own constructor takes


@dataclass(slots=True)
class _Stream:
    budget_s: float
    background: bool
    queue: ReadyQueue  # that holds the oldest of `steps`
    steps: deque[Pending] = field(default_factory=deque)
    in_time_s: float = NEVER_S  # theoretical arrival time of the next step
    starts_chunk: bool = False  # so is the next step


class Batcher:
    """Waiting steps in, batches out; see the module docstring for what it promises.

    A stream is ready while it has a step waiting. Its oldest step is in one of three ready queues: live, ahead of its
    time, or background. `max_queued` bounds each stream's own queue, so that only a stream which outruns the model is
    refused, never its neighbours.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_batch: int,
        max_queued: int,
        background_rows: int = 8,
        pace: Pace = PLAIN,
        margin_s: float = 0.005,
        service: ServiceTimes | None = None,
        chunk_steps: Sequence[int] = (1,),
    ) -> None:
        """Raises: ValueError for a bound below 1.

        `background_rows` bounds the filling steps in a batch with due ones, besides `Filling`. `pace` decides when the
        steps of live streams are due. `margin_s`: `DEADLINE` starts a batch that much before the last moment, because
        a timer may fire that late; the default is CPython's switch interval (sys.getswitchinterval), after which a busy
        thread hands over the interpreter. `service` holds service times measured before. `chunk_steps` are the lengths
        of chunks that the model takes, ascending, the first 1.
        """
        if min(max_batch, max_queued, background_rows) < 1:
            raise ValueError("max_batch, max_queued and background_rows must be at least 1")
        self._policy = policy
        self._max_batch = 1 if policy is Policy.SINGLE else max_batch
        self._max_queued = max_queued
        self._pace = pace
        self._interval_s = pace.interval_s  # 0 = every step is due when it comes
        self._margin_s = margin_s
        self._streams: dict[StreamId, _Stream] = {}
        self._live: ReadyQueue = {}
        self._ahead: ReadyQueue = {}
        self._background: ReadyQueue = {}
        self._open_live = 0
        self._queued = 0
        self._none_due_since_s: float | None = None  # first call that found no step due
        self.service = service or ServiceTimes()
        self._filling = Filling(self.service, background_rows=background_rows, max_batch=self._max_batch)
        self._chunks = Chunks(chunk_steps, self.service, max_rows=self._max_batch)

    @property
    def queued(self) -> int:
        """Steps waiting, over all streams."""
        return self._queued

    @property
    def streams(self) -> int:
        """Streams open."""
        return len(self._streams)

    def open(self, stream: StreamId, *, budget_s: float, background: bool = False) -> None:
        """Admit a stream whose steps should be answered `budget_s` after they are due.

        Raises: AlreadyOpen; ValueError for a bad budget.
        """
        if stream in self._streams:
            raise AlreadyOpen(f"stream {stream} is open already")
        self._streams[stream] = _Stream(
            checked_budget(budget_s), background, self._background if background else self._live
        )
        self._open_live += not background

    def close(self, stream: StreamId) -> int:
        """Forget a stream and drop its waiting steps. Returns: the number dropped. Raises: UnknownStream."""
        closed = self._find(stream)
        del self._streams[stream]
        closed.queue.pop(stream, None)
        self._open_live -= not closed.background
        self._queued -= len(closed.steps)
        return len(closed.steps)

    def waiting(self, stream: StreamId) -> int:
        """Waiting steps of this stream. Raises: UnknownStream."""
        return len(self._find(stream).steps)

    def push(self, stream: StreamId, item: object, now: float) -> None:
        """Queue a step that is ready at `now`. Raises: UnknownStream, QueueFull."""
        owner = self._streams.get(stream) or self._find(stream)
        steps = owner.steps
        if len(steps) >= self._max_queued:
            raise QueueFull(f"stream {stream} has {self._max_queued} steps waiting, as many as it may")
        due_s = now
        if not owner.background and self._interval_s:
            if owner.in_time_s <= now:  # nearly all steps: what `Pace.due` says of them, without the call
                owner.in_time_s = now + self._interval_s
            else:
                due_s, owner.in_time_s = self._pace.due(now, owner.in_time_s)
        step = _new_tuple(Pending, (stream, item, now, due_s, due_s + owner.budget_s, owner.starts_chunk))
        owner.starts_chunk = False
        if not steps:
            self._enqueue_head(owner, step, now)
        steps.append(step)
        self._queued += 1

    def start_new_chunk(self, stream: StreamId) -> None:
        """Keep the steps pushed from now on out of the chunks of those that wait. Raises: UnknownStream."""
        self._find(stream).starts_chunk = True

    def next_batch(self, now: float) -> tuple[Pending, ...]:
        """Remove and return the steps to run now, earliest deadline first; () = nothing to run now.

        The steps of a chunk stand one behind the other, in as many rows for each stream (`steps_each`).
        """
        self._promote_due(now)
        if self._live and now >= self._start_at():
            batch = self._choose(self._live, self._riding(now))
        elif now >= self._fill_at(now):
            batch = self._choose({}, self._rows_alone())
        else:
            return ()
        if len(batch) <= self._chunks.most_streams:
            batch = self._lengthened(batch, now)
        self._remove(batch, now)
        return batch

    def filling_waits(self, now: float) -> bool:
        """True while steps that can wait do so altogether, because live ones miss their deadlines."""
        waiting = self._ahead or self._background
        return bool(waiting) and self._open_live > len(self._ahead) and now < self._filling.wait_until_s

    def wake_at(self, now: float) -> float | None:
        """Time at which to ask for a batch again if nothing is pushed or closed before; None = not before a push."""
        self._promote_due(now)
        moment = min(self._start_at() if self._live else math.inf, self._fill_at(now))
        return None if moment == math.inf else max(now, moment)

    def ran(self, rows: int, seconds: float, steps: int = 1) -> None:
        """Learn the service time of a batch: `rows` steps took `seconds`, `steps` of each stream."""
        if steps == 1:
            self.service.learn(rows, seconds)
        else:
            self._chunks.learn(rows // steps, steps, seconds)

    def _promote_due(self, now: float) -> None:
        """Move the steps that have become due to the live queue; note since when none has been due."""
        if self._ahead:
            for step in [step for step in self._ahead.values() if step.due_s <= now]:
                del self._ahead[step.stream]
                self._enqueue_head(self._streams[step.stream], step, now)
        if self._live:
            self._none_due_since_s = None
        elif self._none_due_since_s is None:
            self._none_due_since_s = now

    def _riding(self, now: float) -> int:
        """Most filling steps in a batch with the due ones."""
        if not (self._ahead or self._background):
            return 0
        deadlines_s = [step.deadline_s for step in self._live.values()]
        self._filling.watch(deadlines_s, now)
        if now >= self._filling.wait_until_s:
            return self._filling.riding()
        return int(self._earliest_filling_s() <= min(deadlines_s))

    def _earliest_filling_s(self) -> float:
        return min(step.deadline_s for queue in (self._ahead, self._background) for step in queue.values())

    def _start_at(self) -> float:
        """Time at which waiting for a fuller batch of due steps ends; -inf = there is no reason to wait."""
        if self._policy is not Policy.DEADLINE:
            return -math.inf
        rows = len(self._live) + min(len(self._ahead) + len(self._background), self._filling.riding())
        every_live_stream_is_ready = len(self._live) + len(self._ahead) == self._open_live
        if every_live_stream_is_ready or rows >= self._max_batch:
            return -math.inf
        queues = (self._live, self._ahead, self._background)
        earliest_s = min(step.deadline_s for queue in queues for step in queue.values())
        # Time the batch as if one more step joined: that is what waiting is for.
        return earliest_s - self.service.at_worst(rows + 1) - self._margin_s

    def _fill_at(self, now: float) -> float:
        """Time at which filling steps may run alone; inf = not before the next push, close or due step."""
        waiting = len(self._ahead) + len(self._background)
        if not waiting:
            return math.inf
        rows = min(waiting, self._rows_alone())
        in_time = self._open_live - len(self._ahead)  # live streams whose next step could be due at any moment
        until_s = min(self._filling.wait_until_s, self._earliest_filling_s()) if in_time else -math.inf
        if self._live:  # a batch is held: fill the time until it starts, where a batch of fillers fits
            fits = now >= until_s and now + self.service.at_worst(rows) <= self._start_at()
            return now if fits else math.inf
        gap_s = self._pace.step_s / in_time if in_time else math.inf
        assert self._none_due_since_s is not None  # set by `_promote_due`
        return max(until_s, self._none_due_since_s + self._filling.hold_s(rows, gap_s))

    def _rows_alone(self) -> int:
        """Largest batch of filling steps alone."""
        return self._max_batch if self._open_live == len(self._ahead) else self._filling.alone()

    def _choose(self, live: ReadyQueue, filling: int) -> tuple[Pending, ...]:
        # A sort of all ready steps is no slower than a heap here: steps enter a queue in order of time, so nearly in
        # order of deadline, which the sort exploits; under `EAGER` nearly all of them are taken anyway; and a heap
        # would keep the steps of closed streams until they surface.
        ready = list(live.values())
        if self._ahead or self._background:
            ready += heapq.nsmallest(filling, [*self._ahead.values(), *self._background.values()], key=_deadline)
        ready.sort(key=_deadline)  # stable: of equal deadlines, the step that came first
        return tuple(ready) if len(ready) <= self._max_batch else tuple(ready[: self._max_batch])

    def _lengthened(self, batch: tuple[Pending, ...], now: float) -> tuple[Pending, ...]:
        """Return the batch with chunks in place of single steps, as far as the rules of `Chunks` allow."""
        owners = [self._streams[step.stream] for step in batch]
        due = [step for step, owner in zip(batch, owners, strict=True) if owner.queue is self._live]
        if len(due) < len(batch) and self.filling_waits(now):
            return batch  # whose filling step runs because its deadline is the earliest of all: that of the next is not
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

    def _runnable(self, owner: _Stream, most: int, now: float) -> int:
        """Length of the chunk that could run of this stream now, `most` at most."""
        may_wait = owner.queue is not self._live
        for i, step in enumerate(itertools.islice(owner.steps, 1, most), 1):
            if step.starts_chunk or not (may_wait or step.due_s <= now):
                return i
        return min(most, len(owner.steps))

    def _remove(self, batch: tuple[Pending, ...], now: float) -> None:
        """Drop the batch's steps, each the oldest of its stream; the next one, if any, enters its ready queue."""
        streams = self._streams
        for step in batch:
            owner = streams[step.stream]
            steps = owner.steps
            del owner.queue[step.stream]
            steps.popleft()
            if steps:
                self._enqueue_head(owner, steps[0], now)
        self._queued -= len(batch)

    def _enqueue_head(self, owner: _Stream, step: Pending, now: float) -> None:
        """Put a stream's oldest step at the end of its ready queue."""
        owner.queue = self._background if owner.background else self._live if step.due_s <= now else self._ahead
        owner.queue[step.stream] = step

    def _find(self, stream: StreamId) -> _Stream:
        try:
            return self._streams[stream]
        except KeyError:
            raise UnknownStream(f"stream {stream} is not open") from None


def steps_each(batch: Sequence[Pending]) -> int:
    """Steps of each stream in a batch that is not empty."""
    first = batch[0].stream
    if len(batch) == 1 or batch[1].stream != first:
        return 1
    return next((i for i, step in enumerate(batch) if step.stream != first), len(batch))


def checked_budget(budget_s: float) -> float:
    """Return the budget. Raises: ValueError unless it is positive and finite: an endless one would starve."""
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s must be positive and finite, not {budget_s}")
    return budget_s
