"""16-bit samples: downmixing, resampling, and cutting into tiles; where a replay must begin so that a fresh resampler
gives the same samples. Pure.
"""

from __future__ import annotations

from math import gcd

import numpy as np
import soxr
from numpy.typing import NDArray

PCM = NDArray[np.int16]
SAMPLE_BYTES = 2


class PcmReader:
    """Decodes interleaved little-endian 16-bit samples; an incomplete frame waits for the next chunk."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._frame_bytes = SAMPLE_BYTES * channels
        self._carry = b""

    def read(self, chunk: bytes) -> PCM:
        """Return the whole frames so far, (S, C) int16: a view of `chunk` where nothing was carried over."""
        if self._carry:
            chunk = self._carry + chunk
        whole = len(chunk) - len(chunk) % self._frame_bytes
        self._carry = chunk[whole:]
        samples = np.frombuffer(chunk, dtype="<i2", count=whole // SAMPLE_BYTES)
        return samples.reshape(-1, self._channels)  # (S, C)


def downmix(samples: PCM) -> PCM:
    """Average the channels: (S, C) int16 -> (S,) int16."""
    if samples.shape[1] == 1:
        return samples[:, 0]  # (S,)
    mono: PCM = np.rint(samples.mean(axis=1)).astype(np.int16)  # (S,)
    return mono


class Resampler:
    """Incremental conversion of one channel's sample rate.

    It works in float32 because soxr dithers 16-bit output, so that its samples would depend on how the input was cut
    (up to 2 units, measured). At 8 kHz its filter holds back 64 ms on average, 115 ms at most.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._stream = soxr.ResampleStream(rate_in, rate_out, 1, dtype="float32", quality="HQ")

    def resample(self, pcm: PCM) -> PCM:
        """Return what is complete so far, (S,) int16."""
        return _to_int16(self._stream.resample_chunk(pcm.astype(np.float32)))

    def flush(self) -> PCM:
        """Return the held-back end, (S,) int16, and start afresh."""
        rest = _to_int16(self._stream.resample_chunk(np.empty(0, np.float32), last=True))
        self._stream.clear()
        return rest


def _to_int16(samples: NDArray[np.float32]) -> PCM:
    return np.clip(np.rint(samples), -32_768, 32_767).astype(np.int16)


class Tiler:
    """Cuts a stream of samples into tiles of one size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tile = np.empty(size, np.int16)
        self.filled = 0

    def push(self, pcm: PCM) -> list[PCM]:
        """Return the tiles that `pcm` completes, each (size,) int16; whole ones are views of it, not copies."""
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

    def pad(self) -> PCM:
        """Return the unfinished tile with silence behind it, (size,) int16, and start the next."""
        self._tile[self.filled :] = 0
        return self._take()

    def _take(self) -> PCM:
        tile, self._tile, self.filled = self._tile, np.empty(self._size, np.int16), 0
        return tile


MODEL_RATE_HZ = 16_000
MARGIN_S = 0.12
"""Of audio before the first sample that is wanted: longer than the filter at any rate. Source: 104 ms at 8 kHz, less at
all others, measured with soxr 1.1; tests/server/audio/test_pcm_replay.py holds it to that."""
BLOCKS = {8_000: 830, 12_000: 2_490, 24_000: 2_202, 32_000: 1_660, 48_000: 4_404}
"""Samples of a block by rate. Source: measured as above. At other rates the samples are the same but for fewer than one
in 200, which differs by one unit of 32,768."""


def primed_start(pushed: int, rate: int, model_rate: int) -> tuple[int, int]:
    """Return from which sample on a fresh resampler must be fed, and how many samples of its output are known already.

    `pushed` model-rate samples are known; both count from where the resampler was last fresh.
    """
    if rate == model_rate:
        return pushed, 0
    shared = gcd(rate, model_rate)
    unit, units_out = rate // shared, model_rate // shared  # so many samples become so many
    block = BLOCKS.get(rate, unit) if model_rate == MODEL_RATE_HZ else unit
    latest = pushed * unit // units_out - round(MARGIN_S * rate)
    start = max(0, latest // block * block)
    return start, pushed - start * units_out // unit


BLOCK_S = 2  # decoded and resampled in a few milliseconds
