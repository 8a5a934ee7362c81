"""Efficiency of small batches: bars as ratios of one run, and the arithmetic of shares."""

import pytest

from model.acoustic import load_own
from model.checkpoint import GRU
from tutti_asr_lab.benchmarks.small_batches import Efficiency, Rows, measure_small

TRIES = 3  # other programs fill the caches that a step reads its weights from
LEAST_SHARE = 0.2  # of the peak, by an int8 step of four rows; measured: 0.57 to 0.68
LEAST_GAIN = 6.0  # of int8 over fp32, a step of one row; measured: 26


def test_small_batches_in_int8_are_efficient():
    models = [load_own(GRU, precision=each, threads=1) for each in ("int8", "fp32")]
    found = []
    while not any(found) and len(found) < TRIES:
        int8, fp32 = measure_small(models, (1, 4, 64), turns=3)
        gain = fp32.by_rows[1].step_ms / int8.by_rows[1].step_ms
        found.append(int8.shares(4)[0] >= LEAST_SHARE and gain >= LEAST_GAIN)
    assert any(found), f"{int8.shares(4)[0]:.0%} of the peak at four rows, {gain:.1f} times as fast as fp32 at one"


def test_shares_are_of_the_fastest_product_of_the_run():
    [found] = measure_small([load_own(GRU, precision="int8", threads=1)], (1, 2), turns=1)
    assert found.precision == "int8"
    assert list(found.by_rows) == [1, 2]
    assert all(0.0 < found.shares(rows)[1] <= 1.001 for rows in (1, 2)), "products are part of the peak"
    made = Efficiency("int8", 200.0, {4: Rows(step_ms=1.0, step_gflops=50.0, product_gflops=150.0)})
    assert made.shares(4) == pytest.approx((0.25, 0.75))
