"""Simulated event loop, which receives messages and sends answers on a virtual clock; and the cores that it shares."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from batching.batcher import Pending
from batching.simulation.calibration import Overheads
from batching.simulation.workload import Message

NEVER_S = math.inf
Answered = Callable[[float, float], None]
"""Callback for each timed step: due time of its message, arrival time of its answer."""


class Model(Protocol):
    """Interface of the model thread to event loop and cores."""

    @property
    def computing(self) -> bool:
        """Whether a batch is running."""
        ...

    def command(self, now: float, message: Message) -> None:
        """Queue steps from the event loop; calls are in order of time."""
        ...

    def acknowledge(self, now: float) -> None:
        """Acknowledge the results of the last batch; called by the event loop."""
        ...


class Cores:
    """Cores shared by event loop, model thread and load generator; 0 = one core for each.

    With more busy threads than cores, event loop and generator are slowed in proportion, as by a fair scheduler. The
    slowdown of the model thread is part of the measured `Interference`.
    """

    def __init__(self, count: int, model: Model) -> None:
        self.loop_until_s = self.client_until_s = -1.0
        self._count = count
        self._model = model

    def stretch(self, now: float, seconds: float) -> float:
        """Elapsed seconds for work of `seconds` that a thread starts now."""
        if not self._count:
            return seconds
        active = 1 + (self.loop_until_s > now) + (self.client_until_s > now) + self._model.computing
        return seconds * max(1.0, active / self._count)


class EventLoop:
    """Simulated event loop: processes messages and results one at a time, in order of arrival."""

    def __init__(self, costs: Overheads, model: Model, cores: Cores, answer: Answered) -> None:
        self.at_s = NEVER_S
        self.busy_s = 0.0
        self._costs = costs
        self._model = model
        self._cores = cores
        self._answer = answer
        self._way_s = costs.path_s / 2
        self._free_s = 0.0
        self._messages: deque[tuple[float, Message]] = deque()
        self._results: deque[tuple[float, tuple[Pending, ...]]] = deque()

    def receive(self, now: float, message: Message) -> None:
        """Receive a client's message; calls are in order of time."""
        self._messages.append((now, message))
        self.at_s = min(self.at_s, max(now, self._free_s))

    def deliver(self, now: float, batch: tuple[Pending, ...]) -> None:
        """Queue the answers of a batch from the model thread."""
        self._results.append((now, batch))
        self.at_s = min(self.at_s, max(now, self._free_s))

    def act(self, now: float) -> None:
        """Process the message or result that arrived first."""
        messages, results = self._messages, self._results
        if messages and (not results or messages[0][0] <= results[0][0]):
            done_s = self._take_in(now, messages.popleft()[1])
        else:
            batch = results.popleft()[1]
            if not results:
                self._model.acknowledge(now)
            done_s = self._hand_out(now, batch)
        self.busy_s += done_s - now
        self._free_s = self._cores.loop_until_s = done_s
        self._wait()

    def busy(self, now: float) -> float:
        """Busy time until `now` as a share of all time."""
        return self.busy_s / now if now > 0 else 0.0

    def hold(self, now: float, seconds: float) -> None:
        """Block the event loop while the model thread holds the interpreter lock for `seconds`."""
        self._free_s = max(self._free_s, now) + seconds
        self._wait()

    def _take_in(self, now: float, message: Message) -> float:
        costs = self._costs
        done_s = now + self._cores.stretch(now, costs.receive_s if message.steps else costs.open_s)
        self._model.command(done_s, message)
        return done_s

    def _hand_out(self, now: float, batch: tuple[Pending, ...]) -> float:
        costs, answer, way_s = self._costs, self._answer, self._way_s
        work_s = costs.batch_s + (costs.decode_s + costs.write_s) * len(batch)
        slower = self._cores.stretch(now, work_s) / work_s if work_s else 1.0
        now += (costs.batch_s + costs.decode_s * len(batch)) * slower
        write_s = costs.write_s * slower
        for step in batch:
            now += write_s
            message = step.item
            if isinstance(message, Message) and message.timed:
                answer(message.due_s, now + way_s)
        return now

    def _wait(self) -> None:
        first_s = min(
            self._messages[0][0] if self._messages else NEVER_S, self._results[0][0] if self._results else NEVER_S
        )
        self.at_s = max(first_s, self._free_s)
