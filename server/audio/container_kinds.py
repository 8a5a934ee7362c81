"""The kind of an uploaded container by its first bytes, in FFmpeg's words. Pure."""

from __future__ import annotations

_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1a\x45\xdf\xa3", "matroska"),  # webm too
    (4, b"ftyp", "mov"),  # mp4, m4a, 3gp
    (0, b"OggS", "ogg"),
    (0, b"fLaC", "flac"),
    (0, b"RIFF", "wav"),
    (0, b"#!AMR", "amr"),
    (0, b"ID3", "mp3"),
)


def container_kind(body: bytes) -> str | None:
    """Return FFmpeg's name of the container that a body begins as, or None for none that is taken."""
    for at, magic, kind in _MAGICS:
        if body[at : at + len(magic)] == magic:
            return kind
    if len(body) < 2 or body[0] != 0xFF:
        return None
    if body[1] & 0xF6 == 0xF0:
        return "aac"  # ADTS: layer 0
    return "mp3" if body[1] & 0xE0 == 0xE0 else None
