"""The client that reconnects, on real sockets: what is cut, refused or hung, and what its caller sees of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fake_recognition import FakeRecognition, Shape
from fake_replica import FakeReplica, Fate
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.messages import Message, Metadata, Results
from clients.resilient import ResilientClient
from clients.retry import Retry
from clients.stream import open_stream

WITHIN_S = 20.0  # only a failing test waits that long
AT_ONCE = Retry(limit_s=5.0, first_wait_s=0.001, longest_wait_s=0.01)
SHAPE = Shape(rate=16000)
FINALIZE = '{"type":"Finalize"}'
CLOSE = '{"type":"CloseStream"}'


def wait_for(main: Coroutine[object, object, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, WITHIN_S))


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def said(messages: list[Message]) -> list[tuple[Any, ...]]:
    """The finals that say something."""
    return [
        (round(m.start, 3), round(m.cursor_s, 3), m.text, m.from_finalize)
        for m in messages
        if isinstance(m, Results) and m.is_final and (m.duration or m.from_finalize)
    ]


def undisturbed(*script: bytes | str) -> list[tuple[Any, ...]]:
    server = FakeRecognition(SHAPE)
    rows = []
    for frame in [frame for part in script for frame in server.hear(part)]:
        if frame["type"] == "Results" and frame["is_final"] and (frame["duration"] or frame["from_finalize"]):
            start, text = frame["start"], frame["channel"]["alternatives"][0]["transcript"]
            rows.append((round(start, 3), round(start + frame["duration"], 3), text, frame["from_finalize"]))
    return rows


async def play(stream: ResilientClient, *script: bytes | str, size: int = 2560) -> list[Message]:
    """Say a script in messages, as fast as they are taken, and return everything that was heard."""

    async def say() -> None:
        for part in script:
            if isinstance(part, str):
                await (stream.finalize() if part == FINALIZE else stream.close_stream())
                continue
            for first in range(0, len(part), size):
                await stream.send(part[first : first + size])
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(say())
        hearing = group.create_task(_all(stream))
    return hearing.result()


async def _all(stream: ResilientClient) -> list[Message]:
    return [message async for message in stream]


def cut_at(*fates: Fate) -> Callable[[int], Fate]:
    """These fates, one after another, then good manners."""
    return lambda number: fates[number] if number < len(fates) else Fate()


script_parts = (noise(40_001), FINALIZE, noise(33_333, 1), CLOSE)
fates = st.lists(
    st.builds(
        Fate,
        refuse=st.sampled_from([0, 0, 0, 0, 503, 429]),
        hear=st.none() | st.integers(1, 30),
        say=st.none() | st.integers(0, 30),
        code=st.sampled_from([None, 1001, 1006, 1011, 1012, 1013]).map(lambda code: None if code == 1006 else code),
        keys=st.sampled_from([None, None, ("other",)]),
    ),
    max_size=5,
)


@pytest.mark.parametrize("keys", [("k",), ()], ids=["tickets", "plain"])
@settings(max_examples=25)
@given(doom=fates)
def test_whatever_becomes_of_the_connections_the_caller_sees_one_stream(keys: tuple[str, ...], doom: list[Fate]) -> None:
    async def main() -> None:
        doomed = [fate if keys else Fate(fate.refuse, None, fate.hear, fate.say, fate.code) for fate in doom]
        async with FakeReplica(cut_at(*doomed), keys).running() as server:
            async with open_stream(server.url, resumable=bool(keys), retry=AT_ONCE) as stream:
                heard = await play(stream, *script_parts)
        assert said(heard) == undisturbed(*script_parts)
        assert isinstance(heard[-1], Metadata)
        assert sum(isinstance(message, Metadata) for message in heard) == 1
        assert heard[-1].duration == pytest.approx(73_334 / 32_000, abs=1e-3)
        assert stream.journey.lost_s == 0

    wait_for(main())
