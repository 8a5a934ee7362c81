"""Engines need no thread: any `EngineClient` whose maker delivers events on the event loop is started and followed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from batching.errors import PoolFull
from batching.events import BatchDone, EngineEvent, EngineStopped, StreamFailed
from server.errors import EngineDead, ServerNotReady
from server.recognition.engines import Deliver, Engines

STEP = 4


class LoopEngine:
    """Answers each step from the event loop; implements `EngineClient`."""

    state_bytes = 0

    def __init__(self, deliver: Deliver, loop: asyncio.AbstractEventLoop, fails: Exception | None = None) -> None:
        self._deliver, self._loop, self._fails = deliver, loop, fails
        self.alive = False
        self.acknowledged, self.opened = 0, 0
        self.closed: list[int] = []

    def busy_since(self) -> float | None:
        return None

    def start(self) -> None:
        self.alive = True

    def stop(self, timeout_s: float) -> None:
        del timeout_s
        self.alive = False
        self._loop.call_soon(self._deliver, EngineStopped(None))

    def open(self, *, budget_s: float = 0.1, background: bool = False) -> int:
        del budget_s, background
        self.opened += 1
        return self.opened

    def push(self, stream: int, inputs: np.ndarray, *, tag: object = None, reset: bool = False) -> None:
        del reset
        answer: EngineEvent = BatchDone((stream,), (tag,), np.zeros((1, 1, 1), np.float32), (0.0,), 0.0, 0.0, 0)
        if self._fails is not None:
            answer = StreamFailed(stream, self._fails)
        assert inputs.shape == (STEP,)
        self._loop.call_soon(self._deliver, answer)

    def export(self, stream: int, tag: object = None) -> None: ...

    def restore(self, stream: int, state: bytes) -> None: ...

    def acknowledge(self) -> None:
        self.acknowledged += 1

    def close(self, stream: int) -> None:
        self.closed.append(stream)


def test_an_engine_on_the_event_loop_is_warmed_up_followed_and_stopped() -> None:
    async def run() -> None:
        made: list[LoopEngine] = []
        seen: list[EngineEvent] = []

        def make(deliver: Deliver, loop: asyncio.AbstractEventLoop) -> LoopEngine:
            made.append(LoopEngine(deliver, loop))
            return made[0]

        engines = Engines(make, {}, step_samples=STEP, clock=lambda: 0.0)
        with pytest.raises(ServerNotReady):
            engines.require_warm()
        await engines.start(seen.append, lambda _, event: seen.append(event))
        (engine,) = made
        assert (engine.acknowledged, engine.closed) == (1, [1])
        assert engines.ready(stall_s=1.0)
        streams, auxiliary = engines.open(2, budget_s=0.1, background=False)
        assert (streams.ids, auxiliary) == ((2, 3), {})
        engines.stop(1.0)
        await asyncio.sleep(0)
        assert [type(event) for event in seen] == [BatchDone, EngineStopped]
        assert not engines.ready(stall_s=1.0)

    asyncio.run(run())


def test_a_failed_first_step_ends_the_start_with_its_error() -> None:
    async def run() -> None:
        def make(deliver: Deliver, loop: asyncio.AbstractEventLoop) -> LoopEngine:
            return LoopEngine(deliver, loop, fails=PoolFull("no slot"))

        engines = Engines(make, {}, step_samples=STEP, clock=lambda: 0.0)
        with pytest.raises(PoolFull):
            await engines.start(lambda _: None, lambda *_: None)

    asyncio.run(run())


def test_an_engine_that_stops_during_its_first_step_ends_the_start() -> None:
    async def run() -> None:
        class StoppingEngine(LoopEngine):
            def push(self, stream: int, inputs: np.ndarray, *, tag: object = None, reset: bool = False) -> None:
                del stream, inputs, tag, reset
                self.stop(0.0)

        engines = Engines(StoppingEngine, {}, step_samples=STEP, clock=lambda: 0.0)
        with pytest.raises(EngineDead):
            await engines.start(lambda _: None, lambda *_: None)

    asyncio.run(run())
