"""Pointers of compiled code read and write the memory of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

from model.machine.compiled import IntArray, LongArray, entry_point
from model.machine.pointers import FLOAT64, INT32, address_of, pointer_at

rows, numbers = pointer_at(INT32, 3), pointer_at(FLOAT64)


@entry_point
def _sum_into_last(table: IntArray, added: int) -> int:
    """Write the sum of each row's first two numbers and `added` into its third one; return the last sum."""
    pointer = rows(address_of(table))
    last = 0
    for row in range(len(table)):
        own = pointer[row]
        own[2] = pointer[row, 0] + own[1] + added
        last = pointer[row, 2]
    return last


@entry_point
def _halved(address: int, size: int) -> float:
    pointer, total = numbers(address), 0.0
    for i in range(size):
        pointer[i] *= 0.5
        total += pointer[i]
    return total


@entry_point
def _of_three(table: LongArray) -> int:
    return int(rows(address_of(table))[0, 1, 2])


def test_rows_are_read_and_written_where_the_array_has_them() -> None:
    table = np.arange(12, dtype=np.int32).reshape(4, 3)
    assert _sum_into_last(table, 100) == 119
    assert table[:, 2].tolist() == [101, 107, 113, 119]
    assert table[:, :2].ravel().tolist() == [0, 1, 3, 4, 6, 7, 9, 10]


def test_a_number_is_converted_to_the_type_of_the_memory() -> None:
    table = np.zeros((1, 3), np.int32)
    assert _sum_into_last(table, 2**32 + 7) == 7


def test_an_address_is_a_pointer_without_an_array() -> None:
    values = np.array([1.0, 3.0, 8.0])
    assert _halved(values.ctypes.data, 2) == 2.0
    assert values.tolist() == [0.5, 1.5, 8.0]


def test_an_index_of_three_numbers_is_refused() -> None:
    with pytest.raises(TypingError):
        _of_three(np.zeros(6, np.int64))
