"""Splits an uploaded body into its recordings, if it is a chained stream or a concatenation of files. Pure.

libsndfile and FFmpeg stop silently at the end of the first recording. For WAV see `WavDemuxer`, which continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from server.audio.containers.wav import LEAST_FILLER
from server.audio.frames import announced_frames, frame_size, tag_size

OGG_HEAD_BYTES, OGG_FIRST = 27, 2
FLAC_BEGIN = b"fLaC\0\0\0\x22", b"fLaC\x80\0\0\x22"
EBML, EBML_HEAD_BYTES, DOC_TYPES = b"\x1a\x45\xdf\xa3", 64, (b"\x42\x82\x84webm", b"\x42\x82\x88matroska")
W64_HEAD_BYTES = 24
SEGMENT, MAX_EBML_BYTES = b"\x18\x53\x80\x67", 4_096
AMR_BEGIN = b"#!AMR\n", b"#!AMR-WB\n"
LEAST_FRAMES = 4  # of MP3, 0.1 s: encoders' counts are off by one or two
BOX_HEAD_BYTES, LONG_BOX_HEAD_BYTES = 8, 16


def parts_of(body: bytes, kind: str | None) -> list[bytes]:
    """Return the recordings in a body of this kind, in order."""
    begins = _BEGINS.get(kind or "")
    places = [0] if begins is None else [0, *(place for place in begins(body) if place)]
    if len(places) == 1:
        return [body]
    return [body[begin:end] for begin, end in zip(places, [*places[1:], len(body)], strict=True)]


def other_kind(body: bytes) -> str | None:
    """Return the kind of a container that only libsndfile reads, None for others."""
    return {b"FORM": "aiff", b"riff": "w64"}.get(body[:4])


def cut_short(body: bytes, kind: str | None) -> str | None:
    """Return a warning if the sizes in a container, one without a demuxer here, show that its end is missing."""
    ends = _ENDS.get(kind or "")
    missing = ends(body) - len(body) if ends is not None else 0
    return f"truncated: {missing} bytes or more are missing at the end of the {kind} file" if missing > 0 else None


def _mov_end(body: bytes) -> int:
    at = 0
    while at + BOX_HEAD_BYTES <= len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(body[at + BOX_HEAD_BYTES : at + LONG_BOX_HEAD_BYTES], "big")
        if size < BOX_HEAD_BYTES:
            break
        at += size
    return at


def _matroska_end(body: bytes) -> int:
    at = body.find(SEGMENT, 0, MAX_EBML_BYTES) + len(SEGMENT)
    length = 9 - body[at].bit_length() if len(SEGMENT) <= at < len(body) else 9
    if length > 8:
        return 0
    size = int.from_bytes(body[at : at + length], "big") & ~(1 << 7 * length)
    is_open = size == (1 << 7 * length) - 1
    return 0 if is_open else at + length + size


def _aiff_end(body: bytes) -> int:
    return 8 + int.from_bytes(body[4:8], "big")


def _w64_end(body: bytes) -> int:
    return int.from_bytes(body[16:W64_HEAD_BYTES], "little")


def _wav_end(body: bytes) -> int:
    size = int.from_bytes(body[4:8], "little")
    return 0 if size >= LEAST_FILLER else 8 + size


_ENDS: dict[str, Callable[[bytes], int]] = {
    "mov": _mov_end,
    "matroska": _matroska_end,
    "aiff": _aiff_end,
    "w64": _w64_end,
    "wav": _wav_end,
}


def _ogg(body: bytes) -> Iterator[int]:
    """Yield the starts of chained streams: the first of successive pages with the first-page flag."""
    at, in_head = 0, False
    while 0 <= at <= len(body) - OGG_HEAD_BYTES:
        if body[at : at + 4] != b"OggS":
            at = body.find(b"OggS", at + 1)
            continue
        is_first = bool(body[at + 5] & OGG_FIRST)
        if is_first and not in_head:
            yield at
        in_head = is_first
        lengths = body[at + OGG_HEAD_BYTES : at + OGG_HEAD_BYTES + body[at + 26]]
        at += OGG_HEAD_BYTES + len(lengths) + sum(lengths)


def _flac(body: bytes) -> Iterator[int]:
    """Yield the starts of streams: signature and header, except inside the pictures of another stream."""
    at = 0
    while (at := _first(body, FLAC_BEGIN, at)) >= 0:
        yield at
        at += len(b"fLaC")
        last = False
        while not last and at + 4 <= len(body):
            last, at = bool(body[at] & 0x80), at + 4 + int.from_bytes(body[at + 1 : at + 4], "big")


def _matroska(body: bytes) -> Iterator[int]:
    at = 0
    while (at := body.find(EBML, at)) >= 0:
        if at == 0 or any(doc_type in body[at : at + EBML_HEAD_BYTES] for doc_type in DOC_TYPES):
            yield at
        at += len(EBML)


def _mov(body: bytes) -> Iterator[int]:
    """Yield the starts of files: an `ftyp` box after the `moov` box of the file before."""
    at, has_tracks = 0, True
    while at + BOX_HEAD_BYTES <= len(body):
        size, name = int.from_bytes(body[at : at + 4], "big"), body[at + 4 : at + 8]
        if size == 1:
            size = int.from_bytes(body[at + BOX_HEAD_BYTES : at + LONG_BOX_HEAD_BYTES], "big")
        if name == b"ftyp" and has_tracks:
            yield at
            has_tracks = False
        has_tracks = has_tracks or name == b"moov"
        if size < BOX_HEAD_BYTES:
            return  # extends to the end of the file, or damaged
        at += size


def _mp3(body: bytes) -> Iterator[int]:
    """Yield the starts of files: a tag, a frame with a frame count, after the last counted frame, or another form."""
    at, frames, counted, form = 0, 0, 0, (0, 0)
    while at < len(body):
        tag = tag_size(body, at)
        if tag:
            if frames and _frames_follow(body, at + tag):
                yield at
                frames = counted = 0
            at += tag
            continue
        size = frame_size(body, at)
        if not size:
            at = _first(body, (b"\xff", b"ID3"), at + 1)
            if at < 0:
                return
            continue
        announced = announced_frames(body, at, size)
        shape = (body[at + 1] & 0xFE, (body[at + 2] & 0x0C) | (body[at + 3] >> 6 == 3))
        ended = announced is not None or (counted and frames >= counted) or shape != form
        if frames and ended and _frames_follow(body, at):
            yield at
            frames = counted = 0
        if announced is not None:
            counted = announced
        else:
            frames += 1
        form = shape
        at += size


def _frames_follow(body: bytes, at: int) -> bool:
    """Whether audio begins at `at`: no frames follow a tag at the end of a file, and frame counts may be off by one."""
    for _ in range(LEAST_FRAMES):
        size = frame_size(body, at)
        if not size:
            return False
        at += size
    return True


def _amr(body: bytes) -> Iterator[int]:
    at = 0
    while (at := _first(body, AMR_BEGIN, at)) >= 0:
        yield at
        at += len(AMR_BEGIN[0])


def _aiff(body: bytes) -> Iterator[int]:
    at = 0
    while body[at : at + 4] == b"FORM":
        yield at
        size = int.from_bytes(body[at + 4 : at + 8], "big")
        at += 8 + size + size % 2


def _w64(body: bytes) -> Iterator[int]:
    at = 0
    while body[at : at + 4] == b"riff" and at + W64_HEAD_BYTES <= len(body):
        yield at
        at += max(W64_HEAD_BYTES, int.from_bytes(body[at + 16 : at + W64_HEAD_BYTES], "little"))


def _first(body: bytes, marks: tuple[bytes, ...], at: int) -> int:
    return min((place for mark in marks if (place := body.find(mark, at)) >= 0), default=-1)


_BEGINS: dict[str, Callable[[bytes], Iterator[int]]] = {
    "ogg": _ogg,
    "flac": _flac,
    "matroska": _matroska,
    "mov": _mov,
    "mp3": _mp3,
    "amr": _amr,
    "aiff": _aiff,
    "w64": _w64,
}
