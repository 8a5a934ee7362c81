"""The unmodified Deepgram SDK against this server: only its address is changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from live_server import LiveServer
from spelling import silence, spell
from test_uploads import encoded

deepgram = pytest.importorskip("deepgram")
from deepgram import AsyncDeepgramClient, DeepgramClient  # noqa: E402
from deepgram.core.api_error import ApiError  # noqa: E402
from deepgram.core.events import EventType  # noqa: E402
from deepgram.environment import DeepgramClientEnvironment  # noqa: E402

Start = Callable[..., LiveServer]
KEY = "k3y"
OPTIONS: dict[str, Any] = {
    "model": "nova-3",
    "encoding": "linear16",
    "sample_rate": 16_000,
    "channels": 1,
    "interim_results": True,
    "smart_format": True,
    "endpointing": 400,
    "utterance_end_ms": 1_000,
    "vad_events": True,
    "keyterm": ["foo bar", "baz"],
}
AUDIO = np.concatenate([spell("hello there"), silence(2.0), spell("general")]).tobytes()
CHUNKS = [AUDIO[start : start + 1_601] for start in range(0, len(AUDIO), 1_601)]  # 50 ms and an odd byte


def address(server: LiveServer) -> DeepgramClientEnvironment:
    """All that points the SDK at us."""
    http, ws = f"http://{server.host}", f"ws://{server.host}"
    return DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)


class Seen:
    """What the SDK's events told its user."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.errors: list[Any] = []
        self.closes = 0

    def message(self, message: Any) -> None:
        self.messages.append(message)

    def error(self, error: Any) -> None:
        self.errors.append(error)

    def close(self, _: Any) -> None:
        self.closes += 1

    def check(self) -> None:
        """The contract: classes, tiling, one answer to the one Finalize, Metadata last, a normal close, no error."""
        kinds = [type(m).__name__ for m in self.messages]
        assert kinds[0] == "ListenV1SpeechStarted"
        assert kinds[-1] == "ListenV1Metadata"
        assert kinds.count("ListenV1Metadata") == 1
        assert kinds.count("ListenV1UtteranceEnd") == 1
        results = [m for m in self.messages if m.type == "Results"]
        finals = [m for m in results if m.is_final]
        assert " ".join(m.channel.alternatives[0].transcript for m in finals).split() == ["Hello", "there.", "General."]
        assert sum(bool(m.from_finalize) for m in results) == 1
        first = finals[0].channel.alternatives[0].words[0]
        assert (first.word, first.punctuated_word) == ("hello", "Hello")
        cursor = 0.0
        for message in results:
            assert message.start == pytest.approx(cursor)
            cursor = cursor + message.duration if message.is_final else cursor
        assert cursor == pytest.approx(len(AUDIO) / 32_000)
        assert {m.metadata.request_id for m in results} == {self.messages[-1].request_id}
        assert (self.errors, self.closes) == ([], 1)


def test_the_sync_client(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])
    seen = Seen()
    client = DeepgramClient(api_key=KEY, environment=address(server))
    with client.listen.v1.connect(**OPTIONS) as stream:
        stream.on(EventType.MESSAGE, seen.message)
        stream.on(EventType.ERROR, seen.error)
        stream.on(EventType.CLOSE, seen.close)
        reader = threading.Thread(target=stream.start_listening)
        reader.start()
        stream.send_keep_alive()
        for chunk in CHUNKS:
            stream.send_media(chunk)
        stream.send_finalize()
        stream.send_close_stream()
        reader.join(timeout=20)
    seen.check()
    server.wait_idle()


def test_the_async_client(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])
    seen = Seen()

    async def talk() -> None:
        client = AsyncDeepgramClient(access_token=KEY, environment=address(server))
        async with client.listen.v1.connect(**OPTIONS) as stream:
            stream.on(EventType.MESSAGE, seen.message)
            stream.on(EventType.ERROR, seen.error)
            stream.on(EventType.CLOSE, seen.close)
            reader = asyncio.create_task(stream.start_listening())
            await stream.send_keep_alive()
            for chunk in CHUNKS:
                await stream.send_media(chunk)
            await stream.send_finalize()
            await stream.send_close_stream()
            await asyncio.wait_for(reader, timeout=20)

    asyncio.run(talk())
    seen.check()
    server.wait_idle()


def test_a_refusal_reaches_the_async_client_with_its_status(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])

    async def talk() -> None:
        client = AsyncDeepgramClient(api_key="wrong", environment=address(server))
        with pytest.raises(ApiError) as refused:
            async with client.listen.v1.connect(**OPTIONS):
                pass
        assert refused.value.status_code == 401

    asyncio.run(talk())


def test_a_drain_is_an_error_and_then_a_close(live_server: Start) -> None:
    """With 1001 the client would take an unfinished transcript for a whole one."""
    server = live_server(drain_timeout_s=0.0)
    seen = Seen()
    client = DeepgramClient(api_key=KEY, environment=address(server))
    with client.listen.v1.connect(**OPTIONS) as stream:
        stream.on(EventType.MESSAGE, seen.message)
        stream.on(EventType.ERROR, seen.error)
        stream.on(EventType.CLOSE, seen.close)
        stream.send_media(spell("half a sen").tobytes())
        server.wait_until(lambda: server.replica.metrics.audio_bytes._value.get() > 0)
        server.server.handle_exit(15, None)
        stream.start_listening()
    assert "1012" in str(seen.errors[0])
    assert (len(seen.errors), seen.closes, seen.messages[-1].type) == (1, 1, "Metadata")
    server.join()


def test_a_recording(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])
    client = DeepgramClient(api_key=KEY, environment=address(server))
    answer = client.listen.v1.media.transcribe_file(request=encoded(spell("from a file"), "WAV"), model="nova-3")
    assert answer.results.channels[0].alternatives[0].transcript == "from a file"
    assert answer.metadata.channels == 1
