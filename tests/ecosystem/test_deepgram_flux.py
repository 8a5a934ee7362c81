"""`listen.v2` of `deepgram-sdk` for Python, unmodified: only its address is changed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.ecosystem.recordings import audio, plain, text
from tests.ecosystem.serving import KEY, ServerProcess
from tests.support.needs import missing

try:
    from deepgram import AsyncDeepgramClient, DeepgramClient
    from deepgram.core.events import EventType
    from deepgram.environment import DeepgramClientEnvironment
except ImportError:
    missing("deepgram-sdk not installed")

CHUNK = 2_560  # 80 ms
AUDIO = audio("order", 2.0, "porch_fan")
OPTIONS: dict[str, Any] = {
    "model": "flux-general-en",
    "encoding": "linear16",
    "sample_rate": 16_000,
    "eot_threshold": 0.7,
    "eager_eot_threshold": 0.5,
}


def address(server: ServerProcess) -> DeepgramClientEnvironment:
    http, ws = f"http://127.0.0.1:{server.port}", f"ws://127.0.0.1:{server.port}"
    return DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)


def test_turns_reach_the_sync_client(server: ServerProcess) -> None:
    messages: list[Any] = []
    with DeepgramClient(api_key=KEY, environment=address(server)).listen.v2.connect(**OPTIONS) as stream:
        stream.on(EventType.MESSAGE, messages.append)
        reader = threading.Thread(target=stream.start_listening)
        reader.start()
        for start in range(0, len(AUDIO), CHUNK):
            stream.send_media(AUDIO[start : start + CHUNK])
        stream.send_close_stream()
        reader.join(timeout=20)
    assert messages[0].type == "Connected"
    assert [message.sequence_id for message in messages] == list(range(len(messages)))
    turns = [message for message in messages if message.type == "TurnInfo"]
    assert {type(message).__name__ for message in turns} == {"ListenV2TurnInfo"}
    ended = [turn for turn in turns if turn.event == "EndOfTurn"]
    assert plain(" ".join(turn.transcript for turn in ended)) == text("order", "porch_fan")
    assert ended[0].trigger == "model"
    assert any(turn.event == "EagerEndOfTurn" for turn in turns)


def test_the_async_client_configures_and_ends_a_turn(server: ServerProcess) -> None:
    """`send_configure` is answered with all values in force, `send_force_end_turn` ends the open turn."""
    spoken = audio("order")

    async def talk() -> list[Any]:
        messages: list[Any] = []
        client = AsyncDeepgramClient(api_key=KEY, environment=address(server))
        async with client.listen.v2.connect(**OPTIONS) as stream:
            stream.on(EventType.MESSAGE, messages.append)
            reader = asyncio.create_task(stream.start_listening())
            await stream.send_configure(
                {"type": "Configure", "thresholds": {"eot_threshold": 0.9}, "keyterms": ["porch"]}
            )
            for start in range(0, len(spoken), CHUNK):
                await stream.send_media(spoken[start : start + CHUNK])
            await stream.send_force_end_turn()
            await stream.send_close_stream()
            await asyncio.wait_for(reader, timeout=20)
        return messages

    messages = asyncio.run(talk())
    (configured,) = (message for message in messages if message.type == "ConfigureSuccess")
    assert (configured.thresholds.eot_threshold, configured.thresholds.eager_eot_threshold) == (0.9, 0.5)
    assert list(configured.keyterms) == ["porch"]
    (ended,) = (message for message in messages if getattr(message, "event", None) == "EndOfTurn")
    assert (plain(ended.transcript), ended.trigger) == (text("order"), "manual")
