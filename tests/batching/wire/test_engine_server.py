"""A served engine and its front ends: rows by owner, front ends that die or do not read, the end of the engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batching.errors import EngineDown
from batching.events import BatchDone, EngineEvent, StreamFailed, WarmedUp
from batching.slot_model import SlotModel
from batching.wire import engine_server, frames, sockets
from batching.wire.engine_server import GATHERED, EngineServer
from batching.wire.sockets import data_sockets
from tests.support.servers.fakes import WAIT_S, ChunkedModel, EchoModel, GatedModel
from tests.support.streams.engine_bench import step
from tests.support.streams.wire_bench import BOUNDS, DrivenEngineServer, FrontEnd, wait_until


class Served:
    """Started engines, stopped at the end, and front ends whose events are collected."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.events: dict[FrontEnd, list[EngineEvent]] = {}

    def start(self, model: SlotModel, **options: Any) -> EngineServer:
        engine = EngineServer(model, **(BOUNDS | options))
        self.stack.callback(engine.stop, WAIT_S)
        if isinstance(model, GatedModel):
            self.stack.callback(model.go_on, 1_000)
        engine.start()
        return engine

    def connect(self, engine: EngineServer) -> FrontEnd:
        end = FrontEnd(engine)
        self.stack.callback(end.close)
        self.events[end] = end.events()
        return end

    def wait(self, *ends: FrontEnd, until: Any) -> None:
        wait_until(until, *ends, take=lambda end: self.events[end].extend(end.connection.received(end.receive())))

    def answers(self, end: FrontEnd) -> dict[int, list[list[int]]]:
        found: dict[int, list[list[int]]] = {}
        for event in self.events[end]:
            if isinstance(event, BatchDone):
                for stream, row in zip(event.streams, event.outputs.tolist(), strict=True):
                    found.setdefault(stream, []).append(row)
        return found

    def rows(self, *ends: FrontEnd) -> int:
        return sum(len(rows) for end in ends for rows in self.answers(end).values())


@pytest.fixture
def served() -> Iterator[Served]:
    bench = Served()
    with bench.stack:
        yield bench


def test_steps_of_many_streams_are_gathered_before_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(sockets.SocketMail, "rest", lambda _, seconds: rests.append(seconds))
    engine = DrivenEngineServer(EchoModel(capacity=8, largest=2), step_s=4 * engine_server.PERIOD_S / GATHERED)
    end = FrontEnd(engine)
    streams = [end.connection.open() for _ in range(3)]

    def batch(*stepping: int) -> int:
        """Push and run a batch after a quarter of the period; return how often the engine rested."""
        rests.clear()
        engine.fake_clock.advance(engine_server.PERIOD_S / 4)
        for stream in stepping:
            end.connection.push(stream, step(1))
        end.send()
        engine.turn()
        return len(rests)

    assert [batch(streams[0]) for _ in range(3)] == [0, 0, 0], "three streams are few here"
    end.connection.open(background=True)
    assert [batch(streams[0]) for _ in range(2)] == [0, 0], "so they are with a stream in the background"
    streams.append(end.connection.open())
    batch(streams[0])
    assert batch(streams[1])
    assert rests[0] == pytest.approx(engine_server.PERIOD_S * 3 / 4, rel=1e-3), "from the start of the last batch on"
    batch(*streams)  # two of them, the largest batch
    assert not batch(), "steps wait already"
    rests.clear()
    engine.fake_clock.advance(2 * engine_server.PERIOD_S)
    batch(streams[2])
    assert not rests, "the last batch is long ago"
    engine.stop(0.0)


@pytest.mark.parametrize("chunks", [False, True])
def test_a_batch_is_split_by_owner_and_one_front_end_leads_it(chunks: bool) -> None:
    engine = DrivenEngineServer(ChunkedModel(capacity=8, largest=8), chunks=chunks, step_s=0.08)
    ends = [FrontEnd(engine) for _ in range(3)]
    streams: dict[FrontEnd, list[int]] = {end: [] for end in ends}
    for n in (1, 0, 2, 1, 0, 1):
        background = n == 0
        stream = ends[n].connection.open(background=background, budget_s=9.0 if background else 0.1)
        streams[ends[n]].append(stream)
        for k in range(2):
            ends[n].connection.push(stream, step(10 * n + stream), tag=(n, stream, k))
        ends[n].send()
        engine._before_commands()  # so that commands arrive in this order
    while engine._mail.commands or engine._worker.queued:
        engine.fake_clock.advance(0.5)  # each batch starts at a time of its own
        engine.turn()
    found = {end: [event for event in end.events() if isinstance(event, BatchDone)] for end in ends}
    leaders: dict[float, int] = {}
    for n, end in enumerate(ends):
        rows = [(tag, row) for event in found[end] for tag, row in zip(event.tags, event.outputs.tolist(), strict=True)]
        assert sorted(rows) == [((n, stream, k), [10 * n + stream, k + 1]) for stream in streams[end] for k in range(2)]
        for event in found[end]:
            assert event.rows_in_all == 0 or event.rows_in_all > len(event.streams)
            assert len(event.live_wait_s) == (0 if n == 0 else len(event.streams))
            leaders[event.started_s] = leaders.get(event.started_s, 0) + event.leads
    assert set(leaders.values()) == {1}
    engine.stop(0.0)


def test_a_front_end_that_dies_frees_its_streams_and_no_other_one_notices(served: Served) -> None:
    engine = served.start(EchoModel(capacity=4))
    dying, staying = served.connect(engine), served.connect(engine)
    for _ in range(3):
        stream = dying.connection.open()
        for _ in range(5):
            dying.connection.push(stream, step(1))
    stream = staying.connection.open()
    staying.connection.push(stream, step(7))
    served.wait(dying, staying, until=lambda: served.rows(staying) == 1)
    assert engine.connections == 2
    dying.close()
    served.wait(staying, until=lambda: engine.connections == 1)
    others = [staying.connection.open() for _ in range(3)]  # in the slots of the dead one
    for other in (stream, *others):
        staying.connection.push(other, step(8))
    served.wait(staying, until=lambda: served.rows(staying) == 5)
    assert served.answers(staying) == {stream: [[7, 1], [7, 2]], **{other: [[8, 1]] for other in others}}
    assert not any(isinstance(event, StreamFailed) for event in served.events[staying])


class WideModel(EchoModel):
    """Answers 100 kB a step: float64 (B, 100, 125), filled with the first input."""

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """(B, samples) int16 -> (B, 100, 125) float64."""
        super().run(slots)
        return np.broadcast_to(self.inputs[: len(slots), :1, None], (len(slots), 100, 125)).astype(np.float64)


def test_large_outputs_are_cut_over_several_sends(served: Served) -> None:
    engine = served.start(WideModel(capacity=8, largest=8), max_queued=50)
    end = served.connect(engine)
    streams = [end.connection.open() for _ in range(8)]
    for n in range(20):  # 16 MB of answers, while nothing is received
        for stream in streams:
            end.connection.push(stream, step(10 * stream + n % 10))
    end.send()
    served.wait(end, until=lambda: served.rows(end) == 160)
    found: dict[int, list[int]] = {}
    for event in served.events[end]:
        assert isinstance(event, BatchDone)
        for stream, output in zip(event.streams, event.outputs, strict=True):
            assert (output == output[0, 0]).all()
            found.setdefault(stream, []).append(int(output[0, 0]))
    assert found == {stream: [10 * stream + n % 10 for n in range(20)] for stream in streams}


def test_a_front_end_that_does_not_read_is_closed_and_the_others_continue(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_UNSENT_BYTES", 1 << 20)
    engine = served.start(WideModel(capacity=2), max_queued=500)
    idle, reading = served.connect(engine), served.connect(engine)
    stuck, stream = idle.connection.open(), reading.connection.open()
    for _ in range(200):
        idle.connection.push(stuck, step(1))
    idle.send()
    served.wait(reading, until=lambda: engine.connections == 1)
    reading.connection.push(stream, step(2))
    third = reading.connection.open()  # its slot
    reading.connection.push(third, step(3))
    served.wait(reading, until=lambda: served.rows(reading) == 2)
    while idle.receive():
        pass
    assert idle.closed


@pytest.mark.parametrize("data", [frames.COMMAND.pack(99, 0, 1, 0.0), 2 * frames.COMMAND.pack(frames.OPEN, 0, 1, 0.5)])
def test_a_front_end_that_sends_no_frames_is_closed_with_its_streams(served: Served, data: bytes) -> None:
    engine = served.start(EchoModel(capacity=1))
    wrong, other = served.connect(engine), served.connect(engine)
    wrong.connection.open()
    wrong.send()
    wrong.socket.send(data)
    served.wait(other, until=lambda: engine.connections == 1)
    stream = other.connection.open()
    other.connection.push(stream, step(5))
    served.wait(other, until=lambda: served.rows(other) == 1)
    assert served.answers(other) == {stream: [[5, 1]]}


def test_a_connection_with_more_than_its_share_of_waiting_steps_is_not_read(served: Served) -> None:
    model = GatedModel(capacity=4, largest=1)
    row_bytes = step(0).nbytes
    engine = served.start(model, max_queued=100_000, max_queued_bytes=20 * row_bytes)
    greedy, other = served.connect(engine), served.connect(engine)
    many, one = greedy.connection.open(), other.connection.open()
    greedy.connection.push(many, step(1))
    greedy.send()
    model.wait_inside()
    for _ in range(300):
        greedy.connection.push(many, step(1))
    greedy.send()
    model.go_on(1)
    model.wait_inside()  # the steps were read in the meantime, at once
    for _ in range(4_000):
        greedy.connection.push(many, step(1))
    greedy.send()
    model.go_on(3)
    for _ in range(3):
        model.wait_inside()
    assert engine._worker.queued <= 300, "it was read further"
    other.connection.push(one, step(2))
    other.send()
    model.go_on(5_000)
    served.wait(greedy, other, until=lambda: served.rows(other) == 1)
    served.wait(greedy, other, until=lambda: served.rows(greedy) == 4_301)


def test_hello_describes_the_model(served: Served) -> None:
    engine = served.start(EchoModel(), digest="sha256:1")
    end = served.connect(engine)
    hello = end.connection.hello
    assert hello is not None
    assert (hello.digest, hello.state_bytes, hello.inputs.shape, hello.inputs.dtype) == ("sha256:1", 16, (4,), np.int16)
    other = served.connect(engine).connection.hello
    assert other is not None
    assert other.number != hello.number


def test_the_times_of_the_warm_up_reach_early_and_late_connections(served: Served) -> None:
    engine = EngineServer(EchoModel(capacity=8, largest=5), **BOUNDS, warm_up=True)
    served.stack.callback(engine.stop, WAIT_S)
    early = served.connect(engine)
    stream = early.connection.open()
    early.connection.push(stream, step(7))
    early.send()
    engine.start()
    served.wait(early, until=lambda: served.rows(early) == 1)
    warm = served.events[early][0]
    assert isinstance(warm, WarmedUp)
    assert sorted(warm.step_s) == [1, 2, 4, 5]
    late = served.connect(engine)
    served.wait(late, until=lambda: bool(served.events[late]))
    assert served.events[late] == [warm]


def test_stopping_closes_all_connections_and_refuses_new_ones(served: Served) -> None:
    engine = served.start(EchoModel())
    end = served.connect(engine)
    assert engine.alive
    engine.stop(WAIT_S)
    while not end.closed:
        end.receive()
    assert (engine.alive, engine.failure, engine.busy_since(), engine.connections) == (False, None, None, 0)
    mine, theirs = data_sockets()
    with mine, pytest.raises(EngineDown):
        engine.attach(theirs)
    assert theirs.fileno() == -1, "the refused socket is still open"


def test_an_engine_that_never_started_closes_its_connections() -> None:
    engine = EngineServer(EchoModel(), **BOUNDS)
    end = FrontEnd(engine)
    engine.stop(WAIT_S)
    end.receive()
    assert end.closed


def test_a_model_that_loses_its_device_closes_the_connections(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(BaseException):
        """As `model.errors.DeviceLost`."""

    class Fatal(EchoModel):
        def run(self, slots: Sequence[int]) -> NDArray[Any]:
            raise Lost

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    engine = served.start(Fatal())
    end = served.connect(engine)
    end.connection.push(end.connection.open(), step(1))
    served.wait(end, until=lambda: end.closed)
    engine._thread.join(WAIT_S)
    assert isinstance(engine.failure, Lost)
