"""Chunks: several steps of each stream in one batch, if they wait anyway and displace no other stream."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test

from batching.batcher import Policy
from batching.events import BatchDone, EngineEvent, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.policy.chunks import Chunks
from batching.policy.service_times import ServiceTimes
from batching.stepper import Stepper
from tests.support.servers.fakes import ChunkedModel, EchoModel, FailingModel, FakeClock, OverlappedChunksModel
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.engine_bench import step
from tests.support.streams.engine_machine import EngineMachine


@pytest.mark.parametrize("lengths", [(2, 4), (1, 4, 2), (1, 1)])
def test_lengths_begin_with_one_and_ascend(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Chunks(lengths, ServiceTimes(), max_rows=8)


@pytest.mark.parametrize(("scale", "steps"), [(1.0, 1), (0.01, 8)])
def test_a_chunk_of_short_steps_may_last_longer_by_the_time_between_two_batches(scale: float, steps: int) -> None:
    chunks = Chunks((1, 8), ServiceTimes({1: 0.010 * scale}), max_rows=8)
    chunks.measured(1, 8, 0.018 * scale)
    assert chunks.longest(1, 8, others=True) == steps


def test_the_warm_up_runs_chunks_of_every_length_that_fit_and_reports_the_times_of_single_steps() -> None:
    model = ChunkedModel(capacity=8, largest=5)
    stepper = Stepper(model)
    clock = FakeClock()
    stepper.warm_up(clock)
    model.rows.clear()
    times = stepper.warm_up_chunks(clock)
    assert {steps: list(seconds) for steps, seconds in times.items()} == {2: [1, 2], 4: [1]}
    assert sorted(set(model.rows)) == [2, 4]
    events: list[EngineEvent] = []
    DrivenEngine(model, events.append)._worker.warm_up()
    (warmed_up,) = events
    assert isinstance(warmed_up, WarmedUp)
    assert list(warmed_up.step_s) == [1, 2, 4, 5]


def test_a_reset_and_a_pending_export_end_a_chunk() -> None:
    events: list[EngineEvent] = []
    engine = DrivenEngine(ChunkedModel(capacity=4, largest=4), events.append)
    stream = engine.open(background=True, budget_s=10.0)
    for value in (1, 2, 3):
        engine.push(stream, step(value))
    engine.export(stream, "after three")
    for value in (4, 5):
        engine.push(stream, step(value))
    engine.push(stream, step(6), reset=True)
    engine.push(stream, step(7))
    engine.settle()
    received = [(e.steps, e.outputs[:, :].tolist()) if isinstance(e, BatchDone) else type(e) for e in events]
    assert received == [
        (2, [[1, 1], [1, 2]]),
        (1, [[1, 3]]),
        StateExported,
        (2, [[1, 4], [1, 5]]),
        (2, [[6, 1], [6, 2]]),
    ]


def test_a_chunk_that_fails_fails_each_of_its_streams_once() -> None:
    events: list[EngineEvent] = []
    engine = DrivenEngine(OverlappedChunksModel(capacity=4, largest=4), events.append)
    for values in ((1, FailingModel.POISON), (2, 2)):
        stream = engine.open(background=True, budget_s=10.0)
        for value in values:
            engine.push(stream, step(value))
    engine.settle()
    assert [event.stream for event in events if isinstance(event, StreamFailed)] == [1, 2]
    assert len(events) == 2


class ChunkedMachine(EngineMachine):
    """Engines with and without chunks: each stream gets the same events in the same order."""

    policy: ClassVar[Policy]
    poisons = False

    def __init__(self) -> None:
        self.received: tuple[list[EngineEvent], ...] = ([], [], [])
        models = (EchoModel(5, 4), ChunkedModel(5, 4), OverlappedChunksModel(5, 4))
        options: dict[str, Any] = {"policy": self.policy, "step_s": 0.08, "max_queued": 1_000}
        super().__init__(
            *(DrivenEngine(model, to.append, **options) for model, to in zip(models, self.received, strict=True))
        )

    @rule()
    def turn(self) -> None:
        for engine in self.engines:
            engine.turn()

    def by_stream(self, events: list[EngineEvent]) -> dict[int, list[object]]:
        received: dict[int, list[object]] = {}
        for event in events:
            match event:
                case BatchDone():
                    for stream, tag, output in zip(event.streams, event.tags, event.outputs.tolist(), strict=True):
                        received.setdefault(stream, []).append((tag, output))
                case StateExported(stream, tag, state):
                    received.setdefault(stream, []).append((tag, state))
                case StreamClosed(stream):
                    received.setdefault(stream, []).append("closed")
                case _:
                    raise AssertionError(event)
        return received

    def teardown(self) -> None:
        for engine in self.engines:
            engine.settle()
        plain, *chunked = (self.by_stream(events) for events in self.received)
        for other in chunked:
            assert other.keys() == plain.keys()
            for stream, expected in plain.items():
                found = other[stream]
                if expected[-1:] == ["closed"]:  # closed, after a few more steps in one engine than in the other
                    assert (expected[-1], found[-1]) == ("closed", "closed")
                    shorter = min(len(found), len(expected)) - 1
                    assert found[:shorter] == expected[:shorter]
                else:
                    assert found == expected
        self.count_kinds(self.received[1])


@pytest.mark.parametrize("policy", [Policy.EAGER, Policy.DEADLINE])
def test_each_stream_gets_the_same_events_with_chunks_and_without(policy: Policy) -> None:
    class Machine(ChunkedMachine):
        seen: ClassVar[dict[str, int]] = {}

    Machine.policy = policy
    options = settings(max_examples=100, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(Machine, settings=options)
    assert min(Machine.seen.get(name, 0) for name in ("chunk", "StateExported")) > 3
