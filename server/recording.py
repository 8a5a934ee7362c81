"""An uploaded recording, decoded block by block at the model's rate. Blocking: for a thread, never the event loop."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from server.audio import PCM, Resampler
from server.errors import BadAudio, BadParameter, TooLarge

BLOCK_S = 2  # decoded and resampled in a few milliseconds
RATES = range(4_000, 192_001)
MAX_CHANNELS = 8


class Recording:
    """Blocks of 16-bit samples from wav, flac, ogg, mp3, or from raw samples where `raw_rate` is given."""

    def __init__(self, body: bytes, *, raw_rate: int | None, raw_channels: int, rate: int, max_s: float) -> None:
        """Open it. Raises: BadAudio."""
        self._rate = rate
        self._max_s = max_s
        try:
            if raw_rate is None:
                self._file = soundfile.SoundFile(io.BytesIO(body))
            else:
                self._file = _raw(body, raw_rate, raw_channels)
        except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
            raise BadAudio("the body is no recording that can be decoded (wav, flac, ogg, mp3)") from error
        self.channels: int = self._file.channels
        source_rate: int = self._file.samplerate
        if source_rate not in RATES or self.channels > MAX_CHANNELS:
            raise BadAudio(f"recordings of {self.channels} channels at {source_rate} Hz are not supported")
        resampled = source_rate != rate
        self._resamplers = [Resampler(source_rate, rate) for _ in range(self.channels)] if resampled else []
        self._decoded_s = 0.0
        self._ended = False

    def next_block(self) -> PCM | None:
        """Return the next samples, (S, C) int16, or None at the end. Raises: BadAudio, TooLarge."""
        if self._ended:
            return None
        try:
            block = self._file.read(BLOCK_S * self._file.samplerate, dtype="float32", always_2d=True)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise BadAudio("the recording is damaged") from error
        # Full scale is 2**15, so that 16-bit recordings come through unchanged.
        samples = np.clip(np.rint(block * 32_768.0), -32_768, 32_767).astype(np.int16)  # (S, C)
        self._decoded_s += len(samples) / self._file.samplerate
        if self._decoded_s > self._max_s:
            raise TooLarge(f"recordings of more than {self._max_s:g} s are not taken")
        self._ended = not len(samples)
        return self._resample(samples)

    def _resample(self, samples: PCM) -> PCM:
        if not self._resamplers:
            return samples
        if self._ended:
            return np.stack([r.flush() for r in self._resamplers], axis=1)  # (S, C)
        return np.stack([r.resample(samples[:, i]) for i, r in enumerate(self._resamplers)], axis=1)  # (S, C)


def _raw(body: bytes, rate: int, channels: int) -> soundfile.SoundFile:
    whole = len(body) - len(body) % (2 * channels)
    if not whole:
        raise BadParameter("the body is empty")
    return soundfile.SoundFile(
        io.BytesIO(body[:whole]), format="RAW", subtype="PCM_16", endian="LITTLE", samplerate=rate, channels=channels
    )
