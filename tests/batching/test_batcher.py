"""Single decisions of the batcher; `test_batcher_stateful.py` checks its guarantees under random operations."""

from __future__ import annotations

import math

import pytest

from batching.batcher import Batcher, Policy
from batching.errors import AlreadyOpen, UnknownStream
from batching.policy.pace import Pace
from batching.policy.service_times import ServiceTimes

T0 = 8_675_309.25  # no test depends on where time starts


def make(policy: Policy = Policy.EAGER, *, max_batch: int = 4, max_queued: int = 3, live: int = 0) -> Batcher:
    """Return a batcher with open live streams 1..live with a budget of 100 ms each."""
    batcher = Batcher(policy, max_batch=max_batch, max_queued=max_queued, background_rows=2, margin_s=0.005)
    for stream in range(1, live + 1):
        batcher.open(stream, budget_s=0.1)
    return batcher


def streams(batcher: Batcher, now: float) -> list[int]:
    """Return the streams of the next batch in order."""
    return [step.stream for step in batcher.next_batch(now)]


def late_batcher(batch_s: float = 0.2) -> Batcher:
    """One live stream with a budget of 0.1 s that every step misses, and an upload with a budget of 10 s."""
    batcher = make(live=1)
    batcher.measured(1, batch_s)
    batcher.open(11, budget_s=10.0, background=True)
    batcher.push(11, None, T0)
    return batcher


def test_a_background_step_waits_no_longer_than_its_own_deadline_however_late_live_ones_are() -> None:
    batcher = late_batcher()
    now, ran = T0, []
    while 11 not in ran:
        batcher.push(1, None, now)
        ran = streams(batcher, now)
        now += 0.5
    assert T0 + 9.5 < now <= T0 + 10.5


def test_unknown_streams_and_a_second_open_are_refused() -> None:
    batcher = make(live=1)
    with pytest.raises(UnknownStream):
        batcher.push(7, None, T0)
    with pytest.raises(UnknownStream):
        batcher.close(7)
    with pytest.raises(AlreadyOpen):
        batcher.open(1, budget_s=0.1)


@pytest.mark.parametrize("budget_s", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_is_not_positive_and_finite_is_refused(budget_s: float) -> None:
    with pytest.raises(ValueError, match="budget_s"):
        make().open(1, budget_s=budget_s)


@pytest.mark.parametrize("bound", ["max_batch", "max_queued", "background_rows"])
def test_every_bound_is_at_least_one(bound: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Batcher(Policy.EAGER, **{"max_batch": 1, "max_queued": 1, "background_rows": 1, bound: 0})


class TestEarlySteps:
    """Steps of 80 ms; 100 ms may arrive at once, and theoretical arrival times are 64 ms apart (lead 1.25)."""

    def make(self, policy: Policy = Policy.EAGER, *, live: int = 1, service: ServiceTimes | None = None) -> Batcher:
        batcher = Batcher(
            policy, max_batch=4, max_queued=200, background_rows=1, pace=Pace(0.08, burst_s=0.1), service=service
        )
        for stream in range(1, live + 1):
            batcher.open(stream, budget_s=0.1)
        return batcher

    def test_a_burst_beyond_the_tolerance_is_due_as_if_sent_in_real_time(self) -> None:
        batcher = self.make()
        for _ in range(5):
            batcher.push(1, None, T0)
        due_s = [step.due_s - T0 for _ in range(5) for step in batcher.next_batch(T0)]
        assert due_s == pytest.approx([0, 0, 0.028, 0.092, 0.156])

    def test_a_stalled_stream_is_in_time_again_after_a_while(self) -> None:
        batcher = self.make()
        for _ in range(12):  # a second of audio at once
            batcher.push(1, None, T0)
        late: list[float] = []
        for n in range(1, 80):
            now = T0 + 0.08 * n
            batcher.push(1, None, now)
            while batch := batcher.next_batch(now):
                late += [step.due_s - step.ready_s for step in batch]
        assert max(late) > 0.5
        assert late[-10:] == [0.0] * 10
