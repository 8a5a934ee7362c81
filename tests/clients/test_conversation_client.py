"""Context and Rewind of the Python client with real servers: cut connections do not change their effect."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.ctc.beam import BeamDecoder
from server.resume.tickets import new_key
from tests.support.audio.speech import ROOT
from tests.support.clients.cutting_proxy import CuttingProxy
from tests.support.needs import need_node_module
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tutti_asr_client.messages import ContextFailure, ContextSuccess, Message, Results, RewindFailure
from tutti_asr_client.resilient import ResilientClient
from tutti_asr_client.retry import Retry
from tutti_asr_client.stream import open_stream
from tutti_asr_client.transcript import Transcript

KEY = new_key()
STEP = CONFIG.step_samples
AT_ONCE = Retry(first_wait_s=0.02, longest_wait_s=0.1)
Holds = Callable[[Message], bool]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LiveServer]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                LiveServer(decoder=BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=8), resume_keys=(KEY,))
            )
            for _ in range(2)
        ]


class Conversation:
    """A stream whose connections can be cut, and the messages that its caller has."""

    stream: ResilientClient

    def __init__(self, servers: list[LiveServer]) -> None:
        self._servers = servers
        self.received: list[Message] = []
        self._news = asyncio.Event()

    def note(self, *_: object) -> None:
        """Note that something has happened."""
        self._news.set()

    async def receive(self) -> None:
        async for message in self.stream:
            self.received.append(message)
            self.note()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def answer(self, holds: Holds) -> Message:
        """Return the next message from now on of which this holds."""
        begin = len(self.received)
        await self.until(lambda: any(map(holds, self.received[begin:])))
        return next(message for message in self.received[begin:] if holds(message))

    async def in_force(self) -> tuple[str, ...]:
        """Return the terms from what other speakers said: a text without words adds none."""
        await self.stream.add_context("")
        answer = await self.answer(lambda m: isinstance(m, ContextSuccess | ContextFailure))
        assert isinstance(answer, ContextSuccess)
        return answer.keyterms

    async def covered(self, seconds: float) -> None:
        """Wait for a result up to this stream time."""
        await self.until(lambda: any(isinstance(m, Results) and m.cursor_s >= seconds for m in self.received))

    async def cut(self) -> None:
        """Cut the connection, and wait for the next one."""
        before = self.stream.events.connections
        for server in self._servers:
            server.cut_connections()
        await self.until(lambda: self.stream.events.connections > before)


@asynccontextmanager
async def conversation(servers: list[LiveServer], **options: Any) -> AsyncIterator[Conversation]:
    urls = [f"ws://{server.host}" for server in servers]
    talk = Conversation(servers)
    async with open_stream(urls, retry=AT_ONCE, step_results=True, on_event=talk.note, **options) as talk.stream:
        receiving = asyncio.ensure_future(talk.receive())
        try:
            yield talk
            await talk.stream.close_stream()
            await asyncio.wait_for(receiving, WAIT_S)
        finally:
            receiving.cancel()


@pytest.mark.parametrize("resumable", [True, False], ids=["tickets", "plain"])
async def test_what_the_agent_said_still_counts_after_reconnecting(servers: list[LiveServer], resumable: bool) -> None:
    async with conversation(servers, resumable=resumable) as talk:
        await talk.stream.add_context("Kowalczyk")
        await talk.answer(lambda m: isinstance(m, ContextSuccess))
        await talk.stream.send(np.concatenate([spell("hello there "), silence(2.0)]))
        await talk.covered(1.9)
        if resumable:  # a ticket follows the results that it covers
            await talk.until(lambda: talk.stream._stream._ticket is not None)
        await talk.stream.add_context("Mircea")
        await talk.answer(lambda m: isinstance(m, ContextSuccess))
        for _ in range(3):
            await talk.cut()
            assert await talk.in_force() == ("kowalczyk", "mircea")
        assert talk.stream.events.resumed == (3 if resumable else 0)
        assert sum(isinstance(m, ContextSuccess) for m in talk.received) == 5, "one for each request"


async def test_a_rewind_reaches_finals_from_before_a_reconnection(servers: list[LiveServer]) -> None:
    transcript = Transcript()
    async with conversation(servers, rewind=10) as talk:
        await talk.stream.send(np.concatenate([spell("hello there "), silence(1.5), spell("my name is mircea ")]))
        await talk.stream.finalize()
        await talk.answer(lambda m: isinstance(m, Results) and m.from_finalize)
        await talk.cut()
        await talk.stream.rewind(10, ["mircea"])
        found = await talk.answer(lambda m: isinstance(m, Results) and m.correction)
        await talk.stream.rewind(11)
        await talk.answer(lambda m: isinstance(m, RewindFailure))
        await talk.stream.send(np.concatenate([spell("and so on "), silence(1.5)]))
    assert isinstance(found, Results)
    assert (found.start, found.text) == (0.0, "hello there my name is mircea")
    assert talk.stream.events.replayed == 1
    finals = [m for m in talk.received if isinstance(m, Results) and m.is_final]
    said = [final.text for final in finals if final.text and not final.correction]
    assert said == ["hello there", "my name is mircea", "and so on"], "none is delivered again"
    for final in finals:
        transcript.add(final)
    assert transcript.text == "hello there my name is mircea and so on"


def test_the_javascript_client_keeps_both_over_cut_connections(servers: list[LiveServer], tmp_path: Path) -> None:
    modules = ROOT / "build" / "ecosystem" / "node" / "node_modules"
    need_node_module("ws", modules)
    raw = tmp_path / "speech.raw"
    audio = [
        part for text in ("hello there ", "my name is mircea ", "and so on ") for part in (spell(text), silence(0.9))
    ]
    raw.write_bytes(np.concatenate(audio).astype("<i2").tobytes())

    def messages_of(url: str) -> list[dict[str, Any]]:
        program = ROOT / "tests" / "support" / "clients" / "resumable_stream.mjs"
        script = ["node", str(program), url, str(raw), str(modules), "Kowalczyk", "mircea"]
        done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def finals(lines: list[dict[str, Any]]) -> list[Any]:
        shown = [line for line in lines if line["type"] == "Results" and line["isFinal"]]
        return [(line["start"], line["duration"], line["transcript"], line["correction"]) for line in shown]

    whole = messages_of(f"ws://{servers[0].host}")
    with CuttingProxy([server.host for server in servers], (3_000, 5_000, 5_000)).running() as proxy:
        moved = messages_of(proxy.url)
    assert proxy.cut == 3
    assert finals(moved) == finals(whole)
    (corrected,) = [final for final in finals(whole) if final[3]]
    assert (corrected[0], corrected[2]) == (0, "hello there my name is mircea and so on")
    for lines in (whole, moved):
        contexts = [line["keyterms"] for line in lines if line["type"] == "ContextSuccess"]
        assert contexts == [["kowalczyk"], ["kowalczyk"]]
