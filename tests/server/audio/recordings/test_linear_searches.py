"""Bodies of repeated signatures: opening and reading take time in proportion to their size, in bounded pieces."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording
from server.errors import Refused

ANY = audio_form(None, None)
SIZE = 2**18
WAV = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0"
WEBM = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff"
FLAC = b"fLaC\x80\0\0\x22" + bytes(34)
MARKS = {  # what a body begins with, and what follows it again and again
    "mu-law silence": (b"", b"\xff"),
    "MP3 sync": (b"", b"\xff\xe2"),
    "MP3 headers": (b"", b"\xff\xfb\x10\0"),
    "MP3 frames": (b"", b"\xff\xfb\x10\xc0" + bytes(100)),
    "layer I frames": (b"", b"\xff\xfe\x10\0" + bytes(28)),
    "ADTS sync": (b"", b"\xff\xf1"),
    "ADTS headers": (b"", b"\xff\xf1\x50\x80\x01\x00\xfc\x00"),
    "ID3": (b"", b"ID3"),
    "empty ID3 tags": (b"", b"ID3\4\0\0\0\0\0\0"),
    "tags": (b"\xff\xfb\x10\xc0" + bytes(100), b"TAG"),
    "APE tags": (b"\xff\xfb\x10\xc0" + bytes(100), b"APETAGEX"),
    "AMR": (b"", b"#!AMR\n"),
    "AMR-WB": (b"", b"#!AMR-WB\n"),
    "AMR frames": (b"", b"#!AMR\n\x7c"),
    "FLAC": (b"", b"fLaC\0\0\0\x22"),
    "FLAC heads": (b"", FLAC),
    "FLAC signatures": (FLAC, b"fLaC"),
    "FLAC blocks": (b"fLaC\0\0\0\x22" + bytes(34), b"\4\0\0\0"),
    "FLAC sync": (FLAC, b"\xff\xf8\xc9\x18"),
    "Ogg": (b"OggS\0\2", b"OggS"),
    "Ogg first pages": (b"", b"OggS\0\2" + bytes(21)),
    "Ogg pages": (b"OggS\0\2" + bytes(21), b"OggS\0\0" + bytes(21)),
    "EBML": (b"", b"\x1a\x45\xdf\xa3"),
    "WebM heads": (b"", b"\x1a\x45\xdf\xa3\x87\x42\x82\x84webm"),
    "Matroska voids": (WEBM, b"\xec\x80"),
    "Matroska clusters": (WEBM, b"\x1f\x43\xb6\x75\xff"),
    "Matroska blocks": (WEBM + b"\x1f\x43\xb6\x75\xff", b"\xa3\x84\x81\0\0\x80"),
    "RIFF in samples": (WAV, b"RIFF"),
    "RIFF and WAVE in samples": (WAV, b"RIFF\0\0\0\0WAVX"),
    "WAV files": (b"", WAV),
    "WAV chunks": (b"RIFF\xff\xff\xff\xffWAVE", b"JUNK\0\0\0\0"),
    "RF64": (b"", b"RF64\0\0\0\0WAVE"),
    "AIFF": (b"", b"FORM\0\0\0\0AIFF"),
    "W64": (b"", b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\4\xc1\0\0\x18" + bytes(7)),
    "ftyp": (b"", b"\0\0\0\x08ftyp"),
    "ftyp and moov": (b"", b"\0\0\0\x08ftyp\0\0\0\x08moov"),
    "boxes": (b"\0\0\0\x08ftyp", b"\0\0\0\x08free"),
    "CAF": (b"", b"caff\0\1\0\0"),
    "AU": (b"", b".snd\0\0\0"),
}


def time_s(body: bytes) -> float:
    """Return the seconds of processor time of reading a body: less than 1, or than 0.02 for a second of its audio."""
    began_s, samples = time.thread_time(), 0
    with suppress(Refused):
        recording = Recording(body, ANY, rate=16_000, max_s=14_400.0)
        while (block := recording.next_block()) is not None:
            samples += len(block)
    taken_s = time.thread_time() - began_s
    assert taken_s < max(1.0, 0.02 * samples / 16_000)
    return taken_s


def repeated(name: str, size_bytes: int) -> bytes:
    begin, mark = MARKS[name]
    return (begin + mark * (size_bytes // len(mark) + 1))[:size_bytes]


@pytest.mark.parametrize("name", MARKS)
def test_a_body_of_repeated_marks_takes_linear_time(name: str) -> None:
    once_s = min(time_s(repeated(name, SIZE)) for _ in range(2))
    twice_s = min(time_s(repeated(name, 2 * SIZE)) for _ in range(2))
    assert twice_s < 3 * max(once_s, 0.02)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([part for pair in MARKS.values() for part in pair if part]), min_size=1, max_size=8))
def test_any_mixture_of_marks_is_read_or_refused_in_time(marks: list[bytes]) -> None:
    soup = b"".join(marks)
    time_s(soup * (SIZE // len(soup)))
