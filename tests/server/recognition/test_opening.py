"""Opening a session may wait: one that is refused or cancelled meanwhile holds no slot and no decoder state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.coordination.local import LocalCoordinator
from server.coordination.slots import Slots, StreamLease
from server.errors import ServerFull, ServerNotReady
from server.operations.metrics import Metrics
from server.recognition.active_session import ActiveSession
from server.recognition.decoding.second_pass import SecondPass
from server.recognition.engines import EngineStreams
from server.recognition.recognizer import Recognizer
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions
from server.settings import Settings
from tests.support.servers.fakes import FakeClock
from tests.support.servers.recognizers.spelling import CONFIG
from tests.support.servers.recognizers.wavering import WaveringDecoder
from tests.support.streams.engine_bench import SilentEngine


class Engines:
    """Engines that are warm, and take streams unless `down`."""

    down = False

    def require_warm(self) -> None:
        pass

    def open(self, count: int, **_: object) -> tuple[EngineStreams, dict[Any, Any]]:
        if self.down:
            raise ServerNotReady("the engine is down")
        engine: Any = SilentEngine()
        return EngineStreams(engine, tuple(range(count))), {}


class Bench:
    """A recognizer whose slots are answered once `answered` is set."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.slots = LocalCoordinator(Settings(max_streams=2), clock).open_slots("en", 0.08)
        self.answered = asyncio.Event()
        self.engines: Any = Engines()
        self.decoder = WaveringDecoder()
        slow: Any = Slow(self.slots, self.answered)
        self.recognizer = Recognizer(
            CONFIG,
            Metrics(max_batch=8, max_streams=8).of_model("en"),
            engines=self.engines,
            slots=slow,
            second_pass=SecondPass(clock),
            budget_s=0.1,
            fork_slots=1,
            clock=clock,
        )

    def open(self, channels: int = 1) -> asyncio.Task[ActiveSession]:
        session = Session(
            SessionOptions(CONFIG.sample_rate, channels, multichannel=True), CONFIG, self.decoder, Limits()
        )
        sink: Any = None
        return asyncio.create_task(self.recognizer.open(session, sink))


class Slow:
    """Slots whose answers wait."""

    def __init__(self, slots: Slots, answered: asyncio.Event) -> None:
        self._slots, self._answered = slots, answered

    def rest(self, channels: int) -> None:
        self._slots.rest(channels)

    async def take(self, streams: int, *, background: bool, within_s: float | None) -> StreamLease:
        await self._answered.wait()
        return await self._slots.take(streams, background=background, within_s=within_s)


def test_a_session_has_its_slots_once_they_are_answered() -> None:
    async def run() -> None:
        bench = Bench()
        opening = bench.open(2)
        await asyncio.sleep(0)
        assert not opening.done()
        bench.answered.set()
        active = await opening
        assert (active.open, bench.slots.slots_used) == (True, 2)
        with pytest.raises(ServerFull):
            await bench.open()
        assert len(bench.decoder.open) == 2, "that of the open session"
        active.close()
        assert bench.decoder.open == set()

    asyncio.run(run())


def test_an_opening_that_is_cancelled_releases_its_session() -> None:
    async def run() -> None:
        bench = Bench()
        opening = bench.open()
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        bench.answered.set()
        assert (bench.slots.slots_used, bench.decoder.open) == (0, set())

    asyncio.run(run())


def test_an_engine_that_takes_no_stream_gives_the_slots_back() -> None:
    async def run() -> None:
        bench = Bench()
        bench.engines.down = True
        bench.answered.set()
        with pytest.raises(ServerNotReady):
            await bench.open()
        assert (bench.slots.slots_used, bench.decoder.open) == (0, set())

    asyncio.run(run())
