"""Uploaded recordings as blocks of 16-bit samples at the model's rate.

Blocking: call it on a thread, never on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from server.audio.formats import AudioForm
from server.audio.pcm import MAX_CHANNELS, PCM, ChannelResampler, downmix
from server.audio.sources import open_source
from server.errors import BadAudio, TooLarge

Clock = Callable[[], float]
RATES = range(4_000, 192_001)
DECODING_S, DECODING_S_PER_MIB = 10.0, 15.0
"""Processor time allowed for decoding a body: a constant, and per MiB. It is three times that of Opus in WebM at
12 kbit/s, 5.2 s per MiB on a busy core; AAC at 32 kbit/s takes 1.7, FLAC of speech 0.1. Bodies crafted to waste time
take longer."""


class Recording:
    """A recording of any supported kind as blocks of 16-bit samples."""

    def __init__(
        self, body: bytes, form: AudioForm, *, rate: int, max_s: float, clock: Clock = time.thread_time
    ) -> None:
        """Open the body; `rate` is the output rate in Hz, `clock` the processor time of the decoding thread.

        Raises: BadAudio, BadParameter; TooLarge if its header announces more than `max_s`.
        """
        if not body:
            raise BadAudio("the body is empty")
        self._source = open_source(body, form)
        self._max_s = max_s
        self._rate = rate
        self.channels = self._source.channels
        if self._source.stated_s is not None and self._source.stated_s > max_s:
            raise self._too_long()
        self._clock = clock
        self._left_s = DECODING_S + DECODING_S_PER_MIB * len(body) / 2**20
        self._part = self._source.part
        self._resampler = self._fresh_resampler()
        self._decoded_s = 0.0
        self._has_audio = self._ended = False

    @property
    def warnings(self) -> list[str]:
        """Missing or skipped parts so far, as `kind: sentence`; complete at the end."""
        return self._source.warnings

    def next_block(self) -> PCM | None:
        """Return the next samples, (S, C) int16, or None at the end. Raises: BadAudio, TooLarge."""
        if self._ended:
            return None
        began_s = self._clock()
        samples = self._source.read()
        rest = []
        if self._source.part != self._part:
            rest = [self._resampler.flush()]
            self._part, self._resampler = self._source.part, self._fresh_resampler()
        self._decoded_s += len(samples) / self._source.rate
        if self._decoded_s > self._max_s:
            raise self._too_long()
        self._ended = not len(samples)
        last = self._resampler.flush() if self._ended else self._resampler.resample(self._as_first(samples))
        self._left_s -= self._clock() - began_s
        if self._left_s < 0:
            raise TooLarge(
                "decoding takes too much processor time for a body of this size: "
                f"stopped after {self._decoded_s:.0f} s of audio; send shorter recordings"
            )
        block = np.concatenate([*rest, last]) if rest else last
        self._has_audio = self._has_audio or bool(len(block))
        if self._ended and not self._has_audio:
            raise BadAudio("; ".join(["the recording has no audio", *self.warnings]))
        return block

    def _too_long(self) -> TooLarge:
        return TooLarge(f"the recording is longer than the limit of {self._max_s:g} s; send it in parts")

    def _fresh_resampler(self) -> ChannelResampler:
        """Return a resampler for the recording read last. Raises: BadAudio."""
        source = self._source
        if source.rate not in RATES or not 1 <= source.channels <= MAX_CHANNELS:
            raise BadAudio(
                f"recordings of {source.channels} channels at {source.rate} Hz are not supported; "
                f"send 1 to {MAX_CHANNELS} channels at {RATES[0]} to {RATES[-1]} Hz"
            )
        return ChannelResampler(source.rate, self._rate, self.channels)

    def _as_first(self, samples: PCM) -> PCM:
        """Return samples with the first recording's number of channels: mixed down and copied if it differs."""
        if samples.shape[1] == self.channels:
            return samples
        return np.repeat(downmix(samples)[:, None], self.channels, axis=1)  # (S, C)
