"""What the compiled step of Zipformer 2 needs to know: sizes, addresses of weights and of work space, as integers.

Stacks and layers are rows of tables of int64, because compiled code loops over them.
"""

from __future__ import annotations

from typing import NamedTuple

from model.int8.vectors import ROW
from model.machine.compiled import compiled, int64_at
from model.published.compiled.linears import (
    LIMITS,
    SWOOSH_L,
    VECTORS,
    Scratch,
    add_linear,
    add_sums,
    apply_linear,
    finish_as_inputs,
    linear_at,
    multiply_inputs,
    quantize_inputs,
)

CHANNELS = (8, 32, 128)  # after each convolution of the embedding
SIDE = 3  # frames and bins on each side of a tap of the ConvNeXt layer
FIRST_LINEAR = 3  # row of the table of linear layers: those of the embedding come first
LAYER_LINEARS = 17


States = tuple[int, int, int]
"""Addresses of the slots of a block's streams (int64) and of the slab of states, bytes from one state to the next."""


class StackPlan(NamedTuple):
    """A stack: `frames` per step, each for `factor` frames of 20 ms; caches are rings of `slots` frames.

    `keys` and `relative` are the row sizes of keys and of position scores, in floats: whole vectors. `value_row` is
    that of mixed values, with a vector to spare. `downsampling` and `combination` are addresses.
    """

    width: int
    factor: int
    frames: int
    slots: int
    keys: int
    relative: int
    heads: int
    query: int
    place: int
    value: int
    value_row: int
    taps: int
    inner: int
    first_layer: int
    layers: int
    downsampling: int
    combination: int
    output: int  # offset of the stack's output in the work space `outputs`, in floats of one frame


class LayerPlan(NamedTuple):
    """A layer: addresses of its weights, then byte offsets of its caches in a stream's state."""

    positions: int
    middle: int
    end: int
    norm_bias: int
    norm_scale: int
    causal: tuple[int, int]
    causal_bias: tuple[int, int]
    chunk: tuple[int, int]
    chunk_bias: tuple[int, int]
    edge: tuple[int, int]
    key: int
    nonlinear: int
    values: tuple[int, int]
    convolved: tuple[int, int]


STACK_COLUMNS = len(StackPlan._fields)
LAYER_COLUMNS = 21


class EmbeddingPlan(NamedTuple):
    """Addresses of the embedding's weights, the frames of a window, and the bins of a frame.

    `bins` are those of the features, in `pairs` for the first convolution; `second_bins` and `third_bins` follow the
    other two. The rows are the bytes of a frame of features and of a frame after each convolution.
    """

    window: int
    bins: int
    pairs: int
    second_bins: int
    third_bins: int
    features_row: int
    first_row: int
    second_row: int
    third_row: int
    weights: tuple[int, int, int]
    biases: tuple[int, int, int]
    depthwise: int
    depthwise_bias: int
    norm_bias: int
    norm_scale: int


class Sizes(NamedTuple):
    """`frames` of 20 ms per step; `wide` is the width of the final frames, `row` that of `Work.outputs`, in floats."""

    frames: int
    stacks: int
    pieces: int
    wide: int
    row: int
    head: int  # row of the table of linear layers
    symbols: int
    log_probs: int
    embed_cache: int  # offset in a stream's state


class Constants(NamedTuple):
    """Addresses of tables: linear layers, stacks, layers, pieces of the final frames, and others.

    A piece is (offset in a row of `outputs`, offset in a final frame, vectors). `mask` is the address after which all
    positions are masked, and before which none is.
    """

    linears: int
    stacks: int
    layers: int
    pieces: int
    downsampling: int
    mask: int


class Work(NamedTuple):
    """Addresses of work space for a block of streams."""

    bins: int
    first: int
    second: int
    third: int
    convnext: int
    embedded: int
    entered: int
    x: int
    before: int
    projected: int
    mixed: int
    attention: int
    relative: int
    turned: int
    joined: int
    outputs: int
    final: int
    spare: int


class Plan(NamedTuple):
    """Everything that does not change between batches, and the work space."""

    sizes: Sizes
    constants: Constants
    embedding: EmbeddingPlan
    work: Work
    scratch: Scratch


@compiled
def stack_at(table: int, row: int) -> StackPlan:
    """Return a row of the table of stacks."""
    at = int64_at(table + row * STACK_COLUMNS * 8)
    return StackPlan(
        at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8],
        at[9], at[10], at[11], at[12], at[13], at[14], at[15], at[16], at[17],
    )  # fmt: skip


@compiled
def layer_at(table: int, row: int) -> LayerPlan:
    """Return a row of the table of layers."""
    at = int64_at(table + row * LAYER_COLUMNS * 8)
    return LayerPlan(
        at[0], at[1], at[2], at[3], at[4], (at[5], at[6]), (at[7], at[8]), (at[9], at[10]), (at[11], at[12]),
        (at[13], at[14]), at[15], at[16], (at[17], at[18]), (at[19], at[20]),
    )  # fmt: skip


@compiled
def state_of(states: States, row: int) -> int:
    """Return the address of a stream's state."""
    slots, slab, stride = states
    slot: int = int64_at(slots)[row]
    return slab + slot * stride


@compiled
def steps_of(state: int) -> int:
    """Return the number of steps of a stream."""
    steps: int = int64_at(state)[0]
    return steps


@compiled
def add_layer(plan: Plan, linear: int, x: int, stride: int, rows: int, out: int) -> None:
    """Add a linear layer of rows of `x` to contiguous rows."""
    add_linear(linear_at(plan.constants.linears, linear), x, stride, rows, plan.scratch, out)


@compiled
def add_feed_forward(plan: Plan, linear: int, x: int, rows: int) -> None:
    """Add a feed-forward module, two linear layers from row `linear` on, to contiguous rows."""
    first, second = linear_at(plan.constants.linears, linear), linear_at(plan.constants.linears, linear + 1)
    stride = second[VECTORS] * ROW
    if first[LIMITS] != 0 and second[LIMITS] != 0:
        quantize_inputs(first, x, stride, rows, plan.scratch)
        multiply_inputs(first, rows, plan.scratch)
        finish_as_inputs(first, second, SWOOSH_L, rows, plan.scratch)
        multiply_inputs(second, rows, plan.scratch)
        add_sums(second, rows, plan.scratch, x)
    else:
        width = first[VECTORS] * ROW
        apply_linear(first, SWOOSH_L, x, stride, rows, plan.scratch, plan.scratch.hidden, width)
        add_linear(second, plan.scratch.hidden, width, rows, plan.scratch, x)
