"""16-bit samples: downmixing, resampling, tiles, windows, and the start of a replay for a fresh resampler. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from math import gcd, lcm

import numpy as np
import soxr
from numpy.typing import NDArray

PCM = NDArray[np.int16]
MAX_CHANNELS = 8  # of a recording or a stream as sent
USUAL_HZ = frozenset((8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000))
"""Rates whose blocks are measured: that takes milliseconds, and a client may name any rate."""
LONGEST_BLOCK = range(1 << 16)  # samples in two of soxr's blocks: 29,000 at 192 kHz, fewer at lower rates
BLOCK_S = 2  # block length of a recording: decoded and resampled in a few milliseconds


def downmix(samples: PCM) -> PCM:
    """Average the channels: (S, C) int16 -> (S,) int16."""
    return samples[:, 0] if samples.shape[1] == 1 else np.rint(samples.mean(axis=1)).astype(np.int16)  # (S,)


class Resampler:
    """Streaming resampler of one channel.

    It uses float32 because soxr dithers 16-bit output, which would make the samples depend on how the input was split
    (by up to 2 units, measured). At 8 kHz its filter holds back 64 ms on average, 115 ms at most.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._rates = rate_in, rate_out
        self._stream = _stream(rate_in, rate_out)
        self._received = self._complete = 0  # samples since the last flush

    def resample(self, pcm: PCM) -> PCM:
        """Return the samples that are complete so far, (S,) int16."""
        complete = _to_int16(self._stream.resample_chunk(pcm.astype(np.float32)))
        self._received, self._complete = self._received + len(pcm), self._complete + len(complete)
        return complete

    def samples_until(self, count: int) -> int:
        """Return how many samples must be received, at least, until `count` more are complete; 0 if not known."""
        rate_in, rate_out = self._rates
        if rate_in not in USUAL_HZ:
            return 0
        first, period = block_ends(rate_in, rate_out)
        needed = -(-(self._complete + count) * rate_in // rate_out)  # no sample is complete before its time
        blocks = max(-(-(needed - first) // period), (self._received - first) // period + 1, 0)
        return first + blocks * period - self._received

    def flush(self) -> PCM:
        """Return the samples held back, (S,) int16, and reset."""
        rest = _to_int16(self._stream.resample_chunk(np.empty(0, np.float32), last=True))
        self._stream.clear()
        self._received = self._complete = 0
        return rest


def _stream(rate_in: int, rate_out: int) -> soxr.ResampleStream:
    return soxr.ResampleStream(rate_in, rate_out, 1, dtype="float32", quality="HQ")


@cache
def block_ends(rate_in: int, rate_out: int) -> tuple[int, int]:
    """Return after how many samples a fresh stream of soxr returns any, and after how many more each time.

    It filters in blocks, so that depends on the number of samples alone (tests/server/audio/test_pcm_replay.py).
    """

    def complete(received: int) -> int:
        return len(_stream(rate_in, rate_out).resample_chunk(np.zeros(received, np.float32)))

    first = bisect_left(LONGEST_BLOCK, 1, key=complete)
    return first, bisect_left(LONGEST_BLOCK, complete(first) + 1, key=complete) - first


class ChannelResampler:
    """Streaming resampler of all channels; if the rates are equal, samples pass unchanged."""

    def __init__(self, rate_in: int, rate_out: int, channels: int) -> None:
        self._resamplers = [Resampler(rate_in, rate_out) for _ in range(channels)] if rate_in != rate_out else []
        self._nothing: PCM = np.empty((0, channels), np.int16)

    def resample(self, samples: PCM) -> PCM:
        """Return the samples that are complete so far, (S, C) int16."""
        if not self._resamplers:
            return samples
        return _side_by_side([r.resample(samples[:, i]) for i, r in enumerate(self._resamplers)])

    def flush(self) -> PCM:
        """Return the samples held back, (S, C) int16, and reset."""
        return _side_by_side([r.flush() for r in self._resamplers]) if self._resamplers else self._nothing


def _side_by_side(columns: list[PCM]) -> PCM:
    return columns[0][:, None] if len(columns) == 1 else np.stack(columns, axis=1)  # (S, C)


def _to_int16(samples: NDArray[np.float32]) -> PCM:
    return np.clip(np.rint(samples), -32_768, 32_767).astype(np.int16)


class Tiler:
    """Splits a stream of samples into tiles of one size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tile = np.empty(size, np.int16)
        self.filled = 0

    def push(self, pcm: PCM) -> list[PCM]:
        """Return the tiles that `pcm` completes, each (size,) int16; views of it where a tile lies within it."""
        tiles: list[PCM] = []
        taken = 0
        while taken < len(pcm):
            if not self.filled and len(pcm) - taken >= self._size:
                tiles.append(pcm[taken : taken + self._size])
                taken += self._size
                continue
            part = pcm[taken : taken + self._size - self.filled]
            self._tile[self.filled : self.filled + len(part)] = part
            self.filled += len(part)
            taken += len(part)
            if self.filled == self._size:
                tiles.append(self._take())
        return tiles

    @property
    def rest(self) -> PCM:
        """The samples of the incomplete tile, (S,) int16."""
        return self._tile[: self.filled].copy()

    def pad(self) -> PCM:
        """Return the incomplete tile padded with silence, (size,) int16, and start the next."""
        self._tile[self.filled :] = 0
        return self._take()

    def _take(self) -> PCM:
        tile, self._tile, self.filled = self._tile, np.empty(self._size, np.int16), 0
        return tile


class WindowRows:
    """Cuts audio into rows of whole windows of an auxiliary model, which are shorter than a step.

    A row of a model that takes several windows has `together` of them, zeros after the last one, then their number.
    """

    def __init__(self, samples: int, together: int) -> None:
        """`samples`: of a window; `together`: most windows of a row."""
        self._samples, self._together = samples, together
        self.rest = np.zeros(0, np.int16)  # after the last whole window
        self.end = 0  # samples in whole windows

    def cut(self, pcm: PCM) -> Iterator[tuple[PCM, int]]:
        """Take (S,) int16; yield the rows that it completes and their numbers of windows; `end` is at the row's end."""
        pcm = np.concatenate((self.rest, pcm))
        whole = len(pcm) // self._samples
        self.rest = pcm[whole * self._samples :]
        for first in range(0, whole, self._together):
            count = min(self._together, whole - first)
            windows = pcm[first * self._samples : (first + count) * self._samples]
            self.end += len(windows)
            yield (windows if self._together == 1 else self._row(windows, count)), count

    def _row(self, windows: PCM, count: int) -> PCM:
        row = np.zeros(self._together * self._samples + 1, np.int16)
        row[: len(windows)], row[-1] = windows, count
        return row


MARGIN_S = 0.12
"""Audio fed before the first wanted sample: longer than the filter at any rate. Source: 104 ms at 8 kHz, less at all
others, measured with soxr 1.1; checked by tests/server/audio/test_pcm_replay.py."""


def primed_start(pushed: int, rate: int, model_rate: int) -> tuple[int, int]:
    """Return the input sample from which to feed a fresh resampler, and how many samples of its output to discard.

    The output then continues after `pushed` model-rate samples. Both results count from the resampler's last reset. At
    rates whose phase in soxr's blocks returns after more than a second, one sample in 200 may differ, by a unit.
    """
    if rate == model_rate:
        return pushed, 0
    shared = gcd(rate, model_rate)
    unit, units_out = rate // shared, model_rate // shared  # input samples, and output samples for them
    aligned = lcm(block_ends(rate, model_rate)[1], unit) if rate in USUAL_HZ else rate
    block = aligned if aligned < rate else unit
    latest = pushed * unit // units_out - round(MARGIN_S * rate)
    start = max(0, latest // block * block)
    return start, pushed - start * units_out // unit
