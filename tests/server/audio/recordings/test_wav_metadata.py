"""Metadata of impossible sizes in WAV files is skipped in bounded time, also where FFmpeg reads them."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator

from server.audio.formats import audio_form

ANY = audio_form(None, None)
SIZES = (0, 0x7FFFFFF8, 0x80000000, 0xFFFFFFF0, 0xFFFFFFF4, 0xFFFFFFF8, 0xFFFFFFFC, 0xFFFFFFFF)
TAG = b"ID3\x04\0\0\0\0\0\x05hello"


def wav(magic: bytes, *chunks: tuple[bytes, int, bytes]) -> bytes:
    order = ">" if magic == b"RIFX" else "<"
    adpcm = struct.pack(order + "HHIIHHHH", 0x11, 1, 8_000, 4_055, 256, 4, 2, 505)
    parts = [(b"fmt ", len(adpcm), adpcm), *chunks, (b"data", 512, bytes(512))]
    body = b"WAVE" + b"".join(name + struct.pack(order + "I", size) + data for name, size, data in parts)
    return magic + struct.pack(order + "I", len(body)) + body


def hostile() -> Iterator[bytes]:
    """Yield WAV files with entries of impossible sizes in their lists, and lists of impossible sizes."""
    for magic in (b"RIFF", b"RF64", b"RIFX"):
        order = ">I" if magic == b"RIFX" else "<I"
        for size in SIZES:
            for kind in (b"INFO", b"adtl", b"exif"):
                for entry in (b"ISFT", b"IXYZ", b"labl", b"ltxt", b"emnt"):
                    entries = kind + entry + struct.pack(order, size) + b"\xff" * 60
                    yield wav(magic, (b"LIST", 0xFFFFFF00, entries))
                    yield TAG + wav(magic, (b"LIST", len(entries), entries))
            for name in (b"bext", b"cart", b"cue ", b"smpl", b"acid", b"PEAK", b"fact", b"zzzz"):
                yield wav(magic, (name, size, bytes(80)))


READ_ALL = """
import contextlib
from server.audio.recordings.recording import Recording
from server.errors import Refused
from tests.server.audio.recordings.test_wav_metadata import ANY, hostile
for body in hostile():
    with contextlib.suppress(Refused):
        recording = Recording(body, ANY, rate=16_000, max_s=60.0)
        while recording.next_block() is not None:
            pass
"""


def test_metadata_of_impossible_sizes_is_skipped_at_once() -> None:
    """In a process of its own, because a library that loops cannot be interrupted."""
    subprocess.run([sys.executable, "-c", READ_ALL], check=True, timeout=120)
