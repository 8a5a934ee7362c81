"""The same calls for an engine in this process and for one over a socket: events and their order are equal."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from batching.events import BatchDone, EngineEvent, StreamFailed
from batching.slot_model import SlotModel
from tests.support.servers.fakes import ChunkedModel, FailingModel, OverlappedModel
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.engine_bench import step
from tests.support.streams.wire_bench import DrivenEngineServer, FrontEnd


def summary(event: EngineEvent) -> tuple[object, ...]:
    """All fields of an event except error texts."""
    match event:
        case BatchDone():
            return (*event._replace(outputs=0), event.outputs.tolist())
        case StreamFailed(stream, error):
            return stream, type(error)
    return (event,)


class ServedMachine(RuleBasedStateMachine):
    """One front end over a socket, and an engine without one; both run on this thread."""

    make: ClassVar[type[FailingModel | ChunkedModel]] = FailingModel
    seen: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[EngineEvent] = []
        self.found: list[EngineEvent] = []
        options = {"max_queued": 4, "step_s": 0.08, "background_rows": 2}
        self.plain = DrivenEngine(self.model(), self.expected.append, **options)
        self.served = DrivenEngineServer(self.model(), **options)
        self.end = FrontEnd(self.served)
        self.streams: list[int] = []
        self.tags = 0

    def model(self) -> SlotModel:
        return self.make(capacity=5, largest=4)

    def pick(self, choice: int) -> int:
        return self.streams[choice % len(self.streams)]

    @rule(background=st.booleans())
    def open(self, background: bool) -> None:  # sometimes more than there are slots
        if len(self.streams) < 6:
            first = self.plain.open(background=background, budget_s=0.25)
            assert self.end.connection.open(background=background, budget_s=0.25) == first
            self.streams.append(first)

    @rule(choice=st.integers(0, 5), value=st.integers(1, 9), reset=st.booleans(), poison=st.integers(0, 30))
    @precondition(lambda self: self.streams)
    def push(self, choice: int, value: int, reset: bool, poison: int) -> None:
        self.tags += 1
        inputs = step(FailingModel.POISON if poison == 0 else value)
        for engine in (self.plain, self.end.connection):
            engine.push(self.pick(choice), inputs, tag=self.tags, reset=reset)

    @rule(choice=st.integers(0, 5), steps=st.integers(2, 4))
    @precondition(lambda self: self.streams)
    def push_several(self, choice: int, steps: int) -> None:  # what makes a chunk: steps of a stream that wait together
        for _ in range(steps):
            self.push(choice, value=1, reset=False, poison=1)

    @rule(choice=st.integers(0, 5))
    @precondition(lambda self: self.streams)
    def export(self, choice: int) -> None:
        self.tags += 1
        for engine in (self.plain, self.end.connection):
            engine.export(self.pick(choice), self.tags)

    @rule(choice=st.integers(0, 5), value=st.integers(0, 255))
    @precondition(lambda self: self.streams)
    def restore(self, choice: int, value: int) -> None:
        for engine in (self.plain, self.end.connection):
            engine.restore(self.pick(choice), bytes([value]) * 16)

    @rule(choice=st.integers(0, 5), twice=st.booleans())
    @precondition(lambda self: self.streams)
    def close(self, choice: int, twice: bool) -> None:
        stream = self.pick(choice)
        for engine in (self.plain, self.end.connection):
            engine.close(stream)
            if twice:
                engine.close(stream)
        self.streams.remove(stream)

    @rule(seconds=st.floats(0, 0.3))
    def advance(self, seconds: float) -> None:
        self.plain._fake_clock.advance(seconds)
        self.served.fake_clock.advance(seconds)

    @rule()
    def turn(self) -> None:
        self.plain.turn()
        self.end.send()
        self.served.turn()
        self.compare()

    @rule()
    def settle(self) -> None:
        self.plain.settle()
        self.end.send()
        self.served.settle()
        self.compare()

    def compare(self) -> None:
        self.found += self.end.events()
        assert [*map(summary, self.found)] == [*map(summary, self.expected)]
        for event in self.found:
            name = type(event).__name__
            if isinstance(event, BatchDone) and event.steps > 1:
                name = "chunk"
            if isinstance(event, BatchDone) and event.live_wait_s != event.queue_wait_s:
                self.seen["other waits"] = self.seen.get("other waits", 0) + 1
            self.seen[name] = self.seen.get(name, 0) + 1
        self.found.clear()
        self.expected.clear()

    def teardown(self) -> None:
        self.settle()
        self.served.stop(0.0)
        self.end.close()


ROUNDS = 5  # of random runs, each of other examples (in CI too), until all kinds of events were seen


@pytest.mark.parametrize("model", [FailingModel, OverlappedModel, ChunkedModel])
def test_events_over_a_socket_are_those_of_an_engine_in_this_process(model: type[FailingModel | ChunkedModel]) -> None:
    class Machine(ServedMachine):
        make = model
        seen: ClassVar[dict[str, int]] = {}

    options = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None, derandomize=False)
    wanted = {"BatchDone", "StateExported", "StreamFailed", "StreamClosed", "other waits"}
    wanted |= {"chunk"} if model is ChunkedModel else set()
    for _ in range(ROUNDS):
        run_state_machine_as_test(Machine, settings=options)
        if wanted <= Machine.seen.keys():
            return
    pytest.fail(f"no random run had {sorted(wanted - Machine.seen.keys())}")
