"""A naive model of the batcher: streams as plain lists, and each rule of the batcher written out over all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from batching.batcher import Policy
from batching.policy.background import BackgroundLimits
from batching.policy.chunks import Chunks
from batching.policy.pace import Pace
from batching.policy.service_times import ServiceTimes

MARGIN_S = 0.005
PACE = Pace(step_s=0.08, burst_s=0.05, lead=1.25)
EARLIER_S = 0.08 / 1.25  # interval after which the next step is in time


class NaiveStep(NamedTuple):
    """A step with its expected times."""

    item: int
    due_s: float
    deadline_s: float
    starts_chunk: bool


@dataclass
class NaiveStream:
    """A stream as a list of steps, and the time before which its next step is early."""

    budget_s: float
    background: bool
    waiting: list[NaiveStep] = field(default_factory=list)
    in_time_s: float = -math.inf
    starts_chunk: bool = False


class NaiveBatcher:
    """The streams at a time, and which batch the batcher has to run then.

    Service times and `BackgroundLimits` are those of the batcher, which have tests of their own.
    """

    def __init__(
        self, policy: Policy, now: float, *, max_batch: int, background_rows: int, pace: Pace, lengths: tuple[int, ...]
    ) -> None:
        self.policy, self.now, self.pace, self.lengths = policy, now, pace, lengths
        self.max_batch = 1 if policy is Policy.SINGLE else max_batch
        self.streams: dict[int, NaiveStream] = {}
        self.service = ServiceTimes()
        self.times = Chunks(lengths, self.service, max_rows=self.max_batch)  # its rules are written out below
        self.limits = BackgroundLimits(self.service, background_rows=background_rows, max_batch=self.max_batch)
        self.none_due_since_s: float | None = None
        self.wait_until_s = -math.inf

    def push(self, stream: int, item: int) -> NaiveStep:
        """Append a step."""
        owner = self.streams[stream]
        due_s = self.due(owner)
        step = NaiveStep(item, due_s, due_s + owner.budget_s, owner.starts_chunk)
        owner.waiting.append(step)
        owner.starts_chunk = False
        return step

    def due(self, owner: NaiveStream) -> float:
        """Due time of the stream's next step: the rate rule, written out."""
        if owner.background or not self.pace.step_s:
            return self.now
        theoretical_s = max(self.now, owner.in_time_s)
        owner.in_time_s = theoretical_s + EARLIER_S
        return max(self.now, theoretical_s - self.pace.burst_s)

    def oldest(self) -> dict[int, NaiveStep]:
        """The oldest step of every stream that has one."""
        return {stream: owner.waiting[0] for stream, owner in self.streams.items() if owner.waiting}

    def due_steps(self) -> list[float]:
        """Deadlines of due steps, earliest first."""
        oldest = self.oldest().items()
        return sorted(
            s.deadline_s for stream, s in oldest if not self.streams[stream].background and s.due_s <= self.now
        )

    def background(self) -> list[float]:
        """Deadlines of all other oldest steps, earliest first."""
        oldest = self.oldest().items()
        return sorted(s.deadline_s for stream, s in oldest if self.streams[stream].background or s.due_s > self.now)

    def mixed(self) -> list[float]:
        """Deadlines of all steps that may run in a batch with due steps, earliest first."""
        due, background = self.due_steps(), self.background()
        return sorted(due + background[: self.max_rows_with_live()])

    def max_rows_with_live(self) -> int:
        """Most background steps with due ones: if half of those are late, none, or one with the earliest deadline."""
        due, background = self.due_steps(), self.background()
        if self.now >= self.wait_until_s:
            return self.limits.max_rows_with_live()
        return int(bool(background) and background[0] <= due[0])

    def note_late_steps(self) -> bool:
        """Make background work wait for a second after a batch with half of its due steps late; whether it was one."""
        due = self.due_steps()
        if self.background() and due and self.service.known:
            done_s = self.now + self.service.estimate(min(len(due), self.max_batch))
            if 2 * sum(deadline_s < done_s for deadline_s in due) >= len(due):
                self.wait_until_s = self.now + 1.0
                return True
        return False

    def live(self) -> tuple[int, int]:
        """Number of live streams, and of those whose oldest step is early."""
        streams = [owner for owner in self.streams.values() if not owner.background]
        return len(streams), sum(bool(s.waiting) and s.waiting[0].due_s > self.now for s in streams)

    def start_at(self) -> float:
        """Start of the batch of due steps under the `deadline` rule, written out."""
        due, (live, early) = self.due_steps(), self.live()
        if not due:
            return math.inf
        members = sorted(due + self.background()[: self.limits.max_rows_with_live()])
        every_live_stream_is_ready = len(due) + early == live
        if self.policy is not Policy.DEADLINE or every_live_stream_is_ready or len(members) >= self.max_batch:
            return -math.inf
        return min(due + self.background()) - self.service.at_worst(len(members) + 1) - MARGIN_S

    def max_rows_without_live(self) -> int:
        """Most background steps in a batch without due ones."""
        live, early = self.live()
        return self.max_batch if live == early else self.limits.max_rows_without_live()

    def background_at(self) -> float:
        """Start of a batch of background work alone."""
        rows = min(len(self.background()), self.max_rows_without_live())
        if not rows:
            return math.inf
        live, early = self.live()
        until_s = min(self.wait_until_s, self.background()[0]) if live > early else -math.inf
        if self.due_steps():
            fits = self.now >= until_s and self.now + self.service.at_worst(rows) <= self.start_at()
            return self.now if fits else math.inf
        gap_s = self.pace.step_s / (live - early) if live > early else math.inf
        assert self.none_due_since_s is not None
        return max(until_s, self.none_due_since_s + self.limits.hold_s(rows, gap_s))

    def chunk(self, streams: list[int]) -> int:
        """Steps of each of these streams, chosen for a batch: the rules of `Chunks`, written out."""
        owners = [self.streams[stream] for stream in streams]
        waiting = [owner for owner in owners if owner.background or owner.waiting[0].due_s > self.now]
        due = [owner for owner in owners if owner not in waiting]
        live, early = self.live()
        if waiting and live > early and self.now < self.wait_until_s:
            return 1
        others = live > sum(not owner.background for owner in owners)
        alone_s = self.service.estimate(len(owners))
        for steps in reversed(self.lengths[1:]):
            lasts_s, worst_s = self.times.estimate(len(owners), steps), self.times.at_worst(len(owners), steps)
            refused = (
                steps * len(owners) > self.max_batch
                or any(len(owner.waiting) < steps for owner in owners)
                or any(step.starts_chunk for owner in owners for step in owner.waiting[1:steps])
                or any(step.due_s > self.now for owner in due for step in owner.waiting[:steps])
                or (others and lasts_s > 1.5 * self.service.estimate(1))
                or (bool(self.due_steps()) and not due and worst_s > self.start_at() - self.now)
                or any(alone_s <= owner.waiting[0].deadline_s - self.now < worst_s for owner in due)
            )
            if not refused:
                return steps
        return 1

    def ahead(self, due_streams: list[int], others: list[int]) -> tuple[list[int], int]:
        """Streams whose bursts run before the batch of due steps, and steps of each: `Chunks.burst`, written out.

        `due_streams` are in the order in which they became due, which decides between equal deadlines.
        """
        room = self.max_batch // self.lengths[1] if len(self.lengths) > 1 else 0
        chosen = [*due_streams, *sorted(others, key=self.deadline)[: self.max_rows_with_live()]]
        chosen = sorted(chosen, key=self.deadline)[: self.max_batch]
        due = {stream: self.due_in_a_row(stream) if stream in due_streams else 0 for stream in chosen}
        if not room or due[chosen[0]] < 2 or min(due.values()) > 1:
            return [], 1
        batch_s = self.service.estimate(len(chosen))
        for steps in reversed(self.lengths[1:]):
            able = [stream for stream, count in due.items() if count >= steps]
            if due[chosen[0]] < steps or steps > self.max_batch:
                continue
            count = min(len(able), self.max_batch // steps)
            while count:
                worst_s = self.times.at_worst(count, steps)
                waiting = [stream for stream in chosen if stream not in able[:count]]
                late = any(batch_s <= self.deadline(s) - self.now < worst_s + batch_s for s in waiting)
                if self.times.estimate(count, steps) <= batch_s and not late:
                    return able[:count], steps
                count //= 2
        return [], 1

    def deadline(self, stream: int) -> float:
        """Deadline of a stream's oldest step."""
        return self.streams[stream].waiting[0].deadline_s

    def due_in_a_row(self, stream: int) -> int:
        """Number of due steps of a stream that may run as one chunk."""
        waiting = self.streams[stream].waiting
        ends = (n for n, step in enumerate(waiting) if n and (step.starts_chunk or step.due_s > self.now))
        return next(ends, len(waiting))

    def note_due_steps(self) -> None:
        """Record since when no step is due, as every call of the batcher does."""
        if self.due_steps():
            self.none_due_since_s = None
        elif self.none_due_since_s is None:
            self.none_due_since_s = self.now

    def wake_at(self) -> float | None:
        """Start of the next batch; None if no step waits."""
        self.note_due_steps()
        return max(self.now, min(self.start_at(), self.background_at())) if self.oldest() else None

    def measured(self, rows: int, steps: int, seconds: float) -> None:
        """Set the time of a batch of this many rows, in chunks of `steps`."""
        if steps == 1:
            self.service.measured(rows, seconds)
        else:
            self.times.measured(rows // steps, steps, seconds)
