"""Prediction of larger training runs: its terms, and its limits."""

import numpy as np
import pytest

from tutti_asr_lab.planning.training import PREDICTED, expected_maximum, fit, predict


def fitted(**changes):
    values = {
        "optimizer_s": 0.2,
        "exchange_s": 0.03,
        "latency_s": 0.001,
        "size_bytes": 16_000_000,
        "share_of_peak": 0.5,
    }
    return fit([0.9, 0.95, 1.0, 1.05, 1.1], **{**values, **changes})


@pytest.mark.parametrize("count", [2, 8, 128])
def test_the_expected_maximum_is_that_of_drawn_values(count):
    drawn = np.random.default_rng(0).standard_normal((20_000, count)).max(1).mean()
    assert expected_maximum(count) == pytest.approx(drawn, rel=0.05)


def test_an_update_of_two_processes_adds_the_measured_exchange_and_the_slower_process():
    found = fitted()
    assert found.update_s(1) == pytest.approx(1.2)
    assert found.update_s(2) == pytest.approx(1.2 + 0.03 + found.spread_s * expected_maximum(2))


def test_the_spread_is_that_of_the_updates():
    drawn = np.random.default_rng(1).normal(1.0, 0.1, 4_000)
    found = fit(drawn, optimizer_s=0, exchange_s=0, latency_s=0, size_bytes=1, share_of_peak=1)
    assert found.spread_s == pytest.approx(0.1, rel=0.1)


def test_the_share_of_peak_falls_with_processes_and_equals_the_measured_one_for_one():
    shares = [each.share_of_peak for each in predict(fitted())]
    assert shares[0] == 0.5
    assert shares == sorted(shares, reverse=True)
    assert [each.processes for each in predict(fitted()) if each.published] == [1, 8, 128]
    assert len(shares) == len(PREDICTED)


def test_without_spread_and_exchange_nothing_is_lost():
    ideal = fit([1.0, 1.0], optimizer_s=0.1, exchange_s=0.0, latency_s=0.0, size_bytes=0, share_of_peak=0.5)
    assert all(each.share_of_peak == 0.5 for each in predict(ideal))
