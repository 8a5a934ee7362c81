"""An uploaded body as blocks of 16-bit samples, whoever reads it: libsndfile, FFmpeg, or our own tables. Blocking.

libsndfile reads wav of all kinds, flac, ogg, mp3. What it cannot (webm, m4a, aac, amr) FFmpeg reads, where it is
installed. Nothing but the body is ever opened: playlists and references to other files are not followed.
"""

from __future__ import annotations

import io
from typing import Protocol

import numpy as np
import soundfile

from server.audio.container_kinds import container_kind
from server.audio.formats import PLAIN, AudioForm, Encoding
from server.audio.pcm import PCM
from server.audio.raw import FULL_SCALE, PLAIN_CODECS, PlainReader, to_int16
from server.errors import BadAudio, BadParameter

BLOCK_S = 2  # decoded and resampled in a few milliseconds


class Source(Protocol):
    """A recording as it was made."""

    @property
    def rate(self) -> int:
        """Hz."""

    @property
    def channels(self) -> int:
        """How many."""

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
        return _other(body, error)


def _other(body: bytes, error: Exception) -> Source:
    """What FFmpeg makes of it. Raises: BadAudio."""
    kind = container_kind(body)
    if kind is None:
        raise BadAudio("the body is no recording that can be decoded (wav, flac, ogg, mp3, webm, m4a)") from error
    try:
        from server.audio.ffmpeg_container import AvSource
    except ImportError:
        raise BadAudio(f"{kind} needs the optional package: pip install 'tutti[media]'") from error
    return AvSource(body, kind)


class PlainSource:
    """Samples without framing; an incomplete one at the end is none."""

    def __init__(self, body: bytes, form: AudioForm) -> None:
        """Take a body of the form. Raises: BadParameter if it holds no sample."""
        assert form.sample_rate is not None
        self.rate, self.channels = form.sample_rate, form.channels
        self._reader = PlainReader(PLAIN_CODECS[form.encoding], form.channels)
        if not self._reader.whole_frames(body):
            raise BadParameter("the body is empty")
        self._body, self._at = memoryview(body), 0
        self._block_bytes = BLOCK_S * form.sample_rate * self._reader.frame_bytes

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end."""
        block = bytes(self._body[self._at : self._at + self._block_bytes])
        self._at += len(block)
        return self._reader.read(block)


class SoundfileSource:
    """What libsndfile reads."""

    def __init__(self, body: bytes) -> None:
        """Open it. Raises: LibsndfileError, RuntimeError, TypeError."""
        self._file = soundfile.SoundFile(io.BytesIO(body))
        self.rate: int = self._file.samplerate
        self.channels: int = self._file.channels

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""
        try:
            block = self._file.read(BLOCK_S * self.rate, dtype="float32", always_2d=True)  # (S, C)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise BadAudio("the recording is damaged") from error
        # Full scale is 2**15, so that 16-bit recordings come through unchanged.
        return to_int16(np.asarray(block, np.float32), FULL_SCALE)
