"""`deepgram-sdk` for Python, unmodified: only its address is changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.holding import Holders
from tests.ecosystem.recordings import BYTES_PER_S, FILES, audio, plain, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, ServerProcess
from tests.ecosystem.wire_rules import REFUSED, check_refusal, check_stream
from tests.support.needs import missing
from tests.support.servers.receiver import receiver

try:
    from deepgram import AsyncDeepgramClient, DeepgramClient
    from deepgram.core.api_error import ApiError
    from deepgram.core.events import EventType
    from deepgram.environment import DeepgramClientEnvironment
    from deepgram.types.listen_v1response import ListenV1Response
    from websockets.exceptions import InvalidStatus
except ImportError:
    missing("deepgram-sdk not installed")

Before = Callable[[ServerProcess], Relay]
SAID = ("order", "porch_fan")
AUDIO = audio("order", 1.6, "porch_fan")
FIRST = len(audio("order")) // 1_601
CHUNKS = [AUDIO[start : start + 1_601] for start in range(0, len(AUDIO), 1_601)]  # 50 ms and an odd byte
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
    "keyterm": ["porch fan", "garden gate"],
}


def environment(host: str) -> DeepgramClientEnvironment:
    """Return the SDK's addresses of this server."""
    http, ws = f"http://{host}", f"ws://{host}"
    return DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)


class Seen:
    """Collects the SDK's events."""

    def __init__(self, stream: Any) -> None:
        self.messages: list[Any] = []
        self.errors: list[Any] = []
        self.order: list[str] = []
        stream.on(EventType.MESSAGE, lambda message: self._note("MESSAGE", self.messages, message))
        stream.on(EventType.ERROR, lambda error: self._note("ERROR", self.errors, error))
        stream.on(EventType.CLOSE, lambda _: self.order.append("CLOSE"))

    def _note(self, event: str, seen: list[Any], given: Any) -> None:
        self.order.append(event)
        seen.append(given)

    def check(self) -> None:
        """The SDK's classes in order, one answer to the one Finalize, Metadata last, no error."""
        kinds = [type(message).__name__ for message in self.messages]
        assert kinds[0] == "ListenV1SpeechStarted"
        assert kinds[-1] == "ListenV1Metadata"
        assert set(kinds) == {"ListenV1SpeechStarted", "ListenV1Results", "ListenV1UtteranceEnd", "ListenV1Metadata"}
        assert kinds.count("ListenV1UtteranceEnd") == 1
        results = [m for m in self.messages if m.type == "Results"]
        assert sum(bool(m.from_finalize) for m in results) == 1
        finals = [m.channel.alternatives[0] for m in results if m.is_final]
        assert plain(" ".join(final.transcript for final in finals)) == text(*SAID)
        first = finals[0].words[0]
        assert (first.word, first.punctuated_word) == ("where", "Where")
        assert any(not m.is_final and m.channel.alternatives[0].transcript for m in results)
        assert self.order[-1] == "CLOSE"
        assert set(self.order[:-1]) == {"MESSAGE"}


def test_the_sync_client(server: ServerProcess, relay: Before) -> None:
    before = relay(server)
    client = DeepgramClient(api_key=KEY, environment=environment(before.host))
    with client.listen.v1.connect(**OPTIONS) as stream:
        seen = Seen(stream)
        reader = threading.Thread(target=stream.start_listening)
        reader.start()
        stream.send_keep_alive()
        for chunk in CHUNKS[:FIRST]:
            stream.send_media(chunk)
        before.wait(before.connections[0].sent_word)  # an interim: under load the server may drop them
        for chunk in CHUNKS[FIRST:]:
            stream.send_media(chunk)
        stream.send_finalize()
        stream.send_close_stream()
        reader.join(timeout=20)
    seen.check()
    check_stream(before.only(), text(*SAID), seconds=len(AUDIO) / BYTES_PER_S)
    assert "permessage-deflate" in before.only().request, "it offers compression, which is declined"


def test_the_async_client(server: ServerProcess, relay: Before) -> None:
    before = relay(server)

    async def talk() -> Seen:
        client = AsyncDeepgramClient(access_token=KEY, environment=environment(before.host))
        async with client.listen.v1.connect(**OPTIONS) as stream:
            seen = Seen(stream)
            reader = asyncio.create_task(stream.start_listening())
            await stream.send_keep_alive()
            for chunk in CHUNKS[:FIRST]:
                await stream.send_media(chunk)
            await asyncio.to_thread(before.wait, before.connections[0].sent_word)
            for chunk in CHUNKS[FIRST:]:
                await stream.send_media(chunk)
            await stream.send_finalize()
            await stream.send_close_stream()
            await asyncio.wait_for(reader, timeout=20)
        return seen

    asyncio.run(talk()).check()
    check_stream(before.only(), text(*SAID), seconds=len(AUDIO) / BYTES_PER_S)


@pytest.mark.parametrize("name", ["order", "garden_gate"])
def test_a_recording(server: ServerProcess, relay: Before, name: str) -> None:
    """As a FLAC file, whose format the server detects."""
    client = DeepgramClient(api_key=KEY, environment=environment(relay(server).host))
    recording = Path(FILES[name]).read_bytes()
    answer = client.listen.v1.media.transcribe_file(request=recording, model="nova-3", smart_format=True)
    (best,) = answer.results.channels[0].alternatives
    assert plain(best.transcript) == text(name)
    assert [word.word for word in best.words] == text(name).split()
    assert answer.metadata.channels == 1


def test_a_recording_with_a_callback_is_accepted_at_once(tmp_path: Path) -> None:
    settings = {"callback_hosts": "127.0.0.1", "callback_folder": tmp_path}
    with ServerProcess(**settings) as process, receiver() as running:
        client = DeepgramClient(api_key=KEY, environment=environment(f"127.0.0.1:{process.port}"))
        recording = Path(FILES["order"]).read_bytes()
        accepted = client.listen.v1.media.transcribe_file(
            request=recording, callback=running.url, callback_method="PUT"
        )
        received = running.next(timeout_s=60.0)
    assert received.method == "PUT"
    answer = ListenV1Response(**received.json)
    assert answer.metadata.request_id == accepted.request_id
    (best,) = answer.results.channels[0].alternatives
    assert plain(best.transcript) == text("order")


@pytest.mark.parametrize(("key", "options", "status", "held"), REFUSED)
def test_a_refusal_reaches_both_clients_with_its_status(
    strict_server: ServerProcess, relay: Before, key: str, options: dict[str, Any], status: int, held: list[str]
) -> None:
    """The sync client raises the error of `websockets`; the async one has its own error."""
    before = relay(strict_server)
    place = environment(before.host)

    async def ask() -> None:
        async with AsyncDeepgramClient(api_key=key, environment=place).listen.v1.connect(**OPTIONS | options):
            pass

    with Holders(strict_server, held):
        with pytest.raises(ApiError) as refused:
            asyncio.run(ask())
        assert refused.value.status_code == status
        with (
            pytest.raises(InvalidStatus) as raw,
            DeepgramClient(api_key=key, environment=place).listen.v1.connect(**OPTIONS | options),
        ):
            pass
        assert raw.value.response.status_code == status
    assert len(before.connections) == 2
    for connection in before.connections:
        check_refusal(connection, status)


async def test_an_idle_stream_is_an_error_and_then_a_close(strict_server: ServerProcess, relay: Before) -> None:
    before = relay(strict_server)
    client = AsyncDeepgramClient(api_key=KEY, environment=environment(before.host))
    async with client.listen.v1.connect(**OPTIONS) as stream:
        seen = Seen(stream)
        await stream.send_media(audio("yes"))
        await asyncio.wait_for(stream.start_listening(), timeout=20)
    assert seen.order[-2:] == ["ERROR", "CLOSE"]
    assert "1011" in str(seen.errors[0])
    assert "net0001" in str(seen.errors[0])
    assert type(seen.messages[-1]).__name__ == "ListenV1Metadata"
    check_stream(before.only(), text("yes"), code=1011)


def test_a_restart_is_an_error_and_then_a_close(relay: Before) -> None:
    """With 1001 the client would treat an unfinished transcript as complete."""
    seen: list[Seen] = []
    with ServerProcess(drain_timeout_s=0) as server:
        before = relay(server)

        def talk() -> None:
            client = DeepgramClient(api_key=KEY, environment=environment(before.host))
            with client.listen.v1.connect(**OPTIONS) as stream:
                seen.append(Seen(stream))
                stream.send_media(audio("order"))
                stream.start_listening()

        talking = threading.Thread(target=talk)
        talking.start()
        before.wait(lambda: before.connections and before.connections[0].sent_word())
        server.drain()
        talking.join(timeout=20)
        assert server.wait() == 0
    assert seen[0].order[-2:] == ["ERROR", "CLOSE"]
    assert "1012" in str(seen[0].errors[0])
    assert type(seen[0].messages[-1]).__name__ == "ListenV1Metadata"
    check_stream(before.only(), text("order"), seconds=len(audio("order")) / BYTES_PER_S, code=1012)
