"""The same calls for an engine in this process and for one over a socket: events and their order are equal."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from batching.events import BatchDone, EngineEvent, StreamFailed
from batching.slot_model import SlotModel
from tests.support.servers.fakes import ChunkedModel, FailingModel, OverlappedModel
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.engine_machine import EngineMachine
from tests.support.streams.wire_bench import DrivenEngineServer, FrontEnd


def summary(event: EngineEvent) -> tuple[object, ...]:
    """All fields of an event except error texts."""
    match event:
        case BatchDone():
            return (*event._replace(outputs=0), event.outputs.tolist())
        case StreamFailed(stream, error):
            return stream, type(error)
    return (event,)


class ServedMachine(EngineMachine):
    """One front end over a socket, and an engine without one; both run on this thread."""

    make: ClassVar[type[FailingModel | ChunkedModel]] = FailingModel

    def __init__(self) -> None:
        self.expected: list[EngineEvent] = []
        self.found: list[EngineEvent] = []
        options = {"max_queued": 4, "step_s": 0.08, "background_rows": 2}
        self.plain = DrivenEngine(self.model(), self.expected.append, **options)
        self.served = DrivenEngineServer(self.model(), **options)
        self.end = FrontEnd(self.served)
        super().__init__(self.plain, self.end.connection)

    def model(self) -> SlotModel:
        return self.make(capacity=5, largest=4)

    @rule(choice=st.integers(0, 5), value=st.integers(0, 255))
    @precondition(lambda self: self.streams)
    def restore(self, choice: int, value: int) -> None:
        for engine in self.engines:
            engine.restore(self.pick(choice), bytes([value]) * 16)

    @rule(choice=st.integers(0, 5))
    @precondition(lambda self: self.streams)
    def close_twice(self, choice: int) -> None:
        for engine in self.engines:
            engine.close(self.pick(choice))
        self.close(choice)

    @rule(seconds=st.floats(0, 0.3))
    def advance(self, seconds: float) -> None:
        self.plain.fake_clock.advance(seconds)
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
        self.count_kinds(self.found)
        batches = [event for event in self.found if isinstance(event, BatchDone)]
        self.count("other waits", sum(batch.live_wait_s != batch.queue_wait_s for batch in batches))
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
        if all(Machine.seen.get(name) for name in wanted):
            return
    pytest.fail(f"no random run had {sorted(wanted - Machine.seen.keys())}")
