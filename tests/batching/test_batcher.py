"""Single decisions of the batcher; `test_batcher_stateful.py` checks its guarantees under random operations."""

from __future__ import annotations

import math

import pytest

from batching.batcher import Batcher, Policy
from batching.errors import AlreadyOpen, QueueFull, UnknownStream
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


def test_eager_starts_at_once_with_all_ready_steps() -> None:
    batcher = make(live=3)
    batcher.push(1, "a", T0)
    batcher.push(3, "c", T0)
    assert batcher.wake_at(T0) == T0
    assert [step.item for step in batcher.next_batch(T0)] == ["a", "c"]
    assert batcher.next_batch(T0) == ()
    assert batcher.wake_at(T0) is None


def test_single_runs_one_step_at_a_time_in_deadline_order() -> None:
    batcher = make(Policy.SINGLE, live=2)
    batcher.push(2, "later", T0 + 0.01)
    batcher.push(1, "sooner", T0)
    assert [streams(batcher, T0 + 1) for _ in range(3)] == [[1], [2], []]


def test_a_batch_holds_one_step_of_a_stream_and_later_ones_follow_in_order() -> None:
    batcher = make(live=1)
    for item in "abc":
        batcher.push(1, item, T0)
    assert [step.item for _ in range(4) for step in batcher.next_batch(T0)] == ["a", "b", "c"]


def test_earliest_deadline_goes_first_whatever_the_order_of_arrival() -> None:
    batcher = make(max_batch=2)
    for stream, budget_s in ((1, 0.3), (2, 0.2), (3, 0.1)):
        batcher.open(stream, budget_s=budget_s)
        batcher.push(stream, None, T0)
    assert streams(batcher, T0) == [3, 2]
    assert streams(batcher, T0) == [1]


def test_equal_deadlines_run_in_order_of_arrival() -> None:
    batcher = make(max_batch=2, live=3)
    for stream in (3, 1, 2):
        batcher.push(stream, None, T0)
    assert streams(batcher, T0) == [3, 1]


def test_a_deadline_is_the_ready_time_plus_the_budget() -> None:
    batcher = make(live=1)
    batcher.push(1, None, T0)
    (step,) = batcher.next_batch(T0 + 5)
    assert (step.ready_s, step.deadline_s) == (T0, T0 + 0.1)


def test_background_steps_may_fill_a_batch_alone_but_only_a_part_of_one_with_live_steps() -> None:
    batcher = make(live=1)
    for stream in (11, 12, 13, 14):
        batcher.open(stream, budget_s=10.0, background=True)
        batcher.push(stream, None, T0)
        batcher.push(stream, None, T0)
    assert streams(batcher, T0) == [11, 12, 13, 14]
    batcher.push(1, None, T0)
    assert streams(batcher, T0) == [1, 11, 12]


def late_batcher(batch_s: float = 0.2) -> Batcher:
    """One live stream with a budget of 0.1 s that every step misses, and an upload with a budget of 10 s."""
    batcher = make(live=1)
    batcher.ran(1, batch_s)
    batcher.open(11, budget_s=10.0, background=True)
    batcher.push(11, None, T0)
    return batcher


def test_background_steps_wait_while_live_ones_are_late_and_a_second_longer() -> None:
    batcher = late_batcher()
    batcher.push(1, None, T0)
    assert streams(batcher, T0) == [1]
    assert batcher.background_waits(T0)
    assert streams(batcher, T0 + 0.3) == [], "not even alone, while no step is due"
    assert batcher.wake_at(T0 + 0.3) == T0 + 1.0
    assert streams(batcher, T0 + 1.0) == [11]
    assert not batcher.background_waits(T0 + 1.0)


def test_background_steps_do_not_wait_if_live_ones_are_in_time_or_their_streams_closed() -> None:
    batcher = late_batcher(batch_s=0.01)
    batcher.push(1, None, T0)
    assert streams(batcher, T0) == [1, 11]
    batcher = late_batcher()
    batcher.push(1, None, T0)
    assert streams(batcher, T0) == [1]
    batcher.close(1)
    assert not batcher.background_waits(T0)
    assert streams(batcher, T0 + 0.01) == [11]


def test_a_background_step_waits_no_longer_than_its_own_deadline_however_late_live_ones_are() -> None:
    batcher = late_batcher()
    now, ran = T0, []
    while 11 not in ran:
        batcher.push(1, None, now)
        ran = streams(batcher, now)
        now += 0.5
    assert T0 + 9.5 < now <= T0 + 10.5


def test_the_background_steps_with_the_earliest_deadlines_join_live_ones() -> None:
    batcher = make(live=1)
    for stream, budget_s in ((11, 9.0), (12, 7.0), (13, 8.0)):
        batcher.open(stream, budget_s=budget_s, background=True)
        batcher.push(stream, None, T0)
    batcher.push(1, None, T0)
    assert streams(batcher, T0) == [1, 12, 13]


def test_a_background_step_past_its_deadline_goes_before_live_steps() -> None:
    batcher = make(max_batch=2, live=3)
    batcher.open(11, budget_s=10.0, background=True)
    batcher.push(11, None, T0)
    for stream in (1, 2, 3):
        batcher.push(stream, None, T0 + 20)
    assert streams(batcher, T0 + 20) == [11, 1]


def test_a_full_queue_refuses_the_stream_that_filled_it_and_no_other() -> None:
    batcher = make(live=2)
    for _ in range(3):
        batcher.push(1, None, T0)
    with pytest.raises(QueueFull, match="stream 1"):
        batcher.push(1, None, T0)
    batcher.push(2, None, T0)
    assert batcher.queued == 4


def test_closing_drops_waiting_steps_and_a_reopened_id_starts_empty() -> None:
    batcher = make(live=2)
    for _ in range(2):
        batcher.push(1, "old", T0)
    batcher.push(2, "other", T0)
    assert batcher.close(1) == 2
    assert (batcher.queued, batcher.streams) == (1, 1)
    batcher.open(1, budget_s=0.1)
    assert streams(batcher, T0) == [2]
    batcher.push(1, "new", T0)
    assert [step.item for step in batcher.next_batch(T0)] == ["new"]


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


class TestDeadlinePolicy:
    """Budget 100 ms, margin 5 ms, and batches that took 10 ms."""

    def ready(self, *, live: int, max_batch: int = 4) -> Batcher:
        batcher = make(Policy.DEADLINE, live=live, max_batch=max_batch)
        for rows in (1, 2, 4):
            batcher.ran(rows, 0.010)
        return batcher

    def test_a_batch_is_held_until_the_last_moment_that_keeps_the_deadline(self) -> None:
        batcher = self.ready(live=2)
        batcher.push(1, None, T0)
        assert batcher.next_batch(T0) == ()
        wake_at = batcher.wake_at(T0)
        assert wake_at is not None
        assert wake_at == pytest.approx(T0 + 0.1 - 0.010 - 0.005, rel=0, abs=1e-6)
        assert batcher.next_batch(math.nextafter(wake_at, 0)) == ()
        assert streams(batcher, wake_at) == [1]

    def test_a_batch_starts_when_every_live_stream_is_ready(self) -> None:
        batcher = self.ready(live=2)
        batcher.push(1, None, T0)
        batcher.push(2, None, T0)
        assert streams(batcher, T0) == [1, 2]

    def test_a_batch_starts_when_the_missing_stream_closes(self) -> None:
        batcher = self.ready(live=2)
        batcher.push(1, None, T0)
        batcher.close(2)
        assert streams(batcher, T0) == [1]

    def test_a_batch_starts_when_it_is_full(self) -> None:
        batcher = self.ready(live=3, max_batch=2)
        batcher.push(1, None, T0)
        batcher.push(2, None, T0)
        assert streams(batcher, T0) == [1, 2]

    def test_a_batch_starts_at_once_before_service_times_are_measured(self) -> None:
        batcher = make(Policy.DEADLINE, live=2)
        batcher.push(1, None, T0)
        assert streams(batcher, T0) == [1]

    def test_background_steps_run_while_a_batch_is_held_unless_they_would_delay_it(self) -> None:
        batcher = self.ready(live=2)
        batcher.open(11, budget_s=10.0, background=True)
        batcher.push(1, None, T0)
        batcher.push(11, None, T0)
        assert streams(batcher, T0) == [11]
        late_s = T0 + 0.1 - 0.010 - 0.005 - 0.009  # a batch that starts now ends after the held one should start
        batcher.push(11, None, late_s)
        assert batcher.next_batch(late_s) == ()
        batcher.push(2, None, late_s)
        assert streams(batcher, late_s) == [1, 2, 11]

    def test_a_batch_is_not_held_past_the_deadline_of_a_background_step(self) -> None:
        batcher = self.ready(live=2)
        batcher.open(11, budget_s=0.02, background=True)
        batcher.push(11, None, T0)
        batcher.push(1, None, T0)
        assert batcher.wake_at(T0) == pytest.approx(T0 + 0.02 - 0.010 - 0.005, rel=0, abs=1e-6)

    def test_a_short_budget_starts_the_batch_early_for_all_its_streams(self) -> None:
        batcher = self.ready(live=2)
        batcher.open(3, budget_s=0.03)
        batcher.push(1, None, T0)
        assert batcher.wake_at(T0) == pytest.approx(T0 + 0.085, rel=0, abs=1e-6)
        batcher.push(3, None, T0)
        assert batcher.wake_at(T0) == pytest.approx(T0 + 0.015, rel=0, abs=1e-6)
        assert streams(batcher, T0 + 0.015) == [3, 1]


class TestEarlySteps:
    """Steps of 80 ms; 100 ms may arrive at once, and theoretical arrival times are 64 ms apart (lead 1.25)."""

    def make(self, policy: Policy = Policy.EAGER, *, live: int = 1, service: ServiceTimes | None = None) -> Batcher:
        batcher = Batcher(
            policy, max_batch=4, max_queued=200, background_rows=1, pace=Pace(0.08, burst_s=0.1), service=service
        )
        for stream in range(1, live + 1):
            batcher.open(stream, budget_s=0.1)
        return batcher

    def test_steps_in_real_time_are_due_when_they_arrive(self) -> None:
        batcher = self.make()
        for n in range(100):
            now = T0 + 0.08 * n + (0.05 if n % 7 == 3 else 0.0)  # some are late
            batcher.push(1, None, now)
            (step,) = batcher.next_batch(now)
            assert (step.due_s, step.deadline_s) == (now, now + 0.1)

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

    def test_early_steps_do_not_delay_others_and_run_between_their_batches(self) -> None:
        batcher = self.make(live=4)
        for _ in range(100):
            batcher.push(1, None, T0)
        batcher.next_batch(T0)
        batcher.next_batch(T0)  # steps that may arrive at once
        for stream in (2, 3, 4):
            batcher.push(stream, None, T0 + 0.001)
        assert streams(batcher, T0 + 0.001) == [2, 3, 4, 1]
        for n in range(50):
            assert streams(batcher, T0 + 0.002 + n * 1e-4) == [1]

    def test_early_steps_share_the_background_rows(self) -> None:
        batcher = self.make(live=6)
        for stream in (1, 2, 3):
            for _ in range(20):
                batcher.push(stream, None, T0)
        for _ in range(2):
            batcher.next_batch(T0)
        for stream in (4, 5, 6):
            batcher.push(stream, None, T0 + 0.001)
        assert sorted(streams(batcher, T0 + 0.001)) == [1, 4, 5, 6]  # background_rows is 1
        assert streams(batcher, T0 + 0.001) == [2, 3, 1]

    def test_an_early_step_is_live_once_it_is_due(self) -> None:
        batcher = self.make(live=6)
        for stream in (1, 2, 3):
            for _ in range(4):
                batcher.push(stream, None, T0)
        for _ in range(2):
            batcher.next_batch(T0)
        batcher.push(4, None, T0 + 0.03)
        assert sorted(streams(batcher, T0 + 0.03)) == [1, 2, 3, 4]

    def test_background_streams_have_no_pace(self) -> None:
        batcher = self.make(live=0)
        batcher.open(11, budget_s=10.0, background=True)
        for _ in range(9):
            batcher.push(11, None, T0)
        assert [step.due_s for _ in range(9) for step in batcher.next_batch(T0)] == [T0] * 9

    def test_background_work_waits_briefly_if_a_due_step_is_expected(self) -> None:
        batcher = self.make(live=80, service=ServiceTimes({1: 0.002, 4: 0.003}))
        batcher.open(99, budget_s=10.0, background=True)  # 80 live streams: a step every millisecond
        batcher.push(99, None, T0)
        assert batcher.next_batch(T0) == ()
        assert batcher.wake_at(T0) == T0 + 0.002
        batcher.push(1, None, T0 + 0.001)
        assert streams(batcher, T0 + 0.001) == [1, 99]
        batcher.push(99, None, T0 + 0.002)
        assert batcher.next_batch(T0 + 0.003) == ()
        assert streams(batcher, T0 + 0.005) == [99]

    def test_the_deadline_policy_does_not_wait_for_an_early_step(self) -> None:
        batcher = self.make(Policy.DEADLINE, live=2, service=ServiceTimes({1: 0.01, 4: 0.011}))
        for _ in range(9):
            batcher.push(1, None, T0)
        for _ in range(2):  # steps that may arrive at once
            batcher.push(2, None, T0)
            assert sorted(streams(batcher, T0)) == [1, 2]
        batcher.close(2)
        batcher.open(3, budget_s=0.1)
        batcher.push(3, None, T0)
        assert sorted(streams(batcher, T0)) == [1, 3]
