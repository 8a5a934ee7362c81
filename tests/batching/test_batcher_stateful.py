"""The batcher against a naive model of itself, under random operations with time passing.

20,000 steps a run; `TUTTI_STATEFUL_STEPS=1000000` in the environment for more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

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
from batching.policy.pace import Pace
from tests.support.streams.naive_batcher import MARGIN_S, PACE, NaiveBatcher, NaiveStream

WANTED_STEPS = int(os.environ.get("TUTTI_STATEFUL_STEPS", "20000"))
EXAMPLES, STEPS = 125, 60
MOST_RUNS = 12
MAX_QUEUED = 5
BUDGETS_S = (0.02, 0.1, 0.1, 0.25)
LENGTHS = ((1,), (1, 2, 4), (1, 3))  # of chunks
BACKGROUND_BUDGETS = 2.5  # as a multiple of those of live streams
START_S = 8_675_309.25


class BatcherMachine(RuleBasedStateMachine):
    """Rules that act on a `Batcher` and on a `NaiveBatcher`, and compare their visible state."""

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
        self.items = 0
        self.opened = 0
        self.pushed: set[object] = set()
        self.gone: set[object] = set()  # items that ran or were dropped
        self.running: tuple[Pending, ...] = ()

    @property
    def now(self) -> float:
        return self.naive.now

    def chosen(self, choice: int) -> int:
        """One of the open streams."""
        return sorted(self.naive.streams)[choice % len(self.naive.streams)]

    @initialize(
        max_batch=st.integers(1, 9),
        background_rows=st.integers(1, 3),
        paced=st.booleans(),
        lengths=st.sampled_from(LENGTHS),
    )
    def build(self, max_batch: int, background_rows: int, paced: bool, lengths: tuple[int, ...]) -> None:
        pace = PACE if paced else Pace()
        self.naive = NaiveBatcher(
            self.policy, START_S, max_batch=max_batch, background_rows=background_rows, pace=pace, lengths=lengths
        )
        self.batcher = Batcher(
            self.policy,
            max_batch=max_batch,
            max_queued=MAX_QUEUED,
            background_rows=background_rows,
            pace=pace,
            margin_s=MARGIN_S,
            chunk_steps=lengths,
        )

    @rule(budget_s=st.sampled_from(BUDGETS_S), background=st.sampled_from((False, False, True)))
    def open(self, budget_s: float, background: bool) -> None:
        # Few ids, reused: a reopened id must not inherit anything.
        free = [stream for stream in range(8) if stream not in self.naive.streams]
        if free:
            stream = free[self.opened % len(free)]
            self.opened += 1
            budget_s *= BACKGROUND_BUDGETS if background else 1.0
            self.batcher.open(stream, budget_s=budget_s, background=background)
            self.naive.streams[stream] = NaiveStream(budget_s, background)

    @precondition(lambda self: self.naive.streams)
    @rule(choice=st.integers(0, 7), count=st.integers(1, 4), starts_chunk=st.sampled_from((False, False, False, True)))
    def push(self, choice: int, count: int, starts_chunk: bool) -> None:
        stream = self.chosen(choice)
        owner = self.naive.streams[stream]
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
                type(self).early += self.naive.push(stream, self.items).due_s > self.now
                self.pushed.add(self.items)

    @precondition(lambda self: self.naive.streams)
    @rule(choice=st.integers(0, 7))
    def close(self, choice: int) -> None:
        """Close any stream, also one with a step in the running batch: its waiting steps are dropped."""
        stream = self.chosen(choice)
        dropped = self.naive.streams.pop(stream).waiting
        assert self.batcher.close(stream) == len(dropped)
        self.gone |= {step.item for step in dropped}
        with pytest.raises(UnknownStream):
            self.batcher.push(stream, None, self.now)

    @rule(seconds=st.sampled_from((0.0, 0.001, 0.01, 0.08, 0.5)))
    def time_passes(self, seconds: float) -> None:
        self.naive.now += seconds

    @rule()
    def sleep_until_woken(self) -> None:
        """Sleep until `wake_at` without a push."""
        wake_at = self.wake_at()
        if wake_at is None:
            assert not self.naive.oldest()
        else:
            self.sleep(wake_at)

    def sleep(self, wake_at: float) -> None:
        """Expect a batch at `wake_at`, unless a step became due during the sleep and waits for a fuller batch."""
        assert wake_at >= self.now
        slept_from, self.naive.now = self.now, wake_at
        self.take()
        if not self.running:
            assert self.policy is Policy.DEADLINE
            assert any(slept_from < step.due_s <= self.now for step in self.naive.oldest().values())

    @rule(seconds=st.sampled_from((0.001, 0.004, 0.03, 0.1)))
    def batch(self, seconds: float) -> None:
        self.take()
        if self.running:
            self.naive.now += seconds
            steps = steps_each(self.running)
            self.batcher.measured(len(self.running), seconds, steps)
            self.naive.measured(len(self.running), steps, seconds)

    def wake_at(self) -> float | None:
        """Compare `wake_at` with the rules."""
        wake_at = self.batcher.wake_at(self.now)
        assert wake_at == self.naive.wake_at()
        return wake_at

    def take(self) -> None:
        """Take a batch and compare it with every guarantee."""
        self.naive.note_due_steps()
        starts = bool(self.naive.due_steps()) and self.now >= self.naive.start_at()
        expected, burst_steps = self.expected(starts)
        self.running = self.batcher.next_batch(self.now)
        taken = [step.stream for step in self.running]
        streams = list(dict.fromkeys(taken))
        steps = burst_steps or self.naive.chunk(streams)
        assert taken == [stream for stream in streams for _ in range(steps)], "not one chunk of each stream"
        assert [step.deadline_s for step in self.running[::steps]] == expected, "not the earliest, or not in order"
        type(self).chunks += steps > 1
        type(self).due_chunks += steps > 1 and starts
        for step in self.running:
            naive = self.naive.streams[step.stream].waiting.pop(0)
            assert (step.item, step.due_s, step.deadline_s, step.starts_chunk) == naive, "out of order"
            assert step.item not in self.gone, "ran twice, or after it was dropped"
            self.gone.add(step.item)

    def expected(self, starts: bool) -> tuple[list[float], int]:
        """Deadlines of the next batch's streams, and steps of each if it is a burst, else 0."""
        naive = self.naive
        if starts:
            type(self).late += naive.note_late_steps()
            mixed = naive.mixed()[: naive.max_batch]
            earliest = min(step.deadline_s for step in naive.oldest().values())
            assert mixed[0] == earliest, "the earliest deadline is not in the batch: starvation"
            self.batcher.wake_at(self.now)  # steps that became due meanwhile are among the live ones then
            ahead, steps = naive.ahead([*self.batcher._live], [*self.batcher._early, *self.batcher._background])
            if not ahead:
                return mixed, 0
            expected = [naive.deadline(stream) for stream in ahead]
            assert expected[0] == earliest, "a burst without the earliest deadline"
            type(self).bursts += 1
            return expected, steps
        if self.now >= naive.background_at():
            type(self).alone += 1
            return naive.background()[: naive.max_rows_without_live()], 0
        return [], 0

    @invariant()
    def visible_state_agrees(self) -> None:
        type(self).steps += 1
        if hasattr(self, "batcher"):
            assert self.batcher.streams == len(self.naive.streams)
            assert self.batcher.queued == sum(len(owner.waiting) for owner in self.naive.streams.values())
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
    options = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None, derandomize=False
    )
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
