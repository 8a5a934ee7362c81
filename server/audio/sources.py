"""Sources of uploaded recordings at their own sample rate: the live demuxers, libsndfile, FFmpeg, raw samples."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import soundfile

from server.audio.container_recording import KINDS as OWN_KINDS
from server.audio.container_recording import ContainerSource, contents_of
from server.audio.containers.wav import WavDemuxer
from server.audio.ffmpeg_container import AvSource
from server.audio.formats import PLAIN, AudioForm, Encoding, container_kind
from server.audio.frames import tag_size
from server.audio.packets import Track
from server.audio.parts import cut_short, other_kind, parts_of
from server.audio.pcm import BLOCK_S, PCM
from server.audio.raw import FULL_SCALE, PLAIN_CODECS, PlainCodec, PlainReader, to_int16
from server.audio.sniffing import container_of
from server.errors import BadAudio, BadParameter, MediaError, NotTaken, Undecodable

SNIFF_BYTES = 2**15  # three of the largest AAC frames
PIECE_BYTES = 2**17
READS_A_BLOCK = 8  # of libsndfile: an error at the end loses at most an eighth of a block
WAVE_AT = 8


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
    kind = _kind_behind_tags(body)
    if kind == "wav":
        try:
            return WavSource(body)
        except NotTaken:
            kind = "wav"  # for example ADPCM, which libsndfile reads
            if body.find(b"WAVEfmt ", WAVE_AT + 1) > 0:
                raise BadAudio(
                    "several WAV files of this format in one body are not supported; send them separately"
                ) from None
    parts = parts_of(body, kind)
    if len(parts) == 1:
        return open_part(body, kind)
    return ChainedSource([partial(open_part, part, kind) for part in parts])


def open_part(body: bytes, kind: str | None) -> Source:
    """Open a body with one recording. Raises: BadAudio."""
    try:
        contents = contents_of(body)
    except MediaError:  # libsndfile or FFmpeg may read it, or report the error better
        problem = cut_short(body, kind)
    else:
        problem = contents.problem
        if kind in OWN_KINDS:
            return ContainerSource(body, contents.length_s)
    try:
        return SoundfileSource(body, problem)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        return _open_by_ffmpeg(body, problem, error)


def _kind_behind_tags(body: bytes) -> str | None:
    """Return the container's kind; FLAC, WAV and AAC may start with an ID3 tag."""
    tag = tag_size(body, 0)
    kind = container_kind(body[tag : tag + SNIFF_BYTES]) if tag else None
    return kind or container_kind(body[:SNIFF_BYTES]) or other_kind(body)


def _open_by_ffmpeg(body: bytes, problem: str | None, error: Exception) -> Source:
    """Open a body with FFmpeg. Raises: BadAudio."""
    kind = container_kind(body)
    if kind is None:
        raise BadAudio("the body is not a supported recording (wav, flac, ogg, mp3, webm, m4a)") from error
    try:
        source = AvSource(body, kind)
    except BadAudio as refused:
        raise BadAudio(f"{refused} ({problem})" if problem else str(refused)) from refused
    source.warnings += [problem] if problem else []
    return source


class ChainedSource:
    """Several recordings in one body; each is opened when the previous one has ended."""

    def __init__(self, openers: Sequence[Callable[[], Source]]) -> None:
        """Open the first recording. Raises: BadAudio."""
        self._waiting = deque(openers)
        self._current = self._waiting.popleft()()
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
        while not len(samples := self._current.read()) and self._waiting:
            self._before = self.warnings
            try:
                self._current = self._waiting.popleft()()
            except BadAudio as error:
                raise BadAudio(f"recording {self.part + 2} in the body: {error}") from error
            self.part += 1
        return samples


class WavSource:
    """One or several WAV files, read by the demuxer of live streams."""

    def __init__(self, body: bytes) -> None:
        """Read up to the first samples. Raises: BadAudio; NotTaken for formats that the demuxer does not support."""
        self._body, self._at = memoryview(body), 0
        self._demuxer = WavDemuxer(bounded=False)
        self._ready: deque[Track | bytes] = deque()
        self._reader: PlainReader | None = None
        self.rate, self.channels, self.part = 0, 0, -1
        self.warnings: list[str] = []
        self.stated_s: float | None = None  # not needed: the body size bounds the length
        while self._reader is None and self._more():
            pass
        if self._reader is None:
            raise BadAudio("the WAV ends before its samples")

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end. Raises: BadAudio."""
        while self._ready or self._more():
            if not self._ready:
                continue
            item = self._ready.popleft()
            if isinstance(item, Track):
                self._begin(item)
                continue
            assert self._reader is not None
            if len(samples := self._reader.read(item)):
                return samples
        assert self._reader is not None
        return self._reader.drain()

    def _begin(self, track: Track) -> None:
        self._reader = PlainReader(PlainCodec(track.codec), track.rate, track.channels)
        self.rate, self.channels, self.part = track.rate, track.channels, self.part + 1

    def _more(self) -> bool:
        """Feed the next piece of the body; return False at its end. Raises: BadAudio, NotTaken."""
        if self._at >= len(self._body):
            return False
        piece = bytes(self._body[self._at : self._at + PIECE_BYTES])
        self._at += len(piece)
        try:
            self._ready += self._demuxer.feed(piece)
            if self._at >= len(self._body):
                self._ready += self._demuxer.flush()
                problem = self._demuxer.problem()
                self.warnings += [problem] if problem else []
        except Undecodable as error:
            raise BadAudio(str(error)) from error
        if self._reader is None and self._ready:
            first = self._ready.popleft()
            assert isinstance(first, Track)
            if not first.channels:
                raise BadAudio("the WAV header announces 0 channels")
            self._begin(first)
        return True


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
        self._body = io.BytesIO(body)
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
