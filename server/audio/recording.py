"""An uploaded recording as blocks of 16-bit samples at the model's rate: by the demuxers of live streams, libsndfile,
FFmpeg, or from raw samples.

Blocking: for a thread, never the event loop.
"""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import soundfile

from model.errors import install_hint
from server.audio.container_recording import KINDS as OWN_KINDS
from server.audio.container_recording import ContainerSource, contents_of
from server.audio.containers.wav import WavDemuxer
from server.audio.formats import PLAIN, AudioForm, Encoding, container_kind
from server.audio.frames import tag_size
from server.audio.packets import Track
from server.audio.parts import cut_short, other_kind, parts_of
from server.audio.pcm import BLOCK_S, PCM, ChannelResampler, downmix
from server.audio.raw import FULL_SCALE, PLAIN_CODECS, PlainCodec, PlainReader, to_int16
from server.audio.sniffing import container_of
from server.errors import BadAudio, BadParameter, MediaError, NotTaken, TooLarge, Undecodable

SNIFF_BYTES = 2**15  # three of the longest frames of AAC
PIECE_BYTES = 2**17
READS_A_BLOCK = 8  # of libsndfile: what an error at the end takes along is an eighth of a block
WAVE_AT = 8

Clock = Callable[[], float]


class Source(Protocol):
    """A recording at its own rate."""

    @property
    def rate(self) -> int:
        """Hz, of what was read last."""

    @property
    def channels(self) -> int:
        """Number of channels, of what was read last."""

    @property
    def part(self) -> int:
        """Number of the recording that was read last, where several stand one after another."""

    @property
    def warnings(self) -> list[str]:
        """What was missing or left out so far, as `kind: sentence`."""

    @property
    def stated_s(self) -> float | None:
        """Length that the header states; None: it states none."""

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""


def open_source(body: bytes, form: AudioForm) -> Source:
    """Open a body; one that begins as a container is one, whatever encoding is named.

    Raises: BadAudio; BadParameter for a form that no body can have.
    """
    kind = container_of(body[:SNIFF_BYTES], whole=len(body) <= SNIFF_BYTES) or None
    if kind is None and form.encoding is Encoding.OPUS:
        raise BadParameter("encoding: opus packets need a container in an upload; send an Ogg or WebM file")
    if kind is None and form.encoding in PLAIN:
        return PlainSource(body, form)
    kind = _kind_behind_tags(body)
    if kind == "wav":
        try:
            return WavSource(body)
        except NotTaken:
            kind = "wav"  # ADPCM and its like, which libraries read
            if body.find(b"WAVEfmt ", WAVE_AT + 1) > 0:
                raise BadAudio("several WAV files of this format in one body: send them one at a time") from None
    parts = parts_of(body, kind)
    if len(parts) == 1:
        return open_part(body, kind)
    return ChainedSource([partial(open_part, part, kind) for part in parts])


def open_part(body: bytes, kind: str | None) -> Source:
    """Open a body of one recording. Raises: BadAudio."""
    try:
        contents = contents_of(body)
    except MediaError:  # other readers may take it, or say better what is wrong
        problem = cut_short(body, kind)
    else:
        problem = contents.problem
        if kind in OWN_KINDS and _has_ffmpeg():
            return ContainerSource(body, contents.length_s)
    try:
        return SoundfileSource(body, problem)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        return _open_by_ffmpeg(body, problem, error)


def _kind_behind_tags(body: bytes) -> str | None:
    """The container's kind; FLAC, WAV and AAC may begin with the tag of MP3."""
    tag = tag_size(body, 0)
    kind = container_kind(body[tag : tag + SNIFF_BYTES]) if tag else None
    return kind or container_kind(body[:SNIFF_BYTES]) or other_kind(body)


def _has_ffmpeg() -> bool:
    try:
        from server.audio.ffmpeg_container import AvSource  # noqa: F401 - asked whether it can be
    except ImportError:
        return False
    return True


def _open_by_ffmpeg(body: bytes, problem: str | None, error: Exception) -> Source:
    """Open a body by FFmpeg. Raises: BadAudio."""
    kind = container_kind(body)
    if kind is None:
        raise BadAudio("the body is no recording that can be decoded (wav, flac, ogg, mp3, webm, m4a)") from error
    try:
        from server.audio.ffmpeg_container import AvSource
    except ImportError:
        raise BadAudio(f"{kind} needs the optional package: {install_hint('media')}") from error
    try:
        source = AvSource(body, kind)
    except BadAudio as refused:
        raise BadAudio(f"{refused} ({problem})" if problem else str(refused)) from refused
    source.warnings += [problem] if problem else []
    return source


class ChainedSource:
    """Recordings one after another, each opened when the one before has ended."""

    def __init__(self, openers: Sequence[Callable[[], Source]]) -> None:
        """Open the first. Raises: BadAudio."""
        self._waiting = deque(openers)
        self._current = self._waiting.popleft()()
        self._before: list[str] = []
        self.part = 0

    @property
    def rate(self) -> int:
        """Hz, of what was read last."""
        return self._current.rate

    @property
    def channels(self) -> int:
        """Number of channels, of what was read last."""
        return self._current.channels

    @property
    def stated_s(self) -> float | None:
        """Length that the header of the part states."""
        return self._current.stated_s

    @property
    def warnings(self) -> list[str]:
        """Those of all parts so far."""
        return self._before + self._current.warnings

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""
        while not len(samples := self._current.read()) and self._waiting:
            self._before = self.warnings
            try:
                self._current = self._waiting.popleft()()
            except BadAudio as error:
                raise BadAudio(f"recording {self.part + 2} of several in the body: {error}") from error
            self.part += 1
        return samples


class WavSource:
    """WAV files, one or several one after another, by the demuxer of live streams."""

    def __init__(self, body: bytes) -> None:
        """Read up to the first samples. Raises: BadAudio; NotTaken for formats that the demuxer does not know."""
        self._body, self._at = memoryview(body), 0
        self._demuxer = WavDemuxer(bounded=False)
        self._ready: deque[Track | bytes] = deque()
        self._reader: PlainReader | None = None
        self.rate, self.channels, self.part = 0, 0, -1
        self.warnings: list[str] = []
        self.stated_s: float | None = None  # a WAV has the bytes of all its samples
        while self._reader is None and self._more():
            pass
        if self._reader is None:
            raise BadAudio("the WAV ends before its samples")

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""
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
        """Feed the next piece of the body; False at its end. Raises: BadAudio, NotTaken."""
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
                raise BadAudio("the WAV has no channels")
            self._begin(first)
        return True


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
        self.part, self.warnings = 0, list[str]()
        self._block_bytes = BLOCK_S * form.sample_rate * self._reader.frame_bytes
        self.stated_s: float | None = len(body) / self._reader.frame_bytes / form.sample_rate

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end."""
        block = bytes(self._body[self._at : self._at + self._block_bytes])
        self._at += len(block)
        return self._reader.read(block)


UNKNOWN_FRAMES = 2**62  # libsndfile: SF_COUNT_MAX, 2**63 - 1, for a header without a length


class ForwardFile(soundfile.SoundFile):  # type: ignore[misc]  # it has no types
    """A file that is read from its beginning to its end.

    `soundfile` seeks after each read of a file that can be sought, to where it is already: an MP3 decoder loses by it
    the bits that earlier frames hold for the next one.
    """

    def seekable(self) -> bool:
        """Return False, so that nothing is sought."""
        return False


class SoundfileSource:
    """A recording that libsndfile reads."""

    def __init__(self, body: bytes, problem: str | None = None) -> None:
        """Open it; `problem` is a warning. Raises: LibsndfileError, RuntimeError, TypeError."""
        self._body = io.BytesIO(body)
        self._file = ForwardFile(self._body)
        self._heard = False  # anything was decoded
        self.rate: int = self._file.samplerate
        self.channels: int = self._file.channels
        self.part, self.warnings = 0, [problem] if problem else []
        frames = self._file.frames
        self.stated_s: float | None = frames / self.rate if 0 < frames < UNKNOWN_FRAMES else None

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""
        blocks = [np.empty((0, self.channels), np.float32)]
        try:
            for _ in range(READS_A_BLOCK):
                # (S, C) float32
                blocks.append(self._file.read(BLOCK_S * self.rate // READS_A_BLOCK, dtype="float32", always_2d=True))
                if not len(blocks[-1]):
                    break
        except (soundfile.LibsndfileError, RuntimeError) as error:
            if self._body.tell() < len(self._body.getbuffer()) or not (self._heard or len(blocks) > 1):
                raise BadAudio("the recording is damaged") from error
            if not self.warnings:
                self.warnings.append("truncated: the recording ends inside its audio")
        self._heard = self._heard or len(blocks) > 1
        # Full scale is 2**15, so that 16-bit recordings come through unchanged.
        return to_int16(np.concatenate(blocks), FULL_SCALE)


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
        self._rate = rate
        self.channels = self._source.channels
        if self._source.stated_s is not None and self._source.stated_s > max_s:
            raise self._too_long()
        self._clock = clock
        self._left_s = DECODING_S + DECODING_S_PER_MIB * len(body) / 2**20
        self._part = self._source.part
        self._resampler = self._fresh_resampler()
        self._decoded_s = 0.0
        self._ended = False

    @property
    def warnings(self) -> list[str]:
        """What was missing or left out so far, as `kind: sentence`; whole at the end."""
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
                f"decoding takes too long for a body of this size: stopped after {self._decoded_s:.0f} s of audio; "
                "send shorter recordings"
            )
        return np.concatenate([*rest, last]) if rest else last

    def _too_long(self) -> TooLarge:
        return TooLarge(f"recordings of more than {self._max_s:g} s are not taken; send it in parts")

    def _fresh_resampler(self) -> ChannelResampler:
        """Of the part that was read last. Raises: BadAudio."""
        source = self._source
        if source.rate not in RATES or not 1 <= source.channels <= MAX_CHANNELS:
            raise BadAudio(f"recordings of {source.channels} channels at {source.rate} Hz are not supported")
        return ChannelResampler(source.rate, self._rate, self.channels)

    def _as_first(self, samples: PCM) -> PCM:
        """The samples of a further recording in as many channels as the first one has, the same in each."""
        if samples.shape[1] == self.channels:
            return samples
        return np.repeat(downmix(samples)[:, None], self.channels, axis=1)  # (S, C)
