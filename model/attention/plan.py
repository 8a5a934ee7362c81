"""Sizes, addresses and layouts of the compiled step, and the table of its products."""

from __future__ import annotations

from typing import NamedTuple

from model.int8.features import FeaturePlan
from model.int8.product import COLUMNS, DEPTH
from model.machine.compiled import compiled

# products: the stem, those of each block, the head
INNER1, OUTER1, ATTENDING, ATTENDED, GATED, MIXED, INNER2, OUTER2 = range(8)
BLOCK_PRODUCTS = 8
STEM = 0
# columns of the table of blocks: taps (kernel, D) and bias of the convolution, norm of the block, limits of queries,
# of keys and of values, factors of the scores (heads,)
TAPS, TAPS_BIAS, BLOCK_GAIN, BLOCK_SHIFT, QUERY_LIMITS, KEY_LIMITS, VALUE_LIMITS, FACTORS = range(8)
BLOCK_COLUMNS = 8
FOUR = 4  # frames of a group of values, of which the sizes of a form are multiples
QUERY_ROWS = 20  # of a tile of attention: their scores fit the first-level cache


class Sizes(NamedTuple):
    """Sizes of a step: frames unless named; `columns` is the number of keys, a multiple of 32.

    The first `ring` columns are kept from step to step, the next ones are the frames read ahead. A frame attends to
    `reach` columns before and after its own, and up to 50 more; where the ring has no order, to all.
    """

    samples: int
    overlap: int  # samples
    hops: int  # features of the new frames
    bands: int
    width: int
    heads: int
    inner: int  # of the feed-forward layers
    blocks: int
    taps: int
    new: int
    window: int
    ring: int
    columns: int
    reach: int
    letters: int
    phones: int


class Fields(NamedTuple):
    """Byte offsets in a stream's state: parts of a block from its start; `stride` from one state to the next.

    A block starts with the keys: of each head panels of 32 frames, as `model.int8.product.packed`; then the values, in
    groups of four frames, (D, 4) each; then inputs of the convolution in bfloat16.

    `position`, int64: number of the first new frame of the next step, negative before the audio.
    """

    position: int
    pcm: int
    mel: int
    first_block: int
    values: int
    convolution: int
    block: int
    stride: int


class Constants(NamedTuple):
    """Addresses of tables."""

    features: FeaturePlan
    products: int
    blocks: int
    row_offsets: int  # rows of a product's inputs, one after the other, by the width of the inputs
    inner_offsets: int
    stem_offsets: int
    probability_offsets: int
    zero_points: int  # a query of zero points
    no_sums: int  # zeros
    masks: int  # two floats: 0, and what hides a column


class Work(NamedTuple):
    """Addresses of work space for a block of at most `most` streams."""

    most: int
    pcm: int
    frames: int
    power: int
    band: int
    mel: int
    bytes: int
    sums: int
    x: int
    queries: int
    keys: int
    values: int
    mask: int
    scores: int
    rows: int
    probabilities: int
    totals: int
    panels: int
    average_sums: int
    mixed: int
    joined: int
    outputs: int


class Plan(NamedTuple):
    """Everything that does not change between batches."""

    sizes: Sizes
    fields: Fields
    constants: Constants


@compiled
def panel_bytes(deep: int) -> int:
    """Size of a panel of a head's keys."""
    return deep // DEPTH * COLUMNS * DEPTH
