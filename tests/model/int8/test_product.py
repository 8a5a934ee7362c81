"""Products of bytes: the integers that numpy computes, for each instruction set of this processor."""

from functools import cache

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.int8.product import (
    COLUMNS,
    PANEL_SUMS,
    WAYS,
    first_sums,
    make_multiply,
    multiply_panels,
    packed,
    packed_shorts,
)
from model.int8.quantized import LARGEST_INPUT, LARGEST_WEIGHT, QuantizedProduct
from tests.support.needs import need_instructions


def product_of(weight, zero=0):
    ones = np.ones(len(weight), np.float32)
    return QuantizedProduct(weight.astype(np.int8), ones, ones, 1.0, zero)


def caller(way):
    """Multiply rows by the weights of a product in one instruction set."""

    @numba.njit
    def run(arguments):
        way(*arguments)

    def call(product, inputs, offsets, rows):
        weights, first = packed(product), first_sums(product)
        sums = np.full((rows, weights.shape[0] * COLUMNS), -1, np.int32)
        where, packed_at = (inputs.ctypes.data, offsets.ctypes.data, rows), weights.ctypes.data
        places = (first.ctypes.data, sums.ctypes.data, len(weights) * PANEL_SUMS)
        run((*where, packed_at, weights.shape[1], weights.shape[0], *places))
        return sums[:, : len(product.weight)]

    return call


here = caller(multiply_panels)
caller_of = cache(lambda name: caller(make_multiply(name)))  # compiled once for each instruction set


def expected(product, rows):
    return (rows.astype(np.int64) - product.input_zero) @ product.weight.T.astype(np.int64)


@pytest.mark.parametrize("name", WAYS)
def test_every_instruction_set_gives_the_exact_sums(name):
    need_instructions(name)
    by_name, random = caller_of(name), np.random.default_rng(1)
    weight = random.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (48, 416))
    for count in range(1, 40):
        rows = random.integers(0, LARGEST_INPUT + 1, (count, 416)).astype(np.uint8)
        offsets = np.arange(count, dtype=np.int64) * 416
        product = product_of(weight, zero=117)
        assert (by_name(product, rows, offsets, count) == expected(product, rows)).all()


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_inputs_and_weights_do_not_saturate(name, sign):
    need_instructions(name)
    product = product_of(np.full((32, 1_536), sign * LARGEST_WEIGHT))
    rows = np.full((7, 1_536), LARGEST_INPUT, np.uint8)
    sums = caller_of(name)(product, rows, np.arange(7, dtype=np.int64) * 1_536, 7)
    assert (sums == sign * LARGEST_WEIGHT * LARGEST_INPUT * 1_536).all()


@pytest.mark.parametrize("name", WAYS)
def test_every_instruction_set_gives_the_exact_sums_of_shorts(name):
    need_instructions(name)
    way, random, depth = make_multiply(name, shorts=True), np.random.default_rng(3), 384

    @numba.njit
    def run(arguments):
        way(*arguments)

    weight = random.integers(-127, 128, (48, depth)).astype(np.int8)
    weight[0], weight[1] = 127, -127
    weights, first = packed_shorts(weight), np.arange(64, dtype=np.int32)
    for count in range(1, 30):
        rows = random.integers(-32_767, 32_768, (count, depth)).astype(np.int16)
        rows[0], offsets = 32_767, np.arange(count, dtype=np.int64) * 2 * depth
        sums = np.full((count, 64), -1, np.int32)
        where, packed_at = (rows.ctypes.data, offsets.ctypes.data, count), weights.ctypes.data
        run((*where, packed_at, depth // 2, 2, first.ctypes.data, sums.ctypes.data, 2 * PANEL_SUMS))
        assert (sums[:, :48] == rows.astype(np.int64) @ weight.T.astype(np.int64) + first[:48]).all()


@settings(max_examples=60, deadline=None)
@given(
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 90),
    count=st.integers(1, 30),
    zero=st.integers(0, 255),
    seed=st.integers(0, 99),
)
def test_any_shape_is_exact(outputs, inputs, count, zero, seed):
    random = np.random.default_rng(seed)
    product = product_of(random.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (outputs, inputs)), zero)
    room = -(-inputs // 4) * 4
    rows = random.integers(0, 256, (count, room)).astype(
        np.uint8
    )  # values after the inputs are multiplied by weights of 0
    sums = here(product, rows, np.arange(count, dtype=np.int64) * room, count)
    assert (sums == expected(product, rows[:, :inputs])).all()


def test_rows_may_overlap_and_be_in_any_order():
    random = np.random.default_rng(2)
    product = product_of(random.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (32, 24)), zero=3)
    samples = random.integers(0, 256, 400).astype(np.uint8)
    offsets = random.integers(0, 370, 25).astype(np.int64)
    rows = np.stack([samples[offset : offset + 24] for offset in offsets])
    assert (here(product, samples, offsets, 25) == expected(product, rows)).all()
