"""An uploaded recording as blocks of 16-bit samples at the model's rate: libsndfile, FFmpeg or raw samples.

Blocking: for a thread, never the event loop.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import soundfile

from model.errors import install_hint
from server.audio.formats import PLAIN, AudioForm, Encoding, container_kind
from server.audio.pcm import BLOCK_S, PCM, ChannelResampler
from server.audio.raw import FULL_SCALE, PLAIN_CODECS, PlainReader, to_int16
from server.errors import BadAudio, BadParameter, TooLarge

Clock = Callable[[], float]


class Source(Protocol):
    """A recording at its own rate."""

    @property
    def rate(self) -> int:
        """Hz."""

    @property
    def channels(self) -> int:
        """Number of channels."""

    @property
    def stated_s(self) -> float | None:
        """Length that the header states; None: it states none."""

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""


def open_source(body: bytes, form: AudioForm) -> Source:
    """Open a body. Raises: BadAudio; BadParameter for a form that no body can have."""
    if form.encoding is Encoding.OPUS:
        raise BadParameter("encoding: opus packets need a container in an upload; send an Ogg or WebM file")
    if form.encoding in PLAIN:
        return PlainSource(body, form)
    try:
        return SoundfileSource(body)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        return _open_by_ffmpeg(body, error)


def _open_by_ffmpeg(body: bytes, error: Exception) -> Source:
    """Open a body by FFmpeg. Raises: BadAudio."""
    kind = container_kind(body)
    if kind is None:
        raise BadAudio("the body is no recording that can be decoded (wav, flac, ogg, mp3, webm, m4a)") from error
    try:
        from server.audio.ffmpeg_container import AvSource
    except ImportError:
        raise BadAudio(f"{kind} needs the optional package: {install_hint('media')}") from error
    return AvSource(body, kind)


class PlainSource:
    """Samples without framing; an incomplete one at the end is dropped."""

    def __init__(self, body: bytes, form: AudioForm) -> None:
        """Take a body of the form. Raises: BadParameter if it holds no sample."""
        assert form.sample_rate is not None
        self.rate, self.channels = form.sample_rate, form.channels
        self._reader = PlainReader(PLAIN_CODECS[form.encoding], form.sample_rate, form.channels)
        if len(body) < self._reader.frame_bytes:
            raise BadParameter("the body is empty")
        self._body, self._at = memoryview(body), 0
        self._block_bytes = BLOCK_S * form.sample_rate * self._reader.frame_bytes
        self.stated_s: float | None = len(body) / self._reader.frame_bytes / form.sample_rate

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end."""
        block = bytes(self._body[self._at : self._at + self._block_bytes])
        self._at += len(block)
        return self._reader.read(block)


UNKNOWN_FRAMES = 2**62  # libsndfile: SF_COUNT_MAX, 2**63 - 1, for a header without a length


class SoundfileSource:
    """A recording that libsndfile reads."""

    def __init__(self, body: bytes) -> None:
        """Open it. Raises: LibsndfileError, RuntimeError, TypeError."""
        self._file = soundfile.SoundFile(io.BytesIO(body))
        self.rate: int = self._file.samplerate
        self.channels: int = self._file.channels
        frames = self._file.frames
        self.stated_s: float | None = frames / self.rate if 0 < frames < UNKNOWN_FRAMES else None

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""
        try:
            block = self._file.read(BLOCK_S * self.rate, dtype="float32", always_2d=True)  # (S, C)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise BadAudio("the recording is damaged") from error
        # Full scale is 2**15, so that 16-bit recordings come through unchanged.
        return to_int16(np.asarray(block, np.float32), FULL_SCALE)


RATES = range(4_000, 192_001)
DECODING_S, DECODING_S_PER_MIB = 10.0, 15.0
"""Processor time for decoding a body: at first, and for each MiB. Three times what Opus in WebM at 12 kbit/s takes:
5.2 s for each MiB on a busy core; AAC at 32 kbit/s takes 1.7, FLAC of speech 0.1. Bodies made to cost time take longer.
"""
MAX_CHANNELS = 8


class Recording:
    """Blocks of 16-bit samples of a file of any supported kind, or of samples in the given form."""

    def __init__(
        self, body: bytes, form: AudioForm, *, rate: int, max_s: float, clock: Clock = time.thread_time
    ) -> None:
        """Open it; `rate` is the output's, in Hz. Raises: BadAudio, BadParameter; TooLarge if its header says so.

        `clock` is the processor time of the thread that decodes.
        """
        self._source = open_source(body, form)
        self._max_s = max_s
        self.channels = self._source.channels
        if self._source.rate not in RATES or not 1 <= self.channels <= MAX_CHANNELS:
            raise BadAudio(f"recordings of {self.channels} channels at {self._source.rate} Hz are not supported")
        if self._source.stated_s is not None and self._source.stated_s > max_s:
            raise self._too_long()
        self._clock = clock
        self._left_s = DECODING_S + DECODING_S_PER_MIB * len(body) / 2**20
        self._resampler = ChannelResampler(self._source.rate, rate, self.channels)
        self._decoded_s = 0.0
        self._ended = False

    def next_block(self) -> PCM | None:
        """Return the next samples, (S, C) int16, or None at the end. Raises: BadAudio, TooLarge."""
        if self._ended:
            return None
        began_s = self._clock()
        samples = self._source.read()
        self._decoded_s += len(samples) / self._source.rate
        if self._decoded_s > self._max_s:
            raise self._too_long()
        self._ended = not len(samples)
        block = self._resampler.flush() if self._ended else self._resampler.resample(samples)
        self._left_s -= self._clock() - began_s
        if self._left_s < 0:
            raise TooLarge(
                f"decoding takes too long for a body of this size: stopped after {self._decoded_s:.0f} s of audio; "
                "send shorter recordings"
            )
        return block

    def _too_long(self) -> TooLarge:
        return TooLarge(f"recordings of more than {self._max_s:g} s are not taken; send it in parts")
