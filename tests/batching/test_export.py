"""Export and restore of states: order of events, and streams that move between engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from batching.batcher import Policy
from batching.engine import Engine
from batching.errors import UnknownStream, WrongState
from batching.events import StateExported, StreamClosed, StreamFailed
from tests.support.servers.fakes import EchoModel, FailingModel, GatedModel
from tests.support.servers.spelling import GatedSpellingModel, silence
from tests.support.streams.engine_bench import Start, step


def test_pending_exports_of_a_failed_or_closed_stream_are_dropped(start_engine: Start) -> None:
    model = GatedModel()
    bench = start_engine(model)
    failing, closing = bench.engine.open(), bench.engine.open()
    bench.engine.push(failing, step(1))
    model.wait_inside()
    bench.engine.push(failing, step(FailingModel.POISON))
    bench.engine.export(failing)
    bench.engine.push(closing, step(1))
    bench.engine.export(closing)
    bench.engine.close(closing)
    model.go_on(2)
    bench.done()
    assert bench.event() == StreamClosed(closing)
    assert bench.failed().stream == failing
    bench.engine.export(failing)
    bench.engine.restore(failing, bytes(bench.engine.state_bytes))
    bench.engine.close(failing)
    assert bench.event() == StreamClosed(failing)
    bench.engine.export(closing)
    gone = bench.failed()
    assert isinstance(gone.error, UnknownStream)


def test_restore_refuses_a_state_of_another_size_and_a_stream_with_waiting_steps(start_engine: Start) -> None:
    model = GatedModel()
    bench = start_engine(model)
    stream = bench.engine.open()
    with pytest.raises(WrongState):
        bench.engine.restore(stream, b"")
    bench.engine.push(stream, step(1))
    model.wait_inside()
    bench.engine.push(stream, step(1))
    bench.engine.restore(stream, bytes(bench.engine.state_bytes))  # fails: it would change the waiting step
    model.go_on(2)
    bench.done()
    failed = bench.failed()
    assert isinstance(failed.error, WrongState)


def test_the_queue_metric_is_zero_after_the_last_stream_closed_with_waiting_steps(
    live_server: Callable[..., Any],
) -> None:
    """The last batch reports waiting steps; no later batch reports that they were dropped."""
    model = GatedSpellingModel()
    server = live_server(model=model)
    with server.listen() as client:
        model.shut()
        client.send(silence(1.0))
        model.wait_inside()
        client.vanish()
    server.wait_until(lambda: not len(server.replica.sessions))
    model.open()
    server.wait_idle()
    assert server.metric("tutti_batch_queue_depth") == 0


class MovingMachine(RuleBasedStateMachine):
    """Streams move between two engines at random; their answers equal those of a stream that stayed."""

    moves: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.events: list[list[object]] = [[], []]
        self.engines = [
            Engine(EchoModel(capacity=8, largest=3), policy=Policy.EAGER, max_queued=64, deliver=events.append)
            for events in self.events
        ]
        self.streams: list[tuple[int, int, list[list[int]], list[list[int]]]] = []  # engine, id, expected, answered

    @rule(engine=st.integers(0, 1))
    @precondition(lambda self: len(self.streams) < 6)
    def open(self, engine: int) -> None:
        self.streams.append((engine, self.engines[engine].open(), [], []))

    @rule(choice=st.integers(0, 5), count=st.integers(1, 3))
    @precondition(lambda self: self.streams)
    def push(self, choice: int, count: int) -> None:
        place = choice % len(self.streams)
        engine, stream, expected, _ = self.streams[place]
        for _ in range(count):
            self.engines[engine].push(stream, step(100 + place))
            expected.append([100 + place, len(expected) + 1])

    @rule(choice=st.integers(0, 5))
    @precondition(lambda self: self.streams)
    def move(self, choice: int) -> None:
        """Export, close, open in the other engine, restore."""
        place = choice % len(self.streams)
        engine, stream, expected, answered = self.streams[place]
        self.engines[engine].export(stream, "move")
        self.run(engine)
        state = next(e.state for e in self.events[engine] if isinstance(e, StateExported) and e.stream == stream)
        self.events[engine][:] = [e for e in self.events[engine] if not isinstance(e, StateExported)]
        self.engines[engine].close(stream)
        other = self.engines[1 - engine].open()
        self.engines[1 - engine].restore(other, state)
        self.streams[place] = (1 - engine, other, expected, answered)
        type(self).moves += 1

    @rule(engine=st.integers(0, 1))
    def run(self, engine: int) -> None:
        """Run all waiting commands and batches on this thread, as the engine's own does between two sleeps."""
        one = self.engines[engine]
        done = len(self.events[engine])
        while one._mail.commands or one._worker.wake_at(one._clock()) is not None:
            one._drain_commands()
            one._worker.run_batch()
        for event in self.events[engine][done:]:
            assert not isinstance(event, StreamFailed)
            for stream, output in zip(getattr(event, "streams", ()), getattr(event, "outputs", ()), strict=True):
                next(s for s in self.streams if s[:2] == (engine, stream))[3].append(output.tolist())

    def teardown(self) -> None:
        for engine in (0, 1):
            self.run(engine)
        assert all(expected == answered for _, _, expected, answered in self.streams)


def test_streams_moved_between_engines_give_the_same_answers() -> None:
    class Machine(MovingMachine):
        pass

    options = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(Machine, settings=options)
    assert Machine.moves > 100
