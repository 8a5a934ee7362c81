"""The batcher: decides which streams' steps run in the next batch, and when that batch starts.

It owns the queue of waiting steps, one short queue per stream. It is pure: no thread, lock, clock or log. The caller
says what time it is, so the model thread and a simulation with a virtual clock drive this same object.

Five promises, whatever the policy:

1. a batch holds at most one step of a stream, because the second needs the state that the first leaves behind;
2. the steps of a stream run in the order in which they were pushed;
3. earliest deadline first, where a step's deadline is the moment at which it is due plus its stream's budget;
4. nothing starves: deadlines are finite and fixed at birth, and every batch with due steps takes the earliest of all;
5. work that can wait only fills: steps ahead of their time, and background streams. It rides with due steps as far as
   it hardly slows them down, and runs alone while there are none.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from batching.errors import AlreadyOpen, QueueFull, UnknownStream
from batching.filling import Filling
from batching.service_times import ServiceTimes

StreamId = int
NEVER_S = -math.inf


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


@dataclass(frozen=True, slots=True)
class Pace:
    """The rule for steps of `step_s` seconds of audio; 0 = a step is due when it comes, always."""

    step_s: float = 0.0
    burst_s: float = 0.5
    """Audio that may come at once: messages of up to half a second and the silence of a flush are no haste."""
    lead: float = 1.25
    """How much faster than real time still counts as in time: a stream that stalled is forgiven a second in four."""

    def due(self, ready_s: float, in_time_s: float) -> tuple[float, float]:
        """Return when a step that is ready at `ready_s` is due, and when the stream's next one would be in time.

        `in_time_s` is what the step before gave back, `NEVER_S` for a stream's first.
        """
        if not self.step_s:
            return ready_s, NEVER_S
        in_time_s = max(ready_s, in_time_s)
        return max(ready_s, in_time_s - self.burst_s), in_time_s + self.step_s / self.lead


class Pending(NamedTuple):
    """One step that waits. `item` is the caller's and never looked at; times are seconds of the caller's clock."""

    stream: StreamId
    item: object
    ready_s: float
    due_s: float
    """`ready_s`; later for a step that came ahead of its time."""
    deadline_s: float


Lane = dict[StreamId, Pending]
_deadline = attrgetter("deadline_s")


PLAIN = Pace()


@dataclass(slots=True)
class _Stream:
    budget_s: float
    background: bool
    lane: Lane  # where the oldest of `steps` stands
    steps: deque[Pending] = field(default_factory=deque)
    in_time_s: float = NEVER_S


class Batcher:
    """Waiting steps in, batches out; see the module docstring for what it promises.

    A stream is ready while it has a step waiting; its oldest one stands in one of three lanes: live, ahead of its time,
    or background. `max_queued` bounds each stream's own queue, so that only the stream which outruns the model is
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
    ) -> None:
        """Take the bounds, each at least 1, and the rules.

        `background_rows` bounds the filling steps in a batch with due ones, on top of what `Filling` says. `pace`
        says when the steps of live streams are due. `margin_s` is how much before the last moment `DEADLINE` starts:
        the interval after which CPython makes a busy thread hand over the interpreter (sys.getswitchinterval), for a
        timer may fire that much late. `service` is what is known of service times.
        """
        if min(max_batch, max_queued, background_rows) < 1:
            raise ValueError("max_batch, max_queued and background_rows must be at least 1")
        self._policy = policy
        self._max_batch = 1 if policy is Policy.SINGLE else max_batch
        self._max_queued = max_queued
        self._pace = pace
        self._margin_s = margin_s
        self._streams: dict[StreamId, _Stream] = {}
        self._live: Lane = {}
        self._ahead: Lane = {}
        self._background: Lane = {}
        self._open_live = 0
        self._queued = 0
        self._quiet_since_s: float | None = None  # the first look that found no step due
        self.service = service or ServiceTimes()
        self._filling = Filling(self.service, background_rows=background_rows, max_batch=self._max_batch)

    @property
    def queued(self) -> int:
        """Steps waiting, over all streams."""
        return self._queued

    @property
    def streams(self) -> int:
        """Streams open."""
        return len(self._streams)

    @property
    def live_streams(self) -> int:
        """Streams open that are not background."""
        return self._open_live

    def open(self, stream: StreamId, *, budget_s: float, background: bool = False) -> None:
        """Admit a stream whose steps should be done `budget_s` after they are due.

        Raises: AlreadyOpen; ValueError for a bad budget.
        """
        if stream in self._streams:
            raise AlreadyOpen(f"stream {stream} is open already")
        self._streams[stream] = _Stream(
            checked_budget(budget_s), background, self._background if background else self._live
        )
        self._open_live += not background

    def close(self, stream: StreamId) -> int:
        """Forget a stream and drop its waiting steps. Returns: how many those were. Raises: UnknownStream."""
        closed = self._find(stream)
        del self._streams[stream]
        closed.lane.pop(stream, None)
        self._open_live -= not closed.background
        self._queued -= len(closed.steps)
        return len(closed.steps)

    def waiting(self, stream: StreamId) -> int:
        """Steps of this stream that wait. Raises: UnknownStream."""
        return len(self._find(stream).steps)

    def push(self, stream: StreamId, item: object, now: float) -> None:
        """Queue a step that is ready at `now`. Raises: UnknownStream, QueueFull."""
        owner = self._find(stream)
        if len(owner.steps) >= self._max_queued:
            raise QueueFull(f"stream {stream} has {self._max_queued} steps waiting, as many as it may")
        due_s = now
        if not owner.background:
            due_s, owner.in_time_s = self._pace.due(now, owner.in_time_s)
        step = Pending(stream, item, now, due_s, due_s + owner.budget_s)
        owner.steps.append(step)
        if len(owner.steps) == 1:
            self._stand(owner, step, now)
        self._queued += 1

    def next_batch(self, now: float) -> tuple[Pending, ...]:
        """Take the steps to run now, earliest deadline first; () = nothing to run now."""
        self._look(now)
        if self._live and now >= self._start_at():
            batch = self._choose(self._live, self._filling.riding())
        elif now >= self._fill_at(now):
            batch = self._choose({}, self._alone())
        else:
            return ()
        for step in batch:
            self._advance(step.stream, now)
        self._queued -= len(batch)
        return batch

    def wake_at(self, now: float) -> float | None:
        """When to ask for a batch again if nothing happens meanwhile; None = not before the next push."""
        self._look(now)
        moment = min(self._start_at() if self._live else math.inf, self._fill_at(now))
        return None if moment == math.inf else max(now, moment)

    def ran(self, rows: int, seconds: float) -> None:
        """Learn that a batch of `rows` steps took `seconds`."""
        self.service.learn(rows, seconds)

    def _look(self, now: float) -> None:
        """Let the steps whose time has come stand with the live ones; note since when there has been none."""
        for step in [step for step in self._ahead.values() if step.due_s <= now]:
            del self._ahead[step.stream]
            self._stand(self._streams[step.stream], step, now)
        if self._live:
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = now

    def _start_at(self) -> float:
        """Say when waiting for a fuller batch of due steps ends; -inf = there is no reason to wait."""
        if self._policy is not Policy.DEADLINE:
            return -math.inf
        rows = len(self._live) + min(len(self._ahead) + len(self._background), self._filling.riding())
        whoever_could_come_is_here = len(self._live) + len(self._ahead) == self._open_live
        if whoever_could_come_is_here or rows >= self._max_batch:
            return -math.inf
        lanes = (self._live, self._ahead, self._background)
        earliest_s = min(step.deadline_s for lane in lanes for step in lane.values())
        # Time the batch as if one more step joined: that is what waiting is for.
        return earliest_s - self.service.at_worst(rows + 1) - self._margin_s

    def _fill_at(self, now: float) -> float:
        """Say when filling steps may run alone; inf = not before something else happens."""
        waiting = len(self._ahead) + len(self._background)
        if not waiting:
            return math.inf
        rows = min(waiting, self._alone())
        if self._live:  # a batch is held: there is time for another before it starts
            return now if now + self.service.at_worst(rows) <= self._start_at() else math.inf
        in_time = self._open_live - len(self._ahead)  # streams whose next step could come at any moment
        gap_s = self._pace.step_s / in_time if in_time else math.inf
        assert self._quiet_since_s is not None  # `_look` came first
        return self._quiet_since_s + self._filling.hold_s(rows, gap_s)

    def _alone(self) -> int:
        """Filling steps in a batch of their own."""
        return self._max_batch if self._open_live == len(self._ahead) else self._filling.alone()

    def _choose(self, live: Lane, filling: int) -> tuple[Pending, ...]:
        # Sorting everything that is ready looks wasteful beside a heap, and is not: steps enter a lane in order of
        # time, so nearly in order of deadline, which the sort exploits; under `EAGER` nearly all of them ride anyway;
        # and a heap would keep the steps of closed streams until they surface.
        ready = list(live.values())
        if self._ahead or self._background:
            ready += heapq.nsmallest(filling, [*self._ahead.values(), *self._background.values()], key=_deadline)
        ready.sort(key=_deadline)  # stable: of equal deadlines, the step that stood there first
        return tuple(ready[: self._max_batch])

    def _advance(self, stream: StreamId, now: float) -> None:
        """Drop the stream's oldest step; the next one, if any, joins the end of its lane."""
        owner = self._streams[stream]
        del owner.lane[stream]
        owner.steps.popleft()
        if owner.steps:
            self._stand(owner, owner.steps[0], now)

    def _stand(self, owner: _Stream, step: Pending, now: float) -> None:
        owner.lane = self._background if owner.background else self._live if step.due_s <= now else self._ahead
        owner.lane[step.stream] = step

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
