"""More streams than slots: every answer and every state is that of the stream alone, wherever its state is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.errors import PoolFull
from batching.events import BatchDone, EngineEvent, StateExported, StreamClosed, StreamFailed
from batching.pool import SlotPool
from batching.thread.stream_states import StreamStates
from tests.support.servers.fakes import EchoModel
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.engine_bench import step

SLOTS, STREAMS = 3, 7
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["push", "push", "push", "reset", "export", "move", "run"]), st.integers(0, STREAMS - 1))
)


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS)
def test_streams_without_a_slot_of_their_own_are_answered_as_if_they_had_one(actions: list[tuple[str, int]]) -> None:
    """The naive model counts the steps of each stream; its first value says whose state answered."""
    events: list[EngineEvent] = []
    engine = DrivenEngine(EchoModel(capacity=SLOTS, largest=2), events.append, max_streams=STREAMS)
    streams = [engine.open() for _ in range(STREAMS)]
    steps, wanted, states = [0] * STREAMS, list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    for action, which in actions:
        stream = streams[which]
        if action in ("push", "reset"):
            steps[which] = 1 if action == "reset" else steps[which] + 1
            engine.push(stream, step(stream), reset=action == "reset")
            wanted.append((stream, stream, steps[which]))
        elif action == "export":
            engine.export(stream)
            states.append((stream, stream if steps[which] else 0, steps[which]))
        elif action == "move":
            engine.settle()
            engine.restore(stream, np.array([stream, 100], np.int64).tobytes())
            steps[which] = 100
        else:
            engine.turn()
    for stream in streams:
        engine.close(stream) if stream % 2 else None
    engine.settle()
    batches = [event for event in events if isinstance(event, BatchDone)]
    rows = [(s, *map(int, row)) for each in batches for s, row in zip(each.streams, each.outputs, strict=True)]
    for stream in streams:
        mine = [row for row in rows if row[0] == stream]
        assert mine == [one for one in wanted if one[0] == stream][: len(mine) if stream % 2 else None]
    found = [(e.stream, *np.frombuffer(e.state, np.int64)) for e in events if isinstance(e, StateExported)]
    for stream in streams:
        mine = [one for one in found if one[0] == stream]
        assert mine == [one for one in states if one[0] == stream][: len(mine) if stream % 2 else None]
    assert [e.stream for e in events if isinstance(e, StreamClosed)] == [stream for stream in streams if stream % 2]


def test_a_stream_beyond_the_bound_is_refused_alone() -> None:
    events: list[EngineEvent] = []
    engine = DrivenEngine(EchoModel(capacity=2, largest=2), events.append, max_streams=3)
    streams = [engine.open() for _ in range(4)]
    engine.settle()
    (failed,) = events
    assert isinstance(failed, StreamFailed)
    assert (failed.stream, type(failed.error)) == (streams[3], PoolFull)
    engine.close(streams[0])
    engine.push(again := engine.open(), step(5))
    engine.settle()
    assert [e.streams for e in events if isinstance(e, BatchDone)] == [(again,)]


@pytest.mark.parametrize("stepping", [1, 2, 3])
def test_streams_that_step_keep_their_slots_while_others_rest(stepping: int) -> None:
    """No state is moved as long as fewer streams step than there are slots."""
    model = EchoModel(capacity=4, largest=4)
    states, moved = StreamStates(SlotPool(model), 20), 0
    for stream in range(20):
        states.open(stream)
    export = model.export

    def counted(slot: int) -> bytes:
        nonlocal moved
        moved += 1
        return export(slot)

    model.export = counted  # type: ignore[method-assign]
    awake = range(20 - stepping, 20)
    for _ in range(5):
        for stream in awake:
            states.handles((stream,))
    assert moved == stepping
