"""Distinguishes containers from raw samples by their first bytes. Pure.

Raw audio may begin with any bytes, so a container is recognized only by bytes that raw audio cannot have by chance: a
signature with plausible fields, or three consecutive frame headers of MP3 or AAC.
"""

from __future__ import annotations

from server.audio.containers.mpeg import FRAMES, frame_header
from server.audio.containers.mpeg import HEAD_BYTES as FRAME_HEAD_BYTES
from server.audio.formats import MAGICS, container_kind

HEAD_BYTES = 12  # enough for every signature
BOX_BYTES, TYPE_BOXES = 4, range(12, 1_024, 4)  # sizes of the first box of MP4: 8 bytes, then names of 4 bytes


def container_of(head: bytes, *, whole: bool) -> str | bool | None:
    """Return the container of these first bytes, None for raw samples, False if more bytes are needed.

    `whole`: no more bytes follow.
    """
    if len(head) < HEAD_BYTES:
        return False if not whole and _may_begin(head) else None
    kind = container_kind(head)
    if kind in ("mp3", "aac") and not head.startswith(b"ID3"):
        return _framed(head, kind, whole=whole)
    return kind if kind is not None and _plausible(head, kind) else None


def _plausible(head: bytes, kind: str) -> bool:
    """Whether the bytes after a signature are valid for that container."""
    match kind:
        case "wav" | "aiff":
            return head[8:12] in (b"WAVE", b"AIFF", b"AIFC")
        case "ogg":
            return head[4] == 0 and head[5] & 2 == 2  # version 0, first page
        case "flac":
            return head[4] & 0x7F == 0 and head[5:8] == b"\0\0\x22"
        case "mp3":
            return head[3] < 0x10 and head[5] & 0x0F == 0 and all(byte < 0x80 for byte in head[6:10])
        case "mov":
            return int.from_bytes(head[:BOX_BYTES], "big") in TYPE_BOXES
    return True


def _framed(head: bytes, kind: str, *, whole: bool) -> str | bool | None:
    at, form = 0, None
    for _ in range(FRAMES):
        if len(head) < at + HEAD_BYTES:
            return (kind if whole and at and len(head) <= at else None) if whole else False
        header = frame_header(head, at)
        if header is None or (at and header.form != form):
            return None
        at, form = at + header.size_bytes, header.form
    return kind


def _may_begin(head: bytes) -> bool:
    """Whether these bytes may be the beginning of a container's signature."""
    if any(at == 0 and head[: len(magic)] == magic[: len(head)] for at, magic, _ in MAGICS):
        return True
    if head[:1] == b"\xff":
        return len(head) < FRAME_HEAD_BYTES or frame_header(head) is not None
    if len(head) < BOX_BYTES:
        return not any(head[:2])
    return int.from_bytes(head[:BOX_BYTES], "big") in TYPE_BOXES and head[4:8] == b"ftyp"[: len(head) - BOX_BYTES]
