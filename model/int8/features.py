"""Log-mel features of sixteen frames at a time, one frame per lane: window, transform, power, mel bands, logarithm.

The same features as `model.torch_network.network.LogMel`, in an order of operations that does not depend on the
processor. The transform of real samples is a complex one of half the length, radix 2, decimation in frequency,
in place.
Source: Cooley and Tukey 1965; the split of its result into that of the real samples, Sorensen et al. 1987.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.audio.mel import FLOOR, FeatureConfig
from model.int8.kernels import quantized
from model.int8.vectors import LANES, ROW, Floats, Vectors, kernel
from model.machine.compiled import compiled, int64_at, uint8_at

FILTER_STEPS = (
    2**20
)  # per unit: filter weights are multiples of this, so the last bit of a library's log10 does not matter


Keep = Callable[[NDArray[Any]], int]


class FeaturePlan(NamedTuple):
    """Addresses of the tables, and sizes."""

    window: int
    twiddles: int
    splits: int
    order: int
    bands: int
    band_weights: int
    mean: int
    scale: int
    window_vectors: int
    fft_size: int
    band_count: int
    hop: int


@dataclass(frozen=True, slots=True)
class FeatureTables:
    """Constant tables of the features.

    `window` (W,) float32, W a multiple of 16, scaled so that power is that of samples in ±1; `twiddles`
    (fft_size / 4, 2) and `splits` (fft_size / 4 + 1, 2) float32, cosine and sine; `order` (fft_size / 2,) int64: row of
    each frequency after the transform; `bands` (F, 3) int64: first bin, number of bins, first of its `weights` (any,).
    """

    window: NDArray[np.float32]
    twiddles: NDArray[np.float32]
    splits: NDArray[np.float32]
    order: NDArray[np.int64]
    bands: NDArray[np.int64]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, config: FeatureConfig, filters: NDArray[np.float32]) -> FeatureTables:
        """Compute the tables; `filters` (fft_size / 2 + 1, F).

        Raises: ValueError if the size of the transform is not a power of two.
        """
        size = config.fft_size
        if size & (size - 1):
            raise ValueError(f"fft_size {size} is not a power of two")
        length = config.window_samples
        window = np.zeros(-(-length // LANES) * LANES, np.float32)
        # A Hann window; a factor of one half is applied in the split of the transform, see `split_power`.
        window[:length] = [(0.5 - 0.5 * math.cos(2 * math.pi * i / length)) * 0.5 / 32_768 for i in range(length)]
        half = size // 2
        bits = half.bit_length() - 1
        order = [int(format(k, f"0{bits}b")[::-1], 2) for k in range(half)]
        rounded = np.round(filters.astype(np.float64) * FILTER_STEPS) / FILTER_STEPS
        bands: list[tuple[int, int, int]] = []
        weights: list[float] = []
        for column in rounded.T:
            used = np.flatnonzero(column)
            first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
            bands.append((first, last + 1 - first, len(weights)))
            weights += column[first : last + 1].tolist()
        return cls(
            window=window,
            twiddles=circle(half // 2, half),
            splits=circle(half // 2 + 1, size),
            order=np.array(order, np.int64),
            bands=np.array(bands, np.int64),
            weights=np.array(weights, np.float32),
        )

    def plan(
        self, config: FeatureConfig, keep: Keep, mean: NDArray[np.float32], scale: NDArray[np.float32]
    ) -> FeaturePlan:
        """Return the plan of compiled code; `keep` copies an array and returns its address; mean and scale (F,)."""
        return FeaturePlan(
            window=keep(self.window),
            twiddles=keep(self.twiddles),
            splits=keep(self.splits),
            order=keep(self.order),
            bands=keep(self.bands),
            band_weights=keep(self.weights),
            mean=keep(mean),
            scale=keep(scale),
            window_vectors=len(self.window) // LANES,
            fft_size=config.fft_size,
            band_count=len(self.bands),
            hop=config.hop_samples,
        )


def circle(count: int, parts: int) -> NDArray[np.float32]:
    """Return cosines and sines of 0 … count - 1 parts of a circle, clockwise: (count, 2)."""
    angles = [2 * math.pi * k / parts for k in range(count)]
    return np.array([(math.cos(angle), -math.sin(angle)) for angle in angles], np.float32)


@kernel
def windowed(v: Vectors, starts: Any, window: Any, out: Any, vectors: Any) -> None:
    """Multiply int16 samples of sixteen frames, with addresses in `starts`, by the window: row i holds sample i."""

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, 2 * LANES)
        rows = []
        for lane in range(LANES):
            start = v.load(v.at(starts, 8 * lane), v.number(0).type)
            rows.append(v.floats_of_shorts(v.at(start, offset)))
        for place, row in enumerate(transposed(v, rows)):
            at = v.at(v.times(index, ROW), 4 * place)
            v.keep(row * v.all(window, at), out, v.at(v.times(index, LANES * ROW), ROW * place))
        return []

    v.loop(vectors, [], body)


def transposed(v: Vectors, rows: list[Floats]) -> list[Floats]:
    """Transpose sixteen rows of sixteen by interleaving the first half with the second one four times."""
    for _ in range(4):
        rows = [part for i in range(LANES // 2) for part in v.interleaved(rows[i], rows[i + LANES // 2])]
    return rows


@kernel
def clear_rows(v: Vectors, out: Any, rows: Any) -> None:
    """Fill rows of sixteen floats with zeros."""

    def body(index: Any, _: Any) -> Any:
        v.keep(v.constant(0.0), out, v.times(index, ROW))
        return []

    v.loop(rows, [], body)


@kernel
def butterfly(v: Vectors, left: Any, right: Any, twiddle: Any) -> None:
    """Replace two complex rows by their sum, and their difference times the twiddle factor."""
    left_real, left_imaginary = v.floats(left), v.floats(left, ROW)
    right_real, right_imaginary = v.floats(right), v.floats(right, ROW)
    cosine, sine = v.all(twiddle), v.all(twiddle, 4)
    v.keep(left_real + right_real, left)
    v.keep(left_imaginary + right_imaginary, left, ROW)
    real, imaginary = left_real - right_real, left_imaginary - right_imaginary
    v.keep(real * cosine - imaginary * sine, right)
    v.keep(real * sine + imaginary * cosine, right, ROW)


@kernel
def split_power(v: Vectors, low: Any, high: Any, twiddle: Any, low_power: Any, high_power: Any) -> None:
    """Compute the power of bins k and N - k of real samples from those bins of the complex transform of length N.

    Real parts are a, c, imaginary parts b, d: even = (a + c, b - d), odd = (b + d, c - a), bin k = even + w odd, bin
    N - k = conj(even - w odd); the halves are in the window.
    """
    a, b, c, d = v.floats(low), v.floats(low, ROW), v.floats(high), v.floats(high, ROW)
    even_real, even_imaginary, odd_real, odd_imaginary = a + c, b - d, b + d, c - a
    cosine, sine = v.all(twiddle), v.all(twiddle, 4)
    real = odd_real * cosine - odd_imaginary * sine
    imaginary = odd_real * sine + odd_imaginary * cosine
    for sign, out in ((1.0, low_power), (-1.0, high_power)):
        x, y = even_real + real * sign, even_imaginary + imaginary * sign
        v.keep(x * x + y * y, out)


@kernel
def band_bytes(v: Vectors, power: Any, weights: Any, count: Any, mean: Any, scale: Any, limits: Any, out: Any) -> None:
    """Compute one mel band of sixteen frames: log energy, normalized and quantized."""

    def add(index: Any, carried: list[Any]) -> Any:
        return [carried[0] + v.floats(power, v.times(index, ROW)) * v.all(weights, v.times(index, 4))]

    energy = v.loop(count, [v.constant(0.0)], add)[0]
    feature = ((energy + FLOOR).log() - v.all(mean)) * v.all(scale)
    v.keep_bytes(quantized(v, feature, limits), out)


@compiled
def power_spectrum(frames: int, vectors: int, tables: tuple[int, int, int, int], size: int, rows: int) -> None:
    """Compute the power of sixteen frames, addresses at `frames`: (size / 2 + 1) rows of sixteen floats from `rows`.

    `tables`: addresses of window (`vectors` of sixteen), twiddles, splits and order. The `size` rows before the
    power hold the transform.
    """
    window, twiddles, splits, order = tables
    work = rows - size * ROW
    windowed(frames, window, work, vectors)
    if size > vectors * LANES:
        clear_rows(work + vectors * LANES * ROW, size - vectors * LANES)
    power_of_rows(work, (twiddles, splits, order), size, rows)


@compiled
def power_of_rows(work: int, tables: tuple[int, int, int], size: int, rows: int) -> None:
    """Compute the power of sixteen windowed frames in the `size` rows from `work` on, which are overwritten.

    `tables`: addresses of twiddles, splits and order. The power is (size / 2 + 1) rows of sixteen floats from `rows`.
    """
    twiddles, splits, order_address = tables
    half = size // 2
    order = int64_at(order_address)
    span = half // 2
    while span:
        apart = 2 * ROW * span  # bytes between the two rows of a butterfly
        for group in range(0, half, 2 * span):
            for j in range(span):
                left = work + (group + j) * 2 * ROW
                butterfly(left, left + apart, twiddles + 8 * j * (half // 2 // span))
        span //= 2
    for k in range(half // 2 + 1):
        low, high = order[k], order[(half - k) % half]
        out = rows + k * ROW
        split_power(work + low * 2 * ROW, work + high * 2 * ROW, splits + 8 * k, out, rows + (half - k) * ROW)


@compiled
def feature_bytes(
    plan: FeaturePlan,
    limits: int,
    work: tuple[int, int, int],
    pcm: tuple[int, int],
    frames: int,
    count: int,
    out: tuple[int, int],
) -> None:
    """Write the quantized features of `frames` frames of each of `count` streams: rows of `band_count` bytes.

    `work`: addresses of LANES int64, of the power's rows (`fft_size` rows before it are used, too), of LANES bytes.
    `pcm`, `out`: address of the first stream, and bytes from one stream to the next.
    """
    starts_at, power, band_at = work
    starts, lanes, bands = int64_at(starts_at), uint8_at(band_at), int64_at(plan.bands)
    tables = (plan.window, plan.twiddles, plan.splits, plan.order)
    total = count * frames
    for first in range(0, total, LANES):
        for lane in range(LANES):
            row, frame = divmod(min(first + lane, total - 1), frames)
            starts[lane] = pcm[0] + row * pcm[1] + frame * plan.hop * 2
        power_spectrum(starts_at, plan.window_vectors, tables, plan.fft_size, power)
        for band in range(plan.band_count):
            weights = plan.band_weights + bands[3 * band + 2] * 4
            mean, scale = plan.mean + band * 4, plan.scale + band * 4
            band_bytes(power + bands[3 * band] * ROW, weights, bands[3 * band + 1], mean, scale, limits, band_at)
            for lane in range(min(LANES, total - first)):
                row, frame = divmod(first + lane, frames)
                uint8_at(out[0] + row * out[1] + frame * plan.band_count + band)[0] = lanes[lane]
