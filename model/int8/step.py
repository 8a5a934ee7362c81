"""Compiled step of the whole quantized network for a batch: PCM in, log-probabilities out, states updated in place.

Equivalent of `Network.forward` in `model.torch_network.network`, product by product. A row of the slab holds a
stream's state; work space holds a block of streams, each layer's rows one after another. Rows are independent: only
products process several at a time, and their sums are exact.
"""

from __future__ import annotations

from typing import NamedTuple

from model.config import CONTEXT
from model.int8 import kernels
from model.int8.features import FeaturePlan, feature_bytes
from model.int8.product import PANEL_SUMS
from model.int8.product_table import (
    BIAS,
    GAIN,
    LIMITS,
    MULTIPLIER,
    PANELS,
    SHIFT,
    log_probs,
    multiply_rows,
    product_at,
)
from model.int8.vectors import LANES, ROW
from model.machine.compiled import compiled, entry_point, int64_at

CONV0, CONV1, LAYERS = 0, 1, 2  # rows of the table; each layer has two, input and recurrent, then dense and head


class Sizes(NamedTuple):
    """Sizes of the network: steps of `samples` with `overlap` samples before them; `outputs` frames per step.

    A frame has the log-probabilities of the `letters` and of the `phones`, each with a blank; `phones` is 0 for a
    network without phones.
    """

    samples: int
    overlap: int
    hop: int
    bands: int
    channels: int
    hidden: int
    layers: int
    lookahead: int
    outputs: int
    letters: int
    phones: int


class Fields(NamedTuple):
    """Byte offsets in a stream's state; `stride` from one state to the next."""

    hidden: int
    waiting: int
    pcm: int
    conv0: int
    conv1: int
    stride: int


class Work(NamedTuple):
    """Addresses of work space for a block of streams, and the most streams of a block."""

    block: int
    pcm: int
    frames: int
    power: int
    band: int
    conv0: int
    conv1: int
    rows: int
    state_rows: int
    x: int
    waiting: int
    sums: int
    recurrent_sums: int
    outputs: int


class Constants(NamedTuple):
    """Addresses of the network's constants."""

    products: int
    features: FeaturePlan
    lookahead: int
    conv0_offsets: int
    conv1_offsets: int
    row_offsets: int


class Plan(NamedTuple):
    """Everything that does not change between batches."""

    sizes: Sizes
    fields: Fields
    constants: Constants
    work: Work


States = tuple[int, int]
"""Addresses of the slots of a block's streams (int64) and of the slab of states."""


@entry_point
def step(plan: Plan, memory: tuple[int, int, int, int], count: int) -> None:
    """Advance `count` streams, block by block.

    `memory`: addresses of the inputs (count, samples) int16, of their slots (count,) int64, of the slab of states, of
    the outputs (count, outputs, letters + phones) float32.
    """
    inputs, slots, slab, out = memory
    sizes = plan.sizes
    for first in range(0, count, plan.work.block):
        block = min(plan.work.block, count - first)
        states = (slots + first * 8, slab)
        _features(plan, states, inputs + first * sizes.samples * 2, block)
        _convolutions(plan, states, block)
        for layer in range(sizes.layers):
            _layer(plan, states, block, layer)
        _look_ahead(plan, states, block)
        _head(plan, block * sizes.outputs, out + first * sizes.outputs * (sizes.letters + sizes.phones) * 4)


@compiled
def _features(plan: Plan, states: States, inputs: int, count: int) -> None:
    """Append the quantized features of all streams to their carried-over frames, and keep the last ones."""
    sizes, fields, constants, work = plan
    slots, slab = states
    slot_of = int64_at(slots)
    joined, frames = sizes.overlap + sizes.samples, sizes.samples // sizes.hop
    kept = CONTEXT * sizes.bands  # bytes
    stride = (CONTEXT + frames) * sizes.bands
    for row in range(count):
        state, pcm = slab + slot_of[row] * fields.stride, work.pcm + row * joined * 2
        kernels.copy_bytes(pcm, state + fields.pcm, sizes.overlap * 2)
        kernels.copy_bytes(pcm + sizes.overlap * 2, inputs + row * sizes.samples * 2, sizes.samples * 2)
        kernels.copy_bytes(state + fields.pcm, pcm + sizes.samples * 2, sizes.overlap * 2)
        kernels.copy_bytes(work.conv0 + row * stride, state + fields.conv0, kept)
    feature_bytes(
        constants.features,
        product_at(constants.products, CONV0)[LIMITS],
        (work.frames, work.power, work.band),
        (work.pcm, joined * 2),
        frames,
        count,
        (work.conv0 + kept, stride),
    )
    for row in range(count):
        state = slab + slot_of[row] * fields.stride
        kernels.copy_bytes(state + fields.conv0, work.conv0 + row * stride + frames * sizes.bands, kept)


@compiled
def _convolutions(plan: Plan, states: States, count: int) -> None:
    """Compute both convolutions, from quantized features to `work.x`."""
    sizes, fields, constants, work = plan
    slots, slab = states
    slot_of = int64_at(slots)
    first, second = product_at(constants.products, CONV0), product_at(constants.products, CONV1)
    frames, channels, hidden = 2 * sizes.outputs, sizes.channels, sizes.hidden
    kept, stride = CONTEXT * channels, (CONTEXT + frames) * channels
    multiply_rows(first, work.conv0, constants.conv0_offsets, count * frames, work.sums)
    for row in range(count):
        state, out = slab + slot_of[row] * fields.stride, work.conv1 + row * stride
        kernels.copy_bytes(out, state + fields.conv1, kept)
        for frame in range(frames):
            sums = work.sums + (row * frames + frame) * first[PANELS] * PANEL_SUMS
            place = out + kept + frame * channels
            kernels.silu_bytes(sums, first[MULTIPLIER], first[BIAS], second[LIMITS], place, channels // LANES)
        kernels.copy_bytes(state + fields.conv1, out + frames * channels, kept)
    rows = count * sizes.outputs
    multiply_rows(second, work.conv1, constants.conv1_offsets, rows, work.sums)
    for row in range(rows):
        sums = work.sums + row * second[PANELS] * PANEL_SUMS
        place = work.x + row * hidden * 4
        kernels.silu_floats(sums, second[MULTIPLIER], second[BIAS], place, hidden // LANES)


@compiled
def _layer(plan: Plan, states: States, count: int, layer: int) -> None:
    """Compute layer norm and GRU of one layer and add them to `work.x`."""
    sizes, fields, constants, work = plan
    slots, slab = states
    slot_of = int64_at(slots)
    hidden, frames, vectors = sizes.hidden, sizes.outputs, sizes.hidden // LANES
    left, right = (
        product_at(constants.products, LAYERS + 2 * layer),
        product_at(constants.products, LAYERS + 2 * layer + 1),
    )
    state = slab + fields.hidden + layer * hidden * 4
    for row in range(count * frames):
        x = work.x + row * hidden * 4
        kernels.norm_bytes(x, left[GAIN], left[SHIFT], left[LIMITS], work.rows + row * hidden, vectors)
    multiply_rows(left, work.rows, constants.row_offsets, count * frames, work.sums)
    for row in range(count):
        kernels.float_bytes(
            state + slot_of[row] * fields.stride, right[LIMITS], work.state_rows + row * hidden, vectors
        )
    wide = left[PANELS] * PANEL_SUMS
    for frame in range(frames):
        multiply_rows(right, work.state_rows, constants.row_offsets, count, work.recurrent_sums)
        for row in range(count):
            place = row * frames + frame
            kernels.gates(
                work.sums + place * wide,
                left[MULTIPLIER],
                left[BIAS],
                work.recurrent_sums + row * wide,
                right[MULTIPLIER],
                right[BIAS],
                state + slot_of[row] * fields.stride,
                work.x + place * hidden * 4,
                right[LIMITS],
                work.state_rows + row * hidden,
                vectors,
            )


@compiled
def _look_ahead(plan: Plan, states: States, count: int) -> None:
    """Compute the lookahead convolution in place in `work.x`; the state holds frames without an output yet."""
    sizes, fields, constants, work = plan
    slots, slab = states
    slot_of = int64_at(slots)
    frames, ahead, vectors = sizes.outputs, sizes.lookahead, sizes.hidden // LANES
    half = vectors * (ROW // 2)  # bytes of a frame in bfloat16
    for row in range(count):
        waiting = slab + slot_of[row] * fields.stride + fields.waiting
        x = work.x + row * frames * vectors * ROW
        kernels.copy_bytes(work.waiting, waiting, ahead * half)
        for frame in range(frames):
            kernels.float_halves(x + frame * vectors * ROW, work.waiting + (ahead + frame) * half, vectors)
        for frame in range(frames):
            place = x + frame * vectors * ROW
            kernels.lookahead(work.waiting + frame * half, constants.lookahead, place, vectors, ahead + 1)
        kernels.copy_bytes(waiting, work.waiting + frames * half, ahead * half)


@compiled
def _head(plan: Plan, rows: int, out: int) -> None:
    """Compute layer norm, dense layer, head and log-softmax of the rows of `work.x`.

    The head's columns of phones start at the vector after those of the letters; both have their own log-softmax.
    """
    sizes, _, constants, work = plan
    dense = product_at(constants.products, LAYERS + 2 * sizes.layers)
    head = product_at(constants.products, LAYERS + 2 * sizes.layers + 1)
    hidden, vectors = sizes.hidden, sizes.hidden // LANES
    for row in range(rows):
        x = work.x + row * hidden * 4
        kernels.norm_bytes(x, dense[GAIN], dense[SHIFT], dense[LIMITS], work.rows + row * hidden, vectors)
    multiply_rows(dense, work.rows, constants.row_offsets, rows, work.sums)
    for row in range(rows):
        sums = work.sums + row * dense[PANELS] * PANEL_SUMS
        kernels.silu_bytes(sums, dense[MULTIPLIER], dense[BIAS], head[LIMITS], work.rows + row * hidden, vectors)
    multiply_rows(head, work.rows, constants.row_offsets, rows, work.sums)
    log_probs(head, rows, work.sums, sizes.letters, sizes.phones, work.outputs, out)
