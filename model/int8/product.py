"""Products of unsigned 8-bit inputs and packed 8-bit weights with exact 32-bit sums, in the processor's instructions.

A tile has some rows and 16 or 32 columns: it loads four adjacent inputs of a row into all lanes and four weights per
column, multiplies, adds into a register per row and 8 or 16 columns, and continues with the next four inputs. The sums
are exact, so all instruction sets give the same ones. Source of the packing: the dot product instruction vpdpbusd,
Intel SDM volume 2; with AVX2 only, vpmaddubsw and vpmaddwd do the same in two steps. `multiply_shorts` multiplies
signed 16-bit inputs and weights in the same tiles, two per lane instead of four (vpdpwssd, vpmaddwd).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.int8.quantized import QuantizedProduct
from model.int8.vectors import I8, I16, I32, I64, Vectors, intrinsic_call, kernel, splat, vector
from model.machine.compiled import compiled, compiled_variant, entry_point
from model.machine.compiler import ir
from model.machine.instructions import instruction_set
from model.machine.native import InstructionSet

COLUMNS = 32  # of a panel of packed weights
DEPTH = 4  # adjacent inputs per lane
PAIR = 2  # the same of 16 bits
PANEL_ROW = COLUMNS * DEPTH  # bytes of a panel for four inputs
PANEL_SUMS = 4 * COLUMNS  # bytes of a panel's sums for one row
CACHE_LINE = 64
AHEAD = 16_384
"""Bytes from the weights in use to those requested from memory: of 4, 8 and 16 kB, the least time for 112 MB of weights
at 1 and 8 streams. Weights of adjacent panels follow each other, so the distance may lead into the next one."""
REQUESTING = 4  # rows of the smallest tile that requests weights: with fewer, requests cost more than they save

Kind = TypeVar("Kind", np.int8, np.int16)


def packed(product: QuantizedProduct) -> NDArray[np.int8]:
    """Return the weights as tiles read them: (panels, in / 4, 32, 4) int8, zero-padded in columns and inputs."""
    return _in_panels(product.weight, DEPTH)


def packed_shorts(weight: NDArray[np.int8]) -> NDArray[np.int16]:
    """Return weights (out, in) as tiles of shorts read them: (panels, in / 2, 32, 2) int16, zero-padded likewise."""
    return _in_panels(weight.astype(np.int16), PAIR)


def _in_panels(weight: NDArray[Kind], depth: int) -> NDArray[Kind]:
    outputs, inputs = weight.shape
    panels, groups = -(-outputs // COLUMNS), -(-inputs // depth)
    padded = np.zeros((panels * COLUMNS, groups * depth), weight.dtype)
    padded[:outputs, :inputs] = weight
    return np.ascontiguousarray(padded.reshape(panels, COLUMNS, groups, depth).transpose(0, 2, 1, 3))


def first_sums(product: QuantizedProduct) -> NDArray[np.int32]:
    """Return the initial sums, which correct for the zero point of the inputs: (panels * 32,) int32."""
    sums = np.zeros(-(-len(product.weight) // COLUMNS) * COLUMNS, np.int32)
    sums[: len(product.weight)] = -product.input_zero * product.weight.sum(axis=1, dtype=np.int32)
    return sums


Add = Callable[[Any, Any, Any, Any], Any]
"""(builder, sums, inputs in all lanes, weights) -> sums; inputs and weights are vectors of bytes, four per lane."""


def _vnni(instruction: str, lanes: int) -> Add:
    words = vector(I32, lanes)

    def add(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
        name = f"llvm.x86.avx512.{instruction}.{32 * lanes}"
        return intrinsic_call(
            builder, name, words, sums, builder.bitcast(inputs, words), builder.bitcast(weights, words)
        )

    return add


def _dot_avx2(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
    shorts = vector(I16, 16)
    pairs = intrinsic_call(builder, "llvm.x86.avx2.pmadd.ub.sw", shorts, inputs, weights)
    ones = ir.Constant(shorts, [1] * 16)
    return builder.add(sums, intrinsic_call(builder, "llvm.x86.avx2.pmadd.wd", sums.type, pairs, ones))


def _dot_portable(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
    lanes = sums.type.count
    wide = vector(I16, DEPTH * lanes)
    products = builder.mul(builder.zext(inputs, wide), builder.sext(weights, wide))
    for place in range(DEPTH):
        order = ir.Constant(vector(I32, lanes), [DEPTH * lane + place for lane in range(lanes)])
        one = builder.shuffle_vector(products, products, order)
        sums = builder.add(sums, builder.sext(one, sums.type))
    return sums


WAYS: dict[InstructionSet, tuple[int, tuple[int, ...], Add]] = {
    "vnni512": (16, (14, 7, 12, 8, 4, 2, 1), _vnni("vpdpbusd", 16)),
    "vnni256": (8, (5, 5, 5, 4, 3, 2, 1), _vnni("vpdpbusd", 8)),
    "avx2": (8, (5, 5, 5, 4, 3, 2, 1), _dot_avx2),
    "portable": (8, (5, 5, 5, 4, 3, 2, 1), _dot_portable),
}
"""Lanes of a register, rows of the tiles, and the dot product.

The first two tiles are for one to three times the rows of the second one: seven are a step of 560 ms with frames of 80
ms, which one tile computes in 0.7 times the time of tiles of 4, 2 and 1 rows. The others are in descending order.
"""


def _pairs_avx2(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
    left, right = (builder.bitcast(each, vector(I16, 16)) for each in (inputs, weights))
    return builder.add(sums, intrinsic_call(builder, "llvm.x86.avx2.pmadd.wd", sums.type, left, right))


def _pairs_portable(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
    lanes = sums.type.count
    left, right = (builder.bitcast(each, vector(I16, PAIR * lanes)) for each in (inputs, weights))
    wide = vector(I32, PAIR * lanes)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    for place in range(PAIR):
        order = ir.Constant(vector(I32, lanes), [PAIR * lane + place for lane in range(lanes)])
        sums = builder.add(sums, builder.shuffle_vector(products, products, order))
    return sums


PAIRS: dict[InstructionSet, Add] = {
    "vnni512": _vnni("vpdpwssd", 16),
    "vnni256": _vnni("vpdpwssd", 8),
    "avx2": _pairs_avx2,
    "portable": _pairs_portable,
}
"""Dot product of two shorts per lane; lanes and tiles as in `WAYS`."""


def _request(v: Vectors, address: Any) -> None:
    """Request a cache line that is read soon; the address may be beyond the memory in use."""
    place = v.builder.inttoptr(address, I8.as_pointer())
    to_read, keep, data = (ir.Constant(I32, number) for number in (0, 3, 1))
    intrinsic_call(v.builder, "llvm.prefetch.p0i8", ir.VoidType(), place, to_read, keep, data)


def make_tile(rows: int, lanes: int, add: Add) -> Callable[..., None]:
    """Return a kernel for a tile of `rows` rows and 2 * `lanes` columns.

    Arguments: address of the inputs, address of the rows' byte offsets from it (int64), weights, groups of four
    inputs, initial sums, sums, bytes from one row of sums to the next.
    """
    words, octets, width = vector(I32, lanes), vector(I8, DEPTH * lanes), 4 * lanes

    def tile(
        v: Vectors, inputs: Any, offsets: Any, weights: Any, groups: Any, first: Any, sums: Any, stride: Any
    ) -> None:
        builder = v.builder
        starts = [v.at(inputs, v.load(v.at(offsets, 8 * row), I64)) for row in range(rows)]
        begin = [v.load(v.at(first, width * half), words) for half in range(2)]

        def body(index: Any, carried: list[Any]) -> list[Any]:
            here = v.at(weights, v.times(index, PANEL_ROW))
            halves = [v.load(v.at(here, width * half), octets) for half in range(2)]
            if rows >= REQUESTING:
                for line in range(0, 2 * width, CACHE_LINE):
                    _request(v, v.at(here, AHEAD + line))
            results = []
            for row, start in enumerate(starts):
                four = splat(builder, v.load(v.at(start, v.times(index, DEPTH)), I32), lanes)
                spread = builder.bitcast(four, octets)
                results += [add(builder, carried[2 * row + half], spread, halves[half]) for half in range(2)]
            return results

        for place, result in enumerate(v.loop(groups, begin * rows, body)):
            row, half = divmod(place, 2)
            v.store(result, v.at(v.at(sums, v.times(stride, row)), width * half))

    return kernel(tile)


def make_even_strip(most: int, size: int, lanes: int, add: Add, name: str) -> Callable[..., None]:
    """Return the compiled product of a multiple of `size` rows, in tiles of `most` or `size`; see `make_tile`."""
    tile_most, tile = (make_tile(rows, lanes, add) for rows in (most, size))

    @compiled_variant(name)
    def even_strip(
        inputs: int, offsets: int, rows: int, weights: int, groups: int, first: int, sums: int, stride: int
    ) -> None:
        row = 0
        while rows - row >= most:
            tile_most(inputs, offsets + 8 * row, weights, groups, first, sums + row * stride, stride)
            row += most
        if rows - row >= size:
            tile(inputs, offsets + 8 * row, weights, groups, first, sums + row * stride, stride)

    return even_strip


MultiplyPanels = Callable[[int, int, int, int, int, int, int, int, int], None]


def make_multiply(instructions: InstructionSet, *, shorts: bool = False) -> MultiplyPanels:
    """Return the compiled product for an instruction set; all give the same integers."""
    lanes, (even_most, even, most, many, some, two, one), add = WAYS[instructions]
    add = PAIRS[instructions] if shorts else add
    name = f"{instructions}_shorts" if shorts else instructions
    even_strip = make_even_strip(even_most, even, lanes, add, name)
    tile_most, tile_many, tile_some, tile_two, tile_one = (
        make_tile(rows, lanes, add) for rows in (most, many, some, two, one)
    )
    strip = 8 * lanes  # bytes of sums, and of a panel's row, per tile

    @compiled_variant(name)
    def multiply(
        inputs: int, offsets: int, rows: int, weights: int, groups: int, panels: int, first: int, sums: int, stride: int
    ) -> None:
        for panel in range(panels):
            for half in range(0, PANEL_SUMS, strip):
                w = weights + panel * groups * PANEL_ROW + half
                f = first + panel * PANEL_SUMS + half
                s = sums + panel * PANEL_SUMS + half
                row = 0
                if rows % even == 0 and rows < 2 * even_most:
                    even_strip(inputs, offsets, rows, w, groups, f, s, stride)
                    row = rows
                while rows - row >= most:
                    tile_most(inputs, offsets + 8 * row, w, groups, f, s + row * stride, stride)
                    row += most
                if rows - row >= many:
                    tile_many(inputs, offsets + 8 * row, w, groups, f, s + row * stride, stride)
                    row += many
                if rows - row >= some:
                    tile_some(inputs, offsets + 8 * row, w, groups, f, s + row * stride, stride)
                    row += some
                if rows - row >= two:
                    tile_two(inputs, offsets + 8 * row, w, groups, f, s + row * stride, stride)
                    row += two
                if rows - row >= one:
                    tile_one(inputs, offsets + 8 * row, w, groups, f, s + row * stride, stride)
                    row += one

    return multiply


multiply_panels = make_multiply(instruction_set())
"""As `multiply`, with `stride` bytes from one row of sums to the next: the panels may be some of a product's."""

_multiply_shorts = make_multiply(instruction_set(), shorts=True)


@compiled
def multiply(
    inputs: int, offsets: int, rows: int, weights: int, groups: int, panels: int, first: int, sums: int
) -> None:
    """Write the sums of `rows` rows, (rows, panels * 32) int32.

    All but counts are addresses. Row r of the inputs is at `inputs + offsets[r]`, 4 * `groups` bytes, readable beyond
    their number; weights as `packed`, first sums as `first_sums`.
    """
    multiply_panels(inputs, offsets, rows, weights, groups, panels, first, sums, panels * PANEL_SUMS)


@compiled
def multiply_shorts(
    inputs: int, offsets: int, rows: int, weights: int, groups: int, panels: int, first: int, sums: int
) -> None:
    """As `multiply`, with inputs and weights of 16 bits, the latter as `packed_shorts`; a group has two inputs.

    The caller keeps the sums within 32 bits.
    """
    _multiply_shorts(inputs, offsets, rows, weights, groups, panels, first, sums, panels * PANEL_SUMS)


@entry_point
def multiplied(
    inputs: int, offsets: int, rows: int, weights: int, groups: int, panels: int, first: int, sums: int
) -> None:
    """Call `multiply` from Python."""
    multiply(inputs, offsets, rows, weights, groups, panels, first, sums)


def sums_of(product: QuantizedProduct, rows: NDArray[np.uint8]) -> Callable[[], NDArray[np.int32]]:
    """Return a function that computes sum_i (rows[r, i] - input_zero) * weight[o, i], (R, out); rows (R, in).

    Packing is done here; each call writes the same memory.
    """
    weights, first = packed(product), first_sums(product)
    padded = np.zeros((len(rows), weights.shape[1] * DEPTH), np.uint8)
    padded[:, : rows.shape[1]] = rows
    offsets = np.arange(len(rows), dtype=np.int64) * padded.shape[1]
    sums = np.zeros((len(rows), weights.shape[0] * COLUMNS), np.int32)
    where = (padded.ctypes.data, offsets.ctypes.data, len(rows), weights.ctypes.data)
    sizes = (weights.shape[1], weights.shape[0])

    def call() -> NDArray[np.int32]:
        multiplied(*where, *sizes, first.ctypes.data, sums.ctypes.data)
        return sums[:, : len(product.weight)]

    call.kept = (padded, offsets, weights)  # type: ignore[attr-defined] # their addresses are passed
    return call
