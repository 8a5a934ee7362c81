"""A Resume that waits for whether its ticket was used: the client's messages are kept until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from server.errors import TicketCode, TicketRefused
from server.recognition.session_options import Limits
from tests.support.servers.recognizers.spelling import spell
from tests.support.streams.transport_bench import ConnectionBench

QUERY = {"encoding": "linear16", "sample_rate": "16000", "step_results": "true", "resumable": "true"}


class Asked:
    """A connection whose ticket is refused as soon as `answered` is set."""

    def __init__(self) -> None:
        self.bench = ConnectionBench(Limits(), **QUERY)
        self.stream: Any = self.bench.stream
        self.stream._read = self._read
        self.answered = asyncio.Event()
        self.cancelled = False

    async def _read(self, text: str) -> None:
        del text
        try:
            await self.answered.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise TicketRefused(TicketCode.REPLAYED, "this ticket was already used")

    def run(self, script: Callable[[Asked], Awaitable[None]]) -> list[str]:
        """Send a Resume and audio after it, then run the script; return the types of all frames."""

        async def play(bench: ConnectionBench) -> None:
            bench.send({"type": "Resume", "ticket": "text"})
            bench.send(spell("ab").tobytes())
            await turns()
            assert (bench.frames, self.stream.backlog_s) == ([], 0), "nothing is handled before the answer"
            assert not bench.transport.reading
            await script(self)

        self.bench.run(play)
        return [frame["type"] for frame in self.bench.frames]


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_audio_after_a_resume_is_recognized_once_it_is_answered() -> None:
    async def script(asked: Asked) -> None:
        asked.answered.set()
        await turns()
        assert asked.bench.transport.reading
        assert asked.stream.backlog_s > 0
        asked.bench.send({"type": "CloseStream"})

    types = Asked().run(script)
    assert types[0] == "ResumeRefused"
    assert types[-1] == "Metadata"


def test_a_connection_that_ends_meanwhile_is_not_answered() -> None:
    async def script(asked: Asked) -> None:
        asked.stream.on_gone()

    asked = Asked()
    assert asked.run(script) == []
    assert asked.cancelled


def test_a_drain_meanwhile_ends_the_stream_without_an_answer() -> None:
    async def script(asked: Asked) -> None:
        asked.stream.drain()
        asked.answered.set()
        await turns()

    assert "ResumeRefused" not in Asked().run(script)
