"""The batcher against a naive model of itself, under random use with time going by: at least 12,000 steps a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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

from batching import Batcher, Pending, Policy, QueueFull, UnknownStream

EXAMPLES, STEPS = 120, 60
MAX_QUEUED = 3
MARGIN_S = 0.005
BUDGETS_S = (0.02, 0.1, 0.1, 0.25)
BACKGROUND_S = 0.6


@dataclass
class NaiveStream:
    """A stream as a list of (item, deadline)."""

    budget_s: float
    background: bool
    waiting: list[tuple[int, float]] = field(default_factory=list)


class BatcherMachine(RuleBasedStateMachine):
    """Every rule does the same to a `Batcher` and to plain lists, and compares what can be seen."""

    policy: ClassVar[Policy]
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.now = 8_675_309.25
        self.naive: dict[int, NaiveStream] = {}
        self.items = 0
        self.opened = 0
        self.pushed: set[object] = set()
        self.gone: set[object] = set()  # items that ran or were dropped
        self.service: dict[int, float] = {}  # bucket -> smoothed seconds
        self.running: tuple[Pending, ...] = ()

    @initialize(max_batch=st.integers(1, 6), background_rows=st.integers(1, 3))
    def build(self, max_batch: int, background_rows: int) -> None:
        self.max_batch = 1 if self.policy is Policy.SINGLE else max_batch
        self.background_rows = background_rows
        self.batcher = Batcher(
            self.policy,
            max_batch=max_batch,
            max_queued=MAX_QUEUED,
            background_rows=background_rows,
            margin_s=MARGIN_S,
        )

    @rule(budget_s=st.sampled_from(BUDGETS_S), background=st.booleans())
    def open(self, budget_s: float, background: bool) -> None:
        # Few ids, used again and again: one that returns must not inherit anything.
        free = [stream for stream in range(8) if stream not in self.naive]
        if free:
            stream = free[self.opened % len(free)]
            self.opened += 1
            budget_s = BACKGROUND_S if background else budget_s
            self.batcher.open(stream, budget_s=budget_s, background=background)
            self.naive[stream] = NaiveStream(budget_s, background)

    @precondition(lambda self: self.naive)
    @rule(choice=st.integers(0, 7), count=st.integers(1, 2))
    def push(self, choice: int, count: int) -> None:
        stream = sorted(self.naive)[choice % len(self.naive)]
        owner = self.naive[stream]
        for _ in range(count):
            self.items += 1
            if len(owner.waiting) == MAX_QUEUED:
                with pytest.raises(QueueFull):
                    self.batcher.push(stream, self.items, self.now)
            else:
                self.batcher.push(stream, self.items, self.now)
                owner.waiting.append((self.items, self.now + owner.budget_s))
                self.pushed.add(self.items)

    @precondition(lambda self: self.naive)
    @rule(choice=st.integers(0, 7))
    def close(self, choice: int) -> None:
        """Also the streams whose step is in the batch that runs: the batch keeps it, the queue forgets the rest."""
        stream = sorted(self.naive)[choice % len(self.naive)]
        dropped = self.naive.pop(stream).waiting
        assert self.batcher.close(stream) == len(dropped)
        self.gone |= {item for item, _ in dropped}
        with pytest.raises(UnknownStream):
            self.batcher.push(stream, None, self.now)

    @rule(seconds=st.sampled_from((0.0, 0.001, 0.01, 0.08, 0.5)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sleep_until_woken(self) -> None:
        """A caller that sleeps as told, with nothing pushed meanwhile, gets a batch when it wakes."""
        wake_at = self.batcher.wake_at(self.now)
        if wake_at is None:
            assert not self.ready()
        else:
            self.now = wake_at
            self.take()
            assert self.running

    @rule(seconds=st.sampled_from((0.001, 0.004, 0.03)))
    def batch(self, seconds: float) -> None:
        self.take()
        if self.running:
            self.now += seconds
            self.batcher.ran(len(self.running), seconds)
            bucket = math.ceil(math.log2(len(self.running)))
            mean = self.service.get(bucket, seconds)
            self.service[bucket] = mean + (seconds - mean) / 8

    def ready(self) -> dict[int, tuple[int, float]]:
        """The oldest step of every stream that has one."""
        return {stream: owner.waiting[0] for stream, owner in self.naive.items() if owner.waiting}

    def candidates(self) -> list[tuple[float, int]]:
        """(deadline, stream) of all that may ride, earliest first."""
        ready = [(deadline, stream) for stream, (_, deadline) in self.ready().items()]
        live = [entry for entry in ready if not self.naive[entry[1]].background]
        background = sorted(entry for entry in ready if self.naive[entry[1]].background)
        return sorted(live + (background[: self.background_rows] if live else background))

    def start_at(self) -> float:
        """The `deadline` rule, spelled out."""
        live = [stream for stream, owner in self.naive.items() if not owner.background]
        live_ready = [stream for stream in live if self.naive[stream].waiting]
        candidates = self.candidates()
        if self.policy is not Policy.DEADLINE or not live_ready or not self.service:
            return -math.inf
        if len(live_ready) == len(live) or len(candidates) >= self.max_batch:
            return -math.inf
        bucket = math.ceil(math.log2(len(candidates) + 1))
        above = [seconds * max(1.0, 2.0 ** (bucket - known)) for known, seconds in self.service.items()]
        return candidates[0][0] - self.service.get(bucket, min(above)) - MARGIN_S

    def take(self) -> None:
        """Ask for a batch and hold it against every promise."""
        candidates, ready, start_at = self.candidates(), self.ready(), self.start_at()
        self.running = self.batcher.next_batch(self.now)
        if not candidates or self.now < start_at:
            assert self.running == ()
            return
        taken = [step.stream for step in self.running]
        deadlines = [step.deadline_s for step in self.running]
        assert len(set(taken)) == len(taken), "two steps of one stream"
        assert deadlines == sorted(deadlines), "deadlines inverted within the batch"
        assert deadlines == [deadline for deadline, _ in candidates[: self.max_batch]], "an earlier deadline was left"
        assert deadlines[0] == min(deadline for _, deadline in ready.values()), "the earliest of all was left: starving"
        for step in self.running:
            assert (step.item, step.deadline_s) == self.naive[step.stream].waiting.pop(0), "out of order"
            assert step.item not in self.gone, "ran twice, or after it was dropped"
            self.gone.add(step.item)

    @invariant()
    def what_can_be_seen_agrees(self) -> None:
        type(self).steps += 1
        if hasattr(self, "batcher"):
            assert self.batcher.streams == len(self.naive)
            assert self.batcher.queued == sum(len(owner.waiting) for owner in self.naive.values())
            wake_at = max(self.now, self.start_at()) if self.ready() else None
            assert self.batcher.wake_at(self.now) == wake_at

    def teardown(self) -> None:
        """Left alone, everything that waits runs, each step once."""
        while (wake_at := self.batcher.wake_at(self.now)) is not None:
            assert wake_at >= self.now
            self.now = wake_at
            self.take()
            assert self.running
        assert self.gone == self.pushed


@pytest.mark.parametrize("policy", Policy)
def test_batcher_agrees_with_its_naive_model(policy: Policy) -> None:
    class Machine(BatcherMachine):
        pass

    Machine.policy = policy
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None)
    )
    assert Machine.steps >= 4_000, Machine.steps
