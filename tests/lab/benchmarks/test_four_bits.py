"""The product with weights of 4 bits by group: exact sums of groups, and rows that do not depend on each other."""

from __future__ import annotations

import numpy as np
import pytest

from model.machine.instructions import instruction_set
from tutti_asr_lab.benchmarks.four_bits import GROUP, packed_nibbles, scaled_sums


def test_rows_have_the_sums_of_their_groups_alone_and_together() -> None:
    if instruction_set() != "vnni512":
        pytest.skip("needs AVX-512 VNNI")
    dice = np.random.default_rng(2)
    weights = dice.integers(-8, 8, (64, 128), dtype=np.int8)
    rows = dice.integers(0, 256, (4, 128), dtype=np.uint8)
    scales = dice.integers(0x3A00, 0x3C80, (64, 128 // GROUP)).astype(np.uint16)
    expected = np.zeros((4, 64), np.float32)
    for number, factors in enumerate((scales.astype(np.uint32) << 16).view(np.float32).T):
        part = slice(number * GROUP, (number + 1) * GROUP)
        sums = rows[:, part].astype(np.int32) @ weights[:, part].astype(np.int32).T
        expected += (16 * sums).astype(np.float32) * factors
    packed = packed_nibbles(weights)
    together = scaled_sums(rows, packed, scales)().copy()
    assert np.array_equal(together, expected)
    for number in range(4):
        assert np.array_equal(scaled_sums(rows[number : number + 1], packed, scales)()[0], together[number])
