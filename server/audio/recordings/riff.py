"""Reduces WAV files to the chunks that samples need, before FFmpeg reads them. Pure.

FFmpeg allocates the size that a LIST chunk announces: 132 bytes took 832 MiB (measured).
"""

from __future__ import annotations

ORDERS = {b"RIFF": "little", b"RF64": "little", b"BW64": "little", b"RIFX": "big"}
NEEDED = frozenset((b"fmt ", b"fact", b"ds64"))
FORM_BYTES, HEAD_BYTES, NAME_BYTES, TAG_HEAD_BYTES = 12, 8, 4, 10
MAX_NEEDED_BYTES = 2**16


def without_metadata(body: bytes) -> bytes:
    """Return a WAV, also one after ID3 tags, with format and samples alone; any other body unchanged."""
    begin = _after_tags(body)
    magic = body[begin : begin + NAME_BYTES]
    order = ORDERS.get(magic)
    if order is None or body[begin + HEAD_BYTES : begin + FORM_BYTES] != b"WAVE":
        return body
    kept, at = [body[begin : begin + FORM_BYTES]], begin + FORM_BYTES
    while at + HEAD_BYTES <= len(body):
        name = body[at : at + NAME_BYTES]
        size = int.from_bytes(body[at + NAME_BYTES : at + HEAD_BYTES], "big" if order == "big" else "little")
        if name == b"data":
            end = at + HEAD_BYTES + size
            kept.append(body[at:end] if size and end < len(body) else body[at:])  # 0 and 2**32 - 1: to the end
            break
        end = at + HEAD_BYTES + size + size % 2
        if name in NEEDED and size <= MAX_NEEDED_BYTES:
            kept.append(body[at:end])
        at = end
    return b"".join(kept)


def _after_tags(body: bytes) -> int:
    """Return where the first bytes after all ID3 tags are; their sizes are read leniently."""
    at = 0
    while body[at : at + 3] == b"ID3" and len(body) >= at + TAG_HEAD_BYTES:
        a, b, c, d = (byte & 0x7F for byte in body[at + 6 : at + TAG_HEAD_BYTES])
        at += TAG_HEAD_BYTES + (a << 21 | b << 14 | c << 7 | d)
    return at
