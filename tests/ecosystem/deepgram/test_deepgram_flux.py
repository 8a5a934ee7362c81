"""`listen.v2` of `deepgram-sdk` for Python, unmodified: only its address is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.ecosystem.recordings import audio, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, ServerProcess
from tests.ecosystem.wire_rules import check_turns
from tests.support.needs import missing

try:
    from deepgram import AsyncDeepgramClient
    from deepgram.core.events import EventType
    from deepgram.environment import DeepgramClientEnvironment
except ImportError:
    missing("deepgram-sdk not installed")

Before = Callable[[ServerProcess], Relay]
Step = tuple[Any, ...]  # ("media", audio), ("configure", message), ("force_end_turn",)
CHUNK = 2_560  # 80 ms
WITHIN_S = 20
OPTIONS: dict[str, Any] = {
    "model": "flux-general-en",
    "encoding": "linear16",
    "sample_rate": 16_000,
    "eot_threshold": 0.7,
    "eager_eot_threshold": 0.5,
}


def address(host: str) -> DeepgramClientEnvironment:
    http, ws = f"http://{host}", f"ws://{host}"
    return DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)


async def talk(host: str, steps: Sequence[Step]) -> list[Any]:
    messages: list[Any] = []
    async with AsyncDeepgramClient(api_key=KEY, environment=address(host)).listen.v2.connect(**OPTIONS) as stream:
        stream.on(EventType.MESSAGE, messages.append)
        reader = asyncio.create_task(stream.start_listening())
        for name, *arguments in steps:
            if name == "media":
                for start in range(0, len(arguments[0]), CHUNK):
                    await stream.send_media(arguments[0][start : start + CHUNK])
            else:
                await getattr(stream, f"send_{name}")(*arguments)
        await stream.send_close_stream()
        await asyncio.wait_for(reader, timeout=WITHIN_S)
    return messages


def test_turns_end_by_silence(server: ServerProcess, relay: Before) -> None:
    """The client gets every message of the wire as its own type."""
    before = relay(server)
    messages = asyncio.run(talk(before.host, [("media", audio("order", 2.0, "porch_fan"))]))
    turns = check_turns(before.only(), text("order", "porch_fan"))
    found = [message for message in messages if message.type == "TurnInfo"]
    assert {type(message).__name__ for message in found} == {"ListenV2TurnInfo"}
    assert [(turn.event, turn.transcript) for turn in found] == [(turn["event"], turn["transcript"]) for turn in turns]
    assert next(turn["trigger"] for turn in turns if turn["event"] == "EndOfTurn") == "model"
    assert any(turn["event"] == "EagerEndOfTurn" for turn in turns)


def test_configure_and_force_end_turn(server: ServerProcess, relay: Before) -> None:
    """`send_configure` is answered with all values in force or refused whole, `send_force_end_turn` ends the turn."""
    before = relay(server)
    refused = {"type": "Configure", "thresholds": {"eager_eot_threshold": 0.6, "eot_threshold": 0.5}}
    accepted = {"type": "Configure", "thresholds": {"eot_threshold": 0.9}, "keyterms": ["porch"]}
    steps: list[Step] = [("force_end_turn",), ("configure", refused), ("configure", accepted)]
    steps += [("media", audio("order")), ("force_end_turn",), ("media", audio("name"))]
    messages = asyncio.run(talk(before.host, steps))
    turns = check_turns(before.only(), text("order", "name"))
    (failed,) = (message for message in messages if message.type == "ConfigureFailure")
    assert (failed.code, failed.description.partition(":")[0]) == ("INVALID_CONFIGURE", "eager_eot_threshold")
    (configured,) = (message for message in messages if message.type == "ConfigureSuccess")
    assert (configured.thresholds.eot_threshold, configured.thresholds.eager_eot_threshold) == (0.9, 0.5)
    assert list(configured.keyterms) == ["porch"]
    assert [turn["trigger"] for turn in turns if turn["event"] == "EndOfTurn"] == ["manual", "manual"]
