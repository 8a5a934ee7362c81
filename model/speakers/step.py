"""Compiled step of the network of voices: 80 ms of samples to statistics of a window, and a vector each fifth step.

Log-mel frames, four convolutions with ReLU and a linear layer with ReLU, to a frame each 20 ms; mean and deviation of
the frames with voice in the last 1.6 s, or since a pause in them; a linear layer; norm 1. Products of frames have exact
sums of 8-bit inputs; the sums of a window's frames are integers, held exactly in float32; everything else adds in a
fixed order. So a stream's bits depend neither on the batch nor on the processor.

A step is silent if it is far below the loudest one of the last seconds or close to the floor of the noise. After
`QUIET` silent steps a step costs its level alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model.int8.features import FeaturePlan, feature_bytes
from model.int8.kernels import copy_bytes
from model.int8.product import PANEL_SUMS
from model.int8.product_table import BIAS, LIMITS, MULTIPLIER, PANELS, multiply_rows, product_at
from model.int8.vectors import LANES, ROW, Ints, Vectors, kernel
from model.machine.compiled import ZERO, compiled, entry_point, float32_at, int64_at
from model.published.compiled.float_product import float_product
from model.published.compiled.kernels import same, sums_to_bytes

SAMPLES, OVERLAP = 1_280, 240
"""Samples of a step, and those before it that its first frame reads again."""
BINS, CHANNELS, POOLED, SIZE = 48, 192, 384, 256
"""Mel bands, channels of a convolution, of a frame of the last layer, numbers of a vector."""
MELS, FRAMES = 8, 4
"""Frames of 10 ms in a step, and of 20 ms after the first convolution."""
TAPS, STRIDE = 5, 2
"""Frames of 10 ms that a frame of 20 ms reads, and between two of them."""
DILATIONS = (1, 2, 3)
"""Of the other convolutions, of three frames each."""
KEPT = (TAPS - STRIDE, *(2 * dilation for dilation in DILATIONS))
"""Frames of a convolution's inputs that the next step reads again."""
NEW = (MELS, FRAMES, FRAMES, FRAMES)
"""Frames of these inputs in a step."""
WIDTHS = (BINS, CHANNELS, CHANNELS, CHANNELS)
"""Bytes of a frame of these inputs."""
HOP, BLOCKS = 5, 4
"""Steps from a vector to the next, and blocks of that length in a window."""
LEAST, LEAST_NEW = 20, 8
"""Least frames with voice in a window with a vector, and in its newest block."""
PAUSE = 3
"""Silent steps after which a window begins anew, because another voice may follow."""
LATE = 2
"""Steps from the voice in the samples to the frames that describe it."""
QUIET = LATE + 1
"""Silent steps after which nothing is computed."""
RANGE = 1_000
"""30 dB: a silent step has less than this part of the highest energy."""
DECAY, RISE = 8, 6
"""The highest energy falls by 2 ** -DECAY a step, the floor of the noise rises by 2 ** -RISE."""
ABOVE_FLOOR = 3
"""Energy of a step with voice, as a multiple of the floor."""
SILENCE = SAMPLES * 100
"""Energy of a step that is always silent: -70 dB of full scale."""
BLOCK = 16
"""Most streams of a compiled call: their work space fits the second-level cache next to the weights."""
FLOAT = 4  # bytes
STEP_S = SAMPLES / 16_000

HIGHEST, FLOOR, STEPS, QUIET_STEPS, VOICE, BEGAN, COUNTS = range(7)
CONTROLS = COUNTS + BLOCKS
"""int64 numbers of a state: energies, steps, silent steps since voice, one bit each for the last steps with voice, the
steps before the voice after the last pause, and frames with voice in each block, the newest last."""


class Fields(NamedTuple):
    """Byte offsets in a stream's state: numbers, last samples, inputs of the convolutions, sums of each block."""

    samples: int
    contexts: tuple[int, int, int, int]
    sums: int


def fields() -> tuple[Fields, int]:
    """Return the parts of a state, and its size in bytes."""
    samples = CONTROLS * 8
    at, contexts = samples + OVERLAP * 2, []
    for frames, width in zip(KEPT, WIDTHS, strict=True):
        contexts.append(at)
        at += frames * width
    at = contexts[0] + -(-(at - contexts[0]) // ROW) * ROW  # they are cleared in whole vectors
    first, second, third, fourth = contexts
    return Fields(samples, (first, second, third, fourth), at), at + BLOCKS * 2 * POOLED * FLOAT


class Constants(NamedTuple):
    """Addresses of the weights: table of the five products, features, limits of the last outputs, head, offsets."""

    products: int
    features: FeaturePlan
    limits: int  # of the frames that are summed
    floor: int  # (1,) float32: least variance, in units of those frames
    head: int  # (2 * POOLED, SIZE) float32
    bias: int  # (SIZE,) float32
    offsets: tuple[int, int, int]  # int64: rows of the first and of the second convolution, and whole rows


class Work(NamedTuple):
    """Addresses of work space for a block of streams."""

    slots: int  # (BLOCK,) int64, of the streams that are not silent
    pcm: int  # (BLOCK, OVERLAP + SAMPLES) int16, and memory that a window may read past its frame
    frames: int
    power: int
    band: int
    inputs: tuple[int, int, int, int]  # (BLOCK, KEPT[i] + frames, WIDTHS[i]) bytes
    rows: int  # (BLOCK * FRAMES, 3 * CHANNELS) bytes
    last: int  # (BLOCK * FRAMES, CHANNELS) bytes
    pooled: int  # (BLOCK * FRAMES, POOLED) bytes
    sums: int  # (BLOCK * FRAMES, POOLED) int32
    statistics: int  # (2 * POOLED,) float32
    vector: int  # (SIZE,) float32


Network = tuple[Constants, Fields, Work]
States = tuple[int, int, int]
"""Address of the slab, bytes from one state to the next, and number of the streams in `Work.slots`."""

_to_bytes = sums_to_bytes(same)  # least and largest byte bound it: ReLU


@kernel
def add_frame(v: Vectors, frame: Any, sums: Any) -> None:
    """Add a frame of bytes and its squares to the sums of a block; all are integers below 2 ** 24."""
    for index in range(POOLED // LANES):
        x = v.bytes_as_ints(v.at(frame, index * LANES)).to_floats()
        at, square = index * ROW, POOLED * FLOAT + index * ROW
        v.keep(v.floats(sums, at) + x, sums, at)
        v.keep(v.floats(sums, square) + x * x, sums, square)


@kernel
def describe(v: Vectors, sums: Any, count: Any, floor: Any, out: Any) -> None:
    """Write mean and deviation of a window's `count` frames from the sums of its blocks."""
    frames = v.count(count)
    for index in range(POOLED // LANES):
        totals = []
        for part in range(2):
            at = part * POOLED * FLOAT + index * ROW
            total = v.floats(sums, at)
            for block in range(1, BLOCKS):
                total = total + v.floats(sums, block * 2 * POOLED * FLOAT + at)
            totals.append(total / frames)
        mean, square = totals
        v.keep(mean, out, index * ROW)
        v.keep((square - mean * mean).most(v.all(floor)).root(), out, POOLED * FLOAT + index * ROW)


@kernel
def to_norm(v: Vectors, vector: Any, bias: Any) -> None:
    """Add the bias and divide a vector by its length."""
    parts = [v.floats(vector, index * ROW) + v.floats(bias, index * ROW) for index in range(SIZE // LANES)]
    total = v.constant(0.0)
    for part in parts:
        total = total + part * part
    length = total.sum().most(1e-20).root()
    for index, part in enumerate(parts):
        v.keep(part / length, vector, index * ROW)


@kernel
def clear(v: Vectors, memory: Any, size: Any) -> None:
    """Write zeros; `size` bytes, a multiple of 64."""
    zero = Ints(v.builder, v.constant(0.0).as_ints().value)

    def body(index: Any, _: Any) -> Any:
        v.keep(zero.as_floats(), memory, v.times(index, ROW))
        return []

    v.loop(v.builder.udiv(v.number(size), v.number(ROW)), [], body)


@entry_point
def step(network: Network, memory: tuple[int, int, int, int, int], count: int) -> None:
    """Advance at most `BLOCK` streams by a step.

    `memory`: addresses of the samples (count, SAMPLES) int16, of the slots (count,) int64, of the slab of states, the
    bytes from one state to the next, and the address of the outputs (count, 1 + SIZE) float32, zeros.
    """
    _, at, work = network
    samples, slots, slab, stride, out = memory
    used = 0
    for row in range(count):
        state = slab + int64_at(slots)[row] * stride
        pcm = samples + row * SAMPLES * 2
        _measure(state, pcm)
        if int64_at(state)[QUIET_STEPS] < QUIET:
            joined = work.pcm + used * (OVERLAP + SAMPLES) * 2
            copy_bytes(joined, state + at.samples, OVERLAP * 2)
            copy_bytes(joined + OVERLAP * 2, pcm, SAMPLES * 2)
            int64_at(work.slots)[used] = int64_at(slots)[row]
            used += 1
        elif int64_at(state)[QUIET_STEPS] == QUIET:
            clear(state + at.contexts[0], at.sums - at.contexts[0])
        copy_bytes(state + at.samples, pcm + (SAMPLES - OVERLAP) * 2, OVERLAP * 2)
    if used:
        _convolve(network, (slab, stride, used))
        for row in range(used):
            _add_voice(network, slab + int64_at(work.slots)[row] * stride, row)
    for row in range(count):
        _end_step(network, slab + int64_at(slots)[row] * stride, out + row * (1 + SIZE) * FLOAT)


@compiled
def _measure(state: int, pcm: int) -> None:
    """Update the energies of a stream, and whether the step has voice."""
    numbers = int64_at(state)
    energy = _energy(pcm)
    floor = max(numbers[FLOOR], SILENCE)
    numbers[HIGHEST] = max(energy, numbers[HIGHEST] - (numbers[HIGHEST] >> DECAY))
    voice = energy > SILENCE and energy * RANGE > numbers[HIGHEST] and energy > ABOVE_FLOOR * numbers[FLOOR]
    numbers[FLOOR] = min(energy, floor + (floor >> RISE)) if numbers[STEPS] else energy // ABOVE_FLOOR
    numbers[VOICE] = (numbers[VOICE] << 1 | voice) & 255
    numbers[QUIET_STEPS] = 0 if voice else numbers[QUIET_STEPS] + 1
    numbers[STEPS] += 1


@compiled
def _energy(pcm: int) -> int:
    """Sum of the squares of a step's samples."""
    words, energy = int64_at(pcm), ZERO
    for index in range(SAMPLES // 4):
        word = words[index]
        for _ in range(4):
            sample = ((word & 65_535) ^ 32_768) - 32_768
            energy += sample * sample
            word >>= 16
    return energy


@compiled
def _convolve(network: Network, states: States) -> None:
    """Compute the frames of streams, from `work.pcm` to `work.pooled`."""
    constants, _, work = network
    count = states[2]
    first, last = product_at(constants.products, 0), product_at(constants.products, 4)
    _read_contexts(network, states, 0)
    joined, wide = (OVERLAP + SAMPLES) * 2, (KEPT[0] + MELS) * BINS
    memory, frames = (work.frames, work.power, work.band), (work.inputs[0] + KEPT[0] * BINS, wide)
    feature_bytes(constants.features, first[LIMITS], memory, (work.pcm, joined), MELS, count, frames)
    _keep_contexts(network, states, 0)
    multiply_rows(first, work.inputs[0], constants.offsets[0], count * FRAMES, work.sums)
    for layer in range(1, 4):
        _read_contexts(network, states, layer)
        _activate(network, layer - 1, count, work.inputs[layer], KEPT[layer])
        _keep_contexts(network, states, layer)
        wide = (KEPT[layer] + FRAMES) * CHANNELS
        for row in range(count):
            for frame in range(FRAMES):
                target = work.rows + (row * FRAMES + frame) * 3 * CHANNELS
                source = work.inputs[layer] + row * wide + frame * CHANNELS
                for tap in range(3):
                    copy_bytes(target + tap * CHANNELS, source + tap * DILATIONS[layer - 1] * CHANNELS, CHANNELS)
        product = product_at(constants.products, layer)
        multiply_rows(product, work.rows, constants.offsets[1], count * FRAMES, work.sums)
    _activate(network, 3, count, work.last, 0)
    multiply_rows(last, work.last, constants.offsets[2], count * FRAMES, work.sums)
    for row in range(count * FRAMES):
        sums = work.sums + row * last[PANELS] * PANEL_SUMS
        _to_bytes(sums, last[MULTIPLIER], last[BIAS], constants.limits, work.pooled + row * POOLED, POOLED // LANES)


@compiled
def _activate(network: Network, layer: int, count: int, out: int, context_frames: int) -> None:
    """Write the outputs of a convolution from its sums, of each stream after `context_frames`."""
    constants, _, work = network
    product, limits = product_at(constants.products, layer), product_at(constants.products, layer + 1)[LIMITS]
    for row in range(count):
        for frame in range(FRAMES):
            sums = work.sums + (row * FRAMES + frame) * product[PANELS] * PANEL_SUMS
            target = out + (row * (context_frames + FRAMES) + context_frames + frame) * CHANNELS
            _to_bytes(sums, product[MULTIPLIER], product[BIAS], limits, target, CHANNELS // LANES)


@compiled
def _read_contexts(network: Network, states: States, layer: int) -> None:
    """Write the kept frames of a convolution's inputs before the new ones."""
    _, at, work = network
    slab, stride, count = states
    frames, width = KEPT[layer], WIDTHS[layer]
    for row in range(count):
        state = slab + int64_at(work.slots)[row] * stride + at.contexts[layer]
        copy_bytes(work.inputs[layer] + row * (frames + NEW[layer]) * width, state, frames * width)


@compiled
def _keep_contexts(network: Network, states: States, layer: int) -> None:
    """Keep the last frames of a convolution's inputs for the next step."""
    _, at, work = network
    slab, stride, count = states
    frames, width = KEPT[layer], WIDTHS[layer]
    for row in range(count):
        state = slab + int64_at(work.slots)[row] * stride + at.contexts[layer]
        copy_bytes(state, work.inputs[layer] + (row * (frames + NEW[layer]) + NEW[layer]) * width, frames * width)


@compiled
def _add_voice(network: Network, state: int, row: int) -> None:
    """Add the frames of a stream to its newest block, if the samples that they describe have voice."""
    _, at, work = network
    numbers = int64_at(state)
    if numbers[VOICE] >> LATE & ((2 << PAUSE) - 1) == 1:
        clear(state + at.sums, BLOCKS * 2 * POOLED * FLOAT)
        for block in range(BLOCKS):
            numbers[COUNTS + block] = 0
        numbers[BEGAN] = numbers[STEPS] - 1 - LATE
    if numbers[VOICE] >> LATE & 1:
        for frame in range(FRAMES):
            add_frame(
                work.pooled + (row * FRAMES + frame) * POOLED, state + at.sums + (BLOCKS - 1) * 2 * POOLED * FLOAT
            )
        numbers[COUNTS + BLOCKS - 1] += FRAMES


@compiled
def _end_step(network: Network, state: int, out: int) -> None:
    """At the end of a block, write the vector of the window if it has enough voice, and begin a block."""
    constants, at, work = network
    numbers = int64_at(state)
    if numbers[STEPS] % HOP:
        return
    frames = numbers[COUNTS]
    for block in range(1, BLOCKS):
        frames += numbers[COUNTS + block]
    if frames >= LEAST and numbers[COUNTS + BLOCKS - 1] >= LEAST_NEW:
        describe(state + at.sums, frames, constants.floor, work.statistics)
        float_product(
            work.statistics, 2 * POOLED * FLOAT, 1, constants.head, SIZE * FLOAT, 2 * POOLED, SIZE // LANES,
            work.vector, SIZE * FLOAT,
        )  # fmt: skip
        to_norm(work.vector, constants.bias)
        float32_at(out)[0] = min(numbers[STEPS] - numbers[BEGAN], BLOCKS * HOP) * STEP_S
        copy_bytes(out + FLOAT, work.vector, SIZE * FLOAT)
    if frames:
        size = 2 * POOLED * FLOAT
        for block in range(BLOCKS - 1):
            copy_bytes(state + at.sums + block * size, state + at.sums + (block + 1) * size, size)
            numbers[COUNTS + block] = numbers[COUNTS + block + 1]
        clear(state + at.sums + (BLOCKS - 1) * size, size)
        numbers[COUNTS + BLOCKS - 1] = 0
