"""Damaged recordings of every container and codec: seeds by real encoders, changed by a numbered random generator."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import cache

from server.audio.pcm import PCM
from tests.support.audio.media_files import FRAGMENTS, container, index_first, sound_file, speech

CHANNEL_COUNTS = (0, 1, 2, 7, 8, 9, 16, 64, 255)
SIZES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
HEAD_BYTES = 400  # where most headers are
MAX_BYTES = 60_000
CHANNELS_AFTER = {b"\x01vorbis": 4, b"OpusHead": 1, b"fmt ": 6, b"mp4a": 20, b"esds": 24, b"\x9f": 1, b"COMM": 4}
"""Where the number of channels is, in bytes after these names."""


@cache
def seeds() -> tuple[bytes, ...]:
    """Return undamaged recordings of 0.2 s: containers by FFmpeg, others by libsndfile."""
    files = []
    for kind, codec, rate, channels in (
        *(("adts", "aac", 16_000, n) for n in (1, 2, 8)),
        *(("matroska", codec, 48_000, 2) for codec in ("libopus", "aac", "flac", "alac", "libmp3lame", "pcm_s16le")),
        *(("ogg", codec, 48_000, n) for codec in ("libopus", "flac") for n in (1, 6, 8)),
        *(("ipod", codec, 16_000, n) for codec, n in (("aac", 1), ("aac", 8), ("alac", 1))),
        *(("wav", codec, 8_000, 1) for codec in ("pcm_s16le", "pcm_s24le", "pcm_mulaw", "g726", "adpcm_ms")),
        ("mp3", "libmp3lame", 16_000, 1),
        ("webm", "libopus", 48_000, 1),
        ("flac", "flac", 16_000, 2),
        ("aiff", "pcm_s16be", 16_000, 1),
        ("w64", "pcm_s16le", 16_000, 1),
        ("mov", "pcm_s16be", 16_000, 2),
    ):
        files.append(container(kind, codec, part(rate, channels), rate))
    files.append(container("mp4", "aac", part(16_000), 16_000, options=FRAGMENTS))
    files.append(index_first("aac", 16_000, 1))
    files += [sound_file("OGG", "VORBIS", part(16_000, n), 16_000) for n in (1, 2, 6, 8)]
    files += [sound_file("OGG", "OPUS", part(16_000), 16_000), amr()]
    return tuple(files)


def part(rate: int, channels: int = 1) -> PCM:
    """Return 0.2 s from within speech, (S, C) int16."""
    return speech(rate, channels)[rate : rate + rate // 5]


def amr() -> bytes:
    """Return AMR frames of 12.2 kbit/s, 20 ms each; no encoder for it is installed."""
    return b"#!AMR\n" + (b"\x3c" + random.Random(0).randbytes(31)) * 10


def mutated(number: int) -> bytes:
    """Return the damaged recording of this number; the same one in every process."""
    rng = random.Random(number)
    body = bytearray(rng.choice(seeds())[:MAX_BYTES])
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        rng.choice(_CHANGES)(body, rng)
        body = body or bytearray(b"\0")
    return bytes(body[:MAX_BYTES])


def _place(body: Sequence[int], rng: random.Random) -> int:
    return rng.randrange(min(len(body), HEAD_BYTES) if rng.random() < 0.6 else len(body))


def _flip_bit(body: bytearray, rng: random.Random) -> None:
    body[_place(body, rng)] ^= 1 << rng.randrange(8)


def _set_bytes(body: bytearray, rng: random.Random) -> None:
    at = _place(body, rng)
    body[at : at + rng.choice((1, 1, 2, 4))] = rng.randbytes(rng.choice((1, 2, 4)))


def _set_size(body: bytearray, rng: random.Random) -> None:
    form = rng.choice(("<I", ">I", "<H", ">H", "<Q", ">Q"))
    size = rng.choice((*SIZES, len(body))) & (256 ** struct.calcsize(form) - 1)
    at = _place(body, rng)
    body[at : at + struct.calcsize(form)] = struct.pack(form, size)


def _set_channels(body: bytearray, rng: random.Random) -> None:
    """Write another number of channels where headers have it, in one or two bytes."""
    places = [(body.find(name) + len(name) + after) for name, after in CHANNELS_AFTER.items() if name in body]
    at = min(rng.choice(places), len(body) - 1) if places else _place(body, rng)
    body[at] = rng.choice(CHANNEL_COUNTS)


def _cut(body: bytearray, rng: random.Random) -> None:
    del body[_place(body, rng) + 1 :]


def _remove(body: bytearray, rng: random.Random) -> None:
    at = _place(body, rng)
    del body[at : at + rng.choice((1, 2, 7, 100, 4_000))]


def _repeat(body: bytearray, rng: random.Random) -> None:
    at = _place(body, rng)
    body[at:at] = body[at : at + rng.choice((1, 4, 30, 500))] * rng.choice((1, 2, 20))


def _splice(body: bytearray, rng: random.Random) -> None:
    """Continue with a part of another recording."""
    other = rng.choice(seeds())
    body[_place(body, rng) :] = other[_place(other, rng) :] if rng.random() < 0.5 else other


_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip_bit,
    _flip_bit,
    _set_bytes,
    _set_bytes,
    _set_size,
    _set_channels,
    _set_channels,
    _cut,
    _remove,
    _repeat,
    _splice,
)
