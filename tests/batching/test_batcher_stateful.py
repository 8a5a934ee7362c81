"""The batcher against a naive model of itself, under random operations with time passing.

20,000 steps a run; `TUTTI_STATEFUL_STEPS=1000000` in the environment for more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batching.batcher import Batcher, Pending, Policy, steps_each
from batching.errors import QueueFull, UnknownStream
from batching.policy.background import BackgroundLimits
from batching.policy.chunks import Chunks
from batching.policy.pace import Pace
from batching.policy.service_times import ServiceTimes

WANTED_STEPS = int(os.environ.get("TUTTI_STATEFUL_STEPS", "20000"))
EXAMPLES, STEPS = 125, 60
MOST_RUNS = 12
MAX_QUEUED = 5
MARGIN_S = 0.005
BUDGETS_S = (0.02, 0.1, 0.1, 0.25)
LENGTHS = ((1,), (1, 2, 4), (1, 3))  # of chunks
BACKGROUND_BUDGETS = 2.5  # as a multiple of those of live streams
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


class BatcherMachine(RuleBasedStateMachine):
    """Rules that act on a `Batcher` and on plain lists, and compare their visible state."""

    policy: ClassVar[Policy]
    steps: ClassVar[int] = 0
    early: ClassVar[int] = 0  # early steps
    alone: ClassVar[int] = 0  # batches of background work alone
    late: ClassVar[int] = 0  # batches that made background work wait
    chunks: ClassVar[int] = 0  # batches of chunks
    due_chunks: ClassVar[int] = 0  # batches of chunks with due steps
    bursts: ClassVar[int] = 0  # chunks that ran before other due steps

    def __init__(self) -> None:
        super().__init__()
        self.now = 8_675_309.25
        self.naive: dict[int, NaiveStream] = {}
        self.items = 0
        self.opened = 0
        self.pushed: set[object] = set()
        self.gone: set[object] = set()  # items that ran or were dropped
        self.service = ServiceTimes()  # it and `BackgroundLimits` have tests of their own
        self.none_due_since_s: float | None = None
        self.wait_until_s = -math.inf
        self.running: tuple[Pending, ...] = ()

    @initialize(
        max_batch=st.integers(1, 9),
        background_rows=st.integers(1, 3),
        paced=st.booleans(),
        lengths=st.sampled_from(LENGTHS),
    )
    def build(self, max_batch: int, background_rows: int, paced: bool, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self.max_batch = 1 if self.policy is Policy.SINGLE else max_batch
        self.pace = PACE if paced else Pace()
        self.limits = BackgroundLimits(self.service, background_rows=background_rows, max_batch=self.max_batch)
        self.batcher = Batcher(
            self.policy,
            max_batch=max_batch,
            max_queued=MAX_QUEUED,
            background_rows=background_rows,
            pace=self.pace,
            margin_s=MARGIN_S,
            chunk_steps=lengths,
        )
        self.times = Chunks(lengths, self.service, max_rows=self.max_batch)  # its rules are written out below

    @rule(budget_s=st.sampled_from(BUDGETS_S), background=st.sampled_from((False, False, True)))
    def open(self, budget_s: float, background: bool) -> None:
        # Few ids, reused: a reopened id must not inherit anything.
        free = [stream for stream in range(8) if stream not in self.naive]
        if free:
            stream = free[self.opened % len(free)]
            self.opened += 1
            budget_s *= BACKGROUND_BUDGETS if background else 1.0
            self.batcher.open(stream, budget_s=budget_s, background=background)
            self.naive[stream] = NaiveStream(budget_s, background)

    @precondition(lambda self: self.naive)
    @rule(choice=st.integers(0, 7), count=st.integers(1, 4), starts_chunk=st.sampled_from((False, False, False, True)))
    def push(self, choice: int, count: int, starts_chunk: bool) -> None:
        stream = sorted(self.naive)[choice % len(self.naive)]
        owner = self.naive[stream]
        if starts_chunk:  # no chunk holds the first of these after an earlier step
            self.batcher.start_new_chunk(stream)
            owner.starts_chunk = True
        for _ in range(count):
            self.items += 1
            if len(owner.waiting) == MAX_QUEUED:
                with pytest.raises(QueueFull):
                    self.batcher.push(stream, self.items, self.now)
            else:
                self.batcher.push(stream, self.items, self.now)
                due_s = self.due(owner)
                type(self).early += due_s > self.now
                owner.waiting.append(NaiveStep(self.items, due_s, due_s + owner.budget_s, owner.starts_chunk))
                owner.starts_chunk = False
                self.pushed.add(self.items)

    def due(self, owner: NaiveStream) -> float:
        """Due time of the stream's next step: the rate rule, written out."""
        if owner.background or not self.pace.step_s:
            return self.now
        theoretical_s = max(self.now, owner.in_time_s)
        owner.in_time_s = theoretical_s + EARLIER_S
        return max(self.now, theoretical_s - self.pace.burst_s)

    @precondition(lambda self: self.naive)
    @rule(choice=st.integers(0, 7))
    def close(self, choice: int) -> None:
        """Close any stream, also one with a step in the running batch: its waiting steps are dropped."""
        stream = sorted(self.naive)[choice % len(self.naive)]
        dropped = self.naive.pop(stream).waiting
        assert self.batcher.close(stream) == len(dropped)
        self.gone |= {step.item for step in dropped}
        with pytest.raises(UnknownStream):
            self.batcher.push(stream, None, self.now)

    @rule(seconds=st.sampled_from((0.0, 0.001, 0.01, 0.08, 0.5)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sleep_until_woken(self) -> None:
        """Sleep until `wake_at` without a push."""
        wake_at = self.wake_at()
        if wake_at is None:
            assert not self.oldest()
        else:
            self.sleep(wake_at)

    def sleep(self, wake_at: float) -> None:
        """Expect a batch at `wake_at`, unless a step became due during the sleep and waits for a fuller batch."""
        assert wake_at >= self.now
        slept_from, self.now = self.now, wake_at
        self.take()
        if not self.running:
            assert self.policy is Policy.DEADLINE
            assert any(slept_from < step.due_s <= self.now for step in self.oldest().values())

    @rule(seconds=st.sampled_from((0.001, 0.004, 0.03, 0.1)))
    def batch(self, seconds: float) -> None:
        self.take()
        if self.running:
            self.now += seconds
            steps = steps_each(self.running)
            self.batcher.ran(len(self.running), seconds, steps)
            if steps == 1:
                self.service.learn(len(self.running), seconds)
            else:
                self.times.learn(len(self.running) // steps, steps, seconds)

    def oldest(self) -> dict[int, NaiveStep]:
        """The oldest step of every stream that has one."""
        return {stream: owner.waiting[0] for stream, owner in self.naive.items() if owner.waiting}

    def due_steps(self) -> list[float]:
        """Deadlines of due steps, earliest first."""
        oldest = self.oldest().items()
        return sorted(s.deadline_s for stream, s in oldest if not self.naive[stream].background and s.due_s <= self.now)

    def background(self) -> list[float]:
        """Deadlines of all other oldest steps, earliest first."""
        oldest = self.oldest().items()
        return sorted(s.deadline_s for stream, s in oldest if self.naive[stream].background or s.due_s > self.now)

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

    def note_late_steps(self) -> None:
        """Make background work wait for a second after a batch with half of its due steps late."""
        due = self.due_steps()
        if self.background() and due and self.service.known:
            done_s = self.now + self.service.estimate(min(len(due), self.max_batch))
            if 2 * sum(deadline_s < done_s for deadline_s in due) >= len(due):
                self.wait_until_s = self.now + 1.0
                type(self).late += 1

    def live(self) -> tuple[int, int]:
        """Number of live streams, and of those whose oldest step is early."""
        streams = [owner for owner in self.naive.values() if not owner.background]
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
        owners = [self.naive[stream] for stream in streams]
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

    def ahead(self) -> tuple[list[int], int]:
        """Streams whose bursts run before the batch of due steps, and steps of each: `Chunks.burst`, written out."""
        room = self.max_batch // self.lengths[1] if len(self.lengths) > 1 else 0
        self.batcher.wake_at(self.now)  # steps that became due meanwhile are among the live ones then
        chosen = [*self.batcher._live]  # in the order in which they became due: it decides between equal deadlines
        others = [*self.batcher._early, *self.batcher._background]
        chosen += sorted(others, key=self.deadline)[: self.max_rows_with_live()]
        chosen = sorted(chosen, key=self.deadline)[: self.max_batch]
        due = {stream: self.due_in_a_row(stream) if stream in self.batcher._live else 0 for stream in chosen}
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
                others = [stream for stream in chosen if stream not in able[:count]]
                late = any(batch_s <= self.deadline(s) - self.now < worst_s + batch_s for s in others)
                if self.times.estimate(count, steps) <= batch_s and not late:
                    return able[:count], steps
                count //= 2
        return [], 1

    def deadline(self, stream: int) -> float:
        """Deadline of a stream's oldest step."""
        return self.naive[stream].waiting[0].deadline_s

    def due_in_a_row(self, stream: int) -> int:
        """Number of due steps of a stream that may run as one chunk."""
        waiting = self.naive[stream].waiting
        ends = (n for n, step in enumerate(waiting) if n and (step.starts_chunk or step.due_s > self.now))
        return next(ends, len(waiting))

    def note_due_steps(self) -> None:
        """Record since when no step is due, as every call of the batcher does."""
        if self.due_steps():
            self.none_due_since_s = None
        elif self.none_due_since_s is None:
            self.none_due_since_s = self.now

    def wake_at(self) -> float | None:
        """Compare `wake_at` with the rules."""
        self.note_due_steps()
        wake_at = self.batcher.wake_at(self.now)
        assert wake_at == (max(self.now, min(self.start_at(), self.background_at())) if self.oldest() else None)
        return wake_at

    def take(self) -> None:
        """Take a batch and compare it with every guarantee."""
        self.note_due_steps()
        expected: list[float] = []
        ahead, each = list[int](), 1
        starts = self.due_steps() and self.now >= self.start_at()
        if starts:
            self.note_late_steps()
            expected = self.mixed()[: self.max_batch]
            earliest = min(step.deadline_s for step in self.oldest().values())
            assert expected[0] == earliest, "the earliest deadline is not in the batch: starvation"
            ahead, each = self.ahead()
            if ahead:
                expected = [self.naive[stream].waiting[0].deadline_s for stream in ahead]
                assert expected[0] == earliest, "a burst without the earliest deadline"
                type(self).bursts += 1
        elif self.now >= self.background_at():
            expected = self.background()[: self.max_rows_without_live()]
            type(self).alone += 1
        self.running = self.batcher.next_batch(self.now)
        taken = [step.stream for step in self.running]
        streams = list(dict.fromkeys(taken))
        steps = each if ahead else self.chunk(streams)
        assert taken == [stream for stream in streams for _ in range(steps)], "not one chunk of each stream"
        assert [step.deadline_s for step in self.running[::steps]] == expected, "not the earliest, or not in order"
        type(self).chunks += steps > 1
        type(self).due_chunks += steps > 1 and bool(starts)
        for step in self.running:
            naive = self.naive[step.stream].waiting.pop(0)
            assert (step.item, step.due_s, step.deadline_s, step.starts_chunk) == naive, "out of order"
            assert step.item not in self.gone, "ran twice, or after it was dropped"
            self.gone.add(step.item)

    @invariant()
    def visible_state_agrees(self) -> None:
        type(self).steps += 1
        if hasattr(self, "batcher"):
            assert self.batcher.streams == len(self.naive)
            assert self.batcher.queued == sum(len(owner.waiting) for owner in self.naive.values())
            self.wake_at()

    def teardown(self) -> None:
        """Run every waiting step once, without further pushes."""
        if not hasattr(self, "batcher"):
            return
        while (wake_at := self.wake_at()) is not None:
            self.sleep(wake_at)
        assert self.gone == self.pushed


@pytest.mark.parametrize("policy", Policy)
def test_batcher_agrees_with_its_naive_model(policy: Policy, record_property: Callable[[str, object], None]) -> None:
    class Machine(BatcherMachine):
        pass

    Machine.policy = policy
    options = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None)
    seen = ["early", "alone", "late", *(() if policy is Policy.SINGLE else ("chunks", "due_chunks", "bursts"))]
    runs = 0
    # Some runs have no late batch: continue until every case has occurred.
    while Machine.steps < WANTED_STEPS / len(Policy) or (
        runs < MOST_RUNS and not all(getattr(Machine, n) for n in seen)
    ):
        run_state_machine_as_test(Machine, settings=options)
        runs += 1
    for name in ("steps", *seen):  # pytest --junitxml=FILE keeps them
        record_property(name, getattr(Machine, name))
        assert getattr(Machine, name), name
