"""Sources of uploaded recordings at their own sample rate: the live demuxers, else FFmpeg; and raw samples."""

from __future__ import annotations

from collections.abc import Iterator

from server.audio.containers.mpeg import tag_size
from server.audio.formats import PLAIN, SUFFIXES, AudioForm, Encoding, container_kind
from server.audio.pcm import BLOCK_S, PCM
from server.audio.raw import PLAIN_CODECS, PlainReader
from server.audio.recordings.container_recording import ContainerSource, length_of, next_part
from server.audio.recordings.ffmpeg_container import AvSource
from server.audio.recordings.parts import cut_short, parts_of
from server.audio.sniffing import container_of
from server.errors import BadAudio, BadParameter, Headless, MediaError, NoAudio, NotTaken

SNIFF_BYTES = 2**15  # three of the largest AAC frames
WAVE_AT = 8
UNSUPPORTED = f"not a supported recording ({', '.join(SUFFIXES)}); raw audio needs encoding and sample rate"
SEVERAL_WAVS = "several WAV files of this format in one body are not supported; send them separately"


def open_source(body: bytes, form: AudioForm) -> Source:
    """Open a body; a container is recognized even if a raw encoding was announced.

    Raises: BadAudio; BadParameter for a form that uploads cannot have.
    """
    kind = container_of(body[:SNIFF_BYTES], whole=len(body) <= SNIFF_BYTES) or None
    if kind is None and form.encoding is Encoding.OPUS:
        raise BadParameter("encoding: raw Opus cannot be uploaded without a container; send an Ogg or WebM file")
    if kind is None and form.encoding in PLAIN:
        return PlainSource(body, form)
    kind = _kind_after_tags(body)
    parts = parts_of(body, kind)
    first = next(parts)
    source = _open_part(first, kind)
    return source if len(first) == len(body) else ChainedSource(source, parts, kind)


def _open_part(body: bytes, kind: str | None) -> Source:
    """Open one of the parts of a body. Raises: BadAudio."""
    try:
        length_s = length_of(body)
    except MediaError as error:  # FFmpeg may read it, or report the error better
        if kind == "ogg" or isinstance(error, Headless):  # it reads no other Ogg, and searches all of it for a page
            raise BadAudio(f"the {kind} recording cannot be decoded: {error}") from error
        if kind == "wav" and not isinstance(error, NotTaken | NoAudio):  # others, such as ADPCM, are read
            raise BadAudio(str(error)) from error
        if kind == "wav" and body.find(b"WAVEfmt ", WAVE_AT + 1) > 0:
            raise BadAudio(SEVERAL_WAVS) from error
        return _open_by_ffmpeg(body, kind)
    return ContainerSource(body, length_s)


def _kind_after_tags(body: bytes) -> str | None:
    """Return the container's kind; FLAC, WAV and AAC may start with an ID3 tag."""
    tag = tag_size(body, 0)
    return container_kind(body[tag : tag + SNIFF_BYTES]) or container_kind(body[:SNIFF_BYTES])


def _open_by_ffmpeg(body: bytes, kind: str | None) -> Source:
    """Open a body with FFmpeg. Raises: BadAudio."""
    if kind is None:
        raise BadAudio(UNSUPPORTED)
    problem = cut_short(body, kind)
    try:
        source = AvSource(body, kind)
    except BadAudio as refused:
        raise BadAudio(f"{refused} ({problem})" if problem else str(refused)) from refused
    if not (source.rate and source.channels):  # no frame was found
        raise BadAudio(UNSUPPORTED)
    source.warnings += [problem] if problem else []
    return source


class ChainedSource:
    """Several recordings in one body; each is opened when the previous one has ended."""

    def __init__(self, first: Source, parts: Iterator[bytes], kind: str | None) -> None:
        """`first` is open; `parts` are the others."""
        self._current, self._others, self._kind = first, parts, kind
        self._before: list[str] = []
        self.part = 0

    @property
    def rate(self) -> int:
        """Sample rate in Hz of the samples read last."""
        return self._current.rate

    @property
    def channels(self) -> int:
        """Number of channels of the samples read last."""
        return self._current.channels

    @property
    def stated_s(self) -> float | None:
        """Length in seconds by the header of the current recording."""
        return self._current.stated_s

    @property
    def warnings(self) -> list[str]:
        """Warnings of all recordings so far."""
        return self._before + self._current.warnings

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end. Raises: BadAudio."""
        while not len(samples := self._current.read()) and (other := next(self._others, None)) is not None:
            try:
                opened = _open_part(other, self._kind)
            except BadAudio as error:
                raise BadAudio(f"recording {self.part + 2} in the body: {error}") from error
            self._before, self._current = self.warnings, opened
            self.part = next_part(self.part)
        return samples


class PlainSource:
    """Raw samples; an incomplete frame at the end is dropped."""

    def __init__(self, body: bytes, form: AudioForm) -> None:
        """`form` describes the samples. Raises: BadAudio if the body has none."""
        assert form.sample_rate is not None
        self.rate, self.channels = form.sample_rate, form.channels
        self._reader = PlainReader(PLAIN_CODECS[form.encoding], form.sample_rate, form.channels)
        if len(body) < self._reader.frame_bytes:
            raise BadAudio("the body is shorter than one sample")
        self._body, self._at = memoryview(body), 0
        self.part, self.warnings = 0, list[str]()
        self._block_bytes = BLOCK_S * form.sample_rate * self._reader.frame_bytes
        self.stated_s: float | None = len(body) / self._reader.frame_bytes / form.sample_rate

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end."""
        block = bytes(self._body[self._at : self._at + self._block_bytes])
        self._at += len(block)
        return self._reader.read(block)


Source = ContainerSource | AvSource | ChainedSource | PlainSource
"""A recording at its original sample rate."""
