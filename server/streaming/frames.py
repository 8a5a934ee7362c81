"""Writer and parser of WebSocket frame headers. Pure. Source: RFC 6455, section 5.2."""

from __future__ import annotations

try:
    from websockets.speedups import apply_mask
except ImportError:  # a build without its C extension
    from websockets.utils import apply_mask

WHOLE_TEXT = b"\x81"  # FIN, no extension bits, opcode 1
WHOLE_BINARY = 0x82  # FIN, no extension bits, opcode 2
WHOLE_PONG = b"\x8a"  # FIN, no extension bits, opcode 10
SHORT, LONG = 126, 1 << 16  # payload sizes from which the header has two, or eight, more bytes
MASKED = 0x80
MASK_BYTES = 4
LENGTH_16_BIT, LENGTH_64_BIT = 126, 127  # markers: the length follows in two, or in eight bytes


def text_frame(payload: bytes) -> bytes:
    """Return an unfragmented, unmasked text message; `payload` is UTF-8."""
    size = len(payload)
    if size < SHORT:
        head = size.to_bytes(1, "big")
    elif size < LONG:
        head = b"\x7e" + size.to_bytes(2, "big")
    else:
        head = b"\x7f" + size.to_bytes(8, "big")
    return b"".join((WHOLE_TEXT, head, payload))


def frame_size(data: bytes, at: int) -> int:
    """Return the size of the frame that starts at `at`, header included; 0 if the header is incomplete."""
    if len(data) - at < 2:
        return 0
    size, head = data[at + 1] & ~MASKED, at + 2
    wide = {LENGTH_16_BIT: 2, LENGTH_64_BIT: 8}.get(size, 0)
    if len(data) < head + wide:
        return 0
    if wide:
        size = int.from_bytes(data[head : head + wide], "big")
    return 2 + wide + (MASK_BYTES if data[at + 1] & MASKED else 0) + size


def audio_frame(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the unmasked payload, a copy, of the frame that starts at `at`, and the offset of the next frame.

    None unless it is a complete, masked, unfragmented binary frame of less than 64 KiB.
    """
    if len(data) - at < 2 or data[at] != WHOLE_BINARY or not data[at + 1] & MASKED:
        return None
    size, head = data[at + 1] & ~MASKED, at + 2
    if size == LENGTH_16_BIT:
        size, head = int.from_bytes(data[head : head + 2], "big"), head + 2
    elif size == LENGTH_64_BIT:
        return None
    start = head + MASK_BYTES
    if len(data) < start + size:
        return None
    return apply_mask(memoryview(data)[start : start + size], data[head:start]), start + size
