"""The engine end to end with fake models: every answer is its own stream's, and a fault stays where it happened."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fakes import WAIT_S, EchoModel, FailingModel, FakeClock, GatedModel
from torch import Tensor

from batching import (
    BatchDone,
    Engine,
    EngineDown,
    EngineEvent,
    EngineStopped,
    Policy,
    PoolFull,
    QueueFull,
    StepFailed,
    StepModel,
    StreamClosed,
    StreamFailed,
    TensorSpec,
    UnknownStream,
    WrongInput,
)


def step(value: int, samples: int = 4) -> np.ndarray:
    """One step's input, told by its first value."""
    return np.full(samples, value, dtype=np.int16)


class Bench:
    """An engine and the events that it has delivered."""

    def __init__(self, model: StepModel, deliver: Callable[[EngineEvent], None] | None = None, **options: Any) -> None:
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        bounds: dict[str, Any] = {"capacity": 4, "policy": Policy.EAGER, "max_batch": 4, "max_queued": 8}
        self.engine = Engine(model, deliver=deliver or self._events.put, **(bounds | options))

    def event(self) -> EngineEvent:
        """The next event; fails the test if none comes."""
        return self._events.get(timeout=WAIT_S)

    def done(self) -> BatchDone:
        """The next event, which must be a batch."""
        event = self.event()
        assert isinstance(event, BatchDone), event
        return event

    def failed(self) -> StreamFailed:
        """The next event, which must be a failed stream."""
        event = self.event()
        assert isinstance(event, StreamFailed), event
        return event

    def answers(self, count: int) -> dict[int, list[list[int]]]:
        """The next `count` rows of batches, by stream."""
        answers: dict[int, list[list[int]]] = {}
        while count > 0:
            event = self.done()
            for stream, output in zip(event.streams, event.outputs.tolist(), strict=True):
                answers.setdefault(stream, []).append(output)
            count -= len(event.streams)
        return answers


Start = Callable[..., Bench]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start engines that are stopped when the test ends."""
    started: list[tuple[StepModel, Engine]] = []

    def start(model: StepModel, **options: Any) -> Bench:
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


# Every answer is its own stream's.


def test_each_stream_gets_its_own_answers_in_order(start: Start) -> None:
    bench = start(EchoModel(), capacity=50, max_batch=16, max_queued=10)
    streams = {bench.engine.open(): 100 + n for n in range(50)}
    for n in range(10):
        for stream, value in streams.items():
            bench.engine.push(stream, step(value if n == 0 else -1))
    answers = bench.answers(500)
    assert answers == {stream: [[value, n + 1] for n in range(10)] for stream, value in streams.items()}


def test_steps_that_gather_during_a_batch_run_in_the_next_one(start: Start) -> None:
    model = GatedModel()
    bench = start(model)
    a, b, c = (bench.engine.open() for _ in range(3))
    bench.engine.push(a, step(1))
    assert model.wait_inside() == 1
    bench.engine.push(b, step(2), tag="b")
    bench.engine.push(c, step(3), tag="c")
    model.go_on(2)
    assert bench.done().streams == (a,)
    second = bench.done()
    assert (second.streams, second.tags) == ((b, c), ("b", "c"))


def test_a_batch_reports_waits_step_time_and_queue_by_the_engines_clock(start: Start) -> None:
    model, clock = GatedModel(), FakeClock()
    bench = start(model, clock=clock, max_batch=1)
    a, b = bench.engine.open(), bench.engine.open()
    assert bench.engine.busy_since() in (None, clock())
    bench.engine.push(a, step(1))
    model.wait_inside()
    assert bench.engine.busy_since() == clock()
    bench.engine.push(b, step(2))
    clock.advance(0.25)
    bench.engine.push(b, step(2))
    clock.advance(0.5)
    assert bench.engine.busy_since() == clock() - 0.75
    model.go_on(2)
    first, second = bench.done(), bench.done()
    assert (first.queue_wait_s, first.step_s, first.started_s) == ((0.0,), 0.75, clock() - 0.75)
    assert (second.queue_wait_s, second.step_s, second.queued) == ((0.75,), 0.0, 1)


def test_outputs_stay_as_they_were_when_later_batches_run(start: Start) -> None:
    class Passing(EchoModel):
        """Returns its very inputs and states."""

        def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return inputs, state

    bench = start(Passing())
    stream = bench.engine.open()
    bench.engine.push(stream, step(1))
    first = bench.done().outputs
    bench.engine.push(stream, step(2))
    assert bench.done().outputs.tolist() == [[2] * 4]
    assert first.tolist() == [[1] * 4]


def test_a_reset_makes_the_next_step_a_fresh_streams_first(start: Start) -> None:
    bench = start(EchoModel())
    a, b = bench.engine.open(), bench.engine.open()
    for stream, value, reset in (
        (a, 1, False),
        (b, 2, False),
        (a, 3, False),
        (a, 4, True),
        (a, 5, False),
        (b, 6, False),
    ):
        bench.engine.push(stream, step(value), reset=reset)
    assert bench.answers(6) == {a: [[1, 1], [1, 2], [4, 1], [4, 2]], b: [[2, 1], [2, 2]]}


def test_small_batches_are_padded_to_what_the_model_needs(start: Start) -> None:
    seen: list[list[int]] = []

    class Watching(GatedModel):
        def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            seen.append(inputs[:, 0].tolist())
            return super().step(inputs, state)

    model = Watching(min_rows=3)
    bench = start(model, capacity=2, max_batch=2)
    a, b = bench.engine.open(), bench.engine.open()
    bench.engine.push(b, step(8))
    model.wait_inside()
    for stream, value in ((a, 9), (b, 8), (a, 9)):
        bench.engine.push(stream, step(value))
    model.go_on(3)
    assert bench.answers(4) == {b: [[8, 1], [8, 2]], a: [[9, 1], [9, 2]]}
    assert seen == [[8, 0, 0], [9, 8, 0], [9, 0, 0]]  # padding is zero, not what an earlier batch left there


def test_with_tiles_every_call_of_the_model_has_the_same_rows(start: Start) -> None:
    model = GatedModel()
    bench = start(model, capacity=8, max_batch=8, tile_rows=3)
    streams = {bench.engine.open(): 10 + n for n in range(8)}
    first = next(iter(streams))
    model.go_on(1_000)
    bench.engine.push(first, step(streams[first]))
    bench.answers(1)
    for stream, value in streams.items():
        bench.engine.push(stream, step(value))
    answers = bench.answers(8)
    assert answers == {stream: [[value, 2 if stream == first else 1]] for stream, value in streams.items()}
    assert set(model.rows) == {3}


def test_tiles_smaller_than_the_model_allows_are_refused() -> None:
    with pytest.raises(ValueError, match="minimum of 4"):
        Bench(EchoModel(min_rows=4), tile_rows=2)


class TinyGru:
    """A real recurrent network, fp32: a row of a product depends on the number of rows below four."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.cell = torch.nn.GRUCell(24, 48)
        self.head = torch.nn.Linear(48, 16)
        self.min_rows = 4
        self.device = torch.device("cpu")
        self.input_spec = TensorSpec((24,), torch.float32)
        self.state_spec = {"hidden": TensorSpec((48,), torch.float32)}

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.cell(inputs, state["hidden"])
        return self.head(hidden), {"hidden": hidden}


@pytest.mark.parametrize("tile_rows", [None, 8])
def test_batched_equals_alone(start: Start, tile_rows: int | None) -> None:
    """To the bit with fixed tiles; without them as near as fp32 comes, where products vary with the batch's size."""
    inputs = np.random.default_rng(3).standard_normal((12, 6, 24), dtype=np.float32)  # (streams, steps, features)

    def run(members: range) -> dict[int, np.ndarray]:
        bench = start(TinyGru(), capacity=12, max_batch=12, tile_rows=tile_rows)
        streams = {bench.engine.open(): member for member in members}
        rows: dict[int, list[np.ndarray]] = {member: [] for member in members}
        for n in range(inputs.shape[1]):
            for stream, member in streams.items():
                bench.engine.push(stream, inputs[member, n])
        while any(len(found) < inputs.shape[1] for found in rows.values()):
            event = bench.done()
            for stream, output in zip(event.streams, event.outputs, strict=True):
                rows[streams[stream]].append(output)
        return {member: np.stack(found) for member, found in rows.items()}

    together = run(range(12))
    for member in range(12):
        alone = run(range(member, member + 1))[member]
        if tile_rows:
            np.testing.assert_array_equal(together[member], alone)
        else:
            np.testing.assert_allclose(together[member], alone, atol=1e-5)


def test_the_deadline_policy_holds_a_batch_for_the_streams_that_are_missing(start: Start) -> None:
    bench = start(EchoModel(), policy=Policy.DEADLINE)
    a, b = bench.engine.open(budget_s=WAIT_S), bench.engine.open(budget_s=WAIT_S)
    bench.engine.push(a, step(1))
    assert bench.done().streams == (a,)  # nothing is known of service times yet, so it does not wait
    bench.engine.push(a, step(1))
    bench.engine.push(b, step(2))
    assert bench.done().streams == (a, b)


def test_a_held_batch_goes_when_its_deadline_comes_near(start: Start) -> None:
    bench = start(EchoModel(), policy=Policy.DEADLINE)
    a, _silent = bench.engine.open(budget_s=0.3), bench.engine.open(budget_s=0.3)
    for _ in range(2):
        bench.engine.push(a, step(1))
        waited_s = bench.done().queue_wait_s[0]
    assert waited_s > 0.01


def test_background_steps_leave_the_batch_to_live_ones(start: Start) -> None:
    model = GatedModel()
    bench = start(model, background_rows=1)
    files = [bench.engine.open(budget_s=10.0, background=True) for _ in range(3)]
    live = bench.engine.open()
    bench.engine.push(live, step(1))
    model.wait_inside()
    for stream in (*files, live):
        bench.engine.push(stream, step(2))
    model.go_on(3)
    assert [bench.done().streams for _ in range(3)] == [(live,), (live, files[0]), (files[1], files[2])]


# Closing, and bounds.


def test_closing_drops_what_waits_and_frees_the_slot(start: Start) -> None:
    model = GatedModel()
    bench = start(model, capacity=2)
    a, b = bench.engine.open(), bench.engine.open()
    bench.engine.push(a, step(1))
    model.wait_inside()
    bench.engine.push(b, step(2))
    bench.engine.push(b, step(2))
    bench.engine.close(b)
    c = bench.engine.open()
    bench.engine.push(c, step(3))
    model.go_on(2)
    assert bench.done().streams == (a,)
    assert bench.event() == StreamClosed(b)
    assert bench.answers(1) == {c: [[3, 1]]}


def test_a_late_result_never_reaches_the_next_user_of_the_slot(start: Start) -> None:
    model = GatedModel()
    bench = start(model, capacity=1)
    gone = bench.engine.open()
    bench.engine.push(gone, step(1))
    model.wait_inside()
    bench.engine.close(gone)  # the client vanishes with its step in the running batch
    heir = bench.engine.open()
    bench.engine.push(heir, step(2))
    model.go_on(2)
    late = bench.done()
    assert (late.streams, late.outputs.tolist()) == ((gone,), [[1, 1]])
    assert bench.event() == StreamClosed(gone)
    assert bench.answers(1) == {heir: [[2, 1]]}


def test_a_stream_too_many_fails_and_the_others_go_on(start: Start) -> None:
    bench = start(EchoModel(), capacity=1)
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
    heir = bench.engine.open()
    bench.engine.push(heir, step(3))
    assert bench.answers(1) == {heir: [[3, 1]]}


def test_a_stream_that_overflows_its_queue_fails_alone(start: Start) -> None:
    model = GatedModel()
    bench = start(model, max_queued=2)
    a, greedy = bench.engine.open(), bench.engine.open()
    bench.engine.push(a, step(1))
    model.wait_inside()
    for _ in range(3):
        bench.engine.push(greedy, step(2))
    bench.engine.push(a, step(1))
    model.go_on(2)
    assert bench.done().streams == (a,)
    failed = bench.failed()
    assert failed.stream == greedy
    assert isinstance(failed.error, QueueFull)
    assert bench.answers(1) == {a: [[1, 2]]}


def test_a_hung_model_thread_does_not_let_its_queue_grow_without_end(start: Start) -> None:
    model = GatedModel()
    bench = start(model, capacity=2, max_queued=2)
    stream = bench.engine.open()
    bench.engine.push(stream, step(1))
    model.wait_inside()
    for _ in range(2 * (2 + 2)):
        bench.engine.push(stream, step(1))
    with pytest.raises(QueueFull, match="commands"):
        bench.engine.push(stream, step(1))
    with pytest.raises(QueueFull, match="commands"):
        bench.engine.open()


def test_what_was_never_opened_or_is_closed_is_reported_and_harms_nobody(start: Start) -> None:
    bench = start(EchoModel())
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
def test_input_that_the_model_cannot_take_is_refused_at_the_door(bad: np.ndarray) -> None:
    bench = Bench(EchoModel())
    with pytest.raises(WrongInput, match=r"int16 \(4,\)"):
        bench.engine.push(bench.engine.open(), bad)


def test_a_bad_budget_is_refused_at_the_door() -> None:
    with pytest.raises(ValueError, match="budget_s"):
        Bench(EchoModel()).engine.open(budget_s=0.0)


# Faults.


def test_a_step_that_raises_fails_its_batchs_streams_and_no_others(start: Start) -> None:
    model = GatedModel()
    bench = start(model)
    bystander, a, b = (bench.engine.open() for _ in range(3))
    bench.engine.push(bystander, step(1))
    model.wait_inside()
    bench.engine.push(a, step(2))
    bench.engine.push(a, step(2))  # waits behind the step that fails, and goes with it
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


def test_a_failed_streams_slot_is_free_and_clean_before_its_owner_closes_it(start: Start) -> None:
    bench = start(FailingModel(), capacity=1)
    failed = bench.engine.open()
    bench.engine.push(failed, step(FailingModel.POISON))
    assert bench.failed().stream == failed
    heir = bench.engine.open()
    bench.engine.push(heir, step(5))
    assert bench.answers(1) == {heir: [[5, 1]]}


@pytest.mark.parametrize("wrong", ["outputs", "state"])
def test_a_step_that_returns_the_wrong_shape_fails_like_one_that_raises(start: Start, wrong: str) -> None:
    class Wrong(EchoModel):
        def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            outputs, state = super().step(inputs, state)
            return (outputs[:0], state) if wrong == "outputs" else (outputs, {"first": state["first"]})

    bench = start(Wrong())
    bench.engine.push(bench.engine.open(), step(1))
    assert isinstance(bench.failed().error, StepFailed)
    assert bench.engine.alive


def test_stopping_waits_for_the_running_batch_and_drops_the_rest(start: Start) -> None:
    model = GatedModel()
    bench = start(model)
    stream = bench.engine.open()
    bench.engine.push(stream, step(1))
    model.wait_inside()
    bench.engine.push(stream, step(1))
    with pytest.raises(EngineDown, match="still at work"):
        bench.engine.stop(timeout_s=0.0)
    model.go_on(1)
    bench.engine.stop(WAIT_S)
    assert bench.done().outputs.tolist() == [[1, 1]]
    assert bench.event() == EngineStopped(None)
    assert (bench.engine.alive, bench.engine.failure, bench.engine.busy_since()) == (False, None, None)


def test_after_the_end_nothing_opens_and_nothing_hangs(start: Start) -> None:
    bench = start(EchoModel())
    stream = bench.engine.open()
    bench.engine.stop(WAIT_S)
    bench.engine.stop(WAIT_S)
    assert bench.event() == EngineStopped(None)
    with pytest.raises(EngineDown):
        bench.engine.open()
    for _ in range(1_000):
        bench.engine.push(stream, step(1))
    bench.engine.close(stream)


def test_an_engine_that_never_started_stops_at_once() -> None:
    bench = Bench(EchoModel())
    assert not bench.engine.alive
    bench.engine.stop(WAIT_S)


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[threading.ExceptHookArgs]:
    """What reaches threading.excepthook, which otherwise prints it."""
    seen: queue.SimpleQueue[threading.ExceptHookArgs] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", seen.put)
    return seen


def test_the_death_of_the_engine_is_seen_by_all(
    start: Start, crash: queue.SimpleQueue[threading.ExceptHookArgs]
) -> None:
    class Fatal(EchoModel):
        def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            raise MemoryExhausted

    class MemoryExhausted(BaseException):
        pass

    bench = start(Fatal())
    bench.engine.push(bench.engine.open(), step(1))
    stopped = bench.event()
    assert isinstance(stopped, EngineStopped)
    assert isinstance(stopped.error, MemoryExhausted)
    assert crash.get(timeout=WAIT_S).exc_type is MemoryExhausted
    assert not bench.engine.alive
    assert bench.engine.failure is stopped.error
    with pytest.raises(EngineDown) as refused:
        bench.engine.open()
    assert refused.value.__cause__ is stopped.error


def test_a_result_that_cannot_be_delivered_ends_the_engine_loudly(
    start: Start, crash: queue.SimpleQueue[threading.ExceptHookArgs]
) -> None:
    delivered: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()

    def deliver(event: EngineEvent) -> None:
        if isinstance(event, BatchDone):
            raise ConnectionError("the loop is closed")
        delivered.put(event)

    bench = start(EchoModel(), deliver=deliver)
    bench.engine.push(bench.engine.open(), step(1))
    stopped = delivered.get(timeout=WAIT_S)
    assert isinstance(stopped, EngineStopped)
    assert isinstance(stopped.error, ConnectionError)
    assert crash.get(timeout=WAIT_S).exc_type is ConnectionError
    assert isinstance(bench.engine.failure, ConnectionError)


# Everything at once.


def test_nothing_leaks_between_streams_that_come_and_go_at_random(start: Start) -> None:
    """Two threads open, push, poison and close more streams than there are slots; each answer names its own stream."""
    bench = start(FailingModel(), capacity=4, max_batch=3, max_queued=8)
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
