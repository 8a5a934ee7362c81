"""The same random commands for several engines; what their events have in common is for the tests that use it."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from batching.events import EngineEvent
from tests.support.servers.fakes import FailingModel
from tests.support.streams.engine_bench import step


class EngineMachine(RuleBasedStateMachine):
    """Streams of engines that run on the test's thread; each command goes to all of them."""

    poisons: ClassVar[bool] = True
    seen: ClassVar[dict[str, int]]

    def __init__(self, *engines: Any) -> None:
        super().__init__()
        self.engines = engines
        self.streams: list[int] = []
        self.tags = 0

    def pick(self, choice: int) -> int:
        return self.streams[choice % len(self.streams)]

    def count(self, name: str, more: int = 1) -> None:
        self.seen[name] = self.seen.get(name, 0) + more

    def count_kinds(self, events: list[EngineEvent]) -> None:
        for event in events:
            self.count("chunk" if getattr(event, "steps", 1) > 1 else type(event).__name__)

    @rule(background=st.booleans())
    def open(self, background: bool) -> None:  # sometimes more than there are slots
        if len(self.streams) < 5 + self.poisons:
            (stream,) = {engine.open(background=background, budget_s=0.25) for engine in self.engines}
            self.streams.append(stream)

    @precondition(lambda self: self.streams)
    @rule(choice=st.integers(0, 5), count=st.integers(1, 4), reset=st.integers(0, 3), poison=st.integers(0, 30))
    def push(self, choice: int, count: int, reset: int, poison: int) -> None:
        for n in range(count):
            self.tags += 1
            value = FailingModel.POISON if self.poisons and poison == 0 else self.tags
            for engine in self.engines:
                engine.push(self.pick(choice), step(value), tag=self.tags, reset=reset == 0 and n == count // 2)

    @precondition(lambda self: self.streams)
    @rule(choice=st.integers(0, 5))
    def export(self, choice: int) -> None:
        self.tags += 1
        for engine in self.engines:
            engine.export(self.pick(choice), self.tags)

    @precondition(lambda self: self.streams)
    @rule(choice=st.integers(0, 5))
    def close(self, choice: int) -> None:
        stream = self.streams.pop(choice % len(self.streams))
        for engine in self.engines:
            engine.close(stream)
