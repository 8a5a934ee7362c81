"""The Python client with real servers: cut connections and restarts do not change the messages that it delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from server.operations import drain as drain_module
from server.resume.tickets import new_key
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell
from tutti_asr_client.connection_events import ConnectionEvents
from tutti_asr_client.messages import Results
from tutti_asr_client.resilient import ResilientClient
from tutti_asr_client.retry import Retry
from tutti_asr_client.stream import open_stream

KEY = new_key()
TEXTS = ("hello there", "the second sentence is longer than the first", "three", "and here it ends")
PIECE = 4_000  # samples


@pytest.fixture(scope="module")
def pair() -> Iterator[list[LiveServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(LiveServer(resume_keys=(KEY,))) for _ in range(2)]


def speech() -> np.ndarray:
    return np.concatenate([part for text in TEXTS for part in (spell(text), silence(0.9))])


class Caller:
    """Sends a recording in pieces at the rate of the answers, and keeps the finals."""

    def __init__(self, lose: Callable[[int], None]) -> None:
        self._lose = lose
        self._covered_s = 0.0
        self._news = asyncio.Event()
        self.finals: list[Any] = []

    async def run(self, servers: list[LiveServer]) -> ConnectionEvents:
        """Stream it all; `lose` is called with the number of pieces sent."""
        urls = [f"ws://{server.host}" for server in servers]
        retry = Retry(first_wait_s=0.02, longest_wait_s=0.1)
        async with open_stream(urls, resumable=True, retry=retry, step_results=True) as stream:
            receiving = asyncio.ensure_future(self._receive(stream))
            audio = speech()
            for number, first in enumerate(range(0, len(audio), PIECE)):
                await stream.send(audio[first : first + PIECE])
                await asyncio.wait_for(self._answered((first - PIECE) / 16_000), WAIT_S)
                self._lose(number)
            await stream.close_stream()
            await asyncio.wait_for(receiving, WAIT_S)
            return stream.events

    async def _answered(self, until_s: float) -> None:
        while self._covered_s < until_s:
            self._news.clear()
            await self._news.wait()

    async def _receive(self, stream: ResilientClient) -> None:
        async for message in stream:
            if isinstance(message, Results):
                self._covered_s = message.cursor_s
                self._news.set()
                if message.is_final:
                    self.finals.append((message.start, message.duration, message.channel.alternatives))

    @property
    def text(self) -> str:
        return " ".join(reading.transcript for _, _, (reading,) in self.finals if reading.transcript)


def stream(servers: list[LiveServer], lose: Callable[[int], None]) -> tuple[Caller, ConnectionEvents]:
    async def run() -> tuple[Caller, ConnectionEvents]:
        caller = Caller(lose)
        return caller, await caller.run(servers)

    return asyncio.run(run())


def nothing(number: int) -> None:
    """Lose no connection."""


@pytest.mark.parametrize("places", [(9,), (9, 20, 21, 33), tuple(range(6, 45, 4))])
def test_cut_connections_to_real_servers_give_the_same_messages(
    pair: list[LiveServer], places: tuple[int, ...]
) -> None:
    whole, _ = stream(pair[:1], nothing)

    def lose(number: int) -> None:
        if number in places:
            for server in pair:
                server.cut_connections()

    moved, events = stream(pair, lose)
    assert moved.finals == whole.finals
    assert moved.text == " ".join(TEXTS)
    assert events.resumed >= len(places) / 2, "cuts while it reconnects have no effect"
    assert (events.lost_s, events.replayed, events.refused_tickets) == (0, 0, [])


def test_a_rolling_restart_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "SPREAD_PER_SESSION_S", 0.0)  # this stream is faster than speech
    with ExitStack() as running:
        servers = [running.enter_context(LiveServer(resume_keys=(KEY,))) for _ in range(3)]
        whole, _ = stream(servers[2:], nothing)

        def drain(number: int) -> None:
            if number in (10, 25):
                server = servers[number // 20]
                server.server.loop.call_soon_threadsafe(server.replica.drain.begin)

        moved, events = stream(servers, drain)
    assert moved.finals == whole.finals
    assert (events.resumed, events.lost_s, events.refused_tickets) == (2, 0, [])
