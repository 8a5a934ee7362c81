"""Uploaded recordings as blocks of 16-bit samples at the model's rate.

Blocking: `remote_recording` runs it in another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from server.audio.formats import AudioForm
from server.audio.pcm import BLOCK_S, MAX_CHANNELS, PCM, ChannelResampler, downmix
from server.audio.recordings.sources import open_source
from server.errors import BadAudio, TooLarge

Clock = Callable[[], float]
RATES = range(4_000, 192_001)
DECODING_S, DECODING_S_PER_MIB = 10.0, 15.0
"""Processor time allowed for decoding a body: a constant, and per MiB. It is three times that of Opus in WebM at
12 kbit/s, 5.2 s per MiB on a busy core; AAC at 32 kbit/s takes 1.7, FLAC of speech 0.1. Bodies crafted to waste time
take longer."""


def processor_time_s(body_bytes: int) -> float:
    """Return the processor time allowed for decoding a body."""
    return DECODING_S + DECODING_S_PER_MIB * body_bytes / 2**20


class Recording:
    """A recording of any supported kind as blocks of 16-bit samples."""

    def __init__(
        self, body: bytes, form: AudioForm, *, rate: int, max_s: float, clock: Clock = time.thread_time
    ) -> None:
        """`rate` is the output rate in Hz, `clock` the processor time of the decoding thread.

        Raises: BadAudio, BadParameter; TooLarge over the processor time, or if the header announces more than `max_s`.
        """
        if not body:
            raise BadAudio("the recording is empty")
        self._max_s = max_s
        self._rate = rate
        self._clock = clock
        self._left_s = processor_time_s(len(body))
        self._decoded_s = 0.0
        self._has_audio = self._ended = False
        with self._processor_time():
            self._source = source = open_source(body, form)
        if source.stated_s is not None and source.stated_s > max_s:
            raise self._too_long()
        self.channels, self._part = source.channels, source.part
        self._resampler = self._fresh_resampler()
        self._nothing = np.empty((0, self.channels), np.int16)
        self._samples = self._nothing  # read, and not yet resampled

    @property
    def warnings(self) -> list[str]:
        """Missing or skipped parts so far, as `kind: sentence`; complete at the end."""
        return self._source.warnings

    def next_block(self) -> PCM | None:
        """Return the next samples, (S, C) int16, at most `BLOCK_S`, or None at the end. Raises: BadAudio, TooLarge."""
        if self._ended:
            return None
        with self._processor_time():
            block = self._next_block()
        self._has_audio = self._has_audio or bool(len(block))
        if self._ended and not self._has_audio:
            raise BadAudio("; ".join(["the recording has no audio", *self.warnings]))
        return block

    def _next_block(self) -> PCM:
        rest = self._nothing
        if not len(self._samples):
            self._samples = self._source.read()
            self._ended = not len(self._samples)
            if self._source.part != self._part:
                rest = self._resampler.flush()
                self._part, self._resampler = self._source.part, self._fresh_resampler()
            self._decoded_s += len(self._samples) / self._source.rate
            if self._decoded_s > self._max_s:
                raise self._too_long()
        if self._ended:
            return np.concatenate([rest, self._resampler.flush()])
        block_samples = BLOCK_S * self._source.rate  # a source may return more: a large frame, a piece at a low rate
        block, self._samples = self._samples[:block_samples], self._samples[block_samples:]
        resampled = self._resampler.resample(self._as_first(block)) if len(block) else self._nothing
        return np.concatenate([rest, resampled]) if len(rest) else resampled

    @contextmanager
    def _processor_time(self) -> Iterator[None]:
        """Subtract the processor time of the context from what is left. Raises: TooLarge if it is used up."""
        began_s = self._clock()
        yield
        self._left_s -= self._clock() - began_s
        if self._left_s < 0:
            raise TooLarge(
                "decoding takes too much processor time for a body of this size: "
                f"stopped after {self._decoded_s:.0f} s of audio; send shorter recordings"
            )

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
