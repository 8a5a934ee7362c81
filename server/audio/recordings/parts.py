"""Splits an uploaded body into its recordings, if it is a concatenation of files. Pure.

FFmpeg stops silently at the end of the first recording. The demuxers of Ogg, MP3, ADTS and WAV continue.

Every search takes time in proportion to the body, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from server.audio.containers.mpeg import tag_size
from server.audio.containers.wav import LEAST_FILLER

Starts = Iterator[int]
"""Starts of recordings in a body, in order."""

FLAC = re.compile(rb"fLaC[\0\x80]\0\0\x22")
AMR = re.compile(rb"#!AMR(?:-WB)?\n")
EBML, EBML_HEAD_BYTES, DOC_TYPES = re.compile(b"\x1a\x45\xdf\xa3"), 64, (b"\x42\x82\x84webm", b"\x42\x82\x88matroska")
W64_HEAD_BYTES = 24
SEGMENT, MAX_EBML_BYTES = b"\x18\x53\x80\x67", 4_096
BOX_HEAD_BYTES, LONG_BOX_HEAD_BYTES = 8, 16
MAX_BOXES = 2**16  # of an MP4 file; one of four hours has a few, or one a second
MAX_BLOCKS = 4_096  # of FLAC metadata, as in `NonAudioBudget`


def parts_of(body: bytes, kind: str | None) -> Iterator[bytes]:
    """Yield the recordings in a body of this kind, in order; the first may follow an ID3 tag."""
    starts = _STARTS.get(kind or "")
    begin, tag_bytes = 0, tag_size(body, 0)
    for start in starts(body) if starts is not None else ():
        if start > tag_bytes:
            yield body[begin:start]
            begin = start
    yield body[begin:]


def cut_short(body: bytes, kind: str | None) -> str | None:
    """Return a warning if the sizes in a container, one without a demuxer here, show that its end is missing."""
    ends = _ENDS.get(kind or "")
    missing = ends(body) - len(body) if ends is not None else 0
    return f"truncated: {missing} bytes or more are missing at the end of the {kind} file" if missing > 0 else None


def _mov_end(body: bytes) -> int:
    end = 0
    for at, _ in islice(_boxes(body), MAX_BOXES):
        size = _box_bytes(body, at)
        end = at + size if size >= BOX_HEAD_BYTES else at
    return end


def _matroska_end(body: bytes) -> int:
    at = body.find(SEGMENT, 0, MAX_EBML_BYTES) + len(SEGMENT)
    length = 9 - body[at].bit_length() if len(SEGMENT) <= at < len(body) else 9
    if length > 8:
        return 0
    size = int.from_bytes(body[at : at + length], "big") & ~(1 << 7 * length)
    is_open = size == (1 << 7 * length) - 1
    return 0 if is_open else at + length + size


def _w64_end(body: bytes) -> int:
    size = int.from_bytes(body[16:W64_HEAD_BYTES], "little")
    return 0 if size >= 1 << 62 else size


def _form_end(body: bytes) -> int:
    size = int.from_bytes(body[4:8], "big" if body.startswith((b"FORM", b"RIFX")) else "little")
    return 0 if size >= LEAST_FILLER else 8 + size


_ENDS: dict[str, Callable[[bytes], int]] = {
    "mov": _mov_end,
    "matroska": _matroska_end,
    "aiff": _form_end,
    "w64": _w64_end,
    "wav": _form_end,
}


def _marks(body: bytes, mark: re.Pattern[bytes], skipped: Callable[[bytes, int], int]) -> Starts:
    """Yield the places of a mark; `skipped` is the place from which to search after one."""
    at = 0
    while (match := mark.search(body, at)) is not None:
        yield match.start()
        at = skipped(body, match.start())


def _flac_audio(body: bytes, at: int) -> int:
    """Return the place after the metadata blocks of the stream at `at`, whose pictures may hold the mark of another."""
    at, last = at + len(b"fLaC"), False
    for _ in range(MAX_BLOCKS):
        if last or at + 4 > len(body):
            break
        last, at = bool(body[at] & 0x80), at + 4 + int.from_bytes(body[at + 1 : at + 4], "big")
    return at


def _matroska(body: bytes) -> Starts:
    """Yield the starts of files: a header with a document type."""
    for at in _marks(body, EBML, lambda _, at: at + len(EBML.pattern)):
        if any(doc_type in body[at : at + EBML_HEAD_BYTES] for doc_type in DOC_TYPES):
            yield at


def _mov(body: bytes) -> Starts:
    """Yield the starts of files: an `ftyp` box after the `moov` box of the file before."""
    has_tracks = True
    for at, name in _boxes(body):
        if name == b"ftyp" and has_tracks:
            yield at
            has_tracks = False
        has_tracks = has_tracks or name == b"moov"


def _boxes(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and name of each box; the last extends to the end of the file, or is damaged."""
    at = 0
    while at + BOX_HEAD_BYTES <= len(body):
        yield at, body[at + 4 : at + 8]
        size = _box_bytes(body, at)
        if size < BOX_HEAD_BYTES:
            return
        at += size


def _box_bytes(body: bytes, at: int) -> int:
    size = int.from_bytes(body[at : at + 4], "big")
    return int.from_bytes(body[at + BOX_HEAD_BYTES : at + LONG_BOX_HEAD_BYTES], "big") if size == 1 else size


def _aiff(body: bytes) -> Starts:
    at = 0
    while body[at : at + 4] == b"FORM":
        yield at
        size = int.from_bytes(body[at + 4 : at + 8], "big")
        at += 8 + size + size % 2


def _w64(body: bytes) -> Starts:
    at = 0
    while body[at : at + 4] == b"riff" and at + W64_HEAD_BYTES <= len(body):
        yield at
        at += max(W64_HEAD_BYTES, int.from_bytes(body[at + 16 : at + W64_HEAD_BYTES], "little"))


_STARTS: dict[str, Callable[[bytes], Starts]] = {
    "flac": lambda body: _marks(body, FLAC, _flac_audio),
    "matroska": _matroska,
    "mov": _mov,
    "amr": lambda body: _marks(body, AMR, lambda _, at: at + len(b"#!AMR\n")),
    "aiff": _aiff,
    "w64": _w64,
}
