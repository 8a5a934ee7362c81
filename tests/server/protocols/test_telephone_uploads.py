"""Uploads of telephone recordings and of bodies that only look like recordings, on a running server."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import numpy as np
import pytest
import soundfile

from server.audio.formats import audio_form
from server.audio.recording import Recording
from server.errors import Refused
from tests.support.servers.live_server import LiveServer
from tests.support.servers.spelling import silence, spell

FORMS = {"PCM_16": "WAV", "ULAW": "WAV", "ALAW": "WAV", "PCM_U8": "WAV", "FLOAT": "WAV", "FLAC": "FLAC", "OGG": "OGG"}
SUBTYPES = {"FLAC": "PCM_16", "OGG": "VORBIS"}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(max_uploads=4) as running:
        yield running


def recorded(name: str, rate: int, channels: int, length_s: float) -> bytes:
    """Return a silent recording, written in pieces: libsndfile overflows its stack with long Vorbis."""
    file, second = io.BytesIO(), np.zeros((rate, channels), np.int16)
    form, subtype = FORMS[name], SUBTYPES.get(name, name)
    with soundfile.SoundFile(file, "w", rate, channels, format=form, subtype=subtype) as out:
        for _ in range(round(length_s)):
            out.write(second)
    return file.getvalue()


@pytest.mark.parametrize("length_s", [1, 9, 100, 600])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8_000, 16_000])
@pytest.mark.parametrize("name", FORMS)
def test_a_recording_comes_in_blocks_of_two_seconds(name: str, rate: int, channels: int, length_s: float) -> None:
    """A larger block is more than a session takes at once."""
    recording = Recording(recorded(name, rate, channels, length_s), audio_form(None, None), rate=16_000, max_s=3_600.0)
    sizes = []
    while (block := recording.next_block()) is not None:
        sizes.append(len(block))
    assert sum(sizes) == pytest.approx(16_000 * length_s, abs=200)
    assert max(sizes) <= 2 * 2 * 16_000


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["PCM_16", "ULAW", "ALAW", "PCM_U8"])
def test_a_telephone_recording_of_more_than_eight_seconds_is_recognized(
    server: LiveServer, subtype: str, channels: int
) -> None:
    speech = np.concatenate([silence(9.0, 8_000), spell("hello there", 8_000), silence(1.0, 8_000)])
    file = io.BytesIO()
    soundfile.write(file, np.repeat(speech[:, None], channels, axis=1), 8_000, format="WAV", subtype=subtype)
    answer = server.http.post("/v1/listen", content=file.getvalue())
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["duration"] == pytest.approx(len(speech) / 8_000, abs=0.01)
    form = {"model": (None, "x"), "file": ("call.wav", file.getvalue())}
    assert server.http.post("/v1/audio/transcriptions", files=form).status_code == 200


MARKS = {
    "mulaw silence": b"\xff",
    "AMR": b"#!AMR\n",
    "AMR-WB": b"#!AMR-WB\n",
    "FLAC": b"fLaC\0\0\0\x22",
    "FLAC, last block": b"fLaC\x80\0\0\x22",
    "Ogg": b"OggS",
    "Matroska": b"\x1a\x45\xdf\xa3",
    "RIFF": b"RIFF",
    "RIFF file": b"RIFF\x04\0\0\0WAVE",
    "ID3": b"ID3",
    "ID3 tag": b"ID3\x04\0\0\0\0\0\0",
    "MPEG": b"\xff\xfb\x90\0",
    "MPEG half": b"\xff\xfb",
    "ADTS": b"\xff\xf1\x50\x80\x00\x1f\xfc",
    "box": b"\0\0\0\x08ftyp",
    "two boxes": b"\0\0\0\x08moov\0\0\0\x08ftyp",
    "FORM": b"FORM\0\0\0\0",
    "riff": b"riff",
}


def seconds_to_refuse(body: bytes) -> float:
    """Return the processor time until a body is refused or read."""
    began_s = time.thread_time()
    try:
        recording = Recording(body, audio_form(None, None), rate=16_000, max_s=3_600.0)
        while recording.next_block() is not None:
            pass
    except Refused:
        pass
    return time.thread_time() - began_s


@pytest.mark.parametrize("name", MARKS)
def test_a_body_of_repeated_marks_takes_time_in_proportion_to_its_size(name: str) -> None:
    mark = MARKS[name]
    small, large = (min(seconds_to_refuse(mark * (size // len(mark))) for _ in range(2)) for size in (2**18, 2**20))
    assert large < 8 * small + 0.1, "four times the bytes"
    assert large < 10.0


def test_mulaw_without_an_encoding_is_refused_soon_and_gives_its_place_back(server: LiveServer) -> None:
    body = b"\xff" * 4_000_000
    for _ in range(6):
        answer = server.http.post("/v1/listen", content=body)
        assert answer.status_code == 400, answer.text
    assert server.http.post("/v1/listen", content=recorded("FLAC", 16_000, 1, 1)).status_code == 200
