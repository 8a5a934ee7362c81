"""Engines for tests: one that queues its events (`start_engine`), and one that never answers."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import BatchDone, EngineEvent, StreamFailed
from batching.slot_model import SlotModel
from server.operations.metrics import Metrics
from server.recognition.active_session import ActiveSession, EventSink
from server.recognition.engines import EngineStreams
from server.recognition.session import Session
from tests.support.servers.fakes import WAIT_S, GatedModel


def step(value: int, samples: int = 4) -> np.ndarray:
    """Return the input of one step, filled with a value that identifies it."""
    return np.full(samples, value, dtype=np.int16)


class Bench:
    """An engine and its delivered events."""

    def __init__(self, model: SlotModel, deliver: Callable[[EngineEvent], None] | None = None, **options: Any) -> None:
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        bounds: dict[str, Any] = {"policy": Policy.EAGER, "max_queued": 8}
        self.engine = Engine(model, deliver=deliver or self._events.put, **(bounds | options))

    def event(self) -> EngineEvent:
        """Return the next event; the test fails if there is none."""
        return self._events.get(timeout=WAIT_S)

    def silent(self, seconds: float) -> bool:
        """Return whether there is no event for this time; an event is discarded."""
        try:
            self._events.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def done(self) -> BatchDone:
        """Return the next event, which must be a batch."""
        event = self.event()
        assert isinstance(event, BatchDone), event
        return event

    def failed(self) -> StreamFailed:
        """Return the next event, which must be a failed stream."""
        event = self.event()
        assert isinstance(event, StreamFailed), event
        return event

    def answers(self, count: int) -> dict[int, list[list[int]]]:
        """Return the next `count` rows of batches, by stream."""
        answers: dict[int, list[list[int]]] = {}
        while count > 0:
            event = self.done()
            for stream, output in zip(event.streams, event.outputs.tolist(), strict=True):
                answers.setdefault(stream, []).append(output)
            count -= len(event.streams)
        return answers


class SilentEngine:
    """An engine that accepts every step and answers none."""

    def push(self, stream: int, pcm: np.ndarray, *, tag: object, reset: bool) -> None: ...

    def close(self, stream: int) -> None: ...


def session_on(engine: Any, session: Session, sink: EventSink) -> ActiveSession:
    """Return an active session whose streams in this engine have the numbers of its channels."""
    streams = EngineStreams(engine, tuple(range(len(session.channels))))
    return ActiveSession(session, sink, streams, {}, lambda _: None, metrics=Metrics(8, 8).of_model("bench"))


Start = Callable[..., Bench]


@pytest.fixture
def start_engine() -> Iterator[Start]:
    """Start engines that are stopped when the test ends."""
    started: list[tuple[SlotModel, Engine]] = []

    def start(model: SlotModel, **options: Any) -> Bench:
        bench = Bench(model, **options)
        started.append((model, bench.engine))
        bench.engine.start()
        return bench

    yield start
    for model, engine in started:
        if isinstance(model, GatedModel):
            model.go_on(1_000)
        engine.stop(WAIT_S)
        assert not engine.alive
