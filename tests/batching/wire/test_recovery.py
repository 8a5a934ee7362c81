"""A front end that loses its engine: streams continue in another one with the same answers, each delivered once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from batching.errors import EngineDown, PoolFull, QueueFull, StepFailed, WrongInput, WrongState
from batching.events import BatchDone, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.wire.engine_server import EngineServer
from batching.wire.recovery import RecoveringEngine
from batching.wire.remote import RemoteConnection
from tests.support.servers.fakes import WAIT_S, EchoModel, FailingModel, FakeClock
from tests.support.streams.engine_bench import step
from tests.support.streams.wire_bench import BOUNDS, DrivenEngineServer, Recovering, wait_until


def driven(**options: Any) -> DrivenEngineServer:
    return DrivenEngineServer(FailingModel(capacity=4, largest=4), **options)


def work(front: Recovering, engine: DrivenEngineServer) -> None:
    """Move bytes and run batches until nothing is left to do."""
    while True:
        front.move()
        engine.settle()
        front.move()
        if front.end is None or not front.end.connection._output:
            return


def answers(front: Recovering, stream: int) -> list[tuple[object, list[int]]]:
    return [
        (tag, row)
        for event in front.events
        if isinstance(event, BatchDone)
        for number, tag, row in zip(event.streams, event.tags, event.outputs.tolist(), strict=True)
        if number == stream
    ]


def test_waits_while_a_stream_catches_up_do_not_count_as_load() -> None:
    """They lowered the limit of streams to a twelfth after a hung engine."""
    front = Recovering(engine := driven(), every_steps=3)
    stream = front.engine.open()
    front.engine.push(stream, step(42), tag=0)
    work(front, engine)
    front.lose()
    for n in range(1, 6):
        front.engine.push(stream, step(42), tag=n)
    front.connect(other := driven())
    work(front, other)
    front.engine.push(stream, step(42), tag=6)
    work(front, other)
    batches = [event for event in front.events if isinstance(event, BatchDone)]
    assert [bool(batch.live_wait_s) for batch in batches if batch.tags[0] in {0, 1, 6}] == [True, False, True]


def test_the_kept_steps_are_those_since_the_last_state() -> None:
    engine = driven()
    front = Recovering(engine, every_steps=5)
    stream = front.engine.open()
    kept = front.engine._streams[stream]
    most = 0
    for n in range(100):
        front.engine.push(stream, step(1), tag=n)
        work(front, engine)
        most = max(most, len(kept.steps))
    assert most <= 6
    assert not any(isinstance(event, StateExported) for event in front.events), "its own exports are delivered"
    front.lose()
    other = driven()
    front.connect(other)
    front.move()
    other.turn()
    assert other._worker._batcher.queued < 6
    work(front, other)
    front.engine.push(stream, step(1), tag=100)
    work(front, other)
    assert answers(front, stream)[-1] == (100, [1, 101])


def test_calls_for_streams_that_are_not_open_are_reported_also_while_the_engine_is_away() -> None:
    front = Recovering(engine := driven())
    closed, stays = front.engine.open(), front.engine.open()
    front.engine.push(stays, step(stays))
    work(front, engine)
    front.lose()
    for _ in range(2):
        front.engine.close(closed)
    front.engine.push(999, step(1))
    front.connect(other := driven())
    work(front, other)
    kinds = [(event.stream, type(event)) for event in front.events if isinstance(event, StreamClosed | StreamFailed)]
    assert sorted(kinds, key=str) == [(closed, StreamClosed), (closed, StreamFailed), (999, StreamFailed)]
    assert len(other._worker._states) == 1


def test_a_stream_that_failed_before_the_loss_is_closed_after_it_and_not_opened_again() -> None:
    engine = driven()
    front = Recovering(engine)
    failed = front.engine.open()
    front.engine.push(failed, step(FailingModel.POISON))
    work(front, engine)
    (event,) = front.events
    assert isinstance(event, StreamFailed)
    assert type(event.error) is StepFailed
    assert "poisoned" in str(event.error)
    front.lose()
    other = driven()
    front.connect(other)
    front.engine.push(failed, step(1))
    front.engine.export(failed)
    front.engine.restore(failed, bytes(16))
    work(front, other)
    assert not other._worker._states
    front.engine.close(failed)
    work(front, other)
    assert front.events[1:] == [StreamClosed(failed)]
    assert not other._worker._states


def test_twice_as_many_steps_wait_for_an_engine_as_it_queues() -> None:
    front = Recovering(driven(max_queued=3), max_queued=3)
    stream = front.engine.open()
    front.lose()
    for n in range(6):
        front.engine.push(stream, step(1), tag=n)
    with pytest.raises(QueueFull, match="stream 1"):
        front.engine.push(stream, step(1), tag="refused")
    front.connect(other := driven(max_queued=3))
    work(front, other)
    assert answers(front, stream) == [(n, [1, n + 1]) for n in range(6)]


@pytest.mark.parametrize("other", [{"digest": "another"}, {"model": EchoModel(samples=5)}])
def test_an_engine_with_another_model_ends_everything(other: dict[str, Any]) -> None:
    engine = driven()
    front = Recovering(engine)
    stream = front.engine.open()
    front.lose()
    options = {key: value for key, value in other.items() if key != "model"}
    wrong = DrivenEngineServer(other.get("model", FailingModel(capacity=4, largest=4)), **options)
    front.connect(wrong)
    (event,) = front.events
    assert isinstance(event, EngineStopped)
    assert isinstance(event.error, EngineDown)
    assert not front.engine.alive
    assert front.engine.failure is event.error
    front.engine.push(stream, step(1))
    front.engine.close(stream)
    with pytest.raises(EngineDown):
        front.engine.open()
    assert front.events == [event]


def test_a_loss_that_lasts_is_seen_as_work_that_does_not_end() -> None:
    clock = FakeClock()
    engine = driven(clock=clock)
    front = Recovering(engine)
    assert front.engine.busy_since() is None
    front.lose()
    lost_s = clock()
    clock.advance(3.0)
    front.engine.lost()
    assert front.engine.busy_since() == lost_s
    assert front.engine.alive
    front.connect(driven(clock=clock))
    assert front.engine.busy_since() is None


def test_wrong_calls_are_refused_in_the_front_end() -> None:
    front = Recovering(driven())
    stream = front.engine.open()
    with pytest.raises(WrongInput, match=r"int16 \(4,\)"):
        front.engine.push(stream, step(1, samples=3))
    with pytest.raises(WrongState, match="16"):
        front.engine.restore(stream, b"")
    with pytest.raises(ValueError, match="budget"):
        front.engine.open(budget_s=0.0)


def test_before_its_first_engine_streams_wait_and_steps_are_refused() -> None:
    events: list[Any] = []
    recovering = RecoveringEngine(events.append, max_queued=4)
    stream = recovering.open()
    with pytest.raises(EngineDown, match="hello"):
        recovering.push(stream, step(1))
    with pytest.raises(EngineDown, match="hello"):
        _ = recovering.state_bytes
    recovering.received(b"bytes of no connection")
    recovering.stop(0.0)
    recovering.stop(0.0)
    recovering.reconnect(RemoteConnection())
    assert events == [EngineStopped(None)]


@pytest.mark.parametrize("max_streams", [0, 3])
def test_an_engine_with_fewer_slots_fails_the_streams_beyond_them_unless_it_may_keep_them(max_streams: int) -> None:
    engine = driven()
    front = Recovering(engine)
    streams = [front.engine.open() for _ in range(3)]
    for stream in streams:
        front.engine.push(stream, step(stream))
    work(front, engine)
    front.lose()
    front.connect(small := DrivenEngineServer(FailingModel(capacity=2, largest=2), max_streams=max_streams))
    for stream in streams if max_streams else ():
        front.engine.push(stream, step(9))
    work(front, small)
    failed = [(event.stream, type(event.error)) for event in front.events if isinstance(event, StreamFailed)]
    assert failed == ([] if max_streams else [(streams[2], PoolFull)])
    for stream in streams if max_streams else ():
        assert answers(front, stream)[-1][1] == [stream, 2], "it continues from its state"


def test_the_times_of_a_warm_up_are_delivered_once() -> None:
    with ExitStack() as stack:

        def start() -> EngineServer:
            engine = EngineServer(EchoModel(), **BOUNDS, warm_up=True)
            stack.callback(engine.stop, WAIT_S)
            engine.start()
            return engine

        front = Recovering(start())
        first, second = front.engine.open(), front.engine.open()
        front.engine.push(first, step(1))
        wait_until(lambda: answers(front, first) != [], front.end, take=front.take)
        front.lose()
        front.connect(start())
        front.engine.push(second, step(1))
        wait_until(lambda: answers(front, second) != [], front.end, take=front.take)
        front.lose()
        assert sum(isinstance(event, WarmedUp) for event in front.events) == 1
