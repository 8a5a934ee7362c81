"""Vector kernels of Zipformer 2 alone: convolutions over bins and frames, gates, masked softmax, sums of frames.

Arguments are addresses, strides in bytes, and counts, as in `model.published.compiled.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.int8.vectors import F32, LANES, ROW, Floats, Vectors, kernel, splat
from model.machine.instructions import instruction_set
from model.published.compiled.kernels import swoosh_r

WINDOW_ROWS = 4
WINDOW_VECTORS = 4 if instruction_set() == "vnni512" else 1  # as many accumulators as there are registers for
MASKED = -(2.0**100)
UNMASKED = 2.0**-100


def make_windows(rows: int, columns: int) -> Callable[..., None]:
    """Return a kernel: `rows` rows of a convolution's outputs, `columns` vectors of channels, without the bias.

    Arguments: address of the first input, bytes from one output's inputs to the next one's, taps of the first axis and
    bytes between them, floats of each tap, weights (taps * floats, channels) and bytes between their rows, address of
    the outputs and bytes between their rows.
    """

    def windows(
        v: Vectors,
        x: Any,
        stride: Any,
        taps: Any,
        tap_stride: Any,
        depth: Any,
        weights: Any,
        weight_stride: Any,
        out: Any,
        out_stride: Any,
    ) -> None:
        builder = v.builder
        starts = [v.at(x, v.times(stride, row)) for row in range(rows)]

        def tap(number: Any, totals: list[Any]) -> list[Any]:
            offset = v.times(number, tap_stride)
            first = v.at(weights, v.times(v.times(number, depth), weight_stride))

            def body(index: Any, carried: list[Any]) -> list[Any]:
                here = v.at(first, v.times(weight_stride, index))
                kept = [v.floats(here, ROW * column) for column in range(columns)]
                results = []
                for row, start in enumerate(starts):
                    place = v.at(v.at(start, offset), v.times(index, 4))
                    one = Floats(builder, splat(builder, v.load(place, F32), LANES))
                    results += [carried[columns * row + column] + one * kept[column] for column in range(columns)]
                return results

            return v.loop(depth, totals, body)

        for place, result in enumerate(v.loop(taps, [v.constant(0.0)] * (rows * columns), tap)):
            row, column = divmod(place, columns)
            v.keep(result, v.at(out, v.times(out_stride, row)), ROW * column)

    return kernel(windows)


def make_depthwise_bins(together: int) -> Callable[..., None]:
    """Return a kernel: one output of a 7 x 7 convolution per channel, for `together` vectors of channels.

    Arguments: address of the first input, bytes from one frame to the next and from one bin to the next, weights
    (49, channels) and bias, output.
    """

    def depthwise(v: Vectors, x: Any, frame_stride: Any, bin_stride: Any, weights: Any, bias: Any, out: Any) -> None:
        def frame(number: Any, totals: list[Any]) -> list[Any]:
            first = v.at(x, v.times(number, frame_stride))
            kept = v.at(weights, v.times(v.times(number, 7), bin_stride))
            for tap in range(7):
                offset = v.times(bin_stride, tap)
                totals = [
                    total + v.floats(v.at(first, offset), ROW * each) * v.floats(v.at(kept, offset), ROW * each)
                    for each, total in enumerate(totals)
                ]
            return totals

        begin = [v.floats(bias, ROW * each) for each in range(together)]
        for each, result in enumerate(v.loop(7, begin, frame)):
            v.keep(result, out, ROW * each)

    return kernel(depthwise)


def make_chunk_convolution(together: int) -> Callable[..., None]:
    """Return a kernel: SwooshR of one frame of the convolution module, for `together` vectors of channels.

    Arguments: bytes from one frame to the next; first frame, weights and number of taps of the causal part; those of
    the part within the chunk; biases of both; scale of the second; output. Weights have the stride of the frames.
    """

    def convolution(
        v: Vectors,
        stride: Any,
        causal_frames: Any,
        causal: Any,
        causal_taps: Any,
        chunk_frames: Any,
        chunk: Any,
        chunk_taps: Any,
        causal_bias: Any,
        chunk_bias: Any,
        edge: Any,
        out: Any,
    ) -> None:
        def summed(frames: Any, weights: Any, taps: Any, bias: Any) -> list[Any]:
            def tap(number: Any, totals: list[Any]) -> list[Any]:
                offset = v.times(number, stride)
                return [
                    total + v.floats(v.at(frames, offset), ROW * each) * v.floats(v.at(weights, offset), ROW * each)
                    for each, total in enumerate(totals)
                ]

            return v.loop(taps, [v.floats(bias, ROW * each) for each in range(together)], tap)

        left = summed(causal_frames, causal, causal_taps, causal_bias)
        right = summed(chunk_frames, chunk, chunk_taps, chunk_bias)
        for each in range(together):
            v.keep(swoosh_r(left[each] + right[each] * v.floats(edge, ROW * each)), out, ROW * each)

    return kernel(convolution)


@kernel
def masked_softmax(v: Vectors, scores: Any, relative: Any, mask: Any, vectors: Any) -> None:
    """Replace scores by softmax(scores + relative); where the mask is `MASKED` instead of 0 the result is 0."""

    def highest(index: Any, carried: list[Any]) -> Any:
        offset = v.times(index, ROW)
        y = v.floats(scores, offset) + v.floats(relative, offset) + v.floats(mask, offset)
        v.keep(y, scores, offset)
        return [carried[0].most(y)]

    top = v.loop(vectors, [v.constant(MASKED)], highest)[0].largest()

    def add_power(index: Any, carried: list[Any]) -> Any:
        offset = v.times(index, ROW)
        power = (v.floats(scores, offset) - top).exp() * (v.floats(mask, offset) * UNMASKED + 1.0)
        v.keep(power, scores, offset)
        return [carried[0] + power]

    inverse = v.constant(1.0) / v.loop(vectors, [v.constant(0.0)], add_power)[0].sum()

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(scores, offset) * inverse, scores, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def weighted_sum(v: Vectors, frames: Any, stride: Any, weights: Any, count: Any, out: Any, vectors: Any) -> None:
    """Add up `count` frames, each times one weight."""

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)

        def add_frame(number: Any, carried: list[Any]) -> list[Any]:
            frame = v.floats(frames, v.at(v.times(number, stride), offset))
            return [carried[0] + frame * v.all(weights, v.times(number, 4))]

        v.keep(v.loop(count, [v.constant(0.0)], add_frame)[0], out, offset)
        return []

    v.loop(vectors, [], body)
