"""Header packets of the codecs in Ogg: Opus, Vorbis, FLAC. A track is known once its headers are complete.

Source: RFC 7845 (Opus), Xiph's "Vorbis I specification", section 4.2 and appendix A, RFC 9639, section 10.1 (FLAC).
"""

from __future__ import annotations

from collections.abc import Sequence

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
NO_COMMENT = VORBIS_COMMENT + bytes(8) + b"\x01"  # an empty comment header
MAX_VORBIS_SETUP_BYTES = 2**18  # codebooks: libvorbis writes 4 to 10 kB
FLAC_HEAD = b"\x7fFLAC"
FLAC_INFO_AT = 17  # after versions, the number of headers, "fLaC" and the block header
FLAC_SYNC = 0xFF  # first byte of a frame; headers begin with their block type


class OpusHeaders:
    """Opus: an identification header and tags."""

    max_bytes = MAX_PACKET_BYTES

    def first(self, packet: bytes) -> Track:
        """Return the track."""
        return opus_track(packet)

    def is_header(self, packet: bytes | bytearray) -> bool:
        """Whether a packet is the tags, the only further header."""
        return packet.startswith(OPUS_TAGS)

    is_comment = is_header

    def header(self, packet: bytes) -> None:
        """Ignore the tags."""

    def samples(self, packets: Sequence[bytes]) -> None:
        """Return None: a page holds 31 s at most."""


class VorbisHeaders:
    """Vorbis: an identification header, comments and codebooks; decoders need the first and the last."""

    max_bytes = MAX_VORBIS_SETUP_BYTES

    def first(self, packet: bytes) -> None:
        """Keep the identification header."""
        if len(packet) < VORBIS_HEAD_BYTES:
            raise Undecodable("the Vorbis header is damaged")
        self._head = packet[:VORBIS_HEAD_BYTES]

    def is_header(self, packet: bytes | bytearray) -> bool:
        """Whether the first byte is odd, as in all headers."""
        return bool(packet[0] & 1)

    def is_comment(self, packet: bytes | bytearray) -> bool:
        """Whether a packet is the comment header."""
        return packet.startswith(VORBIS_COMMENT)

    def header(self, packet: bytes) -> Track | None:
        """Return the track if this is the codebook header."""
        if not packet.startswith(VORBIS_SETUP):
            return None
        head = self._head
        laced = bytes([2, len(head), len(NO_COMMENT)])  # Xiph lacing: two sizes below 255; the third is the rest
        rate = int.from_bytes(head[12:16], "little")
        return Track(PacketCodec.VORBIS, rate, head[11], laced + head + NO_COMMENT + packet)

    def samples(self, packets: Sequence[bytes]) -> None:
        """Return None: a page holds two million samples at most."""


class FlacHeaders:
    """FLAC: a mapping header with STREAMINFO, then metadata blocks."""

    max_bytes = MAX_FRAME_BYTES

    def first(self, packet: bytes) -> Track:
        """Return the track."""
        info = packet[FLAC_INFO_AT : FLAC_INFO_AT + STREAM_INFO_BYTES]
        if len(info) < STREAM_INFO_BYTES:
            raise Undecodable("the FLAC header is damaged")
        return stream_info_track(info)

    def is_header(self, packet: bytes | bytearray) -> bool:
        """Whether a packet is not a frame."""
        return packet[0] != FLAC_SYNC

    is_comment = is_header

    def header(self, packet: bytes) -> None:
        """Ignore the metadata."""

    def samples(self, packets: Sequence[bytes]) -> int:
        """Return the sum of the block sizes in the frame headers: a page of silence may hold 17 million samples."""
        headers = [frame_header(packet[:MAX_HEADER_BYTES]) for packet in packets]
        return sum(0 if header is None else header.samples for header in headers)


Headers = OpusHeaders | VorbisHeaders | FlacHeaders
"""Reader of the header packets of one logical stream. `max_bytes`: of an audio packet or a required header."""


def headers_of(first: bytes) -> Headers | None:
    """Return the header reader for a logical stream with this first packet, None for an unknown codec."""
    if first.startswith(OPUS_HEAD):
        return OpusHeaders()
    if first.startswith(VORBIS_HEAD):
        return VorbisHeaders()
    return FlacHeaders() if first.startswith(FLAC_HEAD) else None


def opus_track(head: bytes) -> Track:
    """Return the track described by an Opus identification header. Raises: Undecodable."""
    if len(head) < OPUS_HEAD_BYTES or not head.startswith(OPUS_HEAD) or not head[9]:
        raise Undecodable("the Opus header is damaged")
    delay_s = int.from_bytes(head[10:12], "little") / OPUS_RATE
    return Track(PacketCodec.OPUS, OPUS_RATE, head[9], head, delay_s=delay_s)
