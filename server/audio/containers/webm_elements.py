"""Parser of WebM and Matroska elements: element headers, numbers and track entries. Pure.

Source: RFC 8794 (EBML), RFC 9559 (Matroska), "Matroska Codec Specifications" (contents of `CodecPrivate`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from server.audio.containers.flac import MAGIC as FLAC_MAGIC
from server.audio.containers.flac import STREAM_INFO_BYTES, stream_info_track
from server.audio.containers.ogg_codecs import OPUS_HEAD, opus_track
from server.audio.packets import PacketCodec, Track
from server.audio.raw import PlainCodec
from server.errors import NotTaken, Undecodable

TRACKS, TRACK_ENTRY, TRACK_NUMBER, TRACK_TYPE, CODEC_ID, CODEC_PRIVATE = 0x1654AE6B, 0xAE, 0xD7, 0x83, 0x86, 0x63A2
CODEC_DELAY = 0x56AA
CONTENT_ENCODINGS, AUDIO, SAMPLING_RATE, CHANNELS, BIT_DEPTH = 0x6D80, 0xE1, 0xB5, 0x9F, 0x6264
MAX_ID_BYTES, MAX_SIZE_BYTES = 4, 8
AUDIO_TRACK = 2
DEFAULT_RATE = 8_000.0
DEFAULT_OPUS_HEAD = OPUS_HEAD + b"\x01%c\x00\x00\x80\xbb\x00\x00\x00\x00\x00"  # 48 kHz, no pre-skip, no gain
FLAC_INFO_AT = len(FLAC_MAGIC) + 4  # after the block header
_PCM = {  # codec and bits
    (b"A_PCM/FLOAT/IEEE", 32): PlainCodec.F32,  # what browsers record as pcm
    (b"A_PCM/FLOAT/IEEE", 64): PlainCodec.F64,
    (b"A_PCM/INT/LIT", 8): PlainCodec.U8,
    (b"A_PCM/INT/LIT", 16): PlainCodec.S16,
    (b"A_PCM/INT/LIT", 24): PlainCodec.S24,
    (b"A_PCM/INT/LIT", 32): PlainCodec.S32,
}

Fields = dict[int, bytes]


class BadElement(Exception):
    """Bytes that are not the start of an element."""


def entries_of_audio(tracks: bytes) -> list[Fields]:
    """Return the entries of the audio tracks, at least one. Raises: NotTaken, Undecodable."""
    entries = [dict(elements(entry)) for element, entry in elements(tracks) if element == TRACK_ENTRY]
    if audio := [fields for fields in entries if uint(fields.get(TRACK_TYPE, b"")) == AUDIO_TRACK]:
        return audio
    raise NotTaken("the WebM stream has no audio track")


def track_of(fields: Fields) -> tuple[int, Track]:
    """Return the number and the track of a track entry. Raises: NotTaken, Undecodable."""
    if CONTENT_ENCODINGS in fields:
        raise NotTaken("WebM tracks with compression or encryption (ContentEncodings) are not supported")
    return uint(fields.get(TRACK_NUMBER, b"")), _track(fields)


def _track(fields: Fields) -> Track:
    codec = fields.get(CODEC_ID, b"").rstrip(b"\0")
    audio = dict(elements(fields.get(AUDIO, b"")))
    channels = uint(audio.get(CHANNELS, b"\x01"))
    rate = int(_float(audio[SAMPLING_RATE]) if SAMPLING_RATE in audio else DEFAULT_RATE)
    private = fields.get(CODEC_PRIVATE, b"")
    if codec == b"A_OPUS":
        if not private and channels not in (1, 2):
            raise Undecodable("the Opus header is missing")
        return opus_track(private or DEFAULT_OPUS_HEAD % channels)
    if codec == b"A_VORBIS" and private:
        return Track(PacketCodec.VORBIS, rate, channels, private)
    if codec == b"A_FLAC" and len(private) >= FLAC_INFO_AT + STREAM_INFO_BYTES:
        return stream_info_track(private[FLAC_INFO_AT : FLAC_INFO_AT + STREAM_INFO_BYTES])
    skip = round(uint(fields.get(CODEC_DELAY, b"")) * rate / 1e9)
    if codec == b"A_AAC" and private:
        return Track(PacketCodec.AAC, rate, channels, private, skip=skip)
    if codec in (b"A_MPEG/L1", b"A_MPEG/L2", b"A_MPEG/L3"):  # one decoder reads all layers
        return Track(PacketCodec.MP3, rate, channels, skip=skip)
    plain = _PCM.get((codec, uint(audio.get(BIT_DEPTH, b"\x20"))))
    if plain is not None:
        return Track(plain, rate, channels)
    raise NotTaken(
        f"WebM audio codec {codec[:32].decode('ascii', 'replace')!r} is not supported live; send Opus or FLAC"
    )


def element_head(data: bytes | bytearray, at: int) -> tuple[int, int, int | None] | None:
    """Return identifier, offset of the body, and its size or None if open; None if the header is incomplete.

    Raises: BadElement.
    """
    identifier = vint(data, at, MAX_ID_BYTES, marker=True)
    size = vint(data, identifier[1], MAX_SIZE_BYTES, marker=False) if identifier is not None else None
    if identifier is None or size is None:
        return None
    is_open = size[0] == (1 << 7 * (size[1] - identifier[1])) - 1
    return identifier[0], size[1], None if is_open else size[0]


def vint(data: bytes | bytearray, at: int, longest: int, *, marker: bool) -> tuple[int, int] | None:
    """Return a variable-length number and the offset after it, None if incomplete.

    Raises: BadElement. Source: RFC 8794, section 4.
    """
    if at >= len(data):
        return None
    length = 9 - data[at].bit_length()
    if length > longest:
        raise BadElement
    if at + length > len(data):
        return None
    number = int.from_bytes(data[at : at + length], "big")
    return (number if marker else number & ~(1 << 7 * length)), at + length


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield identifiers and bodies of the elements in a complete body. Raises: Undecodable."""
    at = 0
    while at < len(data):
        try:
            head = element_head(data, at)
        except BadElement:
            head = None
        if head is None or head[2] is None or head[1] + head[2] > len(data):
            raise Undecodable("the WebM header is damaged")
        yield head[0], data[head[1] : head[1] + head[2]]
        at = head[1] + head[2]


def uint(data: bytes) -> int:
    """Return an unsigned integer of at most eight bytes."""
    return int.from_bytes(data[:8], "big")


def sint(data: bytes) -> int:
    """Return a signed integer."""
    return int.from_bytes(data, "big", signed=True)


def _float(data: bytes) -> float:
    """Return a float of 4 or 8 bytes; 0, an invalid rate, for anything else."""
    if len(data) not in (4, 8):
        return 0.0
    (number,) = struct.unpack(">f" if len(data) == 4 else ">d", data)
    return float(number) if 0 < number < 1e9 else 0.0
