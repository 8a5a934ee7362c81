"""Uploaded recordings as blocks of 16-bit samples at the model's rate.

Blocking: call it on a thread, never on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np

from server.audio.formats import AudioForm
from server.audio.pcm import BLOCK_S, MAX_CHANNELS, PCM, ChannelResampler, downmix
from server.audio.sources import Paused, opening
from server.errors import BadAudio, TooLarge

Clock = Callable[[], float]
RATES = range(4_000, 192_001)
DECODING_S, DECODING_S_PER_MIB = 10.0, 15.0
"""Processor time allowed for decoding a body: a constant, and per MiB. It is three times that of Opus in WebM at
12 kbit/s, 5.2 s per MiB on a busy core; AAC at 32 kbit/s takes 1.7, FLAC of speech 0.1. Bodies crafted to waste time
take longer."""
MAX_RECORDINGS = 1_000  # of one body: opening one takes up to a millisecond, even if it is only a header
PIECES_AT_ONCE = 8  # of opening a body, each up to some milliseconds


class Recording:
    """A recording of any supported kind as blocks of 16-bit samples."""

    def __init__(
        self,
        body: bytes,
        form: AudioForm,
        *,
        rate: int,
        max_s: float,
        clock: Clock = time.thread_time,
        at_once: bool = True,
    ) -> None:
        """`rate` is the output rate in Hz, `clock` the processor time of the decoding thread.

        `at_once` opens the body here, with the errors of `open`; otherwise `open` is called until it returns True.
        """
        if not body:
            raise BadAudio("the body is empty")
        self._max_s = max_s
        self._rate = rate
        self._clock = clock
        self._left_s = DECODING_S + DECODING_S_PER_MIB * len(body) / 2**20
        self._decoded_s = 0.0
        self._has_audio = self._ended = self._is_open = False
        self._pieces = self._opened(body, form)
        if at_once:
            self.open(pieces=None)

    def open(self, pieces: int | None = PIECES_AT_ONCE) -> bool:
        """Do the next pieces of opening the body, None: all of them; return whether it is open.

        Raises: BadAudio, BadParameter; TooLarge over the processor time, or if the header announces more than `max_s`.
        """
        with self._processor_time():
            for _ in islice(self._pieces, pieces):
                pass
        return self._is_open

    def _opened(self, body: bytes, form: AudioForm) -> Iterator[None]:
        self._source = source = yield from opening(body, form)
        if source.stated_s is not None and source.stated_s > self._max_s:
            raise self._too_long()
        self.channels, self._part = source.channels, source.part
        self._resampler = self._fresh_resampler()
        self._nothing = np.empty((0, self.channels), np.int16)
        self._samples = self._nothing  # read, and not yet resampled
        self._is_open = True

    @property
    def warnings(self) -> list[str]:
        """Missing or skipped parts so far, as `kind: sentence`; complete at the end."""
        return self._source.warnings

    def next_block(self) -> PCM | None:
        """Return the next samples, (S, C) int16, of `BLOCK_S` at most, or None at the end.

        A block is empty if the next piece of the body held no samples. Raises: BadAudio, TooLarge.
        """
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
            try:
                self._samples = self._source.read()
                self._ended = not len(self._samples)
            except Paused:
                pass
            if self._source.part != self._part:
                rest = self._resampler.flush()
                self._part, self._resampler = self._source.part, self._fresh_resampler()
                if self._part >= MAX_RECORDINGS:
                    raise BadAudio(f"more than {MAX_RECORDINGS} recordings in one body; send them separately")
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
