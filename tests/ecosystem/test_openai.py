"""`openai` for Python, unmodified: Realtime transcription and file uploads; only its address is changed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from tests.ecosystem.driving import missing
from tests.ecosystem.holding import Holders
from tests.ecosystem.recordings import FILES, RATE_HZ, audio, plain, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, OTHER_KEY, THIRD_KEY, ServerProcess

try:
    import openai
    from websockets.exceptions import InvalidStatus
except ImportError:
    missing("openai not installed")

Before = Callable[[ServerProcess], Relay]
SAID = ("order", "porch_fan")
CLIENT_RATE_HZ = 24_000  # the one that the service takes
CHUNK_BYTES = CLIENT_RATE_HZ // 10  # 50 ms
FORMAT = {"type": "audio/pcm", "rate": CLIENT_RATE_HZ}
TRANSCRIPTION = {"model": "gpt-4o-transcribe", "language": "en"}


def at_client_rate(*parts: str | float) -> bytes:
    """Return recordings and silences at this client's rate."""
    pcm = np.frombuffer(audio(*parts), "<i2")
    return np.asarray(soxr.resample(pcm, RATE_HZ, CLIENT_RATE_HZ), np.int16).tobytes()


def client(host: str, key: str = KEY) -> openai.AsyncOpenAI:
    """Return the SDK's addresses of this server."""
    base, websocket = f"http://{host}/v1", f"ws://{host}/v1"
    return openai.AsyncOpenAI(api_key=key, base_url=base, websocket_base_url=websocket, max_retries=0)


@asynccontextmanager
async def session(host: str, turn_detection: Any) -> AsyncIterator[Any]:
    """Open a session with this turn detection."""
    async with client(host).realtime.connect(extra_query={"intent": "transcription"}) as connection:
        wanted = {"format": FORMAT, "transcription": TRANSCRIPTION, "turn_detection": turn_detection}
        await connection.session.update(session={"type": "transcription", "audio": {"input": wanted}})
        yield connection


async def speak(connection: Any, pcm: bytes) -> None:
    """Append it in pieces."""
    for start in range(0, len(pcm), CHUNK_BYTES):
        piece = base64.b64encode(pcm[start : start + CHUNK_BYTES]).decode()
        await connection.input_audio_buffer.append(audio=piece)


async def until(connection: Any, count: int) -> list[Any]:
    """Return events up to `count` complete transcripts."""
    events: list[Any] = []
    async with asyncio.timeout(30):
        while sum(event.type.endswith(".completed") for event in events) < count:
            events.append(await connection.recv())
            assert events[-1].type != "error", events[-1]
    return events


def kinds(events: Sequence[Any]) -> list[str]:
    """Return the last word of each event's type; consecutive deltas count as one."""
    named = [event.type.rpartition(".")[2] for event in events]
    return [kind for before, kind in zip([None, *named], named, strict=False) if kind != "delta" or before != kind]


def check_items(events: Sequence[Any], said: Sequence[str]) -> None:
    """Check that each item's deltas add up to its transcript, and the transcripts to the text, in order."""
    completed = [event for event in events if event.type.endswith(".completed")]
    assert [event.transcript for event in completed] == list(said)
    for event in completed:
        deltas = [e.delta for e in events if e.type.endswith(".delta") and e.item_id == event.item_id]
        assert "".join(deltas) == event.transcript
        assert event.usage.type == "duration"
        assert event.usage.seconds > 0
    committed = [event for event in events if event.type.endswith(".committed")]
    assert [event.item_id for event in committed] == [event.item_id for event in completed]
    assert [event.previous_item_id for event in committed] == [None, *(event.item_id for event in committed)][:-1]
    assert len({event.event_id for event in events}) == len(events)


async def test_a_session_whose_client_commits(server: ServerProcess, relay: Before) -> None:
    before = relay(server)
    events: list[Any] = []
    async with session(before.host, None) as connection:
        for name in SAID:
            await speak(connection, at_client_rate(name))
            await connection.input_audio_buffer.commit()
            events += await until(connection, 1)
    assert [type(event).__name__ for event in events[:2]] == ["SessionCreatedEvent", "SessionUpdatedEvent"]
    assert events[1].session.audio.input.turn_detection is None
    ordered = [kind for kind in kinds(events) if kind != "delta"]
    assert ordered == ["created", "updated", *["committed", "completed"] * 2]
    check_items(events, [text(name) for name in SAID])
    assert before.only().status == 101


async def test_a_session_whose_turns_end_by_silence(server: ServerProcess, relay: Before) -> None:
    before = relay(server)
    turns = {"type": "server_vad", "silence_duration_ms": 500, "threshold": 0.5, "prefix_padding_ms": 300}
    async with session(before.host, turns) as connection:
        await speak(connection, at_client_rate("order", 1.6, "porch_fan", 1.6))
        events = await until(connection, 2)
    turn = ["speech_started", "delta", "speech_stopped", "committed", "completed"]
    assert kinds(events) == ["created", "updated", *turn, *turn]
    check_items(events, [text(name) for name in SAID])
    started = [event.audio_start_ms for event in events if event.type.endswith("speech_started")]
    stopped = [event.audio_end_ms for event in events if event.type.endswith("speech_stopped")]
    assert started[0] < stopped[0] < started[1] < stopped[1]


REFUSED: list[tuple[str, int, type[openai.APIStatusError], str]] = [
    ("unknown key", 401, openai.AuthenticationError, "invalid_api_key"),
    (KEY, 429, openai.RateLimitError, "rate_limit_exceeded"),
    (THIRD_KEY, 503, openai.InternalServerError, "server_overloaded"),
]


@pytest.mark.parametrize(("key", "status", "error", "code"), REFUSED)
def test_a_refused_session_or_upload_raises_with_its_status(
    strict_server: ServerProcess, key: str, status: int, error: type[openai.APIStatusError], code: str
) -> None:
    host = f"127.0.0.1:{strict_server.port}"

    async def ask() -> None:
        async with client(host, key).realtime.connect(extra_query={"intent": "transcription"}):
            pass

    with Holders(strict_server, [KEY, OTHER_KEY][: {429: 1, 503: 2}.get(status, 0)]):
        with pytest.raises(InvalidStatus) as raw:
            asyncio.run(ask())
        with pytest.raises(error) as refused:
            transcribe(host, key=key)
    assert raw.value.response.status_code == refused.value.status_code == status
    assert refused.value.code == code
    assert refused.value.request_id


# Uploads


def transcribe(host: str, name: str = "order", key: str = KEY, **options: Any) -> Any:
    """Upload a shipped recording, which is a FLAC file."""
    with Path(FILES[name]).open("rb") as recording:
        sync_client = openai.OpenAI(api_key=key, base_url=f"http://{host}/v1", max_retries=0)
        return sync_client.audio.transcriptions.create(file=recording, model="whisper-1", **options)


def test_an_upload_in_every_format(server: ServerProcess) -> None:
    host = f"127.0.0.1:{server.port}"
    assert plain(transcribe(host).text) == text("order")
    assert transcribe(host).text == "Where is my order?"
    assert transcribe(host, response_format="text").strip() == "Where is my order?"
    assert "Where is my order?" in transcribe(host, response_format="srt").splitlines()
    assert transcribe(host, response_format="vtt").startswith("WEBVTT\n\n00:00:0")
    verbose = transcribe(host, response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert plain(" ".join(word.word for word in verbose.words)) == text("order")
    assert verbose.duration == pytest.approx(2.275, abs=0.01)
    assert [segment.text for segment in verbose.segments] == ["Where is my order?"]
    assert 0 <= verbose.segments[0].start < verbose.segments[0].end <= verbose.duration


def test_an_upload_as_it_comes(server: ServerProcess) -> None:
    events = list(transcribe(f"127.0.0.1:{server.port}", "demo", stream=True))
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert len(events) > 2
    assert (events[-1].type, events[-1].text) == ("transcript.text.done", "".join(e.delta for e in events[:-1]))


def test_an_upload_by_the_async_client_with_keywords(server: ServerProcess) -> None:
    recording = Path(FILES["porch_fan"])

    async def ask() -> Any:
        asked = client(f"127.0.0.1:{server.port}").audio.transcriptions
        return await asked.create(file=recording, model="gpt-transcribe", keywords=["porch fan", "garden gate"])

    assert plain(asyncio.run(ask()).text) == text("porch_fan")
