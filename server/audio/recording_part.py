"""An uploaded recording, decoded block by block at the model's rate. Blocking: for a thread, never the event loop."""

from __future__ import annotations

import numpy as np

from server.audio.formats import AudioForm
from server.audio.pcm import PCM, Resampler
from server.audio.recording import open_source
from server.errors import BadAudio, TooLarge

RATES = range(4_000, 192_001)
MAX_CHANNELS = 8


class Recording:
    """Blocks of 16-bit samples from a file of any kind that is taken, or from samples that `form` describes."""

    def __init__(self, body: bytes, form: AudioForm, *, rate: int, max_s: float) -> None:
        """Open it; `rate` in Hz is what comes out. Raises: BadAudio, BadParameter."""
        self._source = open_source(body, form)
        self._max_s = max_s
        self.channels = self._source.channels
        if self._source.rate not in RATES or not 1 <= self.channels <= MAX_CHANNELS:
            raise BadAudio(f"recordings of {self.channels} channels at {self._source.rate} Hz are not supported")
        resampled = self._source.rate != rate
        self._resamplers = [Resampler(self._source.rate, rate) for _ in range(self.channels)] if resampled else []
        self._decoded_s = 0.0
        self._ended = False

    def next_block(self) -> PCM | None:
        """Return the next samples, (S, C) int16, or None at the end. Raises: BadAudio, TooLarge."""
        if self._ended:
            return None
        samples = self._source.read()
        self._decoded_s += len(samples) / self._source.rate
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
