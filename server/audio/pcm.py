"""Raw audio of one connection: bytes to samples, many channels to one, any rate to the model's, any length to tiles.

It knows no wire protocol and no model. Every class here gives the same samples for every way of cutting the input.
"""

from __future__ import annotations

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
