"""Header packets of the codecs in Ogg: Opus, Vorbis, FLAC. Each yields its track once its headers are there.

Source: RFC 7845 (Opus), Xiph's "Vorbis I specification", section 4.2 and appendix A, RFC 9639, section 10.1 (FLAC).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.audio.containers.flac import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    STREAM_INFO_BYTES,
    frame_header,
    stream_info_track,
)
from server.audio.formats import OPUS_RATE
from server.audio.packets import MAX_PACKET_BYTES, PacketCodec, Track
from server.errors import Undecodable

OPUS_HEAD, OPUS_TAGS, OPUS_HEAD_BYTES = b"OpusHead", b"OpusTags", 19
VORBIS_HEAD, VORBIS_HEAD_BYTES = b"\x01vorbis", 30
VORBIS_COMMENT, VORBIS_SETUP = b"\x03vorbis", b"\x05vorbis"
NO_COMMENT = VORBIS_COMMENT + bytes(8) + b"\x01"
MAX_VORBIS_SETUP_BYTES = 2**18  # codebooks: libvorbis writes 4 to 10 kB
FLAC_HEAD = b"\x7fFLAC"
FLAC_INFO_AT = 17  # after versions, the number of headers, "fLaC" and the head of the block
FLAC_SYNC = 0xFF  # of a frame; headers begin with the type of their block


class Headers(Protocol):
    """Reads the packets of one logical stream, header packets first."""

    max_bytes: int
    """Longest packet with audio, or header that is needed."""

    def first(self, packet: bytes) -> Track | None:
        """Take the packet that begins the stream. Raises: Undecodable."""

    def is_header(self, packet: bytes | bytearray) -> bool:
        """Whether a packet that begins so has no audio."""

    def is_comment(self, packet: bytes | bytearray) -> bool:
        """Whether a packet that begins so holds tags or pictures, of any size."""

    def header(self, packet: bytes) -> Track | None:
        """Take a further header; return the track if it is complete with it."""

    def samples(self, packets: Sequence[bytes]) -> int | None:
        """Return what packets of audio decode to, if it may be too much to be decoded at once."""


class OpusHeaders:
    """An identification header and tags."""

    max_bytes = MAX_PACKET_BYTES

    def first(self, packet: bytes) -> Track:
        """Return the track."""
        return opus_track(packet)

    def is_header(self, packet: bytes | bytearray) -> bool:
        """Tags are the only further header."""
        return packet.startswith(OPUS_TAGS)

    is_comment = is_header

    def header(self, packet: bytes) -> None:
        """Ignore the tags."""

    def samples(self, packets: Sequence[bytes]) -> None:
        """Leave it to the decoder: a page holds 31 s at most."""


class VorbisHeaders:
    """An identification header, comments and codebooks: a decoder needs the first and the last."""

    max_bytes = MAX_VORBIS_SETUP_BYTES

    def first(self, packet: bytes) -> None:
        """Keep the identification header."""
        if len(packet) < VORBIS_HEAD_BYTES:
            raise Undecodable("the Vorbis header is damaged")
        self._head = packet[:VORBIS_HEAD_BYTES]

    def is_header(self, packet: bytes | bytearray) -> bool:
        """Headers have an odd first byte."""
        return bool(packet[0] & 1)

    def is_comment(self, packet: bytes | bytearray) -> bool:
        """The comment header."""
        return packet.startswith(VORBIS_COMMENT)

    def header(self, packet: bytes) -> Track | None:
        """Return the track with the codebooks."""
        if not packet.startswith(VORBIS_SETUP):
            return None
        head = self._head
        laced = bytes([2, len(head), len(NO_COMMENT)])  # two sizes below 255; the third is the rest
        rate = int.from_bytes(head[12:16], "little")
        return Track(PacketCodec.VORBIS, rate, head[11], laced + head + NO_COMMENT + packet)

    def samples(self, packets: Sequence[bytes]) -> None:
        """Leave it to the decoder: a page holds two million samples at most."""


class FlacHeaders:
    """A mapping header with the stream's information, then blocks of metadata."""

    max_bytes = MAX_FRAME_BYTES

    def first(self, packet: bytes) -> Track:
        """Return the track."""
        info = packet[FLAC_INFO_AT : FLAC_INFO_AT + STREAM_INFO_BYTES]
        if len(info) < STREAM_INFO_BYTES:
            raise Undecodable("the FLAC header is damaged")
        return stream_info_track(info)

    def is_header(self, packet: bytes | bytearray) -> bool:
        """Whatever is no frame."""
        return packet[0] != FLAC_SYNC

    is_comment = is_header

    def header(self, packet: bytes) -> None:
        """Ignore the metadata."""

    def samples(self, packets: Sequence[bytes]) -> int:
        """Return the sum of what the frames' headers say: a page of silence holds up to 17 million."""
        headers = [frame_header(packet[:MAX_HEADER_BYTES]) for packet in packets]
        return sum(0 if header is None else header.samples for header in headers)


def headers_of(first: bytes) -> Headers | None:
    """Return the reader of a logical stream that begins with this packet, None if it has no audio that is known."""
    if first.startswith(OPUS_HEAD):
        return OpusHeaders()
    if first.startswith(VORBIS_HEAD):
        return VorbisHeaders()
    return FlacHeaders() if first.startswith(FLAC_HEAD) else None


def opus_track(head: bytes) -> Track:
    """Return the track that an identification header describes. Raises: Undecodable."""
    if len(head) < OPUS_HEAD_BYTES or not head.startswith(OPUS_HEAD) or not head[9]:
        raise Undecodable("the Opus header is damaged")
    delay_s = int.from_bytes(head[10:12], "little") / OPUS_RATE
    return Track(PacketCodec.OPUS, OPUS_RATE, head[9], head, delay_s=delay_s)
