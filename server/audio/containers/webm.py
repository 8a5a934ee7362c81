"""Demuxer of WebM and Matroska elements, as they arrive. Source: RFC 8794 (EBML) and RFC 9559 (Matroska).

Master elements are entered without counting their size: identifiers differ at every level, and a running recorder
leaves the sizes open. Own code because libraries pull from a file, which would cost a live stream a thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from server.audio.containers.ogg import opus_track
from server.audio.packets import MAX_PACKET_BYTES, MAX_SETUP_BYTES, Demuxer, NonAudioBudget, Track
from server.audio.raw import PlainCodec
from server.errors import NotTaken, Undecodable

MAGIC = b"\x1a\x45\xdf\xa3"
SEGMENT, CLUSTER, BLOCK_GROUP = 0x18538067, 0x1F43B675, 0xA0
TRACKS, SIMPLE_BLOCK, BLOCK = 0x1654AE6B, 0xA3, 0xA1
TRACK_ENTRY, TRACK_NUMBER, TRACK_TYPE, CODEC_ID, CODEC_PRIVATE = 0xAE, 0xD7, 0x83, 0x86, 0x63A2
CONTENT_ENCODINGS, AUDIO, SAMPLING_RATE, CHANNELS, BIT_DEPTH = 0x6D80, 0xE1, 0xB5, 0x9F, 0x6264
HOLDERS = frozenset({SEGMENT, CLUSTER, BLOCK_GROUP})
WANTED = {TRACKS: MAX_SETUP_BYTES, SIMPLE_BLOCK: 2**20, BLOCK: 2**20}  # element: largest that is held in memory
MAX_ID_BYTES, MAX_SIZE_BYTES = 4, 8
AUDIO_TRACK = 2
LACING = 0x06  # flags of a block
DEFAULT_OPUS_HEAD = b"OpusHead\x01%c\x00\x00\x80\xbb\x00\x00\x00\x00\x00"  # 48 kHz, no pre-skip, no gain

Fields = dict[int, bytes]


class WebmDemuxer(Demuxer):
    """Yields the packets of the first audio track; a recorder that restarts sends a new header, and a new track."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0  # bytes of an element that is not wanted
        self._non_audio = NonAudioBudget()
        self._number: int | None = None  # of the track that is read

    def feed(self, chunk: bytes) -> Iterator[Track | bytes]:
        """Yield the packets that `chunk` completes. Raises: Undecodable, NotTaken."""
        self._buffer += chunk
        while self._buffer:
            if self._skip:
                dropped = min(self._skip, len(self._buffer))
                del self._buffer[:dropped]
                self._skip -= dropped
                continue
            head = _element_head(self._buffer, 0)
            if head is None:
                return
            element, start, size = head
            if element in HOLDERS:
                self._non_audio.part(start)
                del self._buffer[:start]
            elif size is None:
                raise Undecodable("a WebM element has no size")
            elif element not in WANTED:
                self._non_audio.part(start + size)
                del self._buffer[:start]
                self._skip = size
            elif size > WANTED[element]:
                raise Undecodable("a WebM element is larger than any with audio")
            elif len(self._buffer) < start + size:
                return
            else:
                body = bytes(self._buffer[start : start + size])
                del self._buffer[: start + size]
                yield from self._tracks(body) if element == TRACKS else self._block(body)

    def _tracks(self, body: bytes) -> Iterator[Track]:
        self._non_audio.part(len(body))
        for element, entry in _elements(body):
            fields = dict(_elements(entry)) if element == TRACK_ENTRY else {}
            if _uint(fields.get(TRACK_TYPE, b"")) == AUDIO_TRACK:
                self._number = _uint(fields.get(TRACK_NUMBER, b""))
                yield _track(fields)
                return
        raise NotTaken("the WebM stream has no audio track")

    def _block(self, body: bytes) -> Iterator[bytes]:
        if self._number is None:
            raise NotTaken("the WebM stream does not begin with its header")
        number = _vint(body, 0, MAX_SIZE_BYTES, marker=False)
        if number is None or len(body) < number[1] + 3:
            raise Undecodable("a WebM block is damaged")
        start = number[1] + 3  # two bytes of time, one of flags
        if number[0] != self._number or len(body) == start:
            self._non_audio.part(len(body))
            return
        if body[start - 1] & LACING:
            raise NotTaken("WebM with several packets a block is not taken in live streams")
        if len(body) - start > MAX_PACKET_BYTES:
            raise Undecodable("a WebM block is too large for audio")
        self._non_audio.audio()
        yield body[start:]


def _track(fields: Fields) -> Track:
    """Return what a track entry describes. Raises: NotTaken, Undecodable."""
    if CONTENT_ENCODINGS in fields:
        raise NotTaken("compressed or encrypted WebM tracks are not taken")
    codec = fields.get(CODEC_ID, b"").rstrip(b"\0")
    audio = dict(_elements(fields.get(AUDIO, b"")))
    channels = _uint(audio.get(CHANNELS, b"\x01"))
    if codec == b"A_OPUS":
        if CODEC_PRIVATE not in fields and channels not in (1, 2):
            raise Undecodable("the Opus header is missing")
        return opus_track(fields.get(CODEC_PRIVATE) or DEFAULT_OPUS_HEAD % channels)
    if codec == b"A_PCM/FLOAT/IEEE" and _uint(audio.get(BIT_DEPTH, b"\x20")) == 32:  # what browsers record as pcm
        return Track(PlainCodec.F32, int(_float(audio.get(SAMPLING_RATE, b""))), channels)
    raise NotTaken(f"WebM audio of codec {codec[:32].decode('ascii', 'replace')!r} is not taken in live streams")


def _element_head(data: bytes | bytearray, at: int) -> tuple[int, int, int | None] | None:
    """Identifier, where the body begins, and its size, None where it is open; or None if there is not enough yet."""
    identifier = _vint(data, at, MAX_ID_BYTES, marker=True)
    size = _vint(data, identifier[1], MAX_SIZE_BYTES, marker=False) if identifier is not None else None
    if identifier is None or size is None:
        return None
    is_open = size[0] == (1 << 7 * (size[1] - identifier[1])) - 1
    return identifier[0], size[1], None if is_open else size[0]


def _vint(data: bytes | bytearray, at: int, longest: int, *, marker: bool) -> tuple[int, int] | None:
    """A number and where it ends, None if there is not enough yet. Raises: Undecodable. Source: RFC 8794, section 4."""
    if at >= len(data):
        return None
    length = 9 - data[at].bit_length()
    if length > longest:
        raise Undecodable("this is no WebM element")
    if at + length > len(data):
        return None
    number = int.from_bytes(data[at : at + length], "big")
    return (number if marker else number & ~(1 << 7 * length)), at + length


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a whole body. Raises: Undecodable."""
    at = 0
    while at < len(data):
        head = _element_head(data, at)
        if head is None or head[2] is None or head[1] + head[2] > len(data):
            raise Undecodable("the WebM header is damaged")
        yield head[0], data[head[1] : head[1] + head[2]]
        at = head[1] + head[2]


def _uint(data: bytes) -> int:
    return int.from_bytes(data[:8], "big")


def _float(data: bytes) -> float:
    """A number of 4 or 8 bytes; what is neither, or none, is 0, which no rate is."""
    if len(data) not in (4, 8):
        return 0.0
    (number,) = struct.unpack(">f" if len(data) == 4 else ">d", data)
    return float(number) if 0 < number < 1e9 else 0.0
