"""Attention of a compiled FastConformer: rings of keys and values in the states, scores of all frames by products.

A ring has room for the cached and the new frames, so new ones are written first and a stream attends to one matrix.
Keys are kept by head, number and frame, values by head, frame and number: both products read them from start to end.
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
from model.published.compiled.linears import NO_ACTIVATION, apply_linear

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
    for row in range(count):
        state = slab + slot_of[row] * stride
        ring = state + fields.first_layer + layer * fields.layer
        _write(plan, work, ring, int64_at(state)[0], row * sizes.frames * width)
    size, deep = sizes.hidden // sizes.heads * 4, sizes.hidden // sizes.heads
    for head in range(sizes.heads):
        places = table[PLACES] + head * deep * sizes.places * 4
        wide = sizes.places * 4
        position = work.position + head * size
        float_product(position, width, rows, places, wide, deep, sizes.places // LANES, work.place_scores, wide)
        for row in range(count):
            state = slab + slot_of[row] * stride
            ring = state + fields.first_layer + layer * fields.layer
            _attend_head(plan, work, ring, int64_at(state)[0], row * sizes.frames, head)
    linear = layer_linear(plan, layer, ATTENDED)
    apply_linear(linear, NO_ACTIVATION, work.normed, width, rows, work.scratch, work.wide, width)
    for row in range(rows):
        kernels.add(work.wide + row * width, work.x + row * width, vectors)


@compiled
def _write(plan: Plan, work: Work, ring: int, written: int, start: int) -> None:
    """Write the new keys and values of a stream, `start` bytes from the first stream's, into its ring."""
    sizes = plan.sizes
    deep, width, values = sizes.hidden // sizes.heads, sizes.hidden * 4, ring + plan.fields.values
    for frame in range(sizes.frames):
        place = (written + frame) % sizes.ring
        key, value = work.key + start + frame * width, work.value + start + frame * width
        if sizes.halves != 0:
            int8_kernels.float_halves(key, work.scores, sizes.hidden // LANES)
            short, shorts = uint16_at(work.scores), uint16_at(ring)
            for number in range(sizes.hidden):
                shorts[number * sizes.ring + place] = short[number]
            for head in range(sizes.heads):
                to = values + (head * sizes.ring + place) * deep * 2
                int8_kernels.float_halves(value + head * deep * 4, to, deep // LANES)
        else:
            one, ones = float32_at(key), float32_at(ring)
            for number in range(sizes.hidden):
                ones[number * sizes.ring + place] = one[number]
            for head in range(sizes.heads):
                to = values + (head * sizes.ring + place) * deep * 4
                int8_kernels.copy_bytes(to, value + head * deep * 4, deep * 4)


@compiled
def _attend_head(plan: Plan, work: Work, ring: int, written: int, first: int, head: int) -> None:
    """Write what the new frames of a stream, from row `first`, attend to with one head into `work.normed`."""
    sizes = plan.sizes
    deep, width = sizes.hidden // sizes.heads, sizes.hidden * 4
    wide, vectors = sizes.ring * 4, sizes.ring // LANES
    here = first * width + head * deep * 4
    if sizes.halves != 0:
        keys = ring + head * deep * sizes.ring * 2
        half_product(work.content + here, width, sizes.frames, keys, sizes.ring * 2, deep, vectors, work.scores, wide)
    else:
        keys = ring + head * deep * wide
        float_product(work.content + here, width, sizes.frames, keys, wide, deep, vectors, work.scores, wide)
    for frame in range(sizes.frames):
        scores = work.scores + frame * wide
        _add_places(plan, scores, work.place_scores + (first + frame) * sizes.places * 4, written, frame)
        kernels.softmax(scores, scores, vectors)
    out = work.normed + here
    if sizes.halves != 0:
        values = ring + plan.fields.values + head * deep * sizes.ring * 2
        half_product(work.scores, wide, sizes.frames, values, deep * 2, sizes.ring, deep // LANES, out, width)
    else:
        values = ring + plan.fields.values + head * deep * wide
        float_product(work.scores, wide, sizes.frames, values, deep * 4, sizes.ring, deep // LANES, out, width)


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
