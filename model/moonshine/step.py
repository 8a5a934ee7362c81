"""Compiled encoder and greedy decoder of one segment; bit-identical on every processor.

Inputs of a linear layer are rounded to bytes with a scale for each row, those of the second and third convolution to 16
bits with a scale for the segment, so all products are exact integers. Everything else is float32 with a fixed order of
operations. Rows of queries, keys and values have 48 columns a head: 16 left and 16 right halves of the pairs that
positions turn, then those that they do not, then zeros. Source: Jeffries et al. 2024 (arXiv:2410.15608).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model.int8.kernels import copy_bytes
from model.int8.product import PANEL_ROW, PANEL_SUMS, multiply_shorts
from model.int8.product_table import (
    BIAS,
    FIRST,
    GAIN,
    GROUPS,
    MULTIPLIER,
    PANELS,
    WEIGHTS,
    multiply_rows,
    product_at,
)
from model.int8.vectors import LANES, ROW
from model.machine.compiled import ZERO, IntArray, compiled, entry_point, float32_at, uint8_at
from model.moonshine import kernels
from model.moonshine.kernels import DEEP, KEYS

HEAD = DEEP * LANES  # columns of a head
BLOCK = 48  # rows of a product that are computed together
START, END = 1, 2  # symbols
FIRST_STRIDE, SECOND_STRIDE, THIRD_STRIDE = 64, 3, 2
FIRST_TAPS, SECOND_TAPS, THIRD_TAPS = 127, 7, 3
# products: second and third convolution; of each encoder block; of each decoder block; the symbols
SECOND, THIRD = 0, 1
ATTENDING, ATTENDED, INNER, OUTER = range(4)  # of the encoder
ENCODER_PRODUCTS = 4
CROSS_KEYS, CROSS_QUERY, CROSS_OUT, GATED, CLOSING = 2, 3, 4, 5, 6  # of the decoder, after the first two
DECODER_PRODUCTS = 7


class Sizes(NamedTuple):
    """Sizes of the network."""

    width: int
    heads: int
    deep: int  # numbers of a head that are not padding
    inner: int  # of the feed-forward layers
    encoders: int
    decoders: int
    symbols: int
    channels: int  # of the second convolution's outputs


class Plan(NamedTuple):
    """Sizes, and addresses of tables."""

    sizes: Sizes
    products: int
    filters: int  # (taps, width) of the first convolution
    group_gain: int
    group_bias: int
    encoder_gain: int  # of the norm after the last encoder block
    rotations: int  # (positions, 2, 16) cosines and sines
    factor: int  # of the scores
    numbers: int  # two floats: 0 and what hides a key
    row_offsets: int  # of rows of `width` bytes
    head_offsets: int  # of rows of `heads` * 48 bytes
    inner_offsets: int
    second_offsets: int
    third_offsets: int


class Work(NamedTuple):
    """Addresses of work space, for a segment of some frames and texts of some symbols."""

    first: int  # outputs of the first convolution, (frames, width) float32
    shorts: int  # the same rounded
    second: int  # outputs of the second convolution, (frames, channels) float32
    second_shorts: int
    x: int  # (frames, width) float32
    queries: int  # (frames, heads * 48) float32
    keys: int  # (heads, deep, columns) float32
    values: int  # (frames, heads * 48)
    mixed: int  # (frames, heads * 48)
    cross_keys: int  # (decoders, heads, deep, columns)
    cross_values: int  # (decoders, frames, heads * 48)
    own_keys: int  # (decoders, heads, deep, texts)
    own_values: int  # (decoders, texts, heads * 48)
    mask: int  # (columns,) float32: hides columns without a frame
    own_mask: int  # (texts,): hides symbols to come
    row: int  # scores
    bytes: int  # (BLOCK, inner)
    sums: int  # (BLOCK, panels of the widest product)
    scales: int  # (BLOCK, 16)
    outputs: int  # (BLOCK, 3 * heads * 48) or the symbols
    moments: int  # six vectors
    columns: int  # keys of the encoder, a multiple of 64
    texts: int  # most symbols, a multiple of 64


def columns_of(count: int) -> int:
    """Return a number of keys rounded up to the groups that scores are computed for."""
    return -(-count // (KEYS * LANES)) * KEYS * LANES


@compiled
def _multiply_norms(plan: Plan, work: Work, product: tuple[int, ...], x: int, rows: int) -> None:
    """Compute a product of the layer norms of rows, rounded to bytes with a scale for each row."""
    _round_norms(plan, work, product[GAIN], x, rows)
    multiply_rows(product, work.bytes, plan.row_offsets, rows, work.sums)


@compiled
def _round_norms(plan: Plan, work: Work, gain: int, x: int, rows: int) -> None:
    """Round the layer norms of rows to bytes, with a scale for each row."""
    vectors = plan.sizes.width // LANES
    for row in range(rows):
        kernels.norm(x + row * plan.sizes.width * 4, gain, work.row, vectors)
        kernels.row_bytes(work.row, work.scales + row * ROW, work.bytes + row * vectors * LANES, vectors)


@compiled
def _add_product(
    plan: Plan, work: Work, product: tuple[int, ...], inputs: int, width: int, offsets: int, x: int, rows: int
) -> None:
    """Add a product of rows of inputs, `width` bytes apart, rounded likewise, to rows of `x`."""
    for row in range(rows):
        out = work.bytes + row * width // 4
        kernels.row_bytes(inputs + row * width, work.scales + row * ROW, out, width // ROW)
    multiply_rows(product, work.bytes, offsets, rows, work.sums)
    for row in range(rows):
        sums, out = work.sums + row * product[PANELS] * PANEL_SUMS, x + row * plan.sizes.width * 4
        scale = work.scales + row * ROW
        kernels.add_outputs(sums, product[MULTIPLIER], product[BIAS], scale, out, plan.sizes.width // LANES)


@compiled
def _write(work: Work, product: tuple[int, ...], out: int, rows: int, vectors: int) -> None:
    """Write a product's outputs, rows of `vectors` vectors."""
    for row in range(rows):
        sums, there = work.sums + row * product[PANELS] * PANEL_SUMS, out + row * vectors * ROW
        kernels.plain_outputs(sums, product[MULTIPLIER], product[BIAS], work.scales + row * ROW, there, vectors)


@compiled
def _hide(plan: Plan, mask: int, count: int, columns: int) -> None:
    """Set a mask so that the first `count` of some columns are seen."""
    numbers, added = float32_at(plan.numbers), float32_at(mask)
    for column in range(columns):
        added[column] = numbers[0] if column < count else numbers[1]


@compiled
def _keep_keys(plan: Plan, rows: int, count: int, stride: int, keys: int, columns: int, first: int) -> None:
    """Write rows of keys, `stride` bytes apart, into the columns of their heads' matrices, from column `first`."""
    sizes = plan.sizes
    to = float32_at(keys)
    for row in range(count):
        numbers = float32_at(rows + row * stride)
        for head in range(sizes.heads):
            for dimension in range(sizes.deep):
                to[(head * sizes.deep + dimension) * columns + first + row] = numbers[head * HEAD + dimension]


@compiled
def _attend(
    plan: Plan, work: Work, query: int, keys: int, values: int, mask: int, count: int, columns: int, out: int
) -> None:
    """Write the averages of the first `count` values for one row of queries; the matrices of keys have `columns`."""
    sizes = plan.sizes
    stride = sizes.heads * HEAD * 4
    groups = (count + KEYS * LANES - 1) // (KEYS * LANES)
    for head in range(sizes.heads):
        own = head * HEAD * 4
        matrix = keys + head * sizes.deep * columns * 4
        kernels.scores(query + own, matrix, columns * 4, plan.factor, mask, work.row, sizes.deep, groups)
        kernels.mixed_values(work.row, groups * KEYS, values + own, stride, count, out + own)


@compiled
def _convolve(plan: Plan, work: Work, samples: int, frames: int) -> int:
    """Compute the three convolutions, into `work.x`; return the number of frames."""
    sizes = plan.sizes
    width, vectors = sizes.width * 4, sizes.width // LANES
    for frame in range(frames):
        there = samples + frame * FIRST_STRIDE * 4
        kernels.filtered(there, plan.filters, work.first + frame * width, FIRST_TAPS, vectors)
    mean, inverse, largest, scale = work.moments, work.moments + ROW, work.moments + 2 * ROW, work.scales
    sums = work.moments + 4 * ROW
    kernels.fill(mean, plan.numbers, ZERO + 1)
    total, squares = 0.0, 0.0
    for frame in range(frames):
        kernels.row_sum(work.first + frame * width, mean, sums, vectors)
        total += float32_at(sums)[0]
    float32_at(work.row)[0] = total / (frames * sizes.width)
    kernels.fill(mean, work.row, ZERO + 1)
    for frame in range(frames):
        kernels.row_sum(work.first + frame * width, mean, sums, vectors)
        squares += float32_at(sums)[LANES]
    float32_at(work.row)[0] = 1.0 / math.sqrt(squares / (frames * sizes.width) + 1e-5)
    kernels.fill(inverse, work.row, ZERO + 1)
    kernels.fill(largest, plan.numbers, ZERO + 1)
    for frame in range(frames):
        x = work.first + frame * width
        kernels.affine(x, mean, inverse, plan.group_gain, plan.group_bias, vectors)
        kernels.largest_of(x, largest, vectors)
    for frame in range(frames):
        kernels.row_shorts(work.first + frame * width, largest, work.shorts + frame * width // 2, vectors)
    kernels.short_scale(largest, scale)
    kernels.fill(largest, plan.numbers, ZERO + 1)
    later = (frames - SECOND_TAPS) // SECOND_STRIDE + 1
    _convolve_shorts(
        plan, work, SECOND, work.shorts, plan.second_offsets, SECOND_STRIDE * width // 2, later, work.second
    )
    wide, broad = sizes.channels * 4, sizes.channels // LANES
    for frame in range(later):
        kernels.largest_of(work.second + frame * wide, largest, broad)
    for frame in range(later):
        kernels.row_shorts(work.second + frame * wide, largest, work.second_shorts + frame * wide // 2, broad)
    kernels.short_scale(largest, scale)
    last = (later - THIRD_TAPS) // THIRD_STRIDE + 1
    _convolve_shorts(plan, work, THIRD, work.second_shorts, plan.third_offsets, THIRD_STRIDE * wide // 2, last, work.x)
    return last


@compiled
def _convolve_shorts(
    plan: Plan, work: Work, number: int, inputs: int, offsets: int, stride: int, frames: int, out: int
) -> None:
    """Compute GELU of a convolution of rows of 16 bits; a frame begins `stride` bytes after the one before."""
    product = product_at(plan.products, number)
    vectors = product[PANELS] * PANEL_SUMS // ROW
    for begin in range(0, frames, BLOCK):
        rows = min(BLOCK, frames - begin)
        first = inputs + begin * stride
        multiply_shorts(
            first, offsets, rows, product[WEIGHTS], product[GROUPS], product[PANELS], product[FIRST], work.sums
        )
        for row in range(rows):
            sums, there = work.sums + row * vectors * ROW, out + (begin + row) * vectors * ROW
            kernels.gelu_outputs(sums, product[MULTIPLIER], product[BIAS], work.scales, there, vectors)


@compiled
def _encode(plan: Plan, work: Work, frames: int) -> None:
    """Advance `work.x` through the encoder, and write the keys and values of the decoder's blocks."""
    sizes = plan.sizes
    width, wide = sizes.width * 4, sizes.heads * HEAD * 4
    _hide(plan, work.mask, frames, work.columns)
    for block in range(sizes.encoders):
        first = 2 + block * ENCODER_PRODUCTS
        attending, attended = product_at(plan.products, first), product_at(plan.products, first + ATTENDED)
        for begin in range(0, frames, BLOCK):
            rows = min(BLOCK, frames - begin)
            _multiply_norms(plan, work, attending, work.x + begin * width, rows)
            _write(work, attending, work.outputs, rows, 3 * wide // ROW)
            for row in range(rows):
                query = work.outputs + row * 3 * wide
                rotation = plan.rotations + (begin + row) * 2 * ROW
                kernels.rotate(query, rotation, sizes.heads)
                kernels.rotate(query + wide, rotation, sizes.heads)
                copy_bytes(work.queries + (begin + row) * wide, query, wide)
                copy_bytes(work.values + (begin + row) * wide, query + 2 * wide, wide)
            _keep_keys(plan, work.outputs + wide, rows, 3 * wide, work.keys, work.columns, begin)
        for frame in range(frames):
            query, out = work.queries + frame * wide, work.mixed + frame * wide
            _attend(plan, work, query, work.keys, work.values, work.mask, frames, work.columns, out)
        for begin in range(0, frames, BLOCK):
            rows, x = min(BLOCK, frames - begin), work.x + begin * width
            _add_product(plan, work, attended, work.mixed + begin * wide, wide, plan.head_offsets, x, rows)
            inner, outer = product_at(plan.products, first + INNER), product_at(plan.products, first + OUTER)
            _multiply_norms(plan, work, inner, x, rows)
            for row in range(rows):
                sums, out = work.sums + row * inner[PANELS] * PANEL_SUMS, work.outputs + row * sizes.inner * 4
                scale = work.scales + row * ROW
                kernels.gelu_outputs(sums, inner[MULTIPLIER], inner[BIAS], scale, out, sizes.inner // LANES)
            _add_product(plan, work, outer, work.outputs, sizes.inner * 4, plan.inner_offsets, x, rows)
    for begin in range(0, frames, BLOCK):
        rows = min(BLOCK, frames - begin)
        _round_norms(plan, work, plan.encoder_gain, work.x + begin * width, rows)
        for block in range(sizes.decoders):
            number = 2 + sizes.encoders * ENCODER_PRODUCTS + block * DECODER_PRODUCTS + CROSS_KEYS
            product = product_at(plan.products, number)
            multiply_rows(product, work.bytes, plan.row_offsets, rows, work.sums)
            _write(work, product, work.outputs, rows, 2 * wide // ROW)
            keys = work.cross_keys + block * sizes.heads * sizes.deep * work.columns * 4
            _keep_keys(plan, work.outputs, rows, 2 * wide, keys, work.columns, begin)
            for row in range(rows):
                there = work.cross_values + (block * frames + begin + row) * wide
                copy_bytes(there, work.outputs + row * 2 * wide + wide, wide)


@compiled
def _embed(plan: Plan, symbols: tuple[int, ...], symbol: int, x: int) -> None:
    """Write the embedding of a symbol, which is its row of the weights that score symbols."""
    groups = plan.sizes.width // 4
    panel = uint8_at(symbols[WEIGHTS] + symbol // 32 * groups * PANEL_ROW + symbol % 32 * 4)
    scale, out = float32_at(symbols[MULTIPLIER])[symbol], float32_at(x)
    for dimension in range(plan.sizes.width):
        number = int(panel[dimension // 4 * PANEL_ROW + dimension % 4])
        out[dimension] = (number - 256 if number > 127 else number) * scale


@compiled
def _score(plan: Plan, work: Work, position: int, frames: int) -> None:
    """Advance the symbol's row in `work.x` through the decoder; write the scores of all symbols to `work.outputs`."""
    sizes = plan.sizes
    wide, x = sizes.heads * HEAD * 4, work.x
    matrix = sizes.heads * sizes.deep * 4
    one = ZERO + 1
    float32_at(work.own_mask)[position] = float32_at(plan.numbers)[0]
    for block in range(sizes.decoders):
        first = 2 + sizes.encoders * ENCODER_PRODUCTS + block * DECODER_PRODUCTS
        attending, attended = product_at(plan.products, first), product_at(plan.products, first + ATTENDED)
        _multiply_norms(plan, work, attending, x, one)
        _write(work, attending, work.outputs, one, 3 * wide // ROW)
        rotation = plan.rotations + position * 2 * ROW
        kernels.rotate(work.outputs, rotation, sizes.heads)
        kernels.rotate(work.outputs + wide, rotation, sizes.heads)
        keys, values = work.own_keys + block * matrix * work.texts, work.own_values + block * work.texts * wide
        _keep_keys(plan, work.outputs + wide, one, wide, keys, work.texts, position)
        copy_bytes(values + position * wide, work.outputs + 2 * wide, wide)
        _attend(plan, work, work.outputs, keys, values, work.own_mask, position + 1, work.texts, work.mixed)
        _add_product(plan, work, attended, work.mixed, wide, plan.head_offsets, x, one)

        query, crossed = product_at(plan.products, first + CROSS_QUERY), product_at(plan.products, first + CROSS_OUT)
        _multiply_norms(plan, work, query, x, one)
        _write(work, query, work.outputs, one, wide // ROW)
        keys, values = work.cross_keys + block * matrix * work.columns, work.cross_values + block * frames * wide
        _attend(plan, work, work.outputs, keys, values, work.mask, frames, work.columns, work.mixed)
        _add_product(plan, work, crossed, work.mixed, wide, plan.head_offsets, x, one)

        gated, closing = product_at(plan.products, first + GATED), product_at(plan.products, first + CLOSING)
        _multiply_norms(plan, work, gated, x, one)
        gate = work.outputs
        kernels.gated_outputs(work.sums, gated[MULTIPLIER], gated[BIAS], work.scales, gate, sizes.inner // LANES)
        _add_product(plan, work, closing, gate, sizes.inner * 4, plan.inner_offsets, x, one)
    symbols = _symbols(plan)
    _multiply_norms(plan, work, symbols, x, one)
    _write(work, symbols, work.outputs, one, sizes.symbols // LANES)


@compiled
def _symbols(plan: Plan) -> tuple[int, ...]:
    """Return the row of the product that scores symbols, the last one."""
    sizes = plan.sizes
    return product_at(plan.products, 2 + sizes.encoders * ENCODER_PRODUCTS + sizes.decoders * DECODER_PRODUCTS)


@entry_point
def read(plan: Plan, work: Work, samples: int, frames: int, most: int, text: IntArray) -> tuple[int, float]:
    """Write the most probable symbols of a segment, one after the other, until the end or `most` symbols.

    `samples`: address of float32 numbers within ±1, enough for `frames` frames of the first convolution. Returns the
    number of symbols, and the sum of their log-probabilities, that of the end included.
    """
    sizes = plan.sizes
    last = _convolve(plan, work, samples, frames)
    _encode(plan, work, last)
    _hide(plan, work.own_mask, ZERO, work.texts)
    symbols = _symbols(plan)
    symbol, count, log_prob = START, ZERO, 0.0
    numbers = float32_at(work.outputs)
    totals = float32_at(work.moments)
    while count < most:
        _embed(plan, symbols, symbol, work.x)
        _score(plan, work, count, last)
        kernels.log_total(work.outputs, work.moments, sizes.symbols // LANES)
        top = totals[0]
        symbol = 0
        while numbers[symbol] != top:
            symbol += 1
        log_prob -= totals[LANES]
        if symbol == END:
            break
        text[count] = symbol
        count += 1
    return count, log_prob
