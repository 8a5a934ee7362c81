"""Sizes of MPEG audio (MP3) and ADTS (AAC) frames from their headers. Pure.

Source: ISO/IEC 11172-3, section 2.4.2.3; 13818-3 for the half sample rates; 13818-7, section 6.2, for ADTS.
"""

from __future__ import annotations

import re

HEADER_BYTES = 4
ADTS_BYTES = 7
_V1 = {
    3: (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    2: (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
}
_V2_LAYER_1 = (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
_V2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES = (44_100, 48_000, 32_000)
VERSION_1, VERSION_2 = 3, 2
FRAME_OR_TAG = re.compile(
    rb"\xff(?:[\xe2-\xe7\xf2-\xf7\xfa-\xff][\x10-\xef]"  # a layer and a bit rate
    rb"|[\xf0\xf1\xf8\xf9][\x00-\x33\x40-\x73\x80-\xb3\xc0-\xf3])"  # ADTS: a sample rate
    rb"|ID3"
)
"""The beginning of every place at which `frame_size` or `tag_size` is not 0, and of few others."""


def frame_size(data: bytes | memoryview, at: int) -> int:
    """Return the size in bytes of the frame at `at`, 0 if there is none."""
    if len(data) < at + HEADER_BYTES or data[at] != 0xFF or data[at + 1] & 0xE0 != 0xE0:
        return 0
    if data[at + 1] & 0xF6 == 0xF0:
        return _adts_size(data, at)
    version, layer = data[at + 1] >> 3 & 3, data[at + 1] >> 1 & 3
    bit_rate, rate, padding = data[at + 2] >> 4, data[at + 2] >> 2 & 3, data[at + 2] >> 1 & 1
    if version == 1 or layer == 0 or bit_rate in (0, 15) or rate == 3 or data[at + 3] & 3 == 2:
        return 0
    halved_rates = _V2_LAYER_1 if layer == 3 else _V2
    kbits = (_V1[layer] if version == VERSION_1 else halved_rates)[bit_rate]
    hz = _RATES[rate] >> (VERSION_1 - version if version else 2)
    if layer == 3:
        return (12_000 * kbits // hz + padding) * 4
    halved = layer == 1 and version != VERSION_1
    return (72_000 if halved else 144_000) * kbits // hz + padding


def _adts_size(data: bytes | memoryview, at: int) -> int:
    if len(data) < at + ADTS_BYTES or data[at + 2] >> 2 & 15 > 12:
        return 0
    size = (data[at + 3] & 3) << 11 | data[at + 4] << 3 | data[at + 5] >> 5
    return size if size > ADTS_BYTES else 0


def tag_size(data: bytes | memoryview, at: int) -> int:
    """Return the size in bytes of the ID3v2 tag at `at`, 0 if there is none."""
    head = bytes(data[at : at + 10])
    if len(head) < 10 or not head.startswith(b"ID3") or any(byte > 0x7F for byte in head[6:]):
        return 0
    size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
    return 10 + size + (10 if head[5] & 0x10 else 0)


def announced_frames(data: bytes | memoryview, at: int, size: int) -> int | None:
    """Return the number of frames announced by a Xing, Info or VBRI frame, 0 if it has none; None for audio."""
    frame = bytes(data[at : at + min(size, 200)])
    for place in (36, 21, 13):
        if frame[place : place + 4] in (b"Xing", b"Info"):
            flagged = len(frame) >= place + 12 and frame[place + 7] & 1
            return int.from_bytes(frame[place + 8 : place + 12], "big") if flagged else 0
    if frame[36:40] == b"VBRI":
        return int.from_bytes(frame[50:54], "big")
    return None
