"""Compiled step of the Silero network: windows of 16-bit samples to probabilities of speech, in float32.

Short-time Fourier transform, four convolutions over its frames, an LSTM and a linear layer. A stream's windows are
independent up to the LSTM. Every product adds its terms in order, so a window has the same bits in every row, batch
and on every processor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model.int8.vectors import LANES, ROW, Floats, Vectors, kernel
from model.machine.compiled import compiled, entry_point, float32_at, int64_at, uint16_at
from model.published.compiled.float_product import float_product
from model.published.compiled.kernels import floats_to_floats, relu

WINDOW = 512  # samples
WINDOWS = 8  # most windows of a row: as many as a step of 240 ms of the recognizer completes
ROW_SAMPLES = WINDOWS * WINDOW + 1  # the last number of a row is that of its windows
CONTEXT = 64  # samples of the previous window that a window reads again, and samples that it mirrors at its end
FRAMES, HOP = 4, 128  # of the transform in a window; a frame has two hops
BANDS = 144  # 129 frequencies of a frame, padded to whole vectors
WIDTHS = (128, 64, 64, 128)  # channels after each convolution
HIDDEN = 128
STATE_BYTES = 4 * (2 * HIDDEN + CONTEXT)
"""State of a stream, float32: output and cell of the LSTM, and the last samples."""
STREAMS = 2  # whose rows are computed together
BLOCK = STREAMS * WINDOWS
"""Most windows that are computed together: their work space fits the second-level cache next to the weights."""

SAMPLES = CONTEXT + WINDOW + CONTEXT
TAPS = 3
FLOAT = 4  # bytes

_relu = floats_to_floats(relu)


class Weights(NamedTuple):
    """Addresses of the weights, float32; matrices are (inputs, outputs)."""

    cosines: int  # (HOP, BANDS)
    sines: int  # (HOP, BANDS)
    convolutions: tuple[int, int, int, int]  # (taps * channels, WIDTHS[i])
    biases: tuple[int, int, int, int]
    inputs: int  # (HIDDEN, 4 * HIDDEN): input, forget, cell and output gate of the LSTM
    recurrent: int  # (HIDDEN, 4 * HIDDEN)
    gates: int  # (4 * HIDDEN,), the sum of both biases
    head: int  # (HIDDEN,)
    head_bias: int  # (1,)


class Work(NamedTuple):
    """Addresses of work space for a block of windows, float32, zeroed once: what pads the convolutions stays zero."""

    samples: int  # (SAMPLES,)
    folded: int  # (BLOCK * FRAMES, 2 * HOP)
    transform: int  # (BLOCK * FRAMES, 2 * BANDS)
    magnitudes: int  # (BLOCK, 1 + FRAMES + 1, BANDS)
    first: int  # (BLOCK, 1 + FRAMES, WIDTHS[0])
    second: int  # (BLOCK, 2, WIDTHS[1])
    third: int  # (BLOCK, WIDTHS[2])
    fourth: int  # (BLOCK, WIDTHS[3])
    inputs: int  # (BLOCK, 4 * HIDDEN)
    states: int  # (BLOCK, HIDDEN), the streams' outputs before a window
    recurrent: int  # (BLOCK, 4 * HIDDEN)
    probability: int  # (LANES,)


@kernel
def widen(v: Vectors, shorts: Any, out: Any, vectors: Any) -> None:
    """Convert 16-bit samples to floats within ±1."""

    def body(index: Any, _: Any) -> Any:
        v.keep(v.floats_of_shorts(v.at(shorts, v.times(index, ROW // 2))) * (1 / 32_768), out, v.times(index, ROW))
        return []

    v.loop(vectors, [], body)


@kernel
def mirror(v: Vectors, source: Any, out: Any, vectors: Any) -> None:
    """Copy a row in reverse order."""

    def body(index: Any, _: Any) -> Any:
        end = v.times(v.builder.sub(v.number(vectors), index), ROW)
        v.keep(v.floats(source, v.builder.sub(end, v.number(ROW))).mirrored(), out, v.times(index, ROW))
        return []

    v.loop(vectors, [], body)


@kernel
def fold(v: Vectors, frame: Any, out: Any) -> None:
    """Write sums and differences of the samples at equal distances from a frame's middle, 1 … HOP from its ends.

    The window is symmetric, so half of the products suffice. The middle itself is in both; its weights are halved.
    """
    for index in range(HOP // LANES):
        near = v.floats(frame, FLOAT + index * ROW)
        far = v.floats(frame, FLOAT * 2 * HOP - (index + 1) * ROW).mirrored()
        v.keep(near + far, out, index * ROW)
        v.keep(near - far, out, FLOAT * HOP + index * ROW)


@kernel
def magnitude(v: Vectors, real: Any, out: Any) -> None:
    """Compute the magnitudes of a frame's bands; the imaginary parts follow the real ones."""
    for index in range(BANDS // LANES):
        x, y = v.floats(real, index * ROW), v.floats(real, FLOAT * BANDS + index * ROW)
        v.keep((x * x + y * y).root(), out, index * ROW)


@kernel
def advance_cell(v: Vectors, inputs: Any, recurrent: Any, bias: Any, state: Any) -> None:
    """Advance a stream's LSTM by the sums of its gates; `state` has the output and then the cell."""

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)

        def gate(which: int) -> Floats:
            here = v.at(offset, which * FLOAT * HIDDEN)
            return v.floats(inputs, here) + v.floats(recurrent, here) + v.floats(bias, here)

        place = v.at(offset, FLOAT * HIDDEN)
        cell = gate(1).sigmoid() * v.floats(state, place) + gate(0).sigmoid() * gate(2).tanh()
        v.keep(cell, state, place)
        v.keep(gate(3).sigmoid() * cell.tanh(), state, offset)
        return []

    v.loop(HIDDEN // LANES, [], body)


@kernel
def speech(v: Vectors, output: Any, weights: Any, bias: Any, out: Any) -> None:
    """Write the probability of speech into all lanes of `out`."""

    def body(index: Any, carried: list[Any]) -> Any:
        offset = v.times(index, ROW)
        return [carried[0] + v.floats(output, offset).most(0.0) * v.floats(weights, offset)]

    total = v.loop(HIDDEN // LANES, [v.constant(0.0)], body)[0].sum()
    v.keep((total + v.all(bias)).sigmoid(), out)


@entry_point
def step(network: tuple[Weights, Work], memory: tuple[int, int, int, int, int], count: int) -> None:
    """Advance `count` streams by the windows of their rows.

    `memory`: addresses of the rows (count, ROW_SAMPLES) int16, of the slots (count,) int64, of the slab of states, the
    bytes from one state to the next, and the address of the probabilities (count, WINDOWS) float32.
    """
    rows, slots, slab, stride, out = memory
    for first in range(0, count, STREAMS):
        part = (rows + first * ROW_SAMPLES * 2, slots + first * 8, slab, stride, out + first * WINDOWS * FLOAT)
        _advance(network, part, min(STREAMS, count - first))


@compiled
def _advance(network: tuple[Weights, Work], memory: tuple[int, int, int, int, int], count: int) -> None:
    """Advance at most `STREAMS` streams."""
    weights, work = network
    rows, slots, slab, stride, _ = memory
    steps = 0
    for stream in range(count):
        steps = max(steps, _windows(rows, stream))
    for stream in range(count):
        state = slab + int64_at(slots)[stream] * stride
        for window in range(_windows(rows, stream)):
            shorts = rows + (stream * ROW_SAMPLES + window * WINDOW) * 2
            _transform(work, state + 2 * HIDDEN * FLOAT, shorts, stream * steps + window)
    _convolve(weights, work, count * steps)
    for window in range(steps):
        _recur(weights, work, memory, (count, steps), window)


@compiled
def _windows(rows: int, stream: int) -> int:
    """Return the number of windows in a row."""
    return min(int(uint16_at(rows)[stream * ROW_SAMPLES + WINDOWS * WINDOW]), WINDOWS)


@compiled
def _transform(work: Work, context: int, shorts: int, row: int) -> None:
    """Fold the frames of a window, and replace the stream's last samples."""
    samples = work.samples
    for i in range(CONTEXT):
        float32_at(samples)[i] = float32_at(context)[i]
    end = samples + (CONTEXT + WINDOW) * FLOAT
    widen(shorts, samples + CONTEXT * FLOAT, WINDOW // LANES)
    mirror(end - (CONTEXT + 1) * FLOAT, end, CONTEXT // LANES)
    for i in range(CONTEXT):
        float32_at(context)[i] = float32_at(end - CONTEXT * FLOAT)[i]
    for frame in range(FRAMES):
        fold(samples + frame * HOP * FLOAT, work.folded + (row * FRAMES + frame) * 2 * HOP * FLOAT)


@compiled
def _convolve(weights: Weights, work: Work, rows: int) -> None:
    """Compute the inputs of the LSTM's gates for all windows from their folded frames."""
    bands, halves = BANDS * FLOAT, 2 * HOP * FLOAT
    frames, spectrum = rows * FRAMES, 2 * bands
    real, imaginary = work.transform, work.transform + bands
    float_product(work.folded, halves, frames, weights.cosines, bands, HOP, BANDS // LANES, real, spectrum)
    odd = work.folded + HOP * FLOAT
    float_product(odd, halves, frames, weights.sines, bands, HOP, BANDS // LANES, imaginary, spectrum)
    first, second, third, fourth = WIDTHS
    for row in range(rows):
        padded = work.magnitudes + row * (FRAMES + 2) * bands
        for frame in range(FRAMES):
            magnitude(real + (row * FRAMES + frame) * spectrum, padded + (frame + 1) * bands)
        out = work.first + row * (FRAMES + 1) * first * FLOAT
        frame_rows = out + first * FLOAT
        _convolution(weights, 0, (padded, bands, FRAMES, TAPS * BANDS), (frame_rows, first))
        _convolution(
            weights, 1, (out, 2 * first * FLOAT, 2, TAPS * first), (work.second + row * 2 * second * FLOAT, second)
        )
    _convolution(weights, 2, (work.second, 2 * second * FLOAT, rows, 2 * second), (work.third, third))
    _convolution(weights, 3, (work.third, third * FLOAT, rows, third), (work.fourth, fourth))
    _gate_sums(work.fourth, rows, weights.inputs, work.inputs)


@compiled
def _convolution(weights: Weights, layer: int, inputs: tuple[int, int, int, int], outputs: tuple[int, int]) -> None:
    """Compute a convolution and its ReLU; `inputs`: address, bytes between windows, windows, numbers in a window."""
    left, stride, rows, depth = inputs
    out, width = outputs
    bytes_each = width * FLOAT
    float_product(left, stride, rows, weights.convolutions[layer], bytes_each, depth, width // LANES, out, bytes_each)
    for row in range(rows):
        _relu(out + row * bytes_each, weights.biases[layer], out + row * bytes_each, width // LANES)


@compiled
def _gate_sums(left: int, rows: int, weights: int, out: int) -> None:
    """Multiply rows (rows, HIDDEN) by one of the LSTM's matrices."""
    size, gates = HIDDEN * FLOAT, 4 * HIDDEN
    float_product(left, size, rows, weights, gates * FLOAT, HIDDEN, gates // LANES, out, gates * FLOAT)


@compiled
def _recur(
    weights: Weights, work: Work, memory: tuple[int, int, int, int, int], shape: tuple[int, int], window: int
) -> None:
    """Advance all streams that have this window over it, to its probability; `shape`: streams, most windows of one."""
    rows, slots, slab, stride, out = memory
    count, steps = shape
    gates = 4 * HIDDEN * FLOAT
    for stream in range(count):
        state = slab + int64_at(slots)[stream] * stride
        for i in range(HIDDEN):
            float32_at(work.states)[stream * HIDDEN + i] = float32_at(state)[i]
    _gate_sums(work.states, count, weights.recurrent, work.recurrent)
    for stream in range(count):
        if window >= _windows(rows, stream):
            continue
        row, state = stream * steps + window, slab + int64_at(slots)[stream] * stride
        advance_cell(work.inputs + row * gates, work.recurrent + stream * gates, weights.gates, state)
        speech(state, weights.head, weights.head_bias, work.probability)
        float32_at(out)[stream * WINDOWS + window] = float32_at(work.probability)[0]
