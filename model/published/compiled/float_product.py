"""Products of small float32 matrices, bit-identical on every processor and for any number of rows.

Each output is the sum over the inputs in their order. A tile holds some rows and some vectors of sixteen columns in
registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.int8.vectors import F32, LANES, ROW, Floats, Vectors, kernel, splat
from model.machine.compiled import compiled
from model.machine.instructions import instruction_set

TILE_ROWS = 4
WIDE = 2 if instruction_set() == "vnni512" else 1  # vectors of a tile of several rows that fit the registers
LONG = 4  # vectors of a tile of one row


def make_float_tile(rows: int, columns: int) -> Callable[..., None]:
    """Return a kernel for `rows` rows and `columns` vectors.

    Arguments: address of the left rows and bytes between them, address of the right matrix (depth, columns) and bytes
    between its rows, depth, address of the outputs and bytes between their rows.
    """

    def tile(
        v: Vectors, left: Any, left_stride: Any, right: Any, right_stride: Any, depth: Any, out: Any, out_stride: Any
    ) -> None:
        builder = v.builder
        starts = [v.at(left, v.times(left_stride, row)) for row in range(rows)]

        def body(index: Any, carried: list[Any]) -> list[Any]:
            here = v.at(right, v.times(right_stride, index))
            weights = [v.floats(here, ROW * column) for column in range(columns)]
            results = []
            for row, start in enumerate(starts):
                one = Floats(builder, splat(builder, v.load(v.at(start, v.times(index, 4)), F32), LANES))
                results += [carried[columns * row + column] + one * weights[column] for column in range(columns)]
            return results

        for place, result in enumerate(v.loop(depth, [v.constant(0.0)] * (rows * columns), body)):
            row, column = divmod(place, columns)
            v.keep(result, v.at(out, v.times(out_stride, row)), ROW * column)

    return kernel(tile)


_block, _column = make_float_tile(TILE_ROWS, WIDE), make_float_tile(TILE_ROWS, 1)
_long, _single = make_float_tile(1, LONG), make_float_tile(1, 1)


@compiled
def float_product(
    left: int,
    left_stride: int,
    rows: int,
    right: int,
    right_stride: int,
    depth: int,
    vectors: int,
    out: int,
    out_stride: int,
) -> None:
    """Compute out = left @ right: (rows, depth) by (depth, 16 * `vectors`); strides in bytes; depth >= 1.

    `out` does not overlap the others.
    """
    row = 0
    while rows - row >= TILE_ROWS:
        a, c = left + row * left_stride, out + row * out_stride
        column = 0
        while vectors - column >= WIDE:
            _block(a, left_stride, right + column * ROW, right_stride, depth, c + column * ROW, out_stride)
            column += WIDE
        while vectors - column >= 1:
            _column(a, left_stride, right + column * ROW, right_stride, depth, c + column * ROW, out_stride)
            column += 1
        row += TILE_ROWS
    while row < rows:
        a, c = left + row * left_stride, out + row * out_stride
        column = 0
        while vectors - column >= LONG:
            _long(a, left_stride, right + column * ROW, right_stride, depth, c + column * ROW, out_stride)
            column += LONG
        while vectors - column >= 1:
            _single(a, left_stride, right + column * ROW, right_stride, depth, c + column * ROW, out_stride)
            column += 1
        row += 1
