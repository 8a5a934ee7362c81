"""Kernels of convolutions over time and frequency: 3 x 3 taps, one output place, all channels. Addresses as elsewhere.

An image has a border of zeros, so no place needs another code; channels are contiguous.
"""

from __future__ import annotations

from typing import Any

from model.int8.vectors import ROW, Vectors, kernel

TAPS = 3


@kernel
def from_one_channel(v: Vectors, image: Any, stride: Any, weights: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute relu(convolution) of an image with one channel; `stride` bytes from row to row; weights (9, C)."""
    width = v.times(vectors, ROW)
    places = [v.all(v.at(image, v.times(stride, row)), 4 * column) for row in range(TAPS) for column in range(TAPS)]

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        total = v.floats(bias, offset)
        for tap, place in enumerate(places):
            total += place * v.floats(weights, v.at(v.times(width, tap), offset))
        v.keep(total.most(0.0), out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def per_channel(v: Vectors, image: Any, stride: Any, weights: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute a convolution of each channel; `stride` bytes from row to row; weights (9, C)."""
    width = v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        total = v.floats(bias, offset)
        for tap in range(TAPS * TAPS):
            row, column = divmod(tap, TAPS)
            here = v.at(v.times(stride, row), v.at(v.times(width, column), offset))
            total += v.floats(image, here) * v.floats(weights, v.at(v.times(width, tap), offset))
        v.keep(total, out, offset)
        return []

    v.loop(vectors, [], body)
