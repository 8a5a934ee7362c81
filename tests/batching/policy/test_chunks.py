"""Chunks: several steps of each stream in one batch, if they wait anyway and displace no other stream."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from batching.batcher import Policy
from batching.events import BatchDone, EngineEvent, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.policy.chunks import Chunks
from batching.policy.service_times import ServiceTimes
from batching.stepper import Stepper
from tests.support.servers.fakes import ChunkedModel, EchoModel, FailingModel, FakeClock, OverlappedChunksModel
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.engine_bench import step


@pytest.mark.parametrize("lengths", [(2, 4), (1, 4, 2), (1, 1)])
def test_lengths_begin_with_one_and_ascend(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Chunks(lengths, ServiceTimes(), max_rows=8)


@pytest.mark.parametrize(("scale", "steps"), [(1.0, 1), (0.01, 8)])
def test_a_chunk_of_short_steps_may_last_longer_by_the_time_between_two_batches(scale: float, steps: int) -> None:
    chunks = Chunks((1, 8), ServiceTimes({1: 0.010 * scale}), max_rows=8)
    chunks.learn(1, 8, 0.018 * scale)
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


class ChunkedMachine(RuleBasedStateMachine):
    """The same commands for engines with and without chunks: each stream gets the same events in the same order."""

    policy: ClassVar[Policy]
    chunks: ClassVar[int] = 0
    exports: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.received: tuple[list[EngineEvent], ...] = ([], [], [])
        models = (EchoModel(5, 4), ChunkedModel(5, 4), OverlappedChunksModel(5, 4))
        self.engines = [
            DrivenEngine(model, events.append, policy=self.policy, step_s=0.08, max_queued=1_000)
            for model, events in zip(models, self.received, strict=True)
        ]
        self.open_streams: list[int] = []
        self.gone: set[int] = set()
        self.tags = 0

    @precondition(lambda self: len(self.open_streams) < 5)
    @rule(background=st.booleans())
    def open(self, background: bool) -> None:
        (stream,) = {engine.open(background=background, budget_s=1.0) for engine in self.engines}
        self.open_streams.append(stream)

    @precondition(lambda self: self.open_streams)
    @rule(choice=st.integers(0, 5), count=st.integers(1, 9), reset=st.sampled_from((False, False, True)))
    def push(self, choice: int, count: int, reset: bool) -> None:
        stream = self.open_streams[choice % len(self.open_streams)]
        for n in range(count):
            self.tags += 1
            for engine in self.engines:
                engine.push(stream, step(self.tags), tag=self.tags, reset=reset and n == count // 2)

    @precondition(lambda self: self.open_streams)
    @rule(choice=st.integers(0, 5))
    def export(self, choice: int) -> None:
        self.tags += 1
        for engine in self.engines:
            engine.export(self.open_streams[choice % len(self.open_streams)], self.tags)

    @precondition(lambda self: self.open_streams)
    @rule(choice=st.integers(0, 5))
    def close(self, choice: int) -> None:
        stream = self.open_streams.pop(choice % len(self.open_streams))
        self.gone.add(stream)
        for engine in self.engines:
            engine.close(stream)

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
                if stream in self.gone:  # closed, after a few more steps in one engine than in the other
                    assert (expected[-1], found[-1]) == ("closed", "closed")
                    shorter = min(len(found), len(expected)) - 1
                    assert found[:shorter] == expected[:shorter]
                else:
                    assert found == expected
        kind = type(self)
        kind.chunks += sum(isinstance(event, BatchDone) and event.steps > 1 for event in self.received[1])
        kind.exports += sum(isinstance(event, StateExported) for event in self.received[1])


@pytest.mark.parametrize("policy", [Policy.EAGER, Policy.DEADLINE])
def test_each_stream_gets_the_same_events_with_chunks_and_without(policy: Policy) -> None:
    class Machine(ChunkedMachine):
        pass

    Machine.policy = policy
    options = settings(max_examples=100, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(Machine, settings=options)
    assert min(Machine.chunks, Machine.exports) > 3
