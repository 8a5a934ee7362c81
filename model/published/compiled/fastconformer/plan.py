"""Sizes, addresses and layouts of a compiled FastConformer, and what all parts of its step use."""

from __future__ import annotations

from typing import NamedTuple

from model.int8.vectors import LANES
from model.machine.compiled import compiled, int64_at
from model.published.compiled import kernels
from model.published.compiled.linears import Scratch, linear_at

# linear layers of a layer
FIRST_IN, FIRST_OUT, QUERY, KEY, VALUE, ATTENDED, GATED, MIXED, SECOND_IN, SECOND_OUT = range(10)
LINEARS = 10
# columns of the table of layers, int64 addresses: gain and bias of each norm, offsets of the queries, projected
# positions, convolution and its norm (0 if there is none)
NORMS, CONTENT, POSITION, PLACES, TAPS, TAPS_BIAS, MIXED_GAIN, MIXED_BIAS = 0, 10, 11, 12, 13, 14, 15, 16
LAYER_COLUMNS = 17
BORDER = 3  # zeros around an image: two before, one after


class Dimensions(NamedTuple):
    """Sizes of the network; `first` subsampled frames of a window belong to earlier steps.

    `many`, `fewer`, `fewest`: places of a frame after each convolution of the subsampling.
    """

    window: int
    bins: int
    many: int
    fewer: int
    fewest: int
    first: int
    frames: int
    channels: int
    hidden: int
    heads: int
    layers: int
    left: int
    ring: int  # frames with room in a ring of keys or values
    places: int  # relative positions, padded
    halves: int  # 1 if keys and values are kept in bfloat16, else 0
    taps: int
    outputs: int  # of a frame; padded to `padded_outputs`, which is 0 without an output layer
    padded_outputs: int
    prompts: int  # languages that a stream may choose, 0: none


class Constants(NamedTuple):
    """Addresses of tables and numbers."""

    images: int  # (3, 2) int64: weights and bias of each convolution of the subsampling
    subsampling: int  # table of linear layers
    linears: int  # table of linear layers, `LINEARS` for each layer, then the output layer
    layers: int  # table of layers
    scale: int  # of subsampled frames
    half: int
    attention_scale: int


class Fields(NamedTuple):
    """Byte offsets in a stream's state: parts of a layer from its start, and the bytes of a layer."""

    first_layer: int
    convolution: int
    layer: int


class Work(NamedTuple):
    """Addresses of work space. Images have borders of zeros, which are never written."""

    features: int
    image: int
    places: int
    rows: int
    image_again: int
    reduced: int
    subsampling: Scratch
    x: int
    normed: int
    wide: int
    query: int
    key: int
    value: int
    content: int
    position: int
    place_scores: int
    scores: int
    joined: int
    prompted: int
    scratch: Scratch


class Plan(NamedTuple):
    """Everything that does not change between batches."""

    sizes: Dimensions
    constants: Constants
    fields: Fields


@compiled
def layer_linear(plan: Plan, layer: int, place: int) -> tuple[int, ...]:
    """Return a linear layer of a layer of the network."""
    return linear_at(plan.constants.linears, layer * LINEARS + place)


@compiled
def normalize(plan: Plan, work: Work, layer: int, norm: int, count: int, out: int) -> None:
    """Compute a layer norm of all frames of `work.x`."""
    table = int64_at(plan.constants.layers + layer * LAYER_COLUMNS * 8)
    gain, bias = table[NORMS + 2 * norm], table[NORMS + 2 * norm + 1]
    width = plan.sizes.hidden * 4
    for row in range(count * plan.sizes.frames):
        kernels.layer_norm(work.x + row * width, gain, bias, out + row * width, plan.sizes.hidden // LANES)
