"""Compiled network of the tagger: logits of one text, bit-identical on every processor.

Inputs of a product are rounded to 16 bits with one scale per text, so its sums with the 8-bit weights are exact
integers; everything between two products is float32 with a fixed order of sums (`model.int8.vectors`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model.int8.kernels import copy_bytes
from model.int8.product import PANEL_SUMS, multiply_shorts
from model.int8.vectors import LANES, ROW, Vectors, kernel
from model.machine.compiled import FloatArray, IntArray, compiled, entry_point, float32_at, int64_at
from model.published.compiled.kernels import add_sums, layer_norm, relu, same, scale_row, sums_to_floats

DILATIONS = (1, 2, 4, 8, 1)  # of the blocks: residual convolutions over a word and its neighbors at this distance
LARGEST = 32_767.0  # a rounded input; 384 of them times weights of 127 are below 2 ** 31
LIMITS_BYTES = 2 * ROW  # steps per unit and units per step, each in sixteen lanes
_LEAST = 1e-30  # largest input of a text of zeros, whose inverse is finite

_relu_of, _same_of = sums_to_floats(relu), sums_to_floats(same)


class Linear(NamedTuple):
    """A product: weights of `model.int8.product.multiply_shorts`, scale and bias of each output, float32."""

    weights: int
    pairs: int
    panels: int
    scale: int
    bias: int


class Model(NamedTuple):
    """Sizes of the network, and addresses of tables of int64 with the addresses of its weights."""

    embedding: int
    channels: int
    zeros: int  # initial sums
    tables: int  # (3, 2): rows (N, embedding) int8 and their scales, float32, of words, endings and beginnings
    linears: int  # (2 + 2 * blocks, 5): `Linear` of the input, of each block's two products, and of the output
    norms: int  # (blocks + 1, 2): gain and shift of each layer norm, the last one before the output


class Work(NamedTuple):
    """Addresses of work space for T words."""

    hidden: int  # (T, channels) float32
    inputs: int  # (T, channels) float32, of the next product
    shorts: int  # (T + 2 * dilation + 1, channels) int16, the same rounded, with rows of zeros
    offsets: int  # (T,) int64
    sums: int  # (T, panels * 32) int32
    limits: int  # LIMITS_BYTES
    multiplier: int  # (panels * 32,) float32: of the sums


@kernel
def _add_row(v: Vectors, row: Any, scale: Any, out: Any, vectors: Any) -> None:
    """Add a row of bytes, times the number at the address `scale`."""
    factor = v.all(scale)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(out, offset) + v.floats_of_bytes(v.at(row, v.times(index, LANES))) * factor, out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def _find_limits(v: Vectors, x: Any, limits: Any, vectors: Any) -> None:
    """Write the steps per unit with which the largest element is LARGEST, and their inverse."""

    def highest(index: Any, carried: list[Any]) -> Any:
        y = v.floats(x, v.times(index, ROW))
        return [carried[0].most(y.most(-y))]

    largest = v.loop(vectors, [v.constant(_LEAST)], highest)[0].largest()
    v.keep(v.constant(LARGEST) / largest, limits)
    v.keep(largest / v.constant(LARGEST), limits, ROW)


@kernel
def _to_shorts(v: Vectors, x: Any, limits: Any, out: Any, vectors: Any) -> None:
    """Round a row to 16 bits."""
    steps = v.floats(limits)

    def body(index: Any, _: Any) -> Any:
        v.keep_shorts((v.floats(x, v.times(index, ROW)) * steps).to_ints(), out, v.times(index, ROW // 2))
        return []

    v.loop(vectors, [], body)


@entry_point
def tag_words(rows: IntArray, model: Model, work: Work, logits: FloatArray) -> None:
    """Write the logits (T, outputs) of a text of T >= 1 words; `rows` (T, 3) of `Vocabulary`."""
    words, width, stride = len(rows), model.channels // LANES, 4 * model.channels
    _sum_embeddings(rows, model, work)
    first = _linear(model, 0)
    _multiply(first, words, 0, model, work)
    for word in range(words):
        sums = work.sums + word * first.panels * PANEL_SUMS
        _same_of(sums, work.multiplier, first.bias, work.hidden + word * stride, width)
    for block in range(len(DILATIONS)):
        _convolve(block, model, words, work)
    _normalize(len(DILATIONS), model, words, work)
    last = _linear(model, 1 + 2 * len(DILATIONS))
    _multiply(last, words, 0, model, work)
    found = float32_at(work.inputs)
    for word in range(words):
        sums = work.sums + word * last.panels * PANEL_SUMS
        _same_of(sums, work.multiplier, last.bias, work.inputs, last.panels * PANEL_SUMS // ROW)
        for place in range(logits.shape[1]):
            logits[word, place] = found[place]


@compiled
def _linear(model: Model, index: int) -> Linear:
    row = int64_at(model.linears + index * 40)
    return Linear(row[0], row[1], row[2], row[3], row[4])


@compiled
def _sum_embeddings(rows: IntArray, model: Model, work: Work) -> None:
    """Write the sums of three embeddings (T, embedding) into the inputs."""
    tables, width, summed = int64_at(model.tables), model.embedding, float32_at(work.inputs)
    for place in range(len(rows) * width):
        summed[place] = 0.0
    for word in range(len(rows)):
        for table in range(3):
            row = int(rows[word, table])
            out = work.inputs + word * width * 4
            _add_row(tables[2 * table] + row * width, tables[2 * table + 1] + row * 4, out, width // LANES)


@compiled
def _normalize(norm: int, model: Model, words: int, work: Work) -> None:
    """Write the layer norm of the hidden rows into the inputs."""
    row, stride = int64_at(model.norms + norm * 16), 4 * model.channels
    for word in range(words):
        at = word * stride
        layer_norm(work.hidden + at, row[0], row[1], work.inputs + at, model.channels // LANES)


@compiled
def _convolve(block: int, model: Model, words: int, work: Work) -> None:
    """Add a block's outputs to the hidden rows."""
    width, stride = model.channels // LANES, 4 * model.channels
    mix, out = _linear(model, 1 + 2 * block), _linear(model, 2 + 2 * block)
    _normalize(block, model, words, work)
    _multiply(mix, words, DILATIONS[block], model, work)
    for word in range(words):
        sums = work.sums + word * mix.panels * PANEL_SUMS
        _relu_of(sums, work.multiplier, mix.bias, work.inputs + word * stride, width)
    _multiply(out, words, 0, model, work)
    for word in range(words):
        sums = work.sums + word * out.panels * PANEL_SUMS
        add_sums(sums, work.multiplier, out.bias, work.hidden + word * stride, width)


@compiled
def _multiply(linear: Linear, words: int, dilation: int, model: Model, work: Work) -> None:
    """Write the sums of a product of the input rows, and the multiplier of the sums, into the work space.

    With a dilation, a word's inputs are the rows of its left neighbor, of itself and of its right neighbor, zeros
    outside of the text. Words at this distance are stored next to each other, so that the three rows are one.
    """
    width = 2 * linear.pairs
    apart, before, offsets = 0, 0, int64_at(work.offsets)
    if dilation > 0:
        width //= 3
        apart, before = (words + dilation - 1) // dilation + 1, 1  # rows of words that are neighbors, and one of zeros
        cleared = int64_at(work.shorts)
        for place in range((dilation * apart + 1) * width // 4):
            cleared[place] = 0
    _find_limits(work.inputs, work.limits, words * width // LANES)
    for word in range(words):
        place = word
        if dilation > 0:
            place = word % dilation * apart + word // dilation + 1
        _to_shorts(work.inputs + word * width * 4, work.limits, work.shorts + place * width * 2, width // LANES)
        offsets[word] = (place - before) * width * 2
    multiply_shorts(
        work.shorts, work.offsets, words, linear.weights, linear.pairs, linear.panels, model.zeros, work.sums
    )
    copy_bytes(work.multiplier, linear.scale, linear.panels * PANEL_SUMS)
    scale_row(work.limits + ROW, work.multiplier, linear.panels * PANEL_SUMS // ROW)
