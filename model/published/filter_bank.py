"""Log-mel features of published models, sixteen frames at a time, one frame per lane, in compiled code.

The features of kaldi-native-fbank with the options of each kind's training, in an order of operations that depends
neither on the processor nor on the other frames (`model.int8.vectors`). Frames of 400 samples are transformed at 512
points by radix 2 (Kaldi, NeMo), or at 400 points by sums over cosines and sines (Whisper).
Source: kaldi-native-fbank 1.23, `feature-window.cc`, `mel-computations.cc`, `whisper-feature.cc`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.audio.mel import slaney_hz, slaney_mel
from model.int8.features import circle, clear_rows, power_of_rows, transposed, windowed
from model.int8.kernels import copy_bytes
from model.int8.vectors import LANES, ROW, Vectors, kernel
from model.machine.compiled import compiled, entry_point, int64_at
from model.published.timing import FRAME_SAMPLES

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]

SAMPLE_RATE = 16_000
PREEMPHASIS = 0.97
LEAST_ENERGY = 2.0**-23  # before the logarithm, as in Kaldi
LEAST_WHISPER_ENERGY = 1e-10
WHISPER_RANGE = 8.0  # in powers of ten, below the largest value of a window
FRAME_VECTORS = FRAME_SAMPLES // LANES
POINTS = 512  # of the transform, but for Whisper
PAIRS = FRAME_SAMPLES // 4 + 1  # of an even and an odd term in a sum over half a frame, and bins computed in pairs


@dataclass(frozen=True, slots=True)
class Fbank:
    """Options of the log-mel frames; `bins`: mel bands of a frame, at least 16.

    `normalized`: each band of a window has mean 0 and deviation 1.
    """

    bins: int = 80
    window: str = "povey"
    low_hz: float = 20.0
    high_hz: float = -400.0  # negative: relative to the Nyquist frequency
    remove_dc: bool = True
    librosa: bool = False
    whisper: bool = False
    normalized: bool = False


KALDI = Fbank()
NEMO = Fbank(window="hann", low_hz=0.0, high_hz=8_000.0, remove_dc=False, librosa=True)
WHISPER = Fbank(window="hann", low_hz=0.0, high_hz=8_000.0, remove_dc=False, librosa=True, whisper=True)


@dataclass(frozen=True, slots=True)
class FilterBank:
    """Constant tables of the features, and memory for sixteen frames.

    `options` (4,) int64: whether the mean is removed, the number of points, whether energies are returned instead of
    their logarithms, the number of bands F. `settings` (1,) float32: preemphasis.
    `window` (400,) float32, scaled to samples of 16 bits.
    `twiddles`, `splits`, `order`: of the transform at 512 points; `circles` (101, 101, 4) float32: cosines and sines
    of two neighboring samples, of that at 400. `bands` (F, 3) int64 and `weights`: see `FeatureTables`.
    """

    options: Longs
    settings: Floats
    ones: Floats
    window: Floats
    twiddles: Floats
    splits: Floats
    order: Longs
    circles: Floats
    bands: Longs
    weights: Floats
    work: Floats

    @classmethod
    def of(cls, options: Fbank) -> FilterBank:
        """Compute the tables."""
        points = FRAME_SAMPLES if options.whisper else POINTS
        half = POINTS // 2
        order = [int(format(k, f"0{half.bit_length() - 1}b")[::-1], 2) for k in range(half)]
        # A factor of one half is applied in the split of the transform at 512 points, see `split_power`.
        scale = 1.0 / 32_768 * (1.0 if options.whisper else 0.5)
        bands, weights = _bands(filters_of(options, points))
        return cls(
            options=np.array([options.remove_dc, points, options.whisper, options.bins], np.int64),
            settings=np.array([0.0 if options.whisper else PREEMPHASIS], np.float32),
            ones=np.ones(FRAME_SAMPLES, np.float32),
            window=np.array([scale * each for each in _window(options.window)], np.float32),
            twiddles=circle(half // 2, half),
            splits=circle(half // 2 + 1, POINTS),
            order=np.array(order, np.int64),
            circles=_circles() if options.whisper else np.zeros((1, 1, 4), np.float32),
            bands=bands,
            weights=weights,
            work=np.zeros((_work_rows(options.bins), LANES), np.float32),
        )

    @property
    def addresses(self) -> Longs:
        """Addresses of the tables and of the memory, in the order of the fields."""
        tables = (self.options, self.settings, self.ones, self.window, self.twiddles, self.splits, self.order)
        return np.array(
            [each.ctypes.data for each in (*tables, self.circles, self.bands, self.weights, self.work)], np.int64
        )


def _work_rows(bins: int) -> int:
    """Rows of sixteen floats: the transform, the power, the mean, the bands."""
    return POINTS + 4 * PAIRS + POINTS // 2 + 1 + 1 + bins


def _window(kind: str) -> list[float]:
    """Return the window, symmetric (povey) or periodic (hann)."""
    parts = FRAME_SAMPLES if kind == "hann" else FRAME_SAMPLES - 1
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * i / parts) for i in range(FRAME_SAMPLES)]
    return [each**0.85 for each in hann] if kind == "povey" else hann


def filters_of(options: Fbank, points: int) -> NDArray[np.float64]:
    """Return triangular filters (F, points / 2 + 1), on Kaldi's mel scale, or on Slaney's with filters of equal area.

    Kaldi's are triangles over mel without the last bin, the others triangles over frequency.
    """
    high = options.high_hz if options.high_hz > 0 else SAMPLE_RATE / 2 + options.high_hz
    hertz = [SAMPLE_RATE / points * k for k in range(points // 2 + 1)]
    to_mel = slaney_mel if options.librosa else _kaldi
    edges = np.linspace(to_mel(options.low_hz), to_mel(high), options.bins + 2)
    if options.librosa:
        edges, places = np.array([slaney_hz(mel) for mel in edges]), np.array(hertz)
    else:
        places = np.array([_kaldi(hz) for hz in hertz])
    left, center, right = (part[:, np.newaxis] for part in (edges[:-2], edges[1:-1], edges[2:]))
    rising, falling = (places - left) / (center - left), (right - places) / (right - center)
    filters: NDArray[np.float64] = np.minimum(rising, falling).clip(min=0)
    if options.librosa:
        return filters * (2 / (right - left))
    filters[:, -1] = 0
    return filters


def _kaldi(hz: float) -> float:
    return 1127.0 * math.log(1.0 + hz / 700.0)


def _bands(filters: NDArray[np.float64]) -> tuple[Longs, Floats]:
    """Return the first bin, number of bins and first weight of each filter (F, 3), and the weights.

    Many bands leave low filters that lie between two bins of the transform: their energy is always 0.
    """
    bands: list[tuple[int, int, int]] = []
    weights: list[float] = []
    for row in filters:
        used = np.flatnonzero(row)
        first, after = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        bands.append((first, after - first, len(weights)))
        weights += row[first:after].tolist()
    return np.array(bands, np.int64), np.array(weights, np.float32)


def _circles() -> Floats:
    """Return cosine and sine of samples 2j and 2j + 1 in bin k of 400 points, (101, 101, 4)."""
    parts = [2 * math.pi * part / FRAME_SAMPLES for part in range(FRAME_SAMPLES)]
    cosines, sines = np.array([math.cos(each) for each in parts]), np.array([math.sin(each) for each in parts])
    angles = np.outer(np.arange(PAIRS), np.arange(2 * PAIRS)) % FRAME_SAMPLES  # (k, n)
    pairs = np.stack([cosines[angles], sines[angles]], axis=1).reshape(PAIRS, 2, PAIRS, 2)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3).reshape(PAIRS, PAIRS, 4), np.float32)


@kernel
def mean_row(v: Vectors, rows: Any, count: Any, out: Any) -> None:
    """Compute the mean of rows of sixteen floats."""

    def add(index: Any, carried: list[Any]) -> Any:
        return [carried[0] + v.floats(rows, v.times(index, ROW))]

    v.keep(v.loop(count, [v.constant(0.0)], add)[0] / v.count(count), out)


@kernel
def shaped(v: Vectors, rows: Any, mean: Any, factor: Any, window: Any, count: Any) -> None:
    """Subtract the mean from each row, then `factor` times the row before, and multiply by the window."""
    offset, emphasis = v.floats(mean), v.all(factor)

    def body(index: Any, carried: list[Any]) -> Any:
        at = v.times(index, ROW)
        sample = v.floats(rows, at) - offset
        v.keep((sample - carried[0] * emphasis) * v.all(window, v.times(index, 4)), rows, at)
        return [sample]

    v.loop(count, [v.floats(rows) - offset], body)


@kernel
def folded(v: Vectors, low: Any, high: Any, cosine: Any, sine: Any, count: Any) -> None:
    """Compute sums and differences of the rows from `low` on upwards and from `high` on downwards."""

    def body(index: Any, _: Any) -> Any:
        at = v.times(index, ROW)
        left, right = v.floats(low, at), v.floats(high, v.times(at, -1))
        v.keep(left + right, cosine, at)
        v.keep(left - right, sine, at)
        return []

    v.loop(count, [], body)


@kernel
def summed_power(v: Vectors, cosine: Any, sine: Any, circles: Any, low_power: Any, high_power: Any) -> None:
    """Compute the power of bins k and 200 - k of 400 points from sums and differences of samples n and 400 - n.

    The terms of odd samples have the opposite sign in the second bin.
    """

    def body(index: Any, carried: list[Any]) -> Any:
        at, table = v.times(index, 2 * ROW), v.at(circles, v.times(index, 16))
        rows = [v.floats(each, v.at(at, ROW * odd)) for each in (cosine, sine) for odd in range(2)]
        return [carried[i] + rows[i] * v.all(table, 4 * i) for i in range(4)]

    even, odd, even_sine, odd_sine = v.loop(PAIRS, [v.constant(0.0)] * 4, body)
    for sign, out in ((1.0, low_power), (-1.0, high_power)):
        real, imaginary = even + odd * sign, even_sine + odd_sine * sign
        v.keep(real * real + imaginary * imaginary, out)


@kernel
def band_energy(v: Vectors, power: Any, weights: Any, count: Any, out: Any) -> None:
    """Compute the energy of one mel band of sixteen frames."""

    def add(index: Any, carried: list[Any]) -> Any:
        return [carried[0] + v.floats(power, v.times(index, ROW)) * v.all(weights, v.times(index, 4))]

    v.keep(v.loop(count, [v.constant(0.0)], add)[0], out)


@kernel
def logarithms(v: Vectors, rows: Any, count: Any) -> None:
    """Replace energies by their logarithms."""

    def body(index: Any, _: Any) -> Any:
        at = v.times(index, ROW)
        v.keep(v.floats(rows, at).most(LEAST_ENERGY).log(), rows, at)
        return []

    v.loop(count, [], body)


@kernel
def store_bands(v: Vectors, bands: Any, out: Any, stride: Any) -> None:
    """Store sixteen bands (16, 16) as columns of frames, `stride` bytes from frame to frame."""
    rows = [v.floats(bands, band * ROW) for band in range(LANES)]
    for lane, row in enumerate(transposed(v, rows)):
        v.keep(row, out, v.times(stride, lane))


@kernel
def whisper_logs(v: Vectors, rows: Any, count: Any, highest: Any) -> None:
    """Replace energies by their logarithms to base 10, and compute the largest of all, in all lanes of `highest`."""

    def body(index: Any, carried: list[Any]) -> Any:
        at = v.times(index, ROW)
        log = v.floats(rows, at).most(LEAST_WHISPER_ENERGY).log() * (1 / math.log(10))
        v.keep(log, rows, at)
        return [carried[0].most(log)]

    v.keep(v.loop(count, [v.constant(-100.0)], body)[0].largest(), highest)


@kernel
def whisper_scaled(v: Vectors, rows: Any, count: Any, highest: Any) -> None:
    """Clip logarithms to the range below the highest, add 4 and divide by 4."""
    least = v.floats(highest) - WHISPER_RANGE

    def body(index: Any, _: Any) -> Any:
        at = v.times(index, ROW)
        v.keep((v.floats(rows, at).most(least) + 4.0) * 0.25, rows, at)
        return []

    v.loop(count, [], body)


@compiled
def power_of_frame(work: int, points: int, circles: int) -> None:
    """Compute the power of sixteen windowed frames of 400 rows by sums, to the rows after the first 512 and 404."""
    half = points // 2
    cosine, sine = work + POINTS * ROW, work + (POINTS + 2 * PAIRS) * ROW
    power = work + (POINTS + 4 * PAIRS) * ROW
    clear_rows(cosine, 4 * PAIRS)
    copy_bytes(cosine, work, ROW)
    copy_bytes(cosine + half * ROW, work + half * ROW, ROW)
    folded(work + ROW, work + (points - 1) * ROW, cosine + ROW, sine + ROW, half - 1)
    for k in range(PAIRS):
        summed_power(cosine, sine, circles + 16 * PAIRS * k, power + k * ROW, power + (half - k) * ROW)


@compiled
def sixteen_frames(starts: int, bank: int, out: int) -> None:
    """Compute the features of sixteen frames of samples, addresses at `starts`, to `out` (16, F) float32.

    `bank`: address of `FilterBank.addresses`.
    """
    at = int64_at(bank)
    options, bands, work = int64_at(at[0]), int64_at(at[8]), at[10]
    power = work + (POINTS + 4 * PAIRS) * ROW
    mean = power + (POINTS // 2 + 1) * ROW
    energies, bins = mean + ROW, options[3]
    windowed(starts, at[2], work, FRAME_VECTORS)  # by ones: the mean is subtracted before the window
    clear_rows(mean, 1)
    if options[0]:
        mean_row(work, FRAME_SAMPLES, mean)
    shaped(work, mean, at[1], at[3], FRAME_SAMPLES)
    if options[1] == POINTS:
        clear_rows(work + FRAME_SAMPLES * ROW, POINTS - FRAME_SAMPLES)
        power_of_rows(work, (at[4], at[5], at[6]), POINTS, power)
    else:
        power_of_frame(work, options[1], at[7])
    for band in range(bins):
        first, count, weight = bands[3 * band], bands[3 * band + 1], bands[3 * band + 2]
        band_energy(power + first * ROW, at[9] + 4 * weight, count, energies + band * ROW)
    if not options[2]:
        logarithms(energies, bins)
    for block in range((bins + LANES - 1) // LANES):
        band = min(block * LANES, bins - LANES)  # the last sixteen may overlap those before
        store_bands(energies + band * ROW, out + 4 * band, 4 * bins)


@entry_point
def compute_frames(starts: Longs, count: int, bank: Longs, out: Floats) -> None:
    """Compute the features of `count` frames with samples at the addresses `starts`, to `out` (N, F).

    Both have room for a multiple of sixteen frames.
    """
    for extra in range(count, (count + LANES - 1) // LANES * LANES):
        starts[extra] = starts[count - 1]
    for first in range(0, count, LANES):
        sixteen_frames(starts.ctypes.data + 8 * first, bank.ctypes.data, out[first].ctypes.data)


@entry_point
def scale_whisper(windows: Floats) -> None:
    """Apply Whisper's scaling to each window (R, L, F), in place: logarithm to base 10, floor, shift.

    Source: Radford et al. 2022; the floor is 8 below the maximum of the window, as in sherpa-onnx.
    """
    frames, bins = windows.shape[1], windows.shape[2]
    count = (frames * bins + LANES - 1) // LANES
    highest, padded = np.empty(LANES, np.float32), np.zeros(count * LANES, np.float32)
    for row in range(len(windows)):
        for frame in range(frames):
            for band in range(bins):
                padded[frame * bins + band] = windows[row, frame, band]
        for rest in range(frames * bins, len(padded)):
            padded[rest] = 0.0
        whisper_logs(padded.ctypes.data, count, highest.ctypes.data)
        whisper_scaled(padded.ctypes.data, count, highest.ctypes.data)
        for frame in range(frames):
            for band in range(bins):
                windows[row, frame, band] = padded[frame * bins + band]
