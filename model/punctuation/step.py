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

LARGEST = 32_767.0  # a rounded input; 384 of them times weights of 127 are below 2 ** 31
LIMITS_BYTES = 2 * ROW  # steps per unit and units per step, each in sixteen lanes
_LEAST = 1e-30  # largest input of a text of zeros, whose inverse is finite

_relu_of, _same_of = sums_to_floats(relu), sums_to_floats(same)


class Table(NamedTuple):
    """Addresses of an embedding: rows (N, E) int8 and a scale for each, float32."""

    rows: int
    scales: int


class Linear(NamedTuple):
    """A product: weights of `model.int8.product.multiply_shorts`, scale and bias of each output, float32."""

    weights: int
    pairs: int
    panels: int
    scale: int
    bias: int


class Block(NamedTuple):
    """A residual convolution over a word and its neighbors at distance `dilation`."""

    dilation: int
    gain: int  # of its layer norm
    shift: int
    mix: Linear
    out: Linear


class Model(NamedTuple):
    """Sizes and addresses of the network's weights."""

    embedding: int
    channels: int
    zeros: int  # initial sums
    tables: tuple[Table, Table, Table]  # of words, endings and beginnings
    input: Linear
    blocks: tuple[Block, ...]
    gain: int
    shift: int
    output: Linear


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
def _embed(
    v: Vectors, word: Any, of_word: Any, ending: Any, of_ending: Any, start: Any, of_start: Any, out: Any, vectors: Any
) -> None:
    """Sum three rows of bytes, each times the number at the address after it."""
    parts = [(row, v.all(scale)) for row, scale in ((word, of_word), (ending, of_ending), (start, of_start))]

    def body(index: Any, _: Any) -> Any:
        first, second, third = (v.floats_of_bytes(v.at(row, v.times(index, LANES))) * scale for row, scale in parts)
        v.keep(first + second + third, out, v.times(index, ROW))
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
    _multiply(model.input, work.inputs, model.embedding, words, 0, model.zeros, work)
    for word in range(words):
        sums = work.sums + word * model.input.panels * PANEL_SUMS
        _same_of(sums, work.multiplier, model.input.bias, work.hidden + word * stride, width)
    for block in model.blocks:
        _convolve(block, model, words, work)
    for word in range(words):
        layer_norm(work.hidden + word * stride, model.gain, model.shift, work.inputs + word * stride, width)
    output = model.output
    _multiply(output, work.inputs, model.channels, words, 0, model.zeros, work)
    found = float32_at(work.inputs)
    for word in range(words):
        sums = work.sums + word * output.panels * PANEL_SUMS
        _same_of(sums, work.multiplier, output.bias, work.inputs, output.panels * PANEL_SUMS // ROW)
        for place in range(logits.shape[1]):
            logits[word, place] = found[place]


@compiled
def _sum_embeddings(rows: IntArray, model: Model, work: Work) -> None:
    """Write the sums of three embeddings (T, embedding) into the inputs."""
    words, endings, beginnings = model.tables
    width = model.embedding
    for word in range(len(rows)):
        row, ending, start = int(rows[word, 0]), int(rows[word, 1]), int(rows[word, 2])
        _embed(
            words.rows + row * width,
            words.scales + row * 4,
            endings.rows + ending * width,
            endings.scales + ending * 4,
            beginnings.rows + start * width,
            beginnings.scales + start * 4,
            work.inputs + word * width * 4,
            width // LANES,
        )


@compiled
def _convolve(block: Block, model: Model, words: int, work: Work) -> None:
    """Add a block's outputs to the hidden rows."""
    channels, width, stride = model.channels, model.channels // LANES, 4 * model.channels
    for word in range(words):
        layer_norm(work.hidden + word * stride, block.gain, block.shift, work.inputs + word * stride, width)
    _multiply(block.mix, work.inputs, channels, words, block.dilation, model.zeros, work)
    for word in range(words):
        sums = work.sums + word * block.mix.panels * PANEL_SUMS
        _relu_of(sums, work.multiplier, block.mix.bias, work.inputs + word * stride, width)
    _multiply(block.out, work.inputs, channels, words, 0, model.zeros, work)
    for word in range(words):
        sums = work.sums + word * block.out.panels * PANEL_SUMS
        add_sums(sums, work.multiplier, block.out.bias, work.hidden + word * stride, width)


@compiled
def _multiply(linear: Linear, x: int, width: int, words: int, dilation: int, zeros: int, work: Work) -> None:
    """Write the sums of a product of rows `x` (words, width), and their multiplier, into the work space.

    With a dilation, a word's inputs are the rows of its left neighbor, of itself and of its right neighbor, zeros
    outside of the text. Words at this distance are stored next to each other, so that the three rows are one.
    """
    _find_limits(x, work.limits, words * width // LANES)
    apart, before, offsets = 0, 0, int64_at(work.offsets)
    if dilation > 0:
        apart, before = (words + dilation - 1) // dilation + 1, 1  # rows of words that are neighbors, and one of zeros
        cleared = int64_at(work.shorts)
        for place in range((dilation * apart + 1) * width // 4):
            cleared[place] = 0
    for word in range(words):
        place = word
        if dilation > 0:
            place = word % dilation * apart + word // dilation + 1
        _to_shorts(x + word * width * 4, work.limits, work.shorts + place * width * 2, width // LANES)
        offsets[word] = (place - before) * width * 2
    multiply_shorts(work.shorts, work.offsets, words, linear.weights, linear.pairs, linear.panels, zeros, work.sums)
    copy_bytes(work.multiplier, linear.scale, linear.panels * PANEL_SUMS)
    scale_row(work.limits + ROW, work.multiplier, linear.panels * PANEL_SUMS // ROW)
