"""Interface of the demuxers, the tracks that they yield, and their budget for parts without audio. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from server.audio.raw import PlainCodec, sample_bytes
from server.errors import NoAudio, Undecodable

MAX_PACKET_BYTES = 2**16  # an Opus packet of the longest kind is 61,298 bytes. Source: RFC 6716, section 3.4
MAX_SETUP_BYTES = 2**16
MAX_SILENT_BYTES = 2**23  # without audio: a cover picture of 4 MiB with its tags, or 27 s of video at 2.5 Mbit/s
MAX_LOST_BYTES = 2**18  # searched for the next page, block or frame: four of the largest pages
TYPICAL_BYTES_PER_S = 3_000  # 24 kbit/s, for each channel
FIRST_PARTS, PARTS_A_PACKET = 4_096, 64


class PacketCodec(StrEnum):
    """Codecs of packets that FFmpeg decodes."""

    OPUS = "opus"
    FLAC = "flac"
    VORBIS = "vorbis"
    MP3 = "mp3"
    AAC = "aac"


@dataclass(frozen=True, slots=True)
class Track:
    """Description of the packets that follow. `setup` is the codec's header.

    `delay_s` is what the decoder itself drops of the beginning; of what it returns, the first `skip` samples are no
    audio, and no more than `length` samples follow, where that is known.
    """

    codec: PacketCodec | PlainCodec
    rate: int
    channels: int
    setup: bytes = b""
    delay_s: float = 0.0
    skip: int = 0
    length: int | None = None

    @property
    def bytes_per_s(self) -> float:
        """Bytes of a second of its audio: exact for samples, typical for compressed packets."""
        if not isinstance(self.codec, PacketCodec):
            return self.rate * self.channels * sample_bytes(self.codec)
        if self.codec is PacketCodec.FLAC:
            return self.rate * self.channels  # half of 16 bits
        return TYPICAL_BYTES_PER_S * self.channels


@dataclass(frozen=True, slots=True)
class Timed:
    """Packets whose place in time the container names, in seconds: of the first one's start, or the last one's end.

    `last`: the track ends at `end_s`, also where its packets decode to more. The last `discard_s` are padding.
    `samples` is what the packets decode to, where their headers say so; else a decoder must find out.
    """

    packets: tuple[bytes, ...]
    start_s: float | None = None
    end_s: float | None = None
    last: bool = False
    discard_s: float = 0.0
    samples: int | None = None


Item = Track | bytes | Timed


class Demuxer(ABC):
    """Demuxer of one kind of container; its iterators must be exhausted before more is fed."""

    resyncs = 0  # places where bytes were lost, and the stream was found again

    @abstractmethod
    def feed(self, chunk: bytes) -> Iterator[Item]:
        """Yield the packets that `chunk` completes, each track before its first. Raises: MediaError."""

    def drain(self) -> Iterator[Item]:
        """Yield the packets that are complete without the bytes that follow; by default `feed` yielded them all."""
        return iter(())

    def flush(self) -> Iterator[Item]:
        """Yield the packets that the end of the stream completes. Raises: MediaError."""
        return self.drain()

    @abstractmethod
    def problem(self) -> str | None:
        """What the end of the stream, after `flush`, shows to be missing or left out; None for a whole one."""


class ByteWindow:
    """The bytes of a stream that are not read yet, and where in the stream they begin."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.offset = 0  # of the first byte of `data`

    def drop(self, size_bytes: int) -> None:
        """Forget the first bytes, which are read."""
        del self.data[:size_bytes]
        self.offset += size_bytes

    def take(self, size_bytes: int) -> bytes:
        """Return the first bytes and forget them."""
        taken = bytes(self.data[:size_bytes])
        self.drop(size_bytes)
        return taken


class Resync:
    """Search for the place where a damaged stream can be read again, within a bound."""

    def __init__(self, what: str) -> None:
        """`what` is missing, for the error's text."""
        self._what = what
        self._lost_at: int | None = None
        self._bytes = 0

    @property
    def searching(self) -> bool:
        """True from the damage on until the stream is found again."""
        return self._lost_at is not None

    def lose(self, offset: int) -> None:
        """Begin to search, at this byte of the stream."""
        if self._lost_at is None:
            self._lost_at, self._bytes = offset, 0

    def skip(self, window: ByteWindow, size_bytes: int) -> None:
        """Drop bytes among which nothing was found. Raises: Undecodable."""
        window.drop(size_bytes)
        self._bytes += size_bytes
        if self._bytes > MAX_LOST_BYTES:
            raise self.error()

    def found(self) -> None:
        """Read on."""
        self._lost_at = None

    def error(self) -> Undecodable:
        """Return the error of a stream that cannot be read from there on."""
        return Undecodable(f"{self._what} expected at byte {self._lost_at}, and none follows: bytes were lost")


class NonAudioBudget:
    """Bounds the parts and bytes of a container without audio; each packet of audio earns further parts."""

    def __init__(self) -> None:
        self._parts = FIRST_PARTS
        self._silent_bytes = 0

    def part(self, size_bytes: int) -> None:
        """Count one part without audio. Raises: NoAudio."""
        self._parts -= 1
        self._silent_bytes += size_bytes
        if self._silent_bytes > MAX_SILENT_BYTES:
            raise NoAudio.in_bytes(MAX_SILENT_BYTES)
        if self._parts < 0:
            raise NoAudio(f"no audio in {FIRST_PARTS} successive parts of the stream")

    def audio(self) -> None:
        """Count a packet of audio."""
        self._parts = min(self._parts + PARTS_A_PACKET, FIRST_PARTS)
        self._silent_bytes = 0
