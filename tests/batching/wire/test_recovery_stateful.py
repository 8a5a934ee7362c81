"""Streams over engines that end at random: all events are those of an engine that never ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from batching.errors import WrongState
from batching.events import BatchDone, StateExported, StreamClosed, StreamFailed
from tests.support.servers.fakes import ChunkedModel, EchoModel, OverlappedModel
from tests.support.streams.engine_bench import step
from tests.support.streams.wire_bench import DrivenEngineServer, Recovering

MAX_QUEUED = 6
ROUNDS = 4  # hypothesis leaves out some rules of an example, and so may one round most of them


@dataclass
class Expected:
    """A stream as `EchoModel` answers it, and what was delivered of it."""

    background: bool
    state: tuple[int, int] = (0, 0)  # first value, steps
    rows: list[tuple[object, list[int]]] = field(default_factory=list)
    exports: list[tuple[object, tuple[int, int], int]] = field(default_factory=list)  # tag, state, rows before it
    found: list[tuple[object, list[int]]] = field(default_factory=list)
    exported: list[tuple[object, tuple[int, int], int]] = field(default_factory=list)
    closing: bool = False

    def push(self, tag: object, value: int, *, reset: bool) -> None:
        first, count = (0, 0) if reset else self.state
        self.state = (first if count else value, count + 1)
        self.rows.append((tag, list(self.state)))

    @property
    def pending(self) -> bool:
        """Whether an answer or a state is still to come."""
        return len(self.found) < len(self.rows) or len(self.exported) < len(self.exports)


class RecoveryMachine(RuleBasedStateMachine):
    """One front end; its engine is replaced again and again, and bytes move in pieces."""

    make: ClassVar[type[EchoModel]] = EchoModel
    seen: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, Expected] = {}
        self.closed: list[int] = []
        self.tags = 0
        self.taken = 0
        self.served = self.started()
        self.front = Recovering(self.served, max_queued=MAX_QUEUED, every_steps=5)

    def started(self) -> DrivenEngineServer:
        return DrivenEngineServer(self.make(capacity=6, largest=4), max_queued=MAX_QUEUED, step_s=0.08)

    def pick(self, choice: int) -> int:
        open_ = [stream for stream, expected in self.streams.items() if not expected.closing]
        return open_[choice % len(open_)]

    def some_open(self) -> bool:
        return any(not expected.closing for expected in self.streams.values())

    @rule(background=st.booleans())
    def open(self, background: bool) -> None:
        if sum(not expected.closing for expected in self.streams.values()) < 4 and len(self.streams) < 6:
            self.streams[self.front.engine.open(background=background)] = Expected(background)

    @rule(choice=st.integers(0, 5), value=st.integers(1, 9), reset=st.integers(0, 5), count=st.integers(1, 4))
    @precondition(some_open)
    def push(self, choice: int, value: int, reset: int, count: int) -> None:
        stream = self.pick(choice)
        expected = self.streams[stream]
        for _ in range(count):
            if len(expected.rows) - len(expected.found) < MAX_QUEUED:
                self.tags += 1
                self.front.engine.push(stream, step(value), tag=self.tags, reset=reset == 0)
                expected.push(self.tags, value, reset=reset == 0)

    @rule(choice=st.integers(0, 5))
    @precondition(some_open)
    def export(self, choice: int) -> None:
        self.tags += 1
        stream = self.pick(choice)
        expected = self.streams[stream]
        self.front.engine.export(stream, self.tags)
        expected.exports.append((self.tags, expected.state, len(expected.rows)))

    @rule(choice=st.integers(0, 5), first=st.integers(1, 9), count=st.integers(1, 100))
    @precondition(some_open)
    def restore(self, choice: int, first: int, count: int) -> None:
        stream = self.pick(choice)
        expected = self.streams[stream]
        state = np.array([first, count]).tobytes()
        if expected.pending:
            with pytest.raises(WrongState):
                self.front.engine.restore(stream, state)
        else:
            self.count("restored")
            self.front.engine.restore(stream, state)
            expected.state = (first, count)

    @rule(choice=st.integers(0, 5))
    @precondition(some_open)
    def close(self, choice: int) -> None:
        stream = self.pick(choice)
        self.front.engine.close(stream)
        self.streams[stream].closing = True

    @rule(turns=st.integers(0, 4), count=st.sampled_from([30, 200, 100_000]))
    def work(self, turns: int, count: int) -> None:
        """Send, run some batches, and take some bytes."""
        if self.front.end is not None:
            self.front.end.send()
            for _ in range(turns):
                self.served.turn()
            self.front.take(count=count)
            self.compare()

    @rule(taken=st.integers(0, 600))
    def lose(self, taken: int) -> None:
        """The engine ends; some of its last bytes arrive."""
        if self.front.end is not None:
            self.front.take(count=taken + 1)
            self.compare()
            self.front.lose()
            self.served.stop(0.0)
            self.count("lost")

    @rule(choice=st.integers(0, 5), value=st.integers(1, 9))
    @precondition(some_open)
    def lose_after_answers(self, choice: int, value: int) -> None:
        """The engine ends after answers whose state it has not exported: they are repeated and dropped later."""
        self.push(choice, value, reset=1, count=3)
        self.work(turns=4, count=100_000)
        self.lose(taken=600)

    @rule()
    def reconnect(self) -> None:
        if self.front.end is None:
            self.served = self.started()
            self.front.connect(self.served)
            if any(kept.base < kept.answered for kept in self.front.engine._streams.values()):
                self.count("repeated")
            self.compare()

    @rule()
    def settle(self) -> None:
        self.reconnect()
        self.served.settle()
        while self.front.move():  # what is sent in one move is answered in a later one
            self.served.settle()
        self.compare()
        for expected in self.streams.values():
            assert not expected.closing
            assert not expected.pending

    def count(self, name: str) -> None:
        self.seen[name] = self.seen.get(name, 0) + 1

    def compare(self) -> None:
        """What was delivered is the beginning of what is expected."""
        events, self.taken = self.front.events[self.taken :], len(self.front.events)
        for event in events:
            assert not isinstance(event, StreamFailed), event.error
            match event:
                case BatchDone():
                    self.take_batch(event)
                case StateExported(stream, tag, state):
                    expected = self.streams[stream]
                    values = np.frombuffer(state, np.int64).tolist()
                    expected.exported.append((tag, (values[0], values[1]), len(expected.found)))
                    assert expected.exports[: len(expected.exported)] == expected.exported
                case StreamClosed(stream):
                    assert self.streams.pop(stream).closing

    def take_batch(self, batch: BatchDone) -> None:
        live = sum(not self.streams[stream].background for stream in batch.streams)
        assert len(batch.live_wait_s) in {0, live}, "none while streams catch up"
        assert batch.streams == tuple(stream for stream in batch.streams[:: batch.steps] for _ in range(batch.steps))
        if batch.rows_in_all:
            self.count("dropped")
        for stream, tag, row in zip(batch.streams, batch.tags, batch.outputs.tolist(), strict=True):
            expected = self.streams[stream]
            expected.found.append((tag, row))
            assert expected.rows[len(expected.found) - 1] == (tag, row)

    def teardown(self) -> None:
        self.settle()
        self.served.stop(0.0)
        self.front.lose()


@pytest.mark.parametrize("model", [EchoModel, OverlappedModel, ChunkedModel])
def test_no_event_is_lost_repeated_or_changed_by_engines_that_end(model: type[EchoModel]) -> None:
    class Machine(RecoveryMachine):
        make = model
        seen: ClassVar[dict[str, int]] = {}

    options = settings(max_examples=100, stateful_step_count=50, deadline=None, database=None)
    for _ in range(ROUNDS):
        run_state_machine_as_test(Machine, settings=options)
        least = min(Machine.seen.get(name, 0) for name in ("lost", "repeated", "dropped", "restored"))
        if least > 3:
            break
    assert least > 3, Machine.seen
