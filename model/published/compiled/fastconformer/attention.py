"""Attention of a compiled FastConformer: rings of keys and values in the states, scores of all frames by products.

A ring has room for the cached and the new frames, so new ones are written first and a stream attends to one matrix.
For each head, keys are kept by number and frame, then values by frame and number, as the products read them.
"""

from __future__ import annotations

from model.int8 import kernels as int8_kernels
from model.int8.vectors import LANES
from model.machine.compiled import compiled, float32_at, int64_at, uint16_at
from model.published.compiled import kernels
from model.published.compiled.fastconformer.plan import (
    ATTENDED,
    CONTENT,
    KEY,
    LAYER_COLUMNS,
    PLACES,
    POSITION,
    QUERY,
    VALUE,
    Plan,
    Work,
    layer_linear,
    normalize,
)
from model.published.compiled.float_product import float_product, half_product
from model.published.compiled.linears import NO_ACTIVATION, add_linear, apply_linear

MASKED = -1e30  # score of a frame that is not attended to


@compiled
def attend(plan: Plan, work: Work, layer: int, states: tuple[int, int, int], count: int) -> None:
    """Add attention over the cached and the new frames to `work.x`, and cache the new keys and values."""
    sizes, fields = plan.sizes, plan.fields
    slots, slab, stride = states
    slot_of = int64_at(slots)
    table = int64_at(plan.constants.layers + layer * LAYER_COLUMNS * 8)
    rows, width, vectors = count * sizes.frames, sizes.hidden * 4, sizes.hidden // LANES
    normalize(plan, work, layer, 1, count, work.normed)
    for place, out in ((QUERY, work.query), (KEY, work.key), (VALUE, work.value)):
        linear = layer_linear(plan, layer, place)
        apply_linear(linear, NO_ACTIVATION, work.normed, width, rows, work.scratch, out, width)
    for row in range(rows):
        query, scale = work.query + row * width, plan.constants.attention_scale
        kernels.scaled_sum(query, table[CONTENT], scale, work.content + row * width, vectors)
        kernels.scaled_sum(query, table[POSITION], scale, work.position + row * width, vectors)
    _score_places(plan, work, table[PLACES], rows)
    for row in range(count):
        state = slab + slot_of[row] * stride
        ring = state + fields.first_layer + layer * fields.layer
        _attend_stream(plan, work, ring, rows, int64_at(state)[0], row * sizes.frames)
    add_linear(layer_linear(plan, layer, ATTENDED), work.normed, width, rows, work.scratch, work.x)


@compiled
def _score_places(plan: Plan, work: Work, places: int, rows: int) -> None:
    """Compute the scores of all relative positions: (H, rows, padded positions)."""
    sizes = plan.sizes
    deep, width, wide = sizes.hidden // sizes.heads, sizes.hidden * 4, sizes.places * 4
    for head in range(sizes.heads):
        position, here, out = (
            work.position + head * deep * 4,
            head * deep * wide,
            work.place_scores + head * rows * wide,
        )
        float_product(position, width, rows, places + here, wide, deep, sizes.places // LANES, out, wide)


@compiled
def _attend_stream(plan: Plan, work: Work, ring: int, rows: int, written: int, first: int) -> None:
    """Write what the new frames of a stream, from row `first` of `rows`, attend to into `work.normed`."""
    sizes = plan.sizes
    deep, width = sizes.hidden // sizes.heads, sizes.hidden * 4
    wide, vectors = sizes.ring * 4, sizes.ring // LANES
    size = 2 if sizes.halves != 0 else 4
    half = deep * sizes.ring * size  # bytes of the keys of a head, and of its values
    for head in range(sizes.heads):
        keys, here = ring + head * 2 * half, first * width + head * deep * 4
        _write(plan, work, (keys, keys + half), written, here)
        content, out = work.content + here, work.normed + here
        if sizes.halves != 0:
            half_product(content, width, sizes.frames, keys, sizes.ring * 2, deep, vectors, work.scores, wide)
        else:
            float_product(content, width, sizes.frames, keys, wide, deep, vectors, work.scores, wide)
        for frame in range(sizes.frames):
            scores = work.scores + frame * wide
            places = work.place_scores + (head * rows + first + frame) * sizes.places * 4
            _add_places(plan, scores, places, written, frame)
            kernels.softmax(scores, scores, vectors)
        values, depth = keys + half, sizes.ring
        if sizes.halves != 0:
            half_product(work.scores, wide, sizes.frames, values, deep * 2, depth, deep // LANES, out, width)
        else:
            float_product(work.scores, wide, sizes.frames, values, deep * 4, depth, deep // LANES, out, width)


@compiled
def _write(plan: Plan, work: Work, rings: tuple[int, int], written: int, here: int) -> None:
    """Write the new keys and values of a stream's head, `here` bytes from the first ones, into its rings."""
    sizes = plan.sizes
    deep, width = sizes.hidden // sizes.heads, sizes.hidden * 4
    keys, values = rings
    for frame in range(sizes.frames):
        place = (written + frame) % sizes.ring
        key, value = work.key + here + frame * width, work.value + here + frame * width
        if sizes.halves != 0:
            int8_kernels.float_halves(key, work.scores, deep // LANES)
            int8_kernels.float_halves(value, values + place * deep * 2, deep // LANES)
            new_halves, halves = uint16_at(work.scores), uint16_at(keys)
            for number in range(deep):
                halves[number * sizes.ring + place] = new_halves[number]
        else:
            int8_kernels.copy_bytes(values + place * deep * 4, value, deep * 4)
            new_floats, floats = float32_at(key), float32_at(keys)
            for number in range(deep):
                floats[number * sizes.ring + place] = new_floats[number]


@compiled
def _add_places(plan: Plan, scores: int, places: int, written: int, frame: int) -> None:
    """Add the scores of positions, oldest frame first, to those in the order of the ring, and mask other frames."""
    sizes = plan.sizes
    target, source = float32_at(scores), float32_at(places)
    attended = min(written, sizes.left) + sizes.frames
    oldest = (written + sizes.frames - attended) % sizes.ring
    before = min(attended, sizes.ring - oldest)  # frames from the oldest to the end of the ring
    skipped = sizes.left + 2 * sizes.frames - 1 - attended - frame  # positions of frames that do not exist
    for place in range(before):
        target[oldest + place] += source[skipped + place]
    for place in range(attended - before):
        target[place] += source[skipped + before + place]
    for place in range(attended - before, min(oldest, sizes.ring)):
        target[place] = MASKED
    for place in range(oldest + before, sizes.ring):
        target[place] = MASKED
