"""Streaming demuxer of native FLAC, with its frame headers and checksums. Source: RFC 9639.

Another FLAC stream may follow a complete frame; a matching frame checksum before it shows where it begins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from server.audio.containers.mpeg import ID3V1, ID3V1_BYTES
from server.audio.packets import Demuxer, NonAudioBudget, PacketCodec, Track
from server.errors import Undecodable

MAGIC = b"fLaC"
STREAM_INFO, STREAM_INFO_BYTES = 0, 34
BLOCK_HEAD_BYTES = 4
TOTAL_SAMPLES_MASK = (1 << 36) - 1
FRAME_OVERHEAD_BYTES = 1_024  # headers and checksum, generously: audio that does not compress is stored as it is
MAX_FRAME_BYTES = 2**18  # 16,384 samples of two channels take half of it


class FlacDemuxer(Demuxer):
    """Yields each FLAC frame once the next one begins, or at `drain` if its checksum matches."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fed_bytes = 0
        self._non_audio = NonAudioBudget()
        self._restart()

    def _restart(self) -> None:
        """Reset to the beginning of a stream."""
        self._track: Track | None = None
        self._skip = 0  # bytes of an unused metadata block that are still to be skipped
        self._last_block = False
        self._max_frame_bytes = 0
        self._announced = self._samples = 0  # samples by the header, 0 if unknown, and in frames so far
        self._frame: FrameHeader | None = None  # of the frame at the start of the buffer
        self._next: tuple[int, tuple[int, int, int]] | None = None  # required number and shape of the next frame
        self._searched = 0  # bytes of the buffer already searched for the next frame
        self._crc = self._summed = 0  # running checksum of the frame, and the number of bytes it covers

    def feed(self, chunk: bytes) -> Iterator[Track | bytes]:
        """Yield the frames that `chunk` completes. Raises: Undecodable."""
        self._buffer += chunk
        self._fed_bytes += len(chunk)
        while True:
            if not self._last_block or self._skip:
                yield from self._metadata()
            if not self._last_block or self._skip or (frame := self._whole_frame()) is None:
                return
            if frame:
                self._non_audio.audio()
                yield frame

    @property
    def _offset(self) -> int:
        """Stream offset of the first buffered byte."""
        return self._fed_bytes - len(self._buffer)

    def drain(self) -> Iterator[bytes]:
        """Yield the buffered frame if its checksum matches, without a tag after it; an incomplete one is dropped."""
        if self._frame is None or len(self._buffer) <= self._frame.size_bytes:
            return
        has_tag = self._buffer.startswith(ID3V1, max(0, len(self._buffer) - ID3V1_BYTES))
        end = len(self._buffer) - has_tag * ID3V1_BYTES
        self._crc = crc16(bytes(self._buffer[self._summed : end]), self._crc)
        self._summed = end
        if not self._crc:
            self._non_audio.audio()
            yield self._take(end)
            self._buffer.clear()

    def problem(self) -> str | None:
        """Return a warning if the stream ends inside a frame, or has fewer samples than its header announces."""
        if self._buffer:
            return "truncated: the FLAC stream ends inside a frame"
        missing = self._announced - self._samples
        return f"truncated: {missing} of {self._announced} FLAC samples are missing" if missing > 0 else None

    def _metadata(self) -> Iterator[Track]:
        """Read the metadata blocks: STREAMINFO is used, pictures and tags are skipped."""
        buffer = self._buffer
        while buffer:
            dropped = min(self._skip, len(buffer))
            del buffer[:dropped]
            self._skip -= dropped
            if self._skip or self._last_block:
                return
            if self._track is None:
                if not buffer.startswith(MAGIC[: len(buffer)]):
                    raise Undecodable("not a FLAC stream: the fLaC signature is missing")
                if len(buffer) < len(MAGIC) + BLOCK_HEAD_BYTES + STREAM_INFO_BYTES:
                    return
                yield self._begin()
            elif len(buffer) < BLOCK_HEAD_BYTES:
                return
            else:
                self._last_block, self._skip = bool(buffer[0] & 0x80), int.from_bytes(buffer[1:4], "big")
                self._non_audio.part(BLOCK_HEAD_BYTES + self._skip)
                del buffer[:BLOCK_HEAD_BYTES]

    def _begin(self) -> Track:
        at = len(MAGIC) + BLOCK_HEAD_BYTES
        head, info = self._buffer[len(MAGIC) : at], bytes(self._buffer[at : at + STREAM_INFO_BYTES])
        if head[0] & 0x7F != STREAM_INFO or int.from_bytes(head[1:4], "big") != STREAM_INFO_BYTES:
            raise Undecodable("the FLAC header (STREAMINFO) is missing or damaged")
        self._last_block = bool(head[0] & 0x80)
        width = (int.from_bytes(info[12:14], "big") >> 4 & 31) + 1
        self._track = track = stream_info_track(info)
        self._announced = int.from_bytes(info[13:18], "big") & TOTAL_SAMPLES_MASK
        self.announced_s += self._announced / max(1, track.rate)
        stored = int.from_bytes(info[2:4], "big") * track.channels * ((width + 8) // 8)  # side channels: one bit wider
        self._max_frame_bytes = min(stored + FRAME_OVERHEAD_BYTES, MAX_FRAME_BYTES)
        del self._buffer[: at + STREAM_INFO_BYTES]
        return self._track

    def _whole_frame(self) -> bytes | None:
        """Take the frame at the start of the buffer once the next one is seen; returns b"" before another stream.

        Raises: Undecodable.
        """
        if self._frame is None and self._buffer.startswith(MAGIC):
            self._restart()
            return b""
        if self._frame is None and not self._open_frame():
            return None
        at = self._searched
        stream = self._buffer.find(MAGIC, max(0, at - len(MAGIC)))
        if stream > 0 and not crc16(bytes(self._buffer[:stream])):
            return self._take(stream)
        while (at := self._next_sync(at)) >= 0:
            header = frame_header(bytes(self._buffer[at : at + MAX_HEADER_BYTES]))
            if header is not None and (header.number, header.shape) == self._next:
                return self._take(at)
            if len(self._buffer) - at < MAX_HEADER_BYTES:
                break  # may become a header with more bytes
            self._non_audio.part(0)
            at += 1
        self._searched = at if at >= 0 else max(self._searched, len(self._buffer) - 1)
        if len(self._buffer) > self._max_frame_bytes + MAX_HEADER_BYTES:
            raise Undecodable(
                f"the FLAC frame at byte {self._offset} is damaged: "
                f"no frame follows within {self._max_frame_bytes} bytes"
            )
        return None

    def _open_frame(self) -> bool:
        """Read the frame header at the start of the buffer. Raises: Undecodable."""
        header = frame_header(bytes(self._buffer[:MAX_HEADER_BYTES]))
        as_expected = header is not None and self._next in (None, (header.number, header.shape))
        if header is None or not as_expected:
            if len(self._buffer) >= MAX_HEADER_BYTES:
                raise Undecodable(f"FLAC frame expected at byte {self._offset}: damaged or lost bytes")
            return False
        self._frame, self._next = header, (header.next_number, header.shape)
        self._searched = header.size_bytes
        return True

    def _next_sync(self, at: int) -> int:
        """Return the next position of a sync code with this stream's blocking strategy, or -1."""
        assert self._frame is not None
        return self._buffer.find(SYNC[self._frame.variable], at)

    def _take(self, end: int) -> bytes:
        frame = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._samples += self._frame.samples if self._frame is not None else 0
        self._frame = None
        self._crc = self._summed = 0
        return frame


def stream_info_track(info: bytes) -> Track:
    """Return the track described by a STREAMINFO block."""
    bits = int.from_bytes(info[10:18], "big")  # 20 bits rate, 3 channels, 5 width, 36 length
    return Track(PacketCodec.FLAC, bits >> 44, (bits >> 41 & 7) + 1, info)


SYNC = b"\xff\xf8", b"\xff\xf9"  # fixed and variable block size
MAX_HEADER_BYTES = 16
_BLOCK_SIZE_BYTES = {6: 1, 7: 2}  # code: bytes at the header's end
_RATE_BYTES = {12: 1, 13: 2, 14: 2}
_CODED_SIZES = {1: 192, **{code: 144 << code for code in range(2, 6)}, **{code: 1 << code for code in range(8, 16)}}


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Frame header. `shape` is what all frames of a stream share: rate, channels, sample width."""

    number: int  # of the frame, or of its first sample
    samples: int
    shape: tuple[int, int, int]
    variable: bool
    size_bytes: int

    @property
    def next_number(self) -> int:
        """Required number of the next frame."""
        return self.number + (self.samples if self.variable else 1)


def frame_header(data: bytes) -> FrameHeader | None:
    """Return the frame header at the start of `data`, None if there is none or it is incomplete."""
    if len(data) < 6 or data[:2] not in SYNC or data[3] & 1:
        return None
    size_code, rate_code = data[2] >> 4, data[2] & 15
    if size_code == 0 or rate_code == 15 or data[3] >> 4 > 10:
        return None
    number, at = _coded_number(data)
    if number is None:
        return None
    size_bytes = _BLOCK_SIZE_BYTES.get(size_code, 0)
    end = at + size_bytes + _RATE_BYTES.get(rate_code, 0)
    if len(data) <= end or crc8(data[:end]) != data[end]:
        return None
    samples = int.from_bytes(data[at : at + size_bytes], "big") + 1 if size_bytes else _CODED_SIZES[size_code]
    channels = data[3] >> 4
    shape = (rate_code, channels if channels < 8 else 1, data[3] & 0x0E)  # 8 to 10: two channels, decorrelated
    return FrameHeader(number, samples, shape, data[1] == SYNC[1][1], end + 1)


def _coded_number(data: bytes) -> tuple[int | None, int]:
    """Return the UTF-8-like number of up to seven bytes after the first four bytes, and the position after it."""
    first = data[4]
    if first < 0x80:
        return first, 5
    length = 8 - (first ^ 0xFF).bit_length()  # leading ones
    tail = data[5 : 4 + length]
    if not 2 <= length <= 7 or len(tail) < length - 1 or any(byte >> 6 != 2 for byte in tail):
        return None, 0
    number = first & (0x7F >> length)
    for byte in tail:
        number = number << 6 | byte & 0x3F
    return number, 4 + length


def crc8(data: bytes) -> int:
    """Return the checksum of a frame header."""
    table, crc = _table(0x07, 8), 0
    for byte in data:
        crc = table[crc ^ byte]
    return crc


def crc16(data: bytes, crc: int = 0) -> int:
    """Return the checksum of a frame, continued from `crc`; 0 for a complete frame including its stored checksum."""
    table = _table(0x8005, 16)
    for byte in data:
        crc = (crc << 8 & 0xFFFF) ^ table[crc >> 8 ^ byte]
    return crc


@functools.cache
def _table(polynomial: int, bits: int) -> tuple[int, ...]:
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    table = []
    for byte in range(256):
        crc = byte << (bits - 8)
        for _ in range(8):
            crc = (crc << 1 ^ polynomial if crc & top else crc << 1) & mask
        table.append(crc)
    return tuple(table)
