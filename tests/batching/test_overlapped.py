"""Overlapped models: events of a batch are delivered while the next one runs, in the same order as usual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test
from numpy.typing import NDArray

from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed
from tests.support.servers.fakes import FailingModel, FakeClock, OverlappedModel
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.engine_bench import Start, step
from tests.support.streams.engine_machine import EngineMachine


class Log:
    """Events in order, each with the slots that were in flight when it was delivered."""

    def __init__(self, model: OverlappedModel) -> None:
        self.events: list[tuple[EngineEvent, list[int] | None]] = []
        self._model = model

    def __call__(self, event: EngineEvent) -> None:
        self.events.append((event, self._model.in_flight))

    def take(self) -> list[object]:
        """Return the events since the last call, a batch as [tags, slots in flight]."""
        taken = [[*event.tags, busy] if isinstance(event, BatchDone) else event for event, busy in self.events]
        self.events.clear()
        return taken


def driven(capacity: int = 4, **options: object) -> tuple[DrivenEngine, Log]:
    model = OverlappedModel(capacity)
    log = Log(model)
    return DrivenEngine(model, log, **options), log


def test_results_are_delivered_while_the_next_batch_runs_and_the_last_ones_before_the_thread_sleeps() -> None:
    engine, log = driven()
    a, b = engine.open(), engine.open()
    engine.push(a, step(1), tag="a1")
    engine.push(a, step(1), tag="a2")
    engine.push(b, step(2), tag="b1")
    engine.turn()
    assert log.take() == [], "delivered before the next batch was launched"
    assert not engine.would_sleep
    engine.turn()
    assert log.take() == [["a1", "b1", [0]]]
    engine.turn()
    assert log.take() == [["a2", None]]
    assert engine.would_sleep


def test_a_command_that_is_no_step_is_executed_after_the_results_are_delivered() -> None:
    engine, log = driven()
    a, b = engine.open(), engine.open()
    engine.push(a, step(1), tag="a1")
    engine.turn()
    engine.push(b, step(2), tag="b1")
    engine.close(a)
    engine.turn()
    assert log.take() == [["a1", None], StreamClosed(a)]
    engine.settle()
    assert log.take() == [["b1", None]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lost_device_ends_the_engine_after_the_results_of_finished_batches(start_engine: Start) -> None:
    bench = start_engine(OverlappedModel())
    a = bench.engine.open()
    bench.engine.push(a, step(1), tag="a1")
    bench.engine.push(a, step(OverlappedModel.LOST), tag="a2")
    assert bench.done().tags == ("a1",)
    stopped = bench.event()
    assert isinstance(stopped, EngineStopped)
    assert isinstance(stopped.error, OverlappedModel.DeviceLost)


def test_the_results_of_the_last_batch_are_delivered_before_the_engine_stops() -> None:
    engine, log = driven()
    engine.push(engine.open(), step(1), tag="a1")
    engine.turn()
    engine.stop(0.0)  # its thread never ran
    assert not engine._drain_commands()
    assert log.take() == [["a1", None]]


def test_step_time_is_from_launch_to_finish() -> None:
    class Slow(OverlappedModel):
        def launch(self, slots: Sequence[int], steps: int = 1) -> None:
            super().launch(slots, steps)
            clock.advance(0.25)

        def finish(self) -> NDArray[np.int64]:
            clock.advance(0.5)
            return super().finish()

    events: list[EngineEvent] = []
    clock = FakeClock()
    engine = DrivenEngine(Slow(), events.append, clock=clock)
    engine.push(engine.open(), step(1))
    engine.settle()
    (event,) = events
    assert isinstance(event, BatchDone)
    assert (event.started_s, event.step_s) == (clock() - 0.75, 0.75)


def summary(event: EngineEvent) -> tuple[object, ...]:
    """All fields of an event except error texts."""
    match event:
        case BatchDone():
            return event.streams, event.tags, event.outputs.tolist(), event.queued
        case StateExported(stream, tag, state):
            return stream, tag, state
        case StreamFailed(stream, error):
            return stream, type(error), type(error.__cause__)
    return (event,)


class OverlappedMachine(EngineMachine):
    """An engine that overlaps and one that does not: events and their order are equal."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        model = OverlappedModel(capacity=5, largest=3)
        self.log = Log(model)
        plain = DrivenEngine(FailingModel(capacity=5, largest=3), self.events.append, max_queued=4)
        super().__init__(DrivenEngine(model, self.log, max_queued=4), plain)

    @rule()
    def turn(self) -> None:
        for engine in self.engines:
            engine.turn()

    @rule()
    def settle(self) -> None:
        for engine in self.engines:
            engine.settle()
        assert [summary(event) for event, _ in self.log.events] == [summary(event) for event in self.events]
        self.count_kinds(self.events)
        self.count("meanwhile", sum(busy is not None for _, busy in self.log.events))
        self.log.events.clear()
        self.events.clear()

    def teardown(self) -> None:
        self.settle()


def test_an_overlapped_model_gives_the_same_events_in_the_same_order() -> None:
    class Machine(OverlappedMachine):
        seen: ClassVar[dict[str, int]] = {}

    options = settings(max_examples=150, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(Machine, settings=options)
    assert min(Machine.seen.get(name, 0) for name in ("meanwhile", "StreamFailed", "StateExported")) > 3
