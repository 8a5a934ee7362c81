"""Interface of live demuxers, the tracks they yield, and the limit on data without audio. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from server.audio.raw import PlainCodec, sample_bytes
from server.errors import NoAudio, Undecodable

MAX_PACKET_BYTES = 2**16  # the largest Opus packet has 61,298 bytes. Source: RFC 6716, section 3.4
MAX_SETUP_BYTES = 2**16
MAX_SILENT_BYTES = 2**23  # without audio: a cover picture of 4 MiB with its tags, or 27 s of video at 2.5 Mbit/s
MAX_LOST_BYTES = 2**18  # searched for the next page, block or frame: four of the largest pages
TYPICAL_BYTES_PER_S = 3_000  # 24 kbit/s per channel
FIRST_PARTS, PARTS_A_PACKET = 4_096, 64


class PacketCodec(StrEnum):
    """Packet codecs that FFmpeg decodes."""

    OPUS = "opus"
    FLAC = "flac"
    VORBIS = "vorbis"
    MP3 = "mp3"
    AAC = "aac"


@dataclass(frozen=True, slots=True)
class Track:
    """Description of the packets that follow. `setup` is the codec's header.

    The decoder itself drops the first `delay_s`. Of the samples it returns, the first `skip` are dropped, and at most
    `length` after them are kept, if it is known.
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
        """Bytes per second of audio: exact for uncompressed samples, typical for compressed packets."""
        if not isinstance(self.codec, PacketCodec):
            return self.rate * self.channels * sample_bytes(self.codec)
        if self.codec is PacketCodec.FLAC:
            return self.rate * self.channels  # half of 16 bits
        return TYPICAL_BYTES_PER_S * self.channels


@dataclass(frozen=True, slots=True)
class Timed:
    """Packets with a timestamp in seconds: the start of the first or the end of the last.

    `last`: the track ends at `end_s`, even if its packets decode to more. The last `discard_s` are padding.
    `samples` is the number of samples in the packets, None if it is unknown before decoding.
    """

    packets: tuple[bytes, ...]
    start_s: float | None = None
    end_s: float | None = None
    last: bool = False
    discard_s: float = 0.0
    samples: int | None = None


Item = Track | bytes | Timed


class Demuxer(ABC):
    """Demuxer of one container format; its iterators must be exhausted before more is fed."""

    resyncs = 0  # places where bytes were lost and reading resumed
    other_tracks = 0  # with audio, which are skipped
    announced_s = 0.0  # length by the headers so far, 0 if they have none

    @abstractmethod
    def feed(self, chunk: bytes) -> Iterator[Item]:
        """Yield the packets that `chunk` completes, and each track before its first packet. Raises: MediaError."""

    def drain(self) -> Iterator[Item]:
        """Yield complete packets that `feed` has held back to see the bytes that follow; by default none."""
        return iter(())

    def flush(self) -> Iterator[Item]:
        """Yield the packets completed by the end of the stream. Raises: MediaError."""
        return self.drain()

    @abstractmethod
    def problem(self) -> str | None:
        """Return, after `flush`, a warning about missing or skipped parts; None for a complete stream."""


class ByteWindow:
    """The unread bytes of a stream and their stream offset."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.offset = 0  # of the first byte of `data`

    def drop(self, size_bytes: int) -> None:
        """Drop the first bytes."""
        del self.data[:size_bytes]
        self.offset += size_bytes

    def take(self, size_bytes: int) -> bytes:
        """Return and drop the first bytes."""
        taken = bytes(self.data[:size_bytes])
        self.drop(size_bytes)
        return taken


class Resync:
    """Bounded search for the place at which a damaged stream can be read again."""

    def __init__(self, what: str) -> None:
        """`what` was expected, for the error text."""
        self._what = what
        self._lost_at: int | None = None
        self._bytes = 0

    @property
    def searching(self) -> bool:
        """True from the damage until reading resumes."""
        return self._lost_at is not None

    def lose(self, offset: int) -> None:
        """Start searching at this stream offset."""
        if self._lost_at is None:
            self._lost_at, self._bytes = offset, 0

    def skip(self, window: ByteWindow, size_bytes: int) -> None:
        """Drop searched bytes. Raises: Undecodable over MAX_LOST_BYTES."""
        window.drop(size_bytes)
        self._bytes += size_bytes
        if self._bytes > MAX_LOST_BYTES:
            raise self.error()

    def found(self) -> None:
        """End the search."""
        self._lost_at = None

    def error(self) -> Undecodable:
        """Return the error for a search without result."""
        return Undecodable(f"{self._what} expected at byte {self._lost_at}, and none follows: damaged or lost bytes")


class NonAudioBudget:
    """Limit on successive parts and bytes without audio; each audio packet allows further parts."""

    def __init__(self) -> None:
        self._parts = FIRST_PARTS
        self._silent_bytes = 0

    def part(self, size_bytes: int) -> None:
        """Add a part without audio. Raises: NoAudio."""
        self._parts -= 1
        self._silent_bytes += size_bytes
        if self._silent_bytes > MAX_SILENT_BYTES:
            raise NoAudio.in_bytes(MAX_SILENT_BYTES)
        if self._parts < 0:
            raise NoAudio(f"no audio in {FIRST_PARTS} successive parts of the stream")

    def audio(self) -> None:
        """Add an audio packet."""
        self._parts = min(self._parts + PARTS_A_PACKET, FIRST_PARTS)
        self._silent_bytes = 0
