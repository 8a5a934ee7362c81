"""Compiled decoder and joiner of a transducer, for rows of streams or hypotheses.

Rows are independent: only products process several at a time, and their sums are exact or in a fixed order. The best
symbol of a row is found from the sums of the joiner's last layer, without storing the scores of all symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from model.int8 import kernels as int8_kernels
from model.int8.kernels import scaled
from model.int8.product import PANEL_SUMS
from model.int8.vectors import I32, LANES, ROW, Floats, Ints, Vectors, kernel, splat
from model.machine.compiled import compiled, entry_point, float32_at, int32_at, int64_at, uint8_at
from model.published.compiled import kernels
from model.published.compiled.kernels import elementwise
from model.published.compiled.linears import (
    BIAS,
    LIMITS,
    MULTIPLIER,
    NO_ACTIVATION,
    PANELS,
    RELU,
    VECTORS,
    Scratch,
    add_linear,
    apply_linear,
    finish,
    linear_at,
    multiply_inputs,
    quantize_inputs,
)

LOWEST = -3e38  # below every score
BEST_BYTES = 2 * ROW  # the highest score of each lane, and its place


class Shapes(NamedTuple):
    """Sizes of the networks; `history` and `frames` are rows of the table of parts, -1 without such a layer."""

    embedding: int
    context: int  # symbols that a stateless decoder reads, 0 for an LSTM
    layers: int  # of the LSTM
    hidden: int  # of the LSTM
    decoded: int  # width of the decoder's output
    frame: int  # width of an encoder's frame
    joined: int
    symbols: int
    history: int
    frames: int
    tanh: int  # 1 if the joiner's activation is tanh, 0 for ReLU


class Tables(NamedTuple):
    """Addresses of the embedding in floats, of the linear layers but the last, and of the joiner's last layer."""

    embedding: int
    parts: int
    scores: int


class Work(NamedTuple):
    """Addresses of work space for a call's rows."""

    embedded: int
    gates: int
    decoded: int
    joined: int
    best: int
    row: int
    spare: int
    parts: Scratch
    scores: Scratch


class Plan(NamedTuple):
    """Everything that does not change between calls."""

    shapes: Shapes
    tables: Tables


sum_relu = elementwise(lambda left, right: (left + right).most(0.0))
sum_tanh = elementwise(lambda left, right: (left + right).tanh())


@kernel
def lstm_cell(v: Vectors, gates: Any, hidden: Any, cell: Any, vectors: Any) -> None:
    """Compute one step of an LSTM in place from its gates: input, output, forget, cell.

    Source: Hochreiter and Schmidhuber 1997, in the order of ONNX.
    """
    width = v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        inward, outward, forget, new = (v.floats(gates, v.at(v.times(width, gate), offset)) for gate in range(4))
        memory = forget.sigmoid() * v.floats(cell, offset) + inward.sigmoid() * new.tanh()
        v.keep(memory, cell, offset)
        v.keep(outward.sigmoid() * memory.tanh(), hidden, offset)
        return []

    v.loop(vectors, [], body)


def _all(v: Vectors, number: Any) -> Ints:
    return Ints(v.builder, splat(v.builder, v.builder.trunc(v.number(number), I32), LANES))


def _best(v: Vectors, score: Callable[[Any], Floats], out: Any, vectors: Any) -> None:
    """Write the highest score of each lane, and the first vector that has it."""
    builder = v.builder

    def body(index: Any, carried: list[Any]) -> Any:
        top, position = carried
        value = score(v.times(index, ROW))
        above = builder.fcmp_ordered(">", value.value, top.value)
        candidate = _all(v, index)
        return [
            Floats(builder, builder.select(above, value.value, top.value)),
            Ints(builder, builder.select(above, candidate.value, position.value)),
        ]

    top, position = v.loop(vectors, [v.constant(LOWEST), _all(v, 0)], body)
    v.keep(top, out)
    v.store(position.value, v.at(out, ROW))


@kernel
def best_of_sums(v: Vectors, sums: Any, multiplier: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Find the best of a product's outputs from its sums, by lane."""
    _best(v, lambda offset: scaled(v, sums, multiplier, bias, offset), out, vectors)


@kernel
def best_of_floats(v: Vectors, scores: Any, out: Any, vectors: Any) -> None:
    """Find the best of scores, by lane."""
    _best(v, lambda offset: v.floats(scores, offset), out, vectors)


@entry_point
def project(plan: Plan, work: Work, x: int, rows: int, out: int) -> None:
    """Map frames (rows, D) of an encoder to the joiner's width, (rows, J)."""
    shapes = plan.shapes
    linear = linear_at(plan.tables.parts, shapes.frames)
    apply_linear(linear, NO_ACTIVATION, x, shapes.frame * 4, rows, work.parts, out, shapes.joined * 4)


@entry_point
def predict(plan: Plan, work: Work, symbols: int, states: int, rows: int, out: int) -> None:
    """Compute the joiner's part of the decoder's output after symbols.

    `symbols`: (rows,) int64 for an LSTM, whose `states` (rows, 2, layers, H) are replaced; (rows, context) else, -1
    stands for no symbol. `out`: (rows, J).
    """
    shapes, tables = plan.shapes, plan.tables
    _embed(plan, work, symbols, rows)
    decoded, stride = work.decoded, shapes.decoded * 4
    if shapes.context != 0:
        width = shapes.context * shapes.embedding * 4
        apply_linear(linear_at(tables.parts, 0), RELU, work.embedded, width, rows, work.parts, decoded, stride)
    else:
        decoded, stride = _recur(plan, work, states, rows)
    if shapes.history < 0:
        for row in range(rows):
            int8_kernels.copy_bytes(out + row * shapes.joined * 4, decoded + row * stride, shapes.joined * 4)
    else:
        linear = linear_at(tables.parts, shapes.history)
        apply_linear(linear, NO_ACTIVATION, decoded, stride, rows, work.parts, out, shapes.joined * 4)


@compiled
def _embed(plan: Plan, work: Work, symbols: int, rows: int) -> None:
    """Copy the embeddings of each row's symbols to `work.embedded`."""
    size = plan.shapes.embedding * 4
    context = max(1, plan.shapes.context)
    symbol_of = int64_at(symbols)
    for position in range(rows * context):
        to = work.embedded + position * size
        if symbol_of[position] >= 0:
            int8_kernels.copy_bytes(to, plan.tables.embedding + symbol_of[position] * size, size)
        else:
            zeros = float32_at(to)
            for column in range(plan.shapes.embedding):
                zeros[column] = 0.0


@compiled
def _recur(plan: Plan, work: Work, states: int, rows: int) -> tuple[int, int]:
    """Advance the LSTM by the embedded symbols; return the address of its outputs and the bytes between them."""
    shapes, parts = plan.shapes, plan.tables.parts
    width, vectors = shapes.hidden * 4, shapes.hidden // LANES
    stride = 2 * shapes.layers * width
    x, x_stride = work.embedded, shapes.embedding * 4
    for layer in range(shapes.layers):
        hidden = states + layer * width
        inputs, state = linear_at(parts, 2 * layer), linear_at(parts, 2 * layer + 1)
        apply_linear(inputs, NO_ACTIVATION, x, x_stride, rows, work.parts, work.gates, 4 * width)
        add_linear(state, hidden, stride, rows, work.parts, work.gates)
        for row in range(rows):
            output = hidden + row * stride
            lstm_cell(work.gates + row * 4 * width, output, output + shapes.layers * width, vectors)
        x, x_stride = hidden, stride
    return x, x_stride


@compiled
def _join(plan: Plan, work: Work, frames: int, history: int, rows: int) -> None:
    """Compute the sums of the scores of rows, or the scores if the layer is in floats, in `work.scores.sums`."""
    shapes = plan.shapes
    linear, width, vectors = linear_at(plan.tables.scores, 0), shapes.joined * 4, shapes.joined // LANES
    for row in range(rows):
        first = row * width
        if shapes.tanh != 0:
            sum_tanh(frames + first, history + first, work.joined + first, vectors)
        else:
            sum_relu(frames + first, history + first, work.joined + first, vectors)
    if linear[LIMITS] == 0:
        wide = linear[VECTORS] * ROW
        apply_linear(linear, NO_ACTIVATION, work.joined, width, rows, work.scores, work.scores.sums, wide)
    else:
        quantize_inputs(linear, work.joined, width, rows, work.scores)
        multiply_inputs(linear, rows, work.scores)


@compiled
def _scores(plan: Plan, work: Work, row: int, out: int) -> None:
    """Write the scores of a row of the last `_join`, (padded V,)."""
    linear = linear_at(plan.tables.scores, 0)
    if linear[LIMITS] == 0:
        wide = linear[VECTORS] * ROW
        int8_kernels.copy_bytes(out, work.scores.sums + row * wide, wide)
    else:
        sums = work.scores.sums + row * linear[PANELS] * PANEL_SUMS
        scratch = Scratch(work.scores.inputs, sums, work.scores.hidden, work.scores.team)
        finish(linear, NO_ACTIVATION, 1, scratch, out, linear[VECTORS] * ROW)


@entry_point
def join(plan: Plan, work: Work, frames: int, history: int, rows: int, out: int) -> None:
    """Score all symbols after frames (rows, J) and outputs of the decoder (rows, J), in `out` (rows, padded V)."""
    wide = linear_at(plan.tables.scores, 0)[VECTORS] * ROW
    _join(plan, work, frames, history, rows)
    for row in range(rows):
        _scores(plan, work, row, out + row * wide)


@entry_point
def find_best(
    plan: Plan, work: Work, frames: int, history: int, rows: int, written: int, results: tuple[int, int]
) -> None:
    """Find the best symbol of each row, of equal ones the first, as `join` would score it.

    `written` (V,): one byte a symbol, not 0 if its log-probability is wanted. `results`: addresses of the symbols
    (rows,) int64 and their log-probabilities (rows,) float32, 0 for the others.
    """
    linear = linear_at(plan.tables.scores, 0)
    wanted, symbol_of, log_prob_of = uint8_at(written), int64_at(results[0]), float32_at(results[1])
    scores = float32_at(work.row)
    _join(plan, work, frames, history, rows)
    for row in range(rows):
        if linear[LIMITS] == 0:
            best_of_floats(work.scores.sums + row * linear[VECTORS] * ROW, work.best, linear[VECTORS])
        else:
            sums = work.scores.sums + row * linear[PANELS] * PANEL_SUMS
            best_of_sums(sums, linear[MULTIPLIER], linear[BIAS], work.best, linear[VECTORS])
        symbol = _best_lane(work.best)
        symbol_of[row] = symbol
        log_prob_of[row] = 0.0
        if wanted[symbol] != 0:
            _scores(plan, work, row, work.row)
            kernels.log_softmax(work.row, work.spare, work.row, linear[VECTORS])
            log_prob_of[row] = scores[symbol]


@compiled
def _best_lane(best: int) -> int:
    """Return the first symbol with the highest score of all lanes."""
    tops, places = float32_at(best), int32_at(best + ROW)
    best, top = int(places[0]) * LANES, tops[0]
    for lane in range(1, LANES):
        symbol = int(places[lane]) * LANES + lane
        if tops[lane] > top or (tops[lane] == top and symbol < best):
            best, top = symbol, tops[lane]
    return best
