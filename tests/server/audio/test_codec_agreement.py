"""The same recordings in every format that clients send: the shipped model's texts agree within the codec's loss."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import httpx
import numpy as np
import pytest
import soundfile
import soxr
from websockets.asyncio.client import connect

from model.acoustic import load_model
from model.decoder import decoder_of
from model.evaluation.scoring import by_source
from model.recordings import Utterance, read_pcm
from server.audio.raw import alaw_table, mulaw_table
from server.tools.evaluate import coded
from tests.support.audio.media_files import FRAGMENTS, container, opus_packets
from tests.support.audio.speech import samples
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript

MESSAGE_BYTES = 3_001  # an odd number, so that samples and packets are split


def at(pcm: np.ndarray, rate: int) -> np.ndarray:
    """Return 16 kHz samples, (S,) int16, at another rate."""
    samples = soxr.resample(pcm.astype(np.float32), 16_000, rate)
    return np.clip(np.rint(samples), -32_768, 32_767).astype(np.int16)


def opus_in(kind: str, **options: str) -> Callable[[np.ndarray], bytes]:
    """Return an encoder of Opus at 32 kbit/s in this container."""
    return lambda pcm: container(kind, "libopus", at(pcm, 48_000)[:, None], 48_000, options=options, bit_rate=32_000)


def mp3(pcm: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, pcm, 16_000, format="MP3")
    return file.getvalue()


@dataclass(frozen=True)
class Form:
    """How a recording is sent: `encode` returns a file or raw Opus packets. `loss` is the WER added by the codec."""

    encode: Callable[[np.ndarray], bytes | list[bytes]]
    encoding: str | None = None
    rate: int | None = None
    loss: float = 0.0
    upload: bool = True

    @property
    def query(self) -> dict[str, object]:
        return {"encoding": self.encoding, "sample_rate": self.rate}


# Of the 98 words, telephone codecs lose three and five (measured), because the band above 4 kHz is missing.
TELEPHONE_LOSS = 0.08
# In an upload the pauses of demo.flac end no segment: "nine two, you can" becomes "nine to you can" (measured).
UPLOAD_LOSS = 0.0103
FORMS = {
    "linear16 16 kHz": Form(lambda pcm: pcm.tobytes(), "linear16", 16_000),
    "linear32 44.1 kHz": Form(lambda pcm: (at(pcm, 44_100) / 32_768).astype("<f4").tobytes(), "linear32", 44_100),
    "wav 48 kHz stereo": Form(
        lambda pcm: container("wav", "pcm_s16le", np.repeat(at(pcm, 48_000)[:, None], 2, axis=1), 48_000)
    ),
    "mulaw 8 kHz": Form(
        lambda pcm: coded(at(pcm, 8_000), mulaw_table()).tobytes(), "mulaw", 8_000, loss=TELEPHONE_LOSS
    ),
    "alaw 8 kHz": Form(lambda pcm: coded(at(pcm, 8_000), alaw_table()).tobytes(), "alaw", 8_000, loss=TELEPHONE_LOSS),
    "raw Opus": Form(lambda pcm: opus_packets(at(pcm, 48_000)[:, None]), "opus", 48_000, upload=False),
    "Ogg Opus, named": Form(opus_in("ogg"), "ogg-opus", upload=False),
    "Ogg Opus": Form(opus_in("ogg")),
    "WebM Opus": Form(opus_in("webm", live="1")),
    "FLAC": Form(lambda pcm: container("flac", "flac", pcm[:, None], 16_000), "flac"),
    "MP3": Form(mp3),
    "AAC": Form(lambda pcm: container("adts", "aac", at(pcm, 48_000)[:, None], 48_000, bit_rate=96_000)),
    "MP4 as Safari records it": Form(
        lambda pcm: container("mp4", "aac", at(pcm, 48_000)[:, None], 48_000, options=FRAGMENTS, bit_rate=96_000)
    ),
}


@cache
def recordings() -> tuple[tuple[Utterance, np.ndarray], ...]:
    """Return the shipped samples at 16 kHz."""
    return tuple((u, read_pcm(u.audio)) for u in samples())


@cache
def encoded(name: str) -> tuple[bytes | list[bytes], ...]:
    """Return all recordings in this format."""
    return tuple(FORMS[name].encode(pcm) for _, pcm in recordings())


@pytest.fixture(scope="module")
def server():
    model = load_model()
    with LiveServer(model=model, decoder=decoder_of(model.facts)) as running:
        yield running


def word_errors(texts: list[str]) -> float:
    """Return the WER of the samples."""
    references = [u.text for u, _ in recordings()]
    rows = [("samples", reference, text) for reference, text in zip(references, texts, strict=True)]
    return by_source(rows)["samples"].wer


async def streamed(server: LiveServer, form: Form, data: bytes | list[bytes], duration_s: float) -> str:
    messages = (
        data if isinstance(data, list) else [data[i : i + MESSAGE_BYTES] for i in range(0, len(data), MESSAGE_BYTES)]
    )
    frames = []
    async with connect(server.url(**form.query), compression=None) as socket:
        for message in messages:
            await socket.send(message)
        await socket.send('{"type":"CloseStream"}')
        async with asyncio.timeout(WAIT_S):
            async for frame in socket:
                frames.append(json.loads(frame))  # noqa: PERF401 - a comprehension would hide the time limit
        assert socket.close_code == 1000
    assert frames[-1]["type"] == "Metadata"
    assert frames[-1]["duration"] == pytest.approx(duration_s, abs=0.1)
    return transcript(frames)


async def uploaded(http: httpx.AsyncClient, form: Form, data: bytes | list[bytes]) -> str:
    asked = {name: value for name, value in form.query.items() if value is not None}
    response = await http.post("/v1/listen", params=asked, content=data)
    assert response.status_code == 200, response.text
    text: str = response.json()["results"]["channels"][0]["alternatives"][0]["transcript"]
    return text


@pytest.mark.parametrize("name", FORMS)
def test_a_stream_in_any_form_has_the_words_of_the_recording(server: LiveServer, name: str) -> None:
    async def all_of_them() -> list[str]:
        durations_s = [len(pcm) / 16_000 for _, pcm in recordings()]
        files = zip(encoded(name), durations_s, strict=True)
        return await asyncio.gather(*(streamed(server, FORMS[name], data, long_s) for data, long_s in files))

    texts = asyncio.run(all_of_them())
    assert word_errors(texts) <= FORMS[name].loss, texts


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.upload])
def test_an_upload_in_any_form_has_the_words_of_the_recording(server: LiveServer, name: str) -> None:
    async def one_after_another() -> list[str]:
        async with httpx.AsyncClient(base_url=f"http://{server.host}", timeout=WAIT_S) as http:
            return [await uploaded(http, FORMS[name], data) for data in encoded(name)]

    texts = asyncio.run(one_after_another())
    assert word_errors(texts) <= max(FORMS[name].loss, UPLOAD_LOSS), texts
