"""exp and sums of logarithms in the beam search, compared with the C library."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest

from model.ctc.search import logs


@numba.njit
def exps(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(x)):
        out[i] = logs.exp(x[i])


@numba.njit
def sums(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(a)):
        out[i] = logs.add_logs(a[i], b[i])


def exp(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    exps(x, out)
    return out


def add_logs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.empty_like(a)
    sums(a, b, out)
    return out


def test_exp_is_accurate_to_the_last_bits() -> None:
    x = np.concatenate([np.linspace(-699, 0, 100_001), -np.geomspace(1e-12, 50, 10_000), np.linspace(0, 20, 1_000)])
    expected = np.array([math.exp(each) for each in x])
    np.testing.assert_allclose(exp(x), expected, rtol=5e-16)


def test_exp_outside_its_range_is_zero_or_clipped() -> None:
    assert exp(np.array([-701.0, -np.inf, 0.0])).tolist() == [0.0, 0.0, 1.0]
    assert exp(np.array([np.inf])) == exp(np.array([logs.LARGEST_EXPONENT])) > 1e300


def test_sums_of_logarithms_are_right_in_either_order() -> None:
    dice = np.random.default_rng(3)
    a = -dice.exponential(20, 100_000)
    b = a - np.concatenate([dice.exponential(3, 50_000), dice.exponential(1e-3, 49_999), [0.0]])
    expected = np.array([x + math.log1p(math.exp(y - x)) for x, y in zip(a, b, strict=True)])
    np.testing.assert_allclose(add_logs(a, b), expected, rtol=1e-15, atol=1e-15)
    assert np.array_equal(add_logs(a, b), add_logs(b, a))


@pytest.mark.parametrize("other", [-np.inf, -800.0])
def test_adding_a_zero_probability_changes_nothing(other: float) -> None:
    assert add_logs(np.array([-3.5, other]), np.array([other, -3.5])).tolist() == [-3.5, -3.5]


def test_two_impossible_alignments_stay_impossible() -> None:
    assert add_logs(np.array([-np.inf]), np.array([-np.inf])).tolist() == [-np.inf]
