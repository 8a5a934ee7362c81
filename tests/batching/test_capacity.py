"""The estimate of a replica's capacity: from service times, and from load while serving."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.capacity import (
    CROWD,
    GROWTH,
    HEADROOM,
    MIN_BATCHES,
    OUTSIDE_PRIOR,
    PERIOD_S,
    RELIEF,
    RESERVE,
    RESERVE_S,
    Capacity,
    _lifted,
)
from batching.policy.service_times import ServiceTimes

STEP_S = 0.08
NO_LOOP = NO_OUTSIDE = {1: 1e-6, 128: 2e-6}
T0 = 8_675_309.25


def line(fixed_s: float, row_s: float) -> dict[int, float]:
    """Seconds by rows of a model with a fixed cost and a cost per row."""
    return {rows: fixed_s + row_s * rows for rows in (1, 2, 4, 8, 16, 32, 64, 128)}


def make(objective_s: float = 0.1, *, loop: dict[int, float] = NO_LOOP, max_batch: int = 128) -> Capacity:
    capacity = Capacity(step_s=STEP_S, objective_s=objective_s, max_batch=max_batch, loop=loop, outside=NO_OUTSIDE)
    capacity.look(T0, 0.0, 0)
    return capacity


def test_capacity_follows_from_the_largest_batches_within_the_objective() -> None:
    capacity = make()
    capacity.warmed_up(line(0.001, 0.0001))
    assert capacity.streams() == int(HEADROOM * 128 * STEP_S / 0.0138)


def test_a_shorter_objective_allows_only_smaller_batches() -> None:
    capacity = make(objective_s=0.0101)
    capacity.warmed_up(line(0.001, 0.0001))
    assert capacity.streams() == pytest.approx(HEADROOM * 40 * STEP_S / 0.005, rel=0.03)  # two batches of 5 ms


def test_at_least_one_stream_is_admitted_even_if_a_step_exceeds_the_objective() -> None:
    capacity = make(objective_s=0.01)
    capacity.warmed_up({1: 0.02})
    assert capacity.streams() == 1


def test_slower_batches_than_in_the_warm_up_lower_the_estimate() -> None:
    capacity = make()
    capacity.warmed_up(line(0.001, 0.0001))
    before = capacity.streams()
    for n in range(40):
        for rows in (5, 20) * 10:  # at any sizes
            capacity.ran(rows, 2 * (0.001 + 0.0001 * rows), ())
        capacity.look(T0 + (n + 1) * PERIOD_S, 0.0, 0)
    assert capacity.streams() == pytest.approx(before / 2, rel=0.02)


def test_the_time_of_a_chunk_is_not_compared_with_those_of_single_steps() -> None:
    slowdowns: list[float] = []
    for chunk_s in (0.001, 0.5):
        capacity = make()
        capacity.warmed_up(line(0.001, 0.0001))
        for _ in range(MIN_BATCHES):
            capacity.ran(8, 0.0036, ())  # twice the warm-up's
            capacity.ran(8, chunk_s, (), steps=8)
        capacity.look(T0 + PERIOD_S, 0.0, 0)
        slowdowns.append(capacity.slowdown)
    assert slowdowns == [pytest.approx(1.25)] * 2  # a quarter of the way to 2


def test_the_event_loop_can_be_the_bottleneck() -> None:
    capacity = make(loop={1: 0.0002, 128: 0.0202})
    capacity.warmed_up(line(0.001, 0.0001))
    assert capacity.streams() == int(HEADROOM * 128 * STEP_S / 0.0202)
    now, cpu_s = T0, 0.0
    for _ in range(40):
        for _ in range(20):
            capacity.ran(11, 0.0021, ())
        now, cpu_s = now + PERIOD_S, cpu_s + 20 * 2 * 0.001775  # twice the prior of batches of 11
        assert capacity.look(now, cpu_s, 128)
    assert capacity.streams() == pytest.approx(HEADROOM * 128 * STEP_S / 0.0404, rel=0.02)


class Load:
    """Feeds the estimate periods of batches, with some steps late."""

    def __init__(self) -> None:
        self.capacity = make()
        self.capacity.warmed_up(line(0.001, 0.0001))
        self.now = T0

    def period(self, streams: int, late_of_100: int, slowdown: float = 1.0) -> int:
        """Run a period with `late_of_100` late steps. Returns: the estimate after it."""
        ages_s = [0.09] * late_of_100 + [0.01] * (100 - late_of_100)
        for n in range(MIN_BATCHES):
            self.capacity.ran(10, slowdown * 0.002, ages_s[10 * n : 10 * (n + 1)])
        self.now += PERIOD_S
        assert self.capacity.look(self.now, 0.0, streams)
        return self.capacity.streams()


def test_too_many_late_steps_bound_the_streams_below_those_that_are_open() -> None:
    load = Load()
    free = load.period(300, 0)
    assert load.period(300, 2) == free  # two in a hundred are allowed
    assert load.period(300, 3) == free  # one period may be a stall
    assert load.period(300, 3) == int(300 * RELIEF)
    assert load.period(280, 3) == int(280 * RELIEF)
    assert load.period(290, 3) == int(280 * RELIEF)


def test_the_pressure_bound_rises_quickly_up_to_the_reserve_and_slowly_from_there() -> None:
    load = Load()
    free = load.period(300, 0)
    for _ in range(2):
        load.period(100, 50)
    assert load.capacity.reserved() == free - int(100 * RELIEF)
    seen = [load.period(100, 0) for _ in range(round(RESERVE_S / PERIOD_S) - 1)]
    assert seen == sorted(seen)
    assert seen[0] == pytest.approx(100 * RELIEF + free * GROWTH * PERIOD_S, abs=1)
    third, quick = (1 - RESERVE) * free, round((1 - RESERVE) / GROWTH / PERIOD_S)
    assert seen[quick] == pytest.approx(third, rel=0.05), "this share returns in seconds"
    middle = round(RESERVE_S / 2 / PERIOD_S)
    assert seen[middle] == pytest.approx((third + free) / 2, rel=0.05), "the rest returns in minutes"
    assert load.period(100, 0) == free
    assert load.capacity.reserved() == 0


def test_the_bound_recovers_quickly_after_pressure_from_a_crowd() -> None:
    load = Load()
    free = load.period(300, 0)
    for _ in range(2):
        load.capacity.asked(CROWD)
        load.period(100, 50)
    assert load.capacity.streams() == int(100 * RELIEF)
    seen = [load.period(100, 0) for _ in range(round(1 / GROWTH / PERIOD_S))]
    assert seen == sorted(seen)
    assert seen[-1] == free, "all of it returns in seconds"


@pytest.mark.parametrize("asked", [(CROWD, CROWD - 1), (CROWD - 1, CROWD), (0, 0, CROWD, CROWD)])
def test_pressure_beyond_a_crowd_leaves_the_reserve(asked: tuple[int, ...]) -> None:
    """Another process that started with the crowd, or before it, also runs without it."""
    load = Load()
    free = load.period(300, 0)
    for number in asked:
        load.capacity.asked(number)
        load.period(100, 50)
    seen = [load.period(100, 0) for _ in range(round(1 / GROWTH / PERIOD_S))]
    assert seen[-1] < 0.5 * free


@pytest.mark.parametrize(("waited_s", "fewer"), [(0.4, False), (0.6, True)])
def test_results_that_wait_long_for_other_work_bound_the_streams_too(waited_s: float, fewer: bool) -> None:
    load, twin = Load(), Load()
    for _ in range(3):
        load.capacity.waited(waited_s)
        load.capacity.waited(0.0)
        found, allowed = load.period(60, 0), twin.period(60, 0)
    assert (found < allowed) is fewer


PERIODS = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 100), st.floats(0.5, 6.0)), max_size=200)


@given(PERIODS)
def test_the_estimate_is_never_above_what_service_times_allow_and_equal_to_it_without_late_steps(
    periods: list[tuple[int, int, float]],
) -> None:
    """A second estimate that gets the same batches without late steps depends on service times alone."""
    load, twin = Load(), Load()
    late_before = False
    for streams, late, slowdown in periods:
        found, allowed = load.period(streams, late, slowdown), twin.period(streams, 0, slowdown)
        assert 1 <= found <= allowed
        late_before = late_before or late > 2
        assert late_before or found == allowed


@given(st.floats(1.0, 500.0), st.floats(0.0, 500.0), st.lists(st.floats(0.0, 30.0), max_size=20))
def test_a_bound_rises_equally_in_long_and_in_short_periods(bound: float, possible: float, parts: list[float]) -> None:
    whole, stepwise = _lifted(bound, possible, sum(parts), RESERVE), bound
    for part in parts:
        stepwise = _lifted(stepwise, possible, part, RESERVE)
    assert stepwise == pytest.approx(whole)
    assert bound <= whole <= bound + max(1.0, GROWTH * possible) * sum(parts) + 1e-6


def test_rows_of_forks_lower_the_bounds_by_their_share() -> None:
    """Ten rows a batch, two of them of forks: a stream needs 1.25 rows in the time of a step."""
    capacity = make()
    capacity.warmed_up(line(0.001, 0.0001))
    before, now = capacity.possible(), T0
    for _ in range(40):
        now += PERIOD_S
        for _ in range(MIN_BATCHES):
            capacity.ran(10, 0.002, [0.01] * 8, forked=2)
        capacity.look(now, 0.0, 0)
    assert capacity.possible() == pytest.approx(before / 1.25, rel=0.01)
    for _ in range(40):
        now += PERIOD_S
        for _ in range(MIN_BATCHES):
            capacity.ran(10, 0.002, [0.01] * 10)
        capacity.look(now, 0.0, 0)
    assert capacity.possible() == pytest.approx(before, rel=0.01)


def outside_of(row_s: float, *, periods: int = 40) -> Capacity:
    """Batches of 32 rows as fast as in the warm-up, with this time of the engine outside the model for each row."""
    capacity = Capacity(step_s=STEP_S, objective_s=0.1, max_batch=128, loop=NO_LOOP)
    capacity.warmed_up(line(0.0, 0.00001))
    now = T0
    for _ in range(periods):
        capacity.look(now, 0.0, 0)
        now += PERIOD_S
        for _ in range(MIN_BATCHES):
            capacity.ran(32, 0.00032, [0.001] * 32, outside_s=32 * row_s)
    return capacity


def test_the_time_of_the_engine_outside_the_model_is_the_bound_of_a_model_with_many_threads() -> None:
    """A step of 10 µs a row, and 15 µs of Python: the model alone would carry 5,600 streams."""
    fixed_share = 32 * OUTSIDE_PRIOR[128] / 128 / ServiceTimes(OUTSIDE_PRIOR).extrapolate(32)
    expected = HEADROOM * STEP_S / (0.00001 + 0.000015 * fixed_share)  # larger batches share their fixed cost
    assert outside_of(0.000015).streams() == pytest.approx(expected, rel=0.03)
