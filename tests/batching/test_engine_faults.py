"""Closing and faults of the engine: a fault affects its batch only, and no stream gets the answers of another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from batching.errors import EngineDown, PoolFull, QueueFull, StepFailed, UnknownStream, WrongInput
from batching.events import BatchDone, EngineEvent, EngineStopped, StreamClosed, StreamFailed
from tests.support.servers.fakes import WAIT_S, EchoModel, FailingModel, GatedModel
from tests.support.streams.engine_bench import Bench, Start, step

# Closing, and bounds.


def test_a_late_result_never_reaches_the_next_user_of_the_slot(start_engine: Start) -> None:
    model = GatedModel(capacity=1)
    bench = start_engine(model)
    gone = bench.engine.open()
    bench.engine.push(gone, step(1))
    model.wait_inside()
    bench.engine.close(gone)  # the client vanishes with its step in the running batch
    successor = bench.engine.open()
    bench.engine.push(successor, step(2))
    model.go_on(2)
    late = bench.done()
    assert (late.streams, late.outputs.tolist()) == ((gone,), [[1, 1]])
    assert bench.event() == StreamClosed(gone)
    assert bench.answers(1) == {successor: [[2, 1]]}


def test_a_stream_beyond_capacity_fails_and_the_others_continue(start_engine: Start) -> None:
    bench = start_engine(EchoModel(capacity=1))
    first, extra = bench.engine.open(), bench.engine.open()
    bench.engine.push(extra, step(2))  # ignored
    bench.engine.push(first, step(1))
    failed = bench.failed()
    assert failed.stream == extra
    assert isinstance(failed.error, PoolFull)
    assert bench.answers(1) == {first: [[1, 1]]}
    bench.engine.close(extra)
    assert bench.event() == StreamClosed(extra)
    bench.engine.close(extra)  # once too often
    assert isinstance(bench.failed().error, UnknownStream)
    bench.engine.close(first)
    assert bench.event() == StreamClosed(first)
    successor = bench.engine.open()
    bench.engine.push(successor, step(3))
    assert bench.answers(1) == {successor: [[3, 1]]}


def test_the_command_queue_of_a_hung_model_thread_is_bounded(start_engine: Start) -> None:
    model = GatedModel(capacity=2)
    bench = start_engine(model, max_queued=2)
    stream = bench.engine.open()
    bench.engine.push(stream, step(1))
    model.wait_inside()
    for _ in range(2 * (2 + 2)):
        bench.engine.push(stream, step(1))
    with pytest.raises(QueueFull, match="commands"):
        bench.engine.push(stream, step(1))
    with pytest.raises(QueueFull, match="commands"):
        bench.engine.open()


def test_commands_for_unknown_or_closed_streams_are_reported_and_leave_other_streams_alone(start_engine: Start) -> None:
    bench = start_engine(EchoModel())
    stream = bench.engine.open()
    bench.engine.close(stream)
    assert bench.event() == StreamClosed(stream)
    bench.engine.push(stream, step(1))
    bench.engine.close(stream)
    bench.engine.close(999)
    for named in (stream, stream, 999):
        failed = bench.failed()
        assert failed.stream == named
        assert isinstance(failed.error, UnknownStream)
    other = bench.engine.open()
    bench.engine.push(other, step(1))
    assert bench.answers(1) == {other: [[1, 1]]}


@pytest.mark.parametrize("bad", [np.zeros(3, np.int16), np.zeros((1, 4), np.int16), np.zeros(4, np.float32)])
def test_push_refuses_input_of_another_shape_or_dtype(bad: np.ndarray) -> None:
    bench = Bench(EchoModel())
    with pytest.raises(WrongInput, match=r"int16 \(4,\)"):
        bench.engine.push(bench.engine.open(), bad)


def test_open_refuses_a_bad_budget() -> None:
    with pytest.raises(ValueError, match="budget_s"):
        Bench(EchoModel()).engine.open(budget_s=0.0)


# Faults.


def test_a_step_that_raises_fails_its_batchs_streams_and_no_others(start_engine: Start) -> None:
    model = GatedModel()
    bench = start_engine(model)
    bystander, a, b = (bench.engine.open() for _ in range(3))
    bench.engine.push(bystander, step(1))
    model.wait_inside()
    bench.engine.push(a, step(2))
    bench.engine.push(a, step(2))  # waits after the step that fails, and is dropped with it
    bench.engine.push(b, step(FailingModel.POISON))
    model.go_on(3)
    assert bench.done().streams == (bystander,)
    failures = [bench.failed(), bench.failed()]
    assert [failure.stream for failure in failures] == [a, b]
    for failure in failures:
        assert isinstance(failure.error, StepFailed)
        assert isinstance(failure.error.__cause__, ArithmeticError)
    bench.engine.push(a, step(2))  # ignored
    bench.engine.push(bystander, step(1))
    assert bench.answers(1) == {bystander: [[1, 2]]}
    assert bench.engine.alive
    for stream in (a, b):
        bench.engine.close(stream)
        assert bench.event() == StreamClosed(stream)


def test_a_failed_streams_slot_is_free_and_clean_before_its_owner_closes_it(start_engine: Start) -> None:
    bench = start_engine(FailingModel(capacity=1))
    failed = bench.engine.open()
    bench.engine.push(failed, step(FailingModel.POISON))
    assert bench.failed().stream == failed
    successor = bench.engine.open()
    bench.engine.push(successor, step(5))
    assert bench.answers(1) == {successor: [[5, 1]]}


def test_a_step_that_returns_too_few_rows_fails_like_one_that_raises(start_engine: Start) -> None:
    class Wrong(EchoModel):
        def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
            return super().run(slots)[:0]

    bench = start_engine(Wrong())
    bench.engine.push(bench.engine.open(), step(1))
    assert isinstance(bench.failed().error, StepFailed)
    assert bench.engine.alive


def test_stopping_waits_for_the_running_batch_and_drops_the_rest(start_engine: Start) -> None:
    model = GatedModel()
    bench = start_engine(model)
    stream = bench.engine.open()
    bench.engine.push(stream, step(1))
    model.wait_inside()
    bench.engine.push(stream, step(1))
    with pytest.raises(EngineDown, match="still running"):
        bench.engine.stop(timeout_s=0.0)
    model.go_on(1)
    bench.engine.stop(WAIT_S)
    assert bench.done().outputs.tolist() == [[1, 1]]
    assert bench.event() == EngineStopped(None)
    assert (bench.engine.alive, bench.engine.failure, bench.engine.busy_since()) == (False, None, None)


def test_after_stop_open_raises_and_push_and_close_return(start_engine: Start) -> None:
    bench = start_engine(EchoModel())
    stream = bench.engine.open()
    bench.engine.stop(WAIT_S)
    bench.engine.stop(WAIT_S)
    assert bench.event() == EngineStopped(None)
    with pytest.raises(EngineDown):
        bench.engine.open()
    for _ in range(1_000):
        bench.engine.push(stream, step(1))
    bench.engine.close(stream)


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[threading.ExceptHookArgs]:
    """Arguments of threading.excepthook, which otherwise prints them."""
    seen: queue.SimpleQueue[threading.ExceptHookArgs] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", seen.put)
    return seen


def test_an_error_that_is_no_exception_ends_the_engine_and_is_delivered_kept_and_raised_by_open(
    start_engine: Start, crash: queue.SimpleQueue[threading.ExceptHookArgs]
) -> None:
    class Fatal(EchoModel):
        def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
            raise Lost

    class Lost(BaseException):
        """As `model.errors.DeviceLost`."""

    bench = start_engine(Fatal())
    bench.engine.push(bench.engine.open(), step(1))
    stopped = bench.event()
    assert isinstance(stopped, EngineStopped)
    assert isinstance(stopped.error, Lost)
    assert crash.get(timeout=WAIT_S).exc_type is Lost
    assert not bench.engine.alive
    assert bench.engine.failure is stopped.error
    with pytest.raises(EngineDown) as refused:
        bench.engine.open()
    assert refused.value.__cause__ is stopped.error


def test_an_error_in_deliver_ends_the_engine_and_reaches_the_excepthook(
    start_engine: Start, crash: queue.SimpleQueue[threading.ExceptHookArgs]
) -> None:
    delivered: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()

    def deliver(event: EngineEvent) -> None:
        if isinstance(event, BatchDone):
            raise ConnectionError("the loop is closed")
        delivered.put(event)

    bench = start_engine(EchoModel(), deliver=deliver)
    bench.engine.push(bench.engine.open(), step(1))
    stopped = delivered.get(timeout=WAIT_S)
    assert isinstance(stopped, EngineStopped)
    assert isinstance(stopped.error, ConnectionError)
    assert crash.get(timeout=WAIT_S).exc_type is ConnectionError
    assert isinstance(bench.engine.failure, ConnectionError)


# Everything at once.


def test_streams_opened_and_closed_at_random_get_only_their_own_answers(start_engine: Start) -> None:
    """Two threads open, push, poison and close more streams than there are slots; answers contain their stream."""
    bench = start_engine(FailingModel(capacity=4, largest=3), max_queued=8)
    first_value: dict[int, int] = {}
    unclosed = threading.Semaphore(8)

    def client(seed: int) -> None:
        random = np.random.default_rng(seed)
        held: list[int] = []
        for n in range(150):
            assert unclosed.acquire(timeout=WAIT_S)
            stream = bench.engine.open()
            held.append(stream)
            value = first_value[stream] = 150 * seed + n
            for _ in range(random.integers(1, 5)):
                bench.engine.push(stream, step(FailingModel.POISON if random.random() < 0.005 else value))
            while len(held) > random.integers(0, 4):  # leave at once, or some streams later
                bench.engine.close(held.pop(random.integers(len(held))))
        for stream in held:
            bench.engine.close(stream)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(2)]
    for thread in clients:
        thread.start()
    answered: dict[int, int] = {}
    closed: set[int] = set()
    errors: set[type[Exception]] = set()
    while len(closed) < 300:
        event = bench.event()
        if isinstance(event, BatchDone):
            for stream, (value, count) in zip(event.streams, event.outputs.tolist(), strict=True):
                assert stream not in closed
                assert value == first_value[stream]
                assert count == answered.get(stream, 0) + 1
                answered[stream] = count
        elif isinstance(event, StreamFailed):
            errors.add(type(event.error))
        elif isinstance(event, StreamClosed):
            assert event.stream not in closed
            closed.add(event.stream)
            unclosed.release()
    for thread in clients:
        thread.join(WAIT_S)
    assert bench.engine.alive
    assert answered
    assert errors <= {StepFailed, PoolFull}
