"""The header of a FLAC frame, and its checksums. Pure. Source: RFC 9639, section 9."""

from __future__ import annotations

import functools
from dataclasses import dataclass

SYNC = b"\xff\xf8", b"\xff\xf9"  # frames of one size, frames of their own sizes
MAX_HEADER_BYTES = 16
_BLOCK_SIZE_BYTES = {6: 1, 7: 2}  # code: bytes at the header's end
_RATE_BYTES = {12: 1, 13: 2, 14: 2}
_CODED_SIZES = {1: 192, **{code: 144 << code for code in range(2, 6)}, **{code: 1 << code for code in range(8, 16)}}


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Where a frame is in its stream. `shape` is what all frames of a stream share: strategy, rate, channels, width."""

    number: int  # of the frame, or of its first sample
    samples: int
    shape: tuple[int, int, int]
    variable: bool
    size_bytes: int

    @property
    def next_number(self) -> int:
        """The number that the next frame must have."""
        return self.number + (self.samples if self.variable else 1)


def frame_header(data: bytes) -> FrameHeader | None:
    """Return the header that `data` begins with, or None if it is none or not whole."""
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
    shape = (rate_code, channels if channels < 8 else 1, data[3] & 0x0E)  # 8 to 10 are ways to join two channels
    return FrameHeader(number, samples, shape, data[1] == SYNC[1][1], end + 1)


def _coded_number(data: bytes) -> tuple[int | None, int]:
    """The number behind the first four bytes, coded as UTF-8 is, in up to seven bytes; and where it ends."""
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
    """The checksum of a header."""
    table, crc = _table(0x07, 8), 0
    for byte in data:
        crc = table[crc ^ byte]
    return crc


def crc16(data: bytes, crc: int = 0) -> int:
    """The checksum of a frame, going on from `crc`: 0 over a whole one, its own checksum included."""
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
