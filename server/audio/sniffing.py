"""Distinguishes containers from raw samples by their first bytes. Pure.

Raw audio may begin with any bytes, so a container is recognized only by bytes that raw audio cannot have by chance: a
signature with plausible fields, or three consecutive frame headers of MP3 or AAC.
"""

from __future__ import annotations

from server.audio.formats import container_kind
from server.audio.frames import ADTS_BYTES, HEADER_BYTES, frame_size

HEAD_BYTES = 12  # enough for every signature
FRAMES = 3  # consecutive frames required
BOX_BYTES, TYPE_BOXES = 4, range(12, 1_024, 4)  # sizes of the first box of MP4: 8 bytes, then names of 4 bytes
_ADTS = (b"\xf0", b"\xf1", b"\xf8", b"\xf9")
_RIFF = (b"RIFF", b"RF64", b"BW64")
_OTHERS = (b"riff\x2e\x91\xcf\x11", "w64"), (b"caff\0\1\0\0", "caf"), (b".snd\0\0\0", "au")


def container_of(head: bytes, *, whole: bool) -> str | bool | None:
    """Return the container of these first bytes, None for raw samples, False if more bytes are needed.

    `whole`: no more bytes follow.
    """
    if len(head) < HEAD_BYTES:
        return False if not whole and _may_begin(head) else None
    if head.startswith(_RIFF):
        return "wav" if head[8:12] == b"WAVE" else None
    if head.startswith(b"FORM") and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    other = next((name for magic, name in _OTHERS if head.startswith(magic)), None)
    if other is not None:
        return other
    kind = container_kind(head)
    if kind in ("mp3", "aac") and not head.startswith(b"ID3"):
        return _framed(head, kind, whole=whole)
    return kind if kind is not None and _plausible(head, kind) else None


def _plausible(head: bytes, kind: str) -> bool:
    """Whether the bytes after a signature are valid for that container."""
    match kind:
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
    at = 0
    for _ in range(FRAMES):
        if len(head) < at + HEAD_BYTES:
            return (kind if whole and at and len(head) <= at else None) if whole else False
        size = frame_size(head, at)
        if not size or (at and (head[at + 1], head[at + 2] & 0x0C) != (head[1], head[2] & 0x0C)):
            return None
        at += size
    return kind


def _may_begin(head: bytes) -> bool:
    """Whether these bytes may be the beginning of a container's signature."""
    signatures = (
        *_RIFF,
        *(magic for magic, _ in _OTHERS),
        b"FORM",
        b"OggS",
        b"fLaC",
        b"\x1a\x45\xdf\xa3",
        b"#!AMR",
        b"ID3",
    )
    if any(head[: len(signature)] == signature[: len(head)] for signature in signatures):
        return True
    if head[:1] == b"\xff":
        needed = ADTS_BYTES if head[1:2] in _ADTS else HEADER_BYTES
        return len(head) < needed or bool(frame_size(head, 0))
    if len(head) < BOX_BYTES:
        return not any(head[:2])
    return int.from_bytes(head[:BOX_BYTES], "big") in TYPE_BOXES and head[4:8] == b"ftyp"[: len(head) - BOX_BYTES]
