"""16-bit samples: downmixing, resampling, tiling, and the start of a replay for a fresh resampler. Pure."""

from __future__ import annotations

from math import gcd

import numpy as np
import soxr
from numpy.typing import NDArray

PCM = NDArray[np.int16]
MAX_CHANNELS = 8  # of a recording or a stream as sent
BLOCK_S = 2  # block length of a recording: decoded and resampled in a few milliseconds


def downmix(samples: PCM) -> PCM:
    """Average the channels: (S, C) int16 -> (S,) int16."""
    if samples.shape[1] == 1:
        return samples[:, 0]  # (S,)
    mono: PCM = np.rint(samples.mean(axis=1)).astype(np.int16)  # (S,)
    return mono


class Resampler:
    """Streaming resampler of one channel.

    It uses float32 because soxr dithers 16-bit output, which would make the samples depend on how the input was split
    (by up to 2 units, measured). At 8 kHz its filter holds back 64 ms on average, 115 ms at most.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._stream = soxr.ResampleStream(rate_in, rate_out, 1, dtype="float32", quality="HQ")

    def resample(self, pcm: PCM) -> PCM:
        """Return the samples that are complete so far, (S,) int16."""
        return _to_int16(self._stream.resample_chunk(pcm.astype(np.float32)))

    def flush(self) -> PCM:
        """Return the samples held back, (S,) int16, and reset."""
        rest = _to_int16(self._stream.resample_chunk(np.empty(0, np.float32), last=True))
        self._stream.clear()
        return rest


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
        if self.filled + len(pcm) < self._size:  # a message shorter than a tile
            self._tile[self.filled : self.filled + len(pcm)] = pcm
            self.filled += len(pcm)
            return tiles
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


MODEL_RATE_HZ = 16_000
MARGIN_S = 0.12
"""Audio fed before the first wanted sample: longer than the filter at any rate. Source: 104 ms at 8 kHz, less at all
others, measured with soxr 1.1; checked by tests/server/audio/test_pcm_replay.py."""
BLOCKS = {8_000: 830, 12_000: 2_490, 24_000: 2_202, 32_000: 1_660, 48_000: 4_404}
"""Period of soxr's output phase in input samples, by rate. Source: measured as above. At other rates fewer than one
sample in 200 differs, by one unit of 32,768."""


def primed_start(pushed: int, rate: int, model_rate: int) -> tuple[int, int]:
    """Return the input sample from which to feed a fresh resampler, and how many samples of its output to discard.

    The output then continues after `pushed` model-rate samples. Both results count from the resampler's last reset.
    """
    if rate == model_rate:
        return pushed, 0
    shared = gcd(rate, model_rate)
    unit, units_out = rate // shared, model_rate // shared  # input samples, and output samples for them
    block = BLOCKS.get(rate, unit) if model_rate == MODEL_RATE_HZ else unit
    latest = pushed * unit // units_out - round(MARGIN_S * rate)
    start = max(0, latest // block * block)
    return start, pushed - start * units_out // unit
