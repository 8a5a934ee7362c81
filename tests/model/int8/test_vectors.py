"""Arithmetic of the compiled vectors: the results of numpy in double precision, up to a few last bits."""

import numba
import numpy as np
import pytest
import torch

from model.int8.vectors import LANES, Floats, kernel

RANDOM = np.random.default_rng(4)


def over(function):
    """Return a compiled loop that applies a function of `Floats` to an array, sixteen at a time."""

    @kernel
    def apply(v, x, out, vectors):
        def body(index, _):
            v.keep(function(v.floats(x, v.times(index, 4 * LANES))), out, v.times(index, 4 * LANES))
            return []

        v.loop(vectors, [], body)

    @numba.njit
    def run(x, out, vectors):
        apply(x, out, vectors)

    def call(values):
        x = np.ascontiguousarray(values, np.float32)
        out = np.zeros_like(x)
        run(x.ctypes.data, out.ctypes.data, x.size // LANES)
        return out

    return call


def relative(found, expected):
    return np.abs(found - expected) / np.maximum(np.abs(expected), 1e-30)


def test_exp_is_within_two_last_bits():
    x = np.linspace(-86.9, 86.9, 160_000, dtype=np.float32)
    assert relative(over(Floats.exp)(x), np.exp(x.astype(np.float64))).max() < 2.4e-7


def test_exp_clips_its_argument():
    x = np.full(LANES, 1_000.0, np.float32)
    x[8:] = -1_000.0
    found = over(Floats.exp)(x)
    assert np.isfinite(found).all()
    assert (found[:8] > 1e37).all()
    assert (found[8:] < 1e-37).all()


def test_log_is_within_two_last_bits():
    x = np.exp(RANDOM.uniform(-80, 80, 160_000)).astype(np.float32)
    expected = np.log(x.astype(np.float64))
    assert (np.abs(over(Floats.log)(x) - expected) / np.maximum(np.abs(expected), 1)).max() < 2.4e-7


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Floats.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (Floats.silu, lambda x: x / (1 + np.exp(-x))),
        (Floats.tanh, np.tanh),
    ],
    ids=["sigmoid", "silu", "tanh"],
)
def test_activations_agree_with_double_precision(function, expected):
    x = RANDOM.normal(0, 4, 160_000).astype(np.float32)
    wanted = expected(x.astype(np.float64))
    assert (np.abs(over(function)(x) - wanted) / np.maximum(np.abs(wanted), 1)).max() < 3e-7


def test_sum_of_lanes_is_a_fixed_tree():
    x = RANDOM.normal(0, 1, LANES).astype(np.float32)
    expected = x.copy()
    for distance in (8, 4, 2, 1):
        expected = expected + expected[np.arange(LANES) ^ distance]
    assert (over(Floats.sum)(x) == expected).all()


def test_largest_of_lanes_is_in_all_lanes():
    x = RANDOM.normal(0, 1, LANES).astype(np.float32)
    assert (over(Floats.largest)(x) == x.max()).all()


def test_ties_are_rounded_to_even_integers():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.49, 3.51, 0, 1, -1, 254.5, 255.5, -7.2, 7.7, 100], np.float32)
    assert (over(lambda x: x.to_ints().to_floats())(x) == np.rint(x)).all()


def test_bfloat16_rounds_as_torch_does():
    x = RANDOM.normal(0, 3, 64 * LANES).astype(np.float32)

    @kernel
    def there_and_back(v, x, halves, out):
        v.keep_halves(v.floats(x), halves)
        v.keep(v.halves(halves), out)

    @numba.njit
    def run(x, halves, out):
        there_and_back(x, halves, out)

    halves, out = np.zeros(LANES, np.uint16), np.zeros_like(x)
    for first in range(0, len(x), LANES):
        run(x[first:].ctypes.data, halves.ctypes.data, out[first:].ctypes.data)
    assert (out == torch.from_numpy(x).bfloat16().float().numpy()).all()


def test_vectors_are_interleaved_lane_by_lane():
    left, right = np.arange(LANES, dtype=np.float32), 100 + np.arange(LANES, dtype=np.float32)

    @kernel
    def interleave(v, left, right, out):
        low, high = v.interleaved(v.floats(left), v.floats(right))
        v.keep(low, out)
        v.keep(high, out, 4 * LANES)

    @numba.njit
    def run(left, right, out):
        interleave(left, right, out)

    out = np.zeros(2 * LANES, np.float32)
    run(left.ctypes.data, right.ctypes.data, out.ctypes.data)
    assert (out == np.stack([left, right], axis=1).ravel()).all()
