"""Service times: estimates, allowance for spread, and the limits on background work."""

from __future__ import annotations

import math

import pytest

from batching.policy.background import BackgroundLimits
from batching.policy.service_times import ServiceTimes

LINE = {rows: 0.001 + 0.0001 * rows for rows in (1, 2, 4, 8, 16, 32, 64, 128)}  # 1 ms, and 0.1 ms for each row


def test_the_estimate_is_infinite_before_any_measurement() -> None:
    times = ServiceTimes()
    assert not times.known
    assert times.estimate(1) == times.at_worst(1) == math.inf
    assert times.extra_rows(1.0) == 0


def test_a_table_gives_a_straight_line_between_its_sizes() -> None:
    times = ServiceTimes(LINE)
    for rows in (1, 3, 11, 100, 128):
        assert times.estimate(rows) == pytest.approx(0.001 + 0.0001 * rows)
    assert times.extra_rows(0.5) == pytest.approx(5.5)


@pytest.mark.parametrize("table", [{0: 0.1}, {1: 0.0}, {1: -1.0}, {1: math.inf}])
def test_impossible_sizes_and_times_are_refused(table: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="positive seconds"):
        ServiceTimes(table)


def test_the_estimate_is_proportional_beyond_the_largest_size() -> None:
    times = ServiceTimes({8: LINE[8], 64: LINE[64]})
    assert times.estimate(2) == LINE[8]
    assert times.estimate(128) == pytest.approx(2 * LINE[64])
    assert times.estimate(32) == pytest.approx(LINE[32])


def test_a_larger_batch_counts_as_no_faster_than_a_smaller_one() -> None:
    times = ServiceTimes({1: 0.004, 8: 0.002})
    assert times.estimate(8) == 0.004
    assert times.extra_rows(0.1) == math.inf


def test_sizes_may_be_measured_in_any_order_and_again() -> None:
    times = ServiceTimes()
    for rows in (64, 1, 128, 8):
        times.measured(rows, 2 * LINE[rows])
    for rows in (8, 128, 64, 1):
        times.measured(rows, LINE[rows])
    assert [times.estimate(rows) for rows in LINE] == pytest.approx(list(LINE.values()))


def test_a_batch_under_load_takes_at_worst_twice_its_time_in_the_warm_up() -> None:
    assert ServiceTimes(LINE).at_worst(4) == 2 * LINE[4]


def test_few_background_rows_join_if_rows_are_slow_and_many_if_they_cost_little() -> None:
    def limits(table: dict[int, float]) -> BackgroundLimits:
        return BackgroundLimits(ServiceTimes(table), background_rows=8, max_batch=64)

    assert (limits(LINE).max_rows_with_live(), limits(LINE).max_rows_without_live()) == (1, 6)
    dear = limits({1: 0.001, 64: 0.064})
    assert (dear.max_rows_with_live(), dear.max_rows_without_live()) == (1, 1)
    free = limits({1: 0.001, 64: 0.00101})
    assert (free.max_rows_with_live(), free.max_rows_without_live()) == (8, 64)
    unknown = limits({})
    assert (unknown.max_rows_with_live(), unknown.max_rows_without_live()) == (8, 64)


def test_background_work_waits_for_a_due_step_only_if_it_would_arrive_before_the_batch_ends() -> None:
    limits = BackgroundLimits(ServiceTimes(LINE), background_rows=8, max_batch=64)
    assert limits.hold_s(1, gap_s=0.0005) == 0.001
    assert limits.hold_s(1, gap_s=0.0012) == 0.0
    assert limits.hold_s(8, gap_s=0.0012) == 0.0024
