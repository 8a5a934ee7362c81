"""Products of small float32 matrices, bit-identical on every processor and for any number of rows.

Each output is the sum over the inputs in their order. A tile holds some rows and some vectors of sixteen columns in
registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.int8.vectors import F32, LANES, ROW, Floats, Vectors, kernel, splat
from model.machine.compiled import compiled_variant
from model.machine.instructions import instruction_set

WIDE = 2 if instruction_set() == "vnni512" else 1
"""Vectors of a tile of four rows that fit the registers; two rows have twice as many."""
LONG = 4  # vectors of a tile of one row
HALF_ROW = ROW // 2  # bytes of sixteen bfloat16


def make_float_tile(rows: int, columns: int, *, halves: bool = False) -> Callable[..., None]:
    """Return a kernel for `rows` rows and `columns` vectors; with `halves`, the right matrix is in bfloat16.

    Arguments: address of the left rows and bytes between them, address of the right matrix (depth, columns) and bytes
    between its rows, depth, address of the outputs and bytes between their rows.
    """

    def load(v: Vectors, here: Any, column: int) -> Floats:
        return v.halves(here, HALF_ROW * column) if halves else v.floats(here, ROW * column)

    def tile(
        v: Vectors, left: Any, left_stride: Any, right: Any, right_stride: Any, depth: Any, out: Any, out_stride: Any
    ) -> None:
        builder = v.builder
        starts = [v.at(left, v.times(left_stride, row)) for row in range(rows)]

        def body(index: Any, carried: list[Any]) -> list[Any]:
            here = v.at(right, v.times(right_stride, index))
            weights = [load(v, here, column) for column in range(columns)]
            results = []
            for row, start in enumerate(starts):
                one = Floats(builder, splat(builder, v.load(v.at(start, v.times(index, 4)), F32), LANES))
                results += [carried[columns * row + column] + one * weights[column] for column in range(columns)]
            return results

        for place, result in enumerate(v.loop(depth, [v.constant(0.0)] * (rows * columns), body)):
            row, column = divmod(place, columns)
            v.keep(result, v.at(out, v.times(out_stride, row)), ROW * column)

    return kernel(tile)


def make_strip(rows: int, columns: int, *, halves: bool) -> Callable[..., None]:
    """Return the compiled product of `rows` rows, in tiles of `columns` vectors as far as they go."""
    wide, narrow = (make_float_tile(rows, each, halves=halves) for each in (columns, 1))
    size = HALF_ROW if halves else ROW

    @compiled_variant(f"{rows}_{columns}_{'halves' if halves else 'floats'}")
    def strip(
        left: int, left_stride: int, right: int, right_stride: int, depth: int, vectors: int, out: int, out_stride: int
    ) -> None:
        column = 0
        while vectors - column >= columns:
            wide(left, left_stride, right + column * size, right_stride, depth, out + column * ROW, out_stride)
            column += columns
        while vectors - column >= 1:
            narrow(left, left_stride, right + column * size, right_stride, depth, out + column * ROW, out_stride)
            column += 1

    return strip


Product = Callable[[int, int, int, int, int, int, int, int, int], None]


def make_float_product(*, halves: bool) -> Product:
    """Return the compiled product; with `halves`, the right matrix is in bfloat16."""
    four, two, one = (
        make_strip(rows, columns, halves=halves) for rows, columns in ((4, WIDE), (2, 2 * WIDE), (1, LONG))
    )

    @compiled_variant("halves" if halves else "floats")
    def product(
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
        row = 0
        while rows - row >= 4:
            a, c = left + row * left_stride, out + row * out_stride
            four(a, left_stride, right, right_stride, depth, vectors, c, out_stride)
            row += 4
        if rows - row >= 2:
            a, c = left + row * left_stride, out + row * out_stride
            two(a, left_stride, right, right_stride, depth, vectors, c, out_stride)
            row += 2
        if rows - row >= 1:
            a, c = left + row * left_stride, out + row * out_stride
            one(a, left_stride, right, right_stride, depth, vectors, c, out_stride)

    return product


float_product = make_float_product(halves=False)
"""(left, left_stride, rows, right, right_stride, depth, vectors, out, out_stride): out = left @ right.

(rows, depth) by (depth, 16 * `vectors`); strides in bytes; depth >= 1. `out` does not overlap the others.
"""

half_product = make_float_product(halves=True)
"""As `float_product`, with the right matrix in bfloat16."""
