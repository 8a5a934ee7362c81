"""Compiled step of the encoder of voices: 80 ms of samples to states of an LSTM, and a vector each `HOP` steps.

Mel energies of frames of 10 ms at an equal level, three LSTM layers, a linear layer with ReLU, norm 1, less the mean of
many voices, norm 1. A run of the LSTM begins after a pause and lasts `ENDS` steps with voice; another one begins when
it has had `FOLLOWS`. The oldest gives the vectors. Products of 8-bit outputs of the layers have exact sums; everything
else adds in a fixed order in float32. So a stream's bits depend neither on the batch nor on the processor.

A step is silent if it is far below the loudest one of the last seconds or close to the floor of the noise. The states
do not see silent steps, which cost their level alone.
Source of the network: Wan et al. 2018, https://arxiv.org/abs/1710.10467.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model.int8.features import FeaturePlan, power_spectrum
from model.int8.kernels import copy_bytes, quantized, scaled
from model.int8.product_table import BIAS, MULTIPLIER, multiply_rows, product_at
from model.int8.vectors import LANES, ROW, Floats, Vectors, kernel
from model.machine.compiled import ZERO, compiled, entry_point, float32_at, int64_at
from model.published.compiled.float_product import float_product
from model.published.filter_bank import band_energy

SAMPLES, OVERLAP = 1_280, 240
"""Samples of a step, and those before it that its first frame reads again."""
BANDS, HIDDEN, LAYERS, SIZE = 40, 256, 3, 256
"""Mel bands, outputs of a layer, layers, numbers of a vector."""
FRAMES = 8
"""Frames of 10 ms in a step."""
HOP, RUNS = 5, 2
"""Steps from a vector to the next, and most runs of a stream at a time."""
FOLLOWS, ENDS = 20, 25
"""Steps with voice of a run at which the next one begins, and at which it ends."""
LEAST, LEAST_NEW = 5, 2
"""Least steps with voice in a run with a vector, and among the last `HOP`."""
PAUSE = 3
"""Silent steps after which all runs begin anew, because another voice may follow."""
RANGE = 1_000
"""30 dB: a silent step has less than this part of the highest energy."""
DECAY, RISE = 8, 6
"""The highest energy falls by 2 ** -DECAY a step, the floor of the noise rises by 2 ** -RISE."""
ABOVE_FLOOR = 3
"""Energy of a step with voice, as a multiple of the floor."""
SILENCE = SAMPLES * 100
"""Energy of a step that is always silent: -70 dB of full scale."""
LEVEL = SAMPLES * 32_768 * 32_768 / 1_000
"""Energy of a step with voice at the level that the network expects: -30 dB of full scale."""
REMEMBERED = 32
"""Steps with voice whose energies make up the level of a stream."""
BLOCK, ROWS = 12, 48
"""Most streams of a compiled call: as many as the largest tiles of products have rows; most rows of a product."""
FLOAT = 4  # bytes
STEP_S = SAMPLES / 16_000
MEL_ROW = -(-BANDS // LANES) * ROW
"""Bytes of a frame's energies."""
GATES = 4 * HIDDEN * FLOAT
"""Bytes of the gates of a layer: input, forget, cell, output."""

HIGHEST, FLOOR, MEAN, VOICED, STEPS, VOICE, COUNTS = range(7)
BEGAN, CONTROLS = COUNTS + RUNS, COUNTS + 2 * RUNS
"""int64 numbers of a state: energies, steps with voice and all steps, one bit each for the last steps with voice, the
steps with voice of each run, 0 for one that does not go on, and the steps before it."""
OUTPUTS, CELLS = LAYERS * HIDDEN, LAYERS * HIDDEN * FLOAT
"""Bytes of a run's outputs of all layers, as bytes, and of their cells, as floats."""


class Fields(NamedTuple):
    """Byte offsets in a stream's state: last samples, and runs of outputs and cells."""

    samples: int
    runs: int


def fields() -> tuple[Fields, int]:
    """Return the parts of a state, and its size in bytes."""
    samples = CONTROLS * 8
    runs = samples + OVERLAP * 2
    return Fields(samples, runs), runs + RUNS * (OUTPUTS + CELLS)


class Constants(NamedTuple):
    """Addresses of the weights.

    `products`: a table of the recurrent product of the first layer, input and recurrent product of the second and the
    third, and the linear layer.
    """

    products: int
    features: FeaturePlan
    first: int  # (BANDS, 4 * HIDDEN) float32: inputs of the first layer
    limits: int  # of the outputs as bytes
    center: int  # (SIZE,) float32: mean of many vectors
    offsets: int  # (ROWS,) int64: rows of outputs
    fresh: int  # a run that begins


class Work(NamedTuple):
    """Addresses of work space for a block of streams."""

    gains: int  # (BLOCK,) float32, of the streams with voice
    pcm: int  # (BLOCK, OVERLAP + SAMPLES) int16, and memory that a window may read past its frame
    frames: int
    power: int
    band: int
    mels: int  # (FRAMES, streams, MEL_ROW) bytes
    runs: int  # (BLOCK * RUNS,) int64: addresses of the runs
    rows: int  # (BLOCK * RUNS,) int64: the stream of each, among those with voice
    outputs: tuple[int, int, int]  # (1 + frames, runs, HIDDEN) bytes: the last outputs, and those of the frames
    inputs: int  # (ROWS, 4 * HIDDEN) float32 or int32: gates' part of a layer's inputs
    sums: int  # (BLOCK * RUNS, 4 * HIDDEN) int32: gates' part of the last outputs
    vector: int  # (SIZE,) float32


Network = tuple[Constants, Fields, Work]


def _advance(v: Vectors, gate_of: Any, cell: Any, limits: Any, out: Any) -> None:
    """Compute a step of a layer: its cells in place, and its outputs as bytes.

    `gate_of(gate, offset)`: sum of a gate's inputs at a vector. Source: Hochreiter and Schmidhuber 1997.
    """

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        inward, forget, new, outward = (gate_of(gate, offset) for gate in range(4))
        memory = forget.sigmoid() * v.floats(cell, offset) + _gated_tanh(v, inward, new)
        v.keep(memory, cell, offset)
        v.keep_bytes(quantized(v, _gated_tanh(v, outward, memory), limits), out, v.times(index, LANES))
        return []

    v.loop(HIDDEN // LANES, [], body)


def _gated_tanh(v: Vectors, gate: Floats, x: Floats) -> Floats:
    """Return sigmoid(gate) * tanh(x) with one division."""
    power = (x * -2.0).exp()
    return (v.constant(1.0) - power) / (((-gate).exp() + 1.0) * (power + 1.0))


@kernel
def advance_first(
    v: Vectors, inputs: Any, sums: Any, multiplier: Any, bias: Any, cell: Any, limits: Any, out: Any
) -> None:
    """Compute a step of the first layer, whose inputs' part of the gates is in floats."""

    def gate_of(gate: int, offset: Any) -> Floats:
        at = v.at(offset, gate * HIDDEN * FLOAT)
        return v.floats(inputs, at) + scaled(v, sums, multiplier, bias, at)

    _advance(v, gate_of, cell, limits, out)


@kernel
def advance(v: Vectors, inputs: Any, sums: Any, multiplier: Any, bias: Any, cell: Any, limits: Any, out: Any) -> None:
    """Compute a step of another layer, whose inputs and last outputs have the same scale."""

    def gate_of(gate: int, offset: Any) -> Floats:
        at = v.at(offset, gate * HIDDEN * FLOAT)
        total = (v.ints(inputs, at) + v.ints(sums, at)).to_floats()
        return total * v.floats(multiplier, at) + v.floats(bias, at)

    _advance(v, gate_of, cell, limits, out)


@kernel
def to_vector(v: Vectors, sums: Any, multiplier: Any, bias: Any, center: Any, out: Any) -> None:
    """Write the vector: ReLU of the linear layer, norm 1, less the mean, norm 1."""
    parts = [scaled(v, sums, multiplier, bias, index * ROW).most(0.0) for index in range(SIZE // LANES)]
    length = _length(v, parts)
    parts = [part / length - v.floats(center, index * ROW) for index, part in enumerate(parts)]
    length = _length(v, parts)
    for index, part in enumerate(parts):
        v.keep(part / length, out, index * ROW)


def _length(v: Vectors, parts: list[Floats]) -> Floats:
    total = v.constant(0.0)
    for part in parts:
        total = total + part * part
    return total.sum().most(1e-20).root()


@entry_point
def step(network: Network, memory: tuple[int, int, int, int, int], count: int) -> None:
    """Advance at most `BLOCK` streams by a step.

    `memory`: addresses of the samples (count, SAMPLES) int16, of the slots (count,) int64, of the slab of states, the
    bytes from one state to the next, and the address of the outputs (count, 1 + SIZE) float32, zeros.
    """
    _, at, work = network
    samples, slots, slab, stride, out = memory
    used = runs = 0
    for row in range(count):
        state = slab + int64_at(slots)[row] * stride
        pcm = samples + row * SAMPLES * 2
        _measure(state, pcm)
        if int64_at(state)[VOICE] & 1:
            joined = work.pcm + used * (OVERLAP + SAMPLES) * 2
            copy_bytes(joined, state + at.samples, OVERLAP * 2)
            copy_bytes(joined + OVERLAP * 2, pcm, SAMPLES * 2)
            float32_at(work.gains)[used] = LEVEL / max(int64_at(state)[MEAN], SILENCE)
            runs = _choose_runs(network, state, used, runs)
            used += 1
        copy_bytes(state + at.samples, pcm + (SAMPLES - OVERLAP) * 2, OVERLAP * 2)
    if used:
        _energies(network, used)
        _recur(network, used, runs)
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
    numbers[STEPS] += 1
    if voice:
        numbers[VOICED] += 1
        numbers[MEAN] += (energy - numbers[MEAN]) // min(numbers[VOICED], REMEMBERED)


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
def _energies(network: Network, streams: int) -> None:
    """Compute the mel energies of the frames of streams, from `work.pcm` to `work.mels`."""
    constants, _, work = network
    plan, wide = constants.features, (OVERLAP + SAMPLES) * 2
    starts, lanes, bands = int64_at(work.frames), float32_at(work.band), int64_at(plan.bands)
    tables = (plan.window, plan.twiddles, plan.splits, plan.order)
    total = streams * FRAMES
    for first in range(0, total, LANES):
        for lane in range(LANES):
            row, frame = divmod(min(first + lane, total - 1), FRAMES)
            starts[lane] = work.pcm + row * wide + frame * plan.hop * 2
        power_spectrum(work.frames, plan.window_vectors, tables, plan.fft_size, work.power)
        for band in range(BANDS):
            weights = plan.band_weights + bands[3 * band + 2] * 4
            band_energy(work.power + bands[3 * band] * ROW, weights, bands[3 * band + 1], work.band)
            for lane in range(min(LANES, total - first)):
                row, frame = divmod(first + lane, FRAMES)
                energy = lanes[lane] * float32_at(work.gains)[row]
                float32_at(work.mels + (frame * streams + row) * MEL_ROW)[band] = energy


@compiled
def _recur(network: Network, streams: int, runs: int) -> None:
    """Advance the runs of streams by the frames of a step."""
    _, _, work = network
    group = FRAMES
    while group * runs > ROWS:
        group //= 2
    for run in range(runs):
        outputs = int64_at(work.runs)[run]
        for layer in range(LAYERS):
            copy_bytes(work.outputs[layer] + run * HIDDEN, outputs + layer * HIDDEN, HIDDEN)
    for first in range(0, FRAMES, group):
        for layer in range(LAYERS):
            _layer(network, layer, (first, group), (streams, runs))
        for layer in range(LAYERS):
            copy_bytes(work.outputs[layer], work.outputs[layer] + group * runs * HIDDEN, runs * HIDDEN)
    for run in range(runs):
        outputs = int64_at(work.runs)[run]
        for layer in range(LAYERS):
            copy_bytes(outputs + layer * HIDDEN, work.outputs[layer] + run * HIDDEN, HIDDEN)


@compiled
def _layer(network: Network, layer: int, frames: tuple[int, int], rows: tuple[int, int]) -> None:
    """Advance a layer by frames: the first of them, and their number; `rows`: numbers of streams and of runs."""
    constants, _, work = network
    (first, group), (streams, runs), outputs = frames, rows, work.outputs[layer]
    product = product_at(constants.products, 2 * layer)
    if layer == 0:
        mels = work.mels + first * streams * MEL_ROW
        vectors = 4 * HIDDEN // LANES
        float_product(mels, MEL_ROW, group * streams, constants.first, GATES, BANDS, vectors, work.inputs, GATES)
    else:
        below = work.outputs[layer - 1] + runs * HIDDEN
        from_below = product_at(constants.products, 2 * layer - 1)
        multiply_rows(from_below, below, constants.offsets, group * runs, work.inputs)
    for frame in range(group):
        multiply_rows(product, outputs + frame * runs * HIDDEN, constants.offsets, runs, work.sums)
        for run in range(runs):
            sums, cell = work.sums + run * GATES, int64_at(work.runs)[run] + OUTPUTS + layer * HIDDEN * FLOAT
            out = outputs + ((1 + frame) * runs + run) * HIDDEN
            if layer == 0:
                inputs = work.inputs + (frame * streams + int64_at(work.rows)[run]) * GATES
                advance_first(inputs, sums, product[MULTIPLIER], product[BIAS], cell, constants.limits, out)
            else:
                inputs = work.inputs + (frame * runs + run) * GATES
                advance(inputs, sums, product[MULTIPLIER], product[BIAS], cell, constants.limits, out)


@compiled
def _choose_runs(network: Network, state: int, row: int, runs: int) -> int:
    """End and begin runs of a stream before a step with voice; list those that go on; return the number of all."""
    constants, at, work = network
    numbers = int64_at(state)
    if numbers[VOICE] & ((2 << PAUSE) - 1) == 1:
        for run in range(RUNS):
            numbers[COUNTS + run] = 0
    newest, free = ENDS, 0
    for run in range(RUNS):
        if numbers[COUNTS + run] == ENDS:
            numbers[COUNTS + run] = 0
        if numbers[COUNTS + run]:
            newest = min(newest, numbers[COUNTS + run])
        else:
            free = run
    if newest in (FOLLOWS, ENDS):
        copy_bytes(state + at.runs + free * (OUTPUTS + CELLS), constants.fresh, OUTPUTS + CELLS)
        numbers[COUNTS + free], numbers[BEGAN + free] = 1, numbers[STEPS] - 1
        int64_at(work.runs)[runs] = state + at.runs + free * (OUTPUTS + CELLS)
        int64_at(work.rows)[runs] = row
        runs += 1
    else:
        free = RUNS
    for run in range(RUNS):
        if run != free and numbers[COUNTS + run]:
            numbers[COUNTS + run] += 1
            int64_at(work.runs)[runs] = state + at.runs + run * (OUTPUTS + CELLS)
            int64_at(work.rows)[runs] = row
            runs += 1
    return runs


@compiled
def _end_step(network: Network, state: int, out: int) -> None:
    """At the end of a hop, write the vector of the oldest run if it has enough voice."""
    constants, at, work = network
    numbers = int64_at(state)
    if numbers[STEPS] % HOP:
        return
    oldest = 0
    for run in range(1, RUNS):
        oldest = run if numbers[COUNTS + run] > numbers[COUNTS + oldest] else oldest
    new, bits = 0, numbers[VOICE] & ((1 << HOP) - 1)
    while bits:
        new, bits = new + (bits & 1), bits >> 1
    if numbers[COUNTS + oldest] >= LEAST and new >= LEAST_NEW:
        last, outputs = product_at(constants.products, 2 * LAYERS - 1), state + at.runs + oldest * (OUTPUTS + CELLS)
        multiply_rows(last, outputs + (LAYERS - 1) * HIDDEN, constants.offsets, 1, work.sums)
        to_vector(work.sums, last[MULTIPLIER], last[BIAS], constants.center, work.vector)
        float32_at(out)[0] = (numbers[STEPS] - numbers[BEGAN + oldest]) * STEP_S
        copy_bytes(out + FLOAT, work.vector, SIZE * FLOAT)
