"""What is known of service times, what is allowed for, and the bounds that follow for work that can wait."""

from __future__ import annotations

import math

import pytest

from batching.filling import Filling
from batching.service_times import ServiceTimes

LINE = {rows: 0.001 + 0.0001 * rows for rows in (1, 2, 4, 8, 16, 32, 64, 128)}  # 1 ms, and 0.1 ms for each row


def test_nothing_measured_is_endless() -> None:
    times = ServiceTimes()
    assert not times.known
    assert times.estimate(1) == times.at_worst(1) == times.per_row() == math.inf
    assert times.extra_rows(1.0) == 0


def test_a_table_gives_a_straight_line_between_its_sizes() -> None:
    times = ServiceTimes(LINE)
    for rows in (1, 3, 11, 100, 128):
        assert times.estimate(rows) == pytest.approx(0.001 + 0.0001 * rows)
    assert times.per_row() == pytest.approx(0.0001)
    assert times.extra_rows(0.5) == pytest.approx(5.5)


@pytest.mark.parametrize("table", [{0: 0.1}, {1: 0.0}, {1: -1.0}, {1: math.inf}])
def test_a_table_that_cannot_be_is_refused(table: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        ServiceTimes(table)


def test_beyond_what_was_seen_the_estimate_errs_to_the_long_side_and_the_extrapolation_does_not() -> None:
    times = ServiceTimes({8: LINE[8], 64: LINE[64]})
    assert times.estimate(2) == LINE[8]
    assert times.estimate(128) == pytest.approx(2 * LINE[64])
    assert times.extrapolate(128) == pytest.approx(LINE[128])
    assert times.extrapolate(32) == pytest.approx(LINE[32])


def test_a_larger_batch_counts_as_no_faster_than_a_smaller_one() -> None:
    times = ServiceTimes({1: 0.004, 8: 0.002})
    assert times.estimate(8) == 0.004
    assert times.per_row() == 0.0
    assert times.extra_rows(0.1) == math.inf


def test_measurements_are_smoothed_in_time_and_in_rows() -> None:
    times = ServiceTimes()
    times.learn(5, 0.008)
    times.learn(5, 0.016)
    assert times.estimate(5) == pytest.approx(0.009)
    times.learn(8, 0.009)
    assert times.estimate(8) > times.estimate(5)  # the point stands for 5.4 rows now


def test_what_varies_is_allowed_for_and_what_does_not_is_not() -> None:
    times = ServiceTimes()
    for _ in range(50):
        times.learn(4, 0.010)
    assert times.at_worst(4) == pytest.approx(0.010)
    for seconds in (0.010, 0.020) * 25:
        times.learn(4, seconds)
    assert times.at_worst(4) > 0.020


def test_where_each_row_takes_its_time_few_steps_ride_and_where_rows_are_nearly_free_many() -> None:
    def filling(table: dict[int, float]) -> Filling:
        return Filling(ServiceTimes(table), background_rows=8, max_batch=64)

    assert (filling(LINE).riding(), filling(LINE).alone()) == (1, 6)
    dear = filling({1: 0.001, 64: 0.064})
    assert (dear.riding(), dear.alone()) == (1, 1)
    free = filling({1: 0.001, 64: 0.00101})
    assert (free.riding(), free.alone()) == (8, 64)
    unknown = filling({})
    assert (unknown.riding(), unknown.alone()) == (8, 64)


def test_filling_steps_wait_for_a_due_one_only_where_it_would_come_before_they_are_done() -> None:
    filling = Filling(ServiceTimes(LINE), background_rows=8, max_batch=64)
    assert filling.hold_s(1, gap_s=0.0005) == 0.001
    assert filling.hold_s(1, gap_s=0.0012) == 0.0
    assert filling.hold_s(8, gap_s=0.0012) == 0.0024
