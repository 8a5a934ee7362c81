"""The estimate of a replica's capacity: from service times, and from load while serving."""

from __future__ import annotations

import pytest

from batching.capacity import GROWTH, HEADROOM, PERIOD_S, RELIEF, Capacity

STEP_S = 0.08
NO_LOOP = {1: 1e-6, 128: 2e-6}
T0 = 8_675_309.25


def line(fixed_s: float, row_s: float) -> dict[int, float]:
    """Seconds by rows of a model with a fixed part and a part for each row."""
    return {rows: fixed_s + row_s * rows for rows in (1, 2, 4, 8, 16, 32, 64, 128)}


def make(objective_s: float = 0.1, *, loop: dict[int, float] = NO_LOOP, max_batch: int = 128) -> Capacity:
    capacity = Capacity(step_s=STEP_S, objective_s=objective_s, max_batch=max_batch, loop=loop)
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


def test_unmeasured_sizes_are_extrapolated_linearly() -> None:
    capacity = make()
    capacity.warmed_up({1: 0.0011, 8: 0.0018})
    assert capacity.streams() == pytest.approx(HEADROOM * 128 * STEP_S / 0.0138, rel=0.01)


def test_slower_batches_than_in_the_warm_up_lower_the_estimate() -> None:
    capacity = make()
    capacity.warmed_up(line(0.001, 0.0001))
    before = capacity.streams()
    for n in range(40):
        for rows in (5, 20) * 10:  # at any sizes
            capacity.ran(rows, 2 * (0.001 + 0.0001 * rows), ())
        capacity.look(T0 + (n + 1) * PERIOD_S, 0.0, 0)
    assert capacity.streams() == pytest.approx(before / 2, rel=0.02)


def test_the_results_thread_can_be_the_bottleneck() -> None:
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


def test_a_period_that_is_not_over_changes_nothing() -> None:
    capacity = make()
    assert not capacity.look(T0 + PERIOD_S / 2, 0.0, 0)
    assert capacity.look(T0 + PERIOD_S, 0.0, 0)


class Load:
    """Period after period of batches, some of their steps late."""

    def __init__(self) -> None:
        self.capacity = make()
        self.capacity.warmed_up(line(0.001, 0.0001))
        self.now = T0

    def period(self, streams: int, late_of_100: int) -> int:
        """Run a period with `late_of_100` late steps. Returns: the estimate after it."""
        self.capacity.ran(100, 0.011, [0.09] * late_of_100 + [0.01] * (100 - late_of_100))
        self.now += PERIOD_S
        assert self.capacity.look(self.now, 0.0, streams)
        return self.capacity.streams()


def test_too_many_late_steps_bound_the_streams_below_those_that_are_open() -> None:
    load = Load()
    free = load.period(300, 0)
    assert load.period(300, 2) == free  # two in a hundred may be
    assert load.period(300, 3) == free  # a period may be a stall
    assert load.period(300, 3) == int(300 * RELIEF)
    assert load.period(280, 3) == int(280 * RELIEF)
    assert load.period(290, 3) == int(280 * RELIEF)


def test_a_bound_set_by_pressure_is_lifted_step_by_step() -> None:
    load = Load()
    free = load.period(300, 0)
    for _ in range(2):
        load.period(300, 50)
    seen = [load.period(300, 0) for _ in range(40)]
    assert seen[0] == pytest.approx(300 * RELIEF + free * GROWTH * PERIOD_S, abs=1)
    assert seen == sorted(seen)
    assert seen[-1] == free


def test_the_pressure_bound_is_lifted_on_an_idle_replica() -> None:
    load = Load()
    free = load.period(300, 0)
    for _ in range(2):
        load.period(300, 50)
    for n in range(40):
        load.capacity.look(load.now + (n + 1) * PERIOD_S, 0.0, 0)
    assert load.capacity.streams() == free
