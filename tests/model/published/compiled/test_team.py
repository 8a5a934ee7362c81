"""Products that several threads compute together: the sums of one thread, with any number of helpers, even late."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import pytest

from model.int8.product import COLUMNS, first_sums, packed, sums_of
from model.int8.quantized import QuantizedProduct
from model.machine.memory import aligned
from model.published.compiled import team
from model.published.compiled.slots import Team

ROUNDS = 400
SHAPES = [(32, 64), (640, 32), (96, 128), (4_096, 64), (1_056, 192)]  # outputs, inputs


@numba.njit(nogil=True)
def multiply_often(address: int, products: Any, rounds: int) -> None:
    for _ in range(rounds):
        for product in products:
            inputs, offsets, rows, weights, groups, panels, first, sums = product
            team.multiply_together(address, inputs, offsets, rows, weights, groups, panels, first, sums)


class Products:
    """Products of different sizes, whose sums are written next to each other."""

    def __init__(self, rows: int) -> None:
        dice = np.random.default_rng(rows)
        self.expected, self.sums, self.arguments, self._kept = [], [], [], []
        for outputs, inputs in SHAPES:
            ones = np.ones(outputs, np.float32)
            weight = dice.integers(-63, 64, (outputs, inputs)).astype(np.int8)
            product = QuantizedProduct(weight, ones, ones, 1.0, 3)
            given = dice.integers(0, 255, (rows, inputs)).astype(np.uint8)
            self.expected.append(sums_of(product, given)().copy())
            weights, first, offsets = packed(product), first_sums(product), np.arange(rows, dtype=np.int64) * inputs
            sums = np.zeros((rows, len(weights) * COLUMNS), np.int32)
            self.sums.append(sums[:, :outputs])
            self._kept.append((given, weights, first, offsets, sums))
            addresses = (given.ctypes.data, offsets.ctypes.data, rows, weights.ctypes.data)
            self.arguments.append((*addresses, inputs // 4, len(weights), first.ctypes.data, sums.ctypes.data))

    def check(self, address: int, rounds: int) -> None:
        for sums in self.sums:
            sums[:] = -1
        multiply_often(address, numba.typed.List(self.arguments), rounds)
        for sums, expected in zip(self.sums, self.expected, strict=True):
            np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("rows", [1, 7, 14, 20])
def test_the_sums_are_those_of_one_thread(helpers: int, rows: int) -> None:
    products = Products(rows)
    with ThreadPoolExecutor(4) as pool:
        shared = Team(pool, helpers)
        for _ in range(5):
            with shared.helping() as address:
                products.check(address, ROUNDS)


def test_no_helper_is_waited_for_before_it_begins() -> None:
    products, hold = Products(7), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold.wait)
        shared = Team(pool, 1)
        for _ in range(2):  # the second time the helper of the first one has not begun
            with shared.helping() as address:
                products.check(address, 1)
        hold.set()
        with shared.helping() as address:
            products.check(address, ROUNDS)


def test_a_helper_that_begins_after_its_team_is_gone_ends_at_once() -> None:
    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold.wait)
        shared = Team(pool, 1)
        with shared.helping() as address:
            words = weakref.ref(shared._words)
        assert words().ctypes.data == address
        del shared
        assert words() is not None, "the helper's words are kept until it has begun"
        hold.set()
        assert pool.submit(threading.get_ident).result(30)
    assert words() is None


def test_helpers_end_with_a_step_that_fails() -> None:
    with ThreadPoolExecutor(1) as pool:
        shared = Team(pool, 1)
        with pytest.raises(RuntimeError, match="lost"), shared.helping():
            raise RuntimeError("lost")
        assert pool.submit(threading.get_ident).result(30)


def test_a_late_helper_takes_nothing_of_an_ended_step() -> None:
    words = aligned(team.TEAM_BYTES).view(np.int64)
    words[team.THREADS] = 2
    products = Products(7)
    products.check(int(words.ctypes.data), 1)
    words[team.STATE] = team.CLOSED
    for sums in products.sums:
        sums[:] = -1
    team.help_out(int(words.ctypes.data))
    assert all((sums == -1).all() for sums in products.sums)


@numba.njit
def take(address: int) -> int:
    return team._take(address)


def test_a_late_helper_takes_nothing_of_a_product_that_is_being_published() -> None:
    words = aligned(team.TEAM_BYTES).view(np.int64)
    address, products = int(words.ctypes.data), Products(7)
    words[team.THREADS] = 2
    multiply_often(address, numba.typed.List(products.arguments[:1]), 1)
    (small, large), state = products.arguments[0::3], int(words[team.STATE])
    assert small[team.PANELS] < large[team.PANELS]
    following = team.PRODUCTS + 8 * ((state >> 32) + 1 & 1)
    words[following : following + 8] = large
    assert take(address) == team.NONE_LEFT
    assert words[team.STATE] == state
