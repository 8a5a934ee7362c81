"""Sources of uploaded recordings at their own sample rate: the live demuxers, libsndfile, FFmpeg, raw samples."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import soundfile

from server.audio.containers.wav import WavDemuxer
from server.audio.formats import PLAIN, SUFFIXES, AudioForm, Encoding, container_kind
from server.audio.frames import tag_size
from server.audio.packets import Track
from server.audio.pcm import BLOCK_S, PCM
from server.audio.raw import FULL_SCALE, PLAIN_CODECS, PlainCodec, PlainReader, to_int16
from server.audio.recordings.container_recording import KINDS as OWN_KINDS
from server.audio.recordings.container_recording import ContainerSource, contents_of
from server.audio.recordings.ffmpeg_container import AvSource
from server.audio.recordings.parts import cut_short, other_kind, parts_of
from server.audio.recordings.riff import without_metadata
from server.audio.sniffing import container_of
from server.errors import BadAudio, BadParameter, MediaError, NotTaken, Undecodable

SNIFF_BYTES = 2**15  # three of the largest AAC frames
PIECE_BYTES = 2**17
MAX_RECORDINGS = 1_000  # of one body: opening one takes up to a millisecond, even if it is only a header
READS_A_BLOCK = 8  # of libsndfile: an error at the end loses at most an eighth of a block
WAVE_AT = 8
UNSUPPORTED = f"not a supported recording ({', '.join(SUFFIXES)}); raw audio needs encoding and sample rate"
SEVERAL_WAVS = "several WAV files of this format in one body are not supported; send them separately"


class Source(Protocol):
    """A recording at its original sample rate."""

    @property
    def rate(self) -> int:
        """Sample rate in Hz of the samples read last."""

    @property
    def channels(self) -> int:
        """Number of channels of the samples read last."""

    @property
    def part(self) -> int:
        """Index of the recording read last, if there are several in the body."""

    @property
    def warnings(self) -> list[str]:
        """Missing or skipped parts so far, as `kind: sentence`."""

    @property
    def stated_s(self) -> float | None:
        """Length in seconds by the header, None if it has none."""

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end. Raises: BadAudio."""


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
    if kind == "wav":
        try:
            return WavSource(body)
        except NotTaken:  # for example ADPCM, which libsndfile reads
            if body.find(b"WAVEfmt ", WAVE_AT + 1) > 0:
                raise BadAudio(SEVERAL_WAVS) from None
    parts = parts_of(body, kind)
    first = next(parts)
    source = _open_part(first, kind)
    return source if len(first) == len(body) else ChainedSource(source, parts, kind)


def _open_part(body: bytes, kind: str | None) -> Source:
    """Open a body with one recording. Raises: BadAudio."""
    try:
        contents = contents_of(body)
    except MediaError as error:  # libsndfile or FFmpeg may read it, or report the error better
        if kind == "ogg":  # they read no other codecs, and search all of the body for a page
            raise BadAudio(f"the ogg recording cannot be decoded: {error}") from error
        problem = cut_short(body, kind)
    else:
        problem = contents.problem
        if kind in OWN_KINDS:
            return ContainerSource(body, contents.length_s)
    try:
        return SoundfileSource(body, problem)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        return _open_by_ffmpeg(body, problem, error)


def _kind_after_tags(body: bytes) -> str | None:
    """Return the container's kind; FLAC, WAV and AAC may start with an ID3 tag."""
    tag = tag_size(body, 0)
    kind = container_kind(body[tag : tag + SNIFF_BYTES]) if tag else None
    return kind or container_kind(body[:SNIFF_BYTES]) or other_kind(body)


def _open_by_ffmpeg(body: bytes, problem: str | None, error: Exception) -> Source:
    """Open a body with FFmpeg. Raises: BadAudio."""
    kind = container_kind(body)
    if kind is None:
        raise BadAudio(UNSUPPORTED) from error
    try:
        source = AvSource(body, kind)
    except BadAudio as refused:
        raise BadAudio(f"{refused} ({problem})" if problem else str(refused)) from refused
    if not (source.rate and source.channels):  # no frame was found
        raise BadAudio(UNSUPPORTED)
    source.warnings += [problem] if problem else []
    return source


def _next_part(part: int) -> int:
    """Return the index of the next recording. Raises: BadAudio if there are too many."""
    if part + 1 >= MAX_RECORDINGS:
        raise BadAudio(f"more than {MAX_RECORDINGS} recordings in one body; send them separately")
    return part + 1


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
            self.part = _next_part(self.part)
        return samples


class WavSource:
    """One or several WAV files, read by the demuxer of live streams."""

    def __init__(self, body: bytes) -> None:
        """Read up to the first samples. Raises: BadAudio; NotTaken for formats that the demuxer does not support."""
        self._body = memoryview(body)
        self._items = self._demuxed()
        self._reader: PlainReader | None = None
        self.rate, self.channels, self.part = 0, 0, -1
        self.warnings: list[str] = []
        self.stated_s: float | None = None  # not needed: the body size bounds the length

        for item in self._items:
            if isinstance(item, Track):
                self._begin(item)
                break
        else:
            raise BadAudio("the WAV ends before its samples")

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end. Raises: BadAudio."""
        assert self._reader is not None
        try:
            for item in self._items:
                if isinstance(item, Track):
                    self._begin(item)
                elif len(samples := self._reader.read(item)):
                    return samples
        except NotTaken as error:
            raise BadAudio(SEVERAL_WAVS) from error
        return self._reader.drain()

    def _begin(self, track: Track) -> None:
        if not track.channels:
            raise BadAudio("the WAV header announces 0 channels")
        self._reader = PlainReader(PlainCodec(track.codec), track.rate, track.channels)
        self.rate, self.channels, self.part = track.rate, track.channels, _next_part(self.part)

    def _demuxed(self) -> Iterator[Track | bytes]:
        """Yield tracks and samples. Raises: BadAudio, NotTaken."""
        demuxer = WavDemuxer(bounded=False)
        try:
            for at in range(0, len(self._body), PIECE_BYTES):
                yield from demuxer.feed(bytes(self._body[at : at + PIECE_BYTES]))
            yield from demuxer.flush()
        except Undecodable as error:
            raise BadAudio(str(error)) from error
        problem = demuxer.problem()
        self.warnings += [problem] if problem else []


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


UNKNOWN_FRAMES = 2**62  # libsndfile: SF_COUNT_MAX, 2**63 - 1, for a header without a length


class SeekableBody(io.BytesIO):
    """The bytes of a body; libsndfile may seek before the first one, as the sizes in a damaged header tell it to."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move and return the position, which stays if it would be negative: no exception can pass libsndfile."""
        return super().seek(offset, whence) if whence != io.SEEK_SET or offset >= 0 else self.tell()


class ForwardFile(soundfile.SoundFile):  # type: ignore[misc]  # it has no types
    """A sound file that is only read forward.

    After each read of a seekable file `soundfile` seeks to the current position, which makes the MP3 decoder lose the
    bit reservoir of earlier frames.
    """

    def seekable(self) -> bool:
        """Return False, so that `soundfile` does not seek."""
        return False


class SoundfileSource:
    """A recording that libsndfile reads."""

    def __init__(self, body: bytes, problem: str | None = None) -> None:
        """Open the body; `problem` is a warning about it. Raises: LibsndfileError, RuntimeError, TypeError."""
        self._body = SeekableBody(without_metadata(body))
        self._file = ForwardFile(self._body)
        self._has_audio = False  # anything was decoded
        self.rate: int = self._file.samplerate
        self.channels: int = self._file.channels
        self.part, self.warnings = 0, [problem] if problem else []
        frames = self._file.frames
        self.stated_s: float | None = frames / self.rate if 0 < frames < UNKNOWN_FRAMES else None

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end. Raises: BadAudio."""
        blocks = [np.empty((0, self.channels), np.float32)]
        try:
            for _ in range(READS_A_BLOCK):
                # (S, C) float32
                blocks.append(self._file.read(BLOCK_S * self.rate // READS_A_BLOCK, dtype="float32", always_2d=True))
                if not len(blocks[-1]):
                    break
        except (soundfile.LibsndfileError, RuntimeError) as error:
            if self._body.tell() < len(self._body.getbuffer()) or not (self._has_audio or len(blocks) > 1):
                raise BadAudio("the recording is damaged") from error
            if not self.warnings:
                self.warnings.append("truncated: the recording ends inside its audio")
        self._has_audio = self._has_audio or len(blocks) > 1
        # Full scale is 2**15, so that 16-bit recordings stay unchanged.
        return to_int16(np.concatenate(blocks), FULL_SCALE)
