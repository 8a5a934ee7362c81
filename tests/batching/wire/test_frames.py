"""Frames: what is encoded is decoded, in pieces of any size; what is not a frame is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from batching.errors import (
    BatchingError,
    PoolFull,
    QueueFull,
    StepFailed,
    UnknownStream,
    WrongFrame,
    WrongInput,
    WrongState,
)
from batching.events import BatchDone, EngineEvent, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.thread.commands import Close, Command, Export, Open, Restore, Step
from batching.wire import frames
from batching.wire.frames import Hello, Layout, Rows
from batching.wire.sockets import CommandReader
from tests.support.streams.engine_bench import step
from tests.support.streams.wire_bench import Calls

SHAPE, STATE_BYTES = (3,), 5
HELLO = Hello(7, STATE_BYTES, Layout(np.dtype(np.int16), SHAPE), "sha256:abc")
BASE = 7 << 32


def greeted() -> Calls:
    connection = Calls(lambda: 12.5)
    assert connection.received(HELLO.encoded()) == []
    return connection


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """The bytes, cut at these places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return (data[first:end] for first, end in itertools.pairwise(places))


def read(reader: CommandReader, data: bytes, cuts: list[int]) -> list[Command]:
    commands: list[Command] = []
    for piece in pieces(data, cuts):
        rest = piece
        while rest:
            space = reader.space()
            assert len(space)
            taken = min(len(space), len(rest))
            space[:taken] = rest[:taken]
            commands += reader.received(taken)
            rest = rest[taken:]
    return commands


def command_reader(background: set[int] | None = None, buffer_bytes: int = 64) -> CommandReader:
    return CommandReader(
        7,
        step_bytes=6,
        state_bytes=STATE_BYTES,
        background=set() if background is None else background,
        buffer_bytes=buffer_bytes,
    )


SMALL = st.integers(-9, 9)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 99), st.lists(SMALL, min_size=3, max_size=3), st.booleans()),
        st.tuples(st.just("export"), st.integers(1, 2**32 - 1)),
        st.tuples(st.just("restore"), st.integers(1, 99), st.binary(min_size=STATE_BYTES, max_size=STATE_BYTES)),
        st.tuples(st.just("close"), st.integers(1, 99)),
        st.tuples(st.just("open"), st.floats(0.001, 9.0), st.booleans()),
    ),
    max_size=40,
)


@given(calls=CALLS, cuts=st.lists(st.integers(0, 10_000), max_size=20), buffer_bytes=st.integers(1, 300))
def test_commands_in_any_pieces_are_the_calls(calls: list[tuple[Any, ...]], cuts: list[int], buffer_bytes: int) -> None:
    connection, background = greeted(), set[int]()
    expected: list[Command] = []
    for call in calls:
        match call:
            case ("push", stream, values, reset):
                row = np.array(values, np.int16)
                connection.push(stream, row, reset=reset)
                expected.append(Step(BASE | stream, row.tobytes(), None, reset, 12.5))
            case ("export", stream):
                connection.export(stream)
                expected.append(Export(BASE | stream, None))
            case ("restore", stream, state):
                connection.restore(stream, state)
                expected.append(Restore(BASE | stream, state))
            case ("close", stream):
                connection.close(stream)
                expected.append(Close(BASE | stream))
            case ("open", budget_s, waits):
                expected.append(Open(BASE | connection.open(budget_s=budget_s, background=waits), budget_s, waits))
    data = connection.take_output()
    reader = command_reader(background, buffer_bytes)
    assert read(reader, data, cuts) == expected
    opened = [command for command in expected if isinstance(command, Open)]
    assert reader.streams == {command.stream for command in opened}
    assert background == {command.stream for command in opened if command.background}


DTYPES = st.sampled_from([np.dtype(name) for name in ("<f4", "<f8", "<i2", "<i8", "|u1", "|b1", "<f2", "<c8")])


@st.composite
def batches(draw: st.DrawFn) -> tuple[BatchDone, Rows, bool]:
    count = draw(st.integers(1, 5))
    others = draw(st.integers(0, 3))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=4))
    outputs = draw(arrays.arrays(draw(DTYPES), (count, *shape)))
    waits = st.lists(st.floats(-5, 5), min_size=count, max_size=count)
    queue = draw(waits)
    live = draw(st.none() | st.lists(st.none() | st.floats(-5, 5), min_size=count, max_size=count))
    live_waits = queue if live is None else [wait for wait in live if wait is not None]
    batch = BatchDone(
        streams=tuple(range(1, count + 1)),
        tags=("tag",) * count,
        outputs=outputs,
        queue_wait_s=tuple(queue),
        started_s=draw(st.floats(0, 1e6)),
        step_s=draw(st.floats(0, 9)),
        queued=draw(st.integers(0, 10**6)),
        live_wait_s=tuple(live_waits),
        background_waits=draw(st.booleans()),
        steps=draw(st.integers(1, 8)),
        rows_in_all=0 if not others else count + others,
        leads=draw(st.booleans()),
    )
    by_row = None if live is None else [math.nan if wait is None else wait for wait in live]
    rows = Rows(batch.streams, queue, by_row, outputs)
    return batch, rows, batch.leads


@given(found=st.lists(batches(), min_size=1, max_size=3), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_results_in_any_pieces_are_the_events(found: list[tuple[BatchDone, Rows, bool]], cuts: list[int]) -> None:
    connection = greeted()
    streams = [connection.open() for _ in range(5)]
    data = b""
    for batch, rows, leads in found:
        for stream in batch.streams:
            connection.push(stream, np.zeros(SHAPE, np.int16), tag="tag")
        whole = batch._replace(streams=(0,) * (batch.rows_in_all or len(batch.streams)))
        data += frames.encode_batch(whole, rows, leads=leads)
    data += frames.event(frames.CLOSED, streams[0])
    events = [event for piece in pieces(data, cuts) for event in connection.received(piece)]
    assert events.pop() == StreamClosed(streams[0])
    for event, (batch, _, _) in zip(events, found, strict=True):
        assert isinstance(event, BatchDone)
        assert event._replace(outputs=0) == batch._replace(outputs=0)
        np.testing.assert_array_equal(event.outputs, batch.outputs)
        assert (event.outputs.dtype, event.outputs.shape) == (batch.outputs.dtype, batch.outputs.shape)
        assert event.outputs.flags.writeable
        assert event.outputs.flags.aligned
        assert event.outputs.flags.c_contiguous


def test_outputs_that_are_not_contiguous_or_have_no_values_are_sent() -> None:
    connection = greeted()
    stream = connection.open()
    for outputs in (np.arange(12, dtype=np.float32).reshape(3, 4).T[:1], np.zeros((1, 0), np.float32)):
        connection.push(stream, np.zeros(SHAPE, np.int16))
        batch = BatchDone((stream,), (None,), outputs, (0.0,), 0.0, 0.0, 0)
        rows = Rows([stream], [0.0], None, outputs)
        (event,) = connection.received(frames.encode_batch(batch, rows, leads=True))
        assert isinstance(event, BatchDone)
        np.testing.assert_array_equal(event.outputs, outputs)


@pytest.mark.parametrize(
    "error", [StepFailed("a"), PoolFull("b"), QueueFull("c"), WrongState("ä\nd"), UnknownStream(""), WrongInput("e")]
)
def test_failures_keep_class_and_text(error: BatchingError) -> None:
    (event,) = greeted().received(frames.encode_failed(4, error))
    assert isinstance(event, StreamFailed)
    assert (event.stream, type(event.error), str(event.error)) == (4, type(error), str(error))


def test_a_failure_of_another_class_is_a_batching_error() -> None:
    (event,) = greeted().received(frames.encode_failed(4, OSError("gone")))
    assert isinstance(event, StreamFailed)
    assert type(event.error) is BatchingError


def test_hello_warm_up_and_states_are_decoded() -> None:
    connection = Calls(lambda: 12.5)
    assert connection.hello is None
    stream = connection.open()
    connection.export(stream, "first")
    connection.export(stream, "second")
    warm: EngineEvent = WarmedUp({1: 0.25, 64: 1.5})
    data = HELLO.encoded() + frames.encode_warm(warm)
    data += frames.event(frames.EXPORTED, stream, b"12345") + frames.event(frames.EXPORTED, stream, b"67890")
    assert connection.received(data) == [
        warm,
        StateExported(stream, "first", b"12345"),
        StateExported(stream, "second", b"67890"),
    ]
    assert connection.hello == HELLO


def test_what_is_not_a_frame_is_refused() -> None:
    another = (frames.VERSION + 1).to_bytes(4, "little")
    wrong = [
        frames.event(99, 1),
        frames.event(frames.BATCH, 0, b"short"),
        frames.event(frames.EXPORTED, 5, b"12345"),  # of a stream that is not open
        frames.EVENT.pack(frames.CLOSED, 0, 1, 1 << 40),
        frames.event(frames.HELLO, 0, another + HELLO.encoded()[20:]),
    ]
    for data in wrong:
        with pytest.raises(WrongFrame):
            greeted().received(data)
    row = Rows([1], [0.0], None, np.zeros((1, 2), np.float32))
    batch = BatchDone((1,), (None,), row.outputs, (0.0,), 0.0, 0.0, 0)
    frame = frames.encode_batch(batch, row, leads=True)
    with pytest.raises(WrongFrame, match="bytes of outputs"):
        greeted().received(frames.event(frames.BATCH, 0, frame[16:-1]))


@pytest.mark.parametrize(
    "command",
    [
        frames.COMMAND.pack(99, 0, 1, 0.0),
        frames.COMMAND.pack(frames.OPEN, 0, 1, 0.0),  # a budget of 0
        frames.COMMAND.pack(frames.OPEN, 0, 1, float("nan")),
        2 * frames.COMMAND.pack(frames.OPEN, 0, 1, 0.5),
    ],
)
def test_commands_that_would_harm_the_engine_are_refused(command: bytes) -> None:
    with pytest.raises(WrongFrame):
        read(command_reader(), command, [])


def test_a_connection_asks_for_a_flush_once_until_its_output_is_taken() -> None:
    asked: list[int] = []
    connection = greeted()
    connection._on_output = lambda: asked.append(sum(map(len, connection._output[:2])))
    stream = connection.open()
    connection.push(stream, step(1, samples=3))
    assert asked == [16]
    assert len(connection.take_output()) == 16 + 16 + 6
    connection.push(stream, step(1, samples=3))
    assert len(asked) == 2, "once for each output"
