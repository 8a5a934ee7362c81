"""Uploads of every format, rate, number of channels and length are answered, on every route and by the client."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from server.audio.formats import audio_form
from server.audio.pcm import BLOCK_S
from server.audio.raw import alaw_table, mulaw_table
from server.audio.recordings.recording import Recording
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.uploaded import said
from tutti_asr_client import sync

CONTAINERS = {
    "wav pcm16": ("WAV", "PCM_16"),
    "wav pcm8": ("WAV", "PCM_U8"),
    "wav pcm24": ("WAV", "PCM_24"),
    "wav pcm32": ("WAV", "PCM_32"),
    "wav float": ("WAV", "FLOAT"),
    "wav mulaw": ("WAV", "ULAW"),
    "wav alaw": ("WAV", "ALAW"),
    "flac": ("FLAC", None),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "ogg vorbis": ("OGG", "VORBIS"),
    "ogg opus": ("OGG", "OPUS"),
}
RAW = ("linear16", "linear32", "mulaw", "alaw")
EXACT = ("wav pcm16", "wav pcm24", "wav pcm32", "wav float", "flac", "linear16", "linear32")
OPUS_RATES = (8_000, 16_000, 48_000)
RATES = (8_000, 16_000, 22_050, 44_100, 48_000)
LENGTHS_S = (1, 9, 100)
PLAIN_RATES = (8_000, 44_100)  # of recordings of ten minutes without compression


def cells() -> Iterator[tuple[str, int, int]]:
    """Yield formats, rates and channels."""
    for kind, rate, channels in itertools.product((*CONTAINERS, *RAW), RATES, (1, 2)):
        if kind != "ogg opus" or rate in OPUS_RATES:
            yield kind, rate, channels


def audio(rate: int, channels: int, length_s: float) -> np.ndarray:
    """Return spelled text after silence, (S, C) int16."""
    word = spell("end", rate)
    samples = np.concatenate([np.zeros(max(0, int(length_s * rate) - len(word)), np.int16), word])
    return np.repeat(samples[:, None], channels, axis=1)


@cache
def codes(name: str) -> np.ndarray:
    """Return the code of each 16-bit value, by its distance to the values of the codes."""
    table = (mulaw_table() if name == "mulaw" else alaw_table()).astype(np.int32)
    order = np.argsort(table)
    middles = (table[order][1:] + table[order][:-1]) // 2
    return order[np.searchsorted(middles, np.arange(-32_768, 32_768))].astype(np.uint8)


def body_of(kind: str, rate: int, channels: int, length_s: float) -> bytes:
    samples = audio(rate, channels, length_s)
    if kind in CONTAINERS:
        name, subtype = CONTAINERS[kind]
        file = io.BytesIO()
        with soundfile.SoundFile(file, "w", rate, channels, format=name, subtype=subtype) as output:
            for at in range(0, len(samples), rate):  # libsndfile crashes on a long Vorbis recording in one call
                output.write(samples[at : at + rate] / 32_768 if subtype == "FLOAT" else samples[at : at + rate])
        return file.getvalue()
    if kind == "linear16":
        return samples.tobytes()
    if kind == "linear32":
        return (samples / 32_768).astype(np.float32).tobytes()
    return codes(kind)[samples.astype(np.int32) + 32_768].tobytes()


def query(kind: str, rate: int, channels: int) -> str:
    return f"?encoding={kind}&sample_rate={rate}&channels={channels}" if kind in RAW else ""


@pytest.mark.parametrize(("kind", "rate", "channels"), cells())
def test_blocks_have_two_seconds_at_most_and_the_length_of_the_recording(kind: str, rate: int, channels: int) -> None:
    form = audio_form(kind, rate, channels) if kind in RAW else audio_form(None, None)
    plain = (kind in RAW or kind.startswith("wav")) and channels == 1 and rate in PLAIN_RATES
    for length_s in (*LENGTHS_S, *[600] * plain):
        body = body_of(kind, rate, channels, length_s)
        recording, lengths = Recording(body, form, rate=16_000, max_s=700.0), []
        while (block := recording.next_block()) is not None:
            assert block.shape[1] == channels
            lengths.append(len(block))
        assert max(lengths) / 16_000 <= BLOCK_S + 0.2  # what the resampler held back
        assert sum(lengths) / 16_000 == pytest.approx(length_s, abs=0.1)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer() as server:
        yield server


@pytest.mark.parametrize(("kind", "rate", "channels"), [cell for cell in cells() if cell[1] in {8_000, 44_100}])
def test_every_format_is_answered(server: LiveServer, kind: str, rate: int, channels: int) -> None:
    body = body_of(kind, rate, channels, 9.0)
    answer = server.http.post("/v1/listen" + query(kind, rate, channels), content=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["duration"] == pytest.approx(9.0, abs=0.1)
    if kind in EXACT and rate == 8_000:
        assert said(answer.json()) == "end"


@pytest.mark.parametrize("kind", ["wav pcm16", "wav pcm8", "wav mulaw", "wav alaw"])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_telephone_recording_is_answered_on_every_route(
    server: LiveServer, kind: str, channels: int, tmp_path: Path
) -> None:
    for length_s in (7.0, 9.0, 100.0):
        body = body_of(kind, 8_000, channels, length_s)
        listened = server.http.post("/v1/listen?multichannel=true", content=body)
        assert listened.json()["metadata"]["duration"] == pytest.approx(length_s)
        transcribed = server.http.post("/v1/audio/transcriptions", files={"file": ("call.wav", body)})
        assert transcribed.status_code == 200, transcribed.text
        events = server.http.post(
            "/v1/audio/transcriptions", files={"file": ("call.wav", body)}, data={"stream": "true"}
        )
        assert '"transcript.text.done"' in events.text
    file = tmp_path / "call.wav"
    file.write_bytes(body)
    assert sync.transcribe(file, str(server.http.base_url)).duration == pytest.approx(length_s)
