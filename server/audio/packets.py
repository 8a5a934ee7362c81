"""Interface of the demuxers, the tracks that they yield, and their budget for parts without audio. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from server.audio.raw import PlainCodec, sample_bytes
from server.errors import NoAudio

MAX_PACKET_BYTES = 2**16  # an Opus packet of the longest kind is 61,298 bytes. Source: RFC 6716, section 3.4
MAX_SETUP_BYTES = 2**16
MAX_SILENT_BYTES = 2**23  # without audio: a cover picture of 4 MiB with its tags, or 27 s of video at 2.5 Mbit/s
TYPICAL_BYTES_PER_S = 3_000  # 24 kbit/s, for each channel
FIRST_PARTS, PARTS_A_PACKET = 4_096, 64


class PacketCodec(StrEnum):
    """Codecs of packets that FFmpeg decodes."""

    OPUS = "opus"
    FLAC = "flac"


@dataclass(frozen=True, slots=True)
class Track:
    """Description of the packets that follow. `setup` is the codec's header."""

    codec: PacketCodec | PlainCodec
    rate: int
    channels: int
    setup: bytes = b""

    @property
    def bytes_per_s(self) -> float:
        """Bytes of a second of its audio: exact for samples, typical for compressed packets."""
        if not isinstance(self.codec, PacketCodec):
            return self.rate * self.channels * sample_bytes(self.codec)
        if self.codec is PacketCodec.FLAC:
            return self.rate * self.channels  # half of 16 bits
        return TYPICAL_BYTES_PER_S * self.channels


class Demuxer(ABC):
    """Demuxer of one kind of container; its iterators must be exhausted before more is fed."""

    @abstractmethod
    def feed(self, chunk: bytes) -> Iterator[Track | bytes]:
        """Yield the packets that `chunk` completes, each track before its first. Raises: MediaError."""

    def drain(self) -> Iterator[bytes]:
        """Yield the packets that are complete without the bytes that follow; by default `feed` yielded them all."""
        return iter(())

    def flush(self) -> Iterator[bytes]:
        """Yield the packets that the end of the stream completes."""
        return self.drain()


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
