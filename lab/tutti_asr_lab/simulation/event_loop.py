"""Simulated event loop that receives messages and sends answers on a virtual clock, and the cores that it shares."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batching.batcher import Pending
from tutti_asr_lab.simulation.calibration import Overheads, RandomFactors
from tutti_asr_lab.simulation.workload import Message

if TYPE_CHECKING:
    from tutti_asr_lab.simulation.model_thread import ModelThread

NEVER_S = math.inf
Answered = Callable[[float, float], None]
"""Callback for each timed step: due time of its message, arrival time of its answer."""


class Cores:
    """Cores shared by event loops and model threads; 0 = one core for each.

    With more busy threads than cores, event loops are slowed in proportion, as by a fair scheduler. The
    slowdown of the model threads is part of the measured `Interference`.
    """

    def __init__(self, count: int, models: Sequence[ModelThread]) -> None:
        self.loops: Sequence[EventLoop] = ()  # set once they exist
        self._count = count
        self._models = models

    def stretch(self, now: float, seconds: float) -> float:
        """Elapsed seconds for work of `seconds` that a thread starts now."""
        if not self._count:
            return seconds
        active = 1 + sum(loop.until_s > now for loop in self.loops) + sum(model.computing for model in self._models)
        return seconds * max(1.0, active / self._count)


class EventLoop:
    """Simulated event loop: processes messages and results one at a time, in order of arrival.

    What its work writes to sockets leaves at the end of that work, as with uvloop: the answers of a batch together.
    """

    def __init__(
        self, costs: Overheads, models: Sequence[ModelThread], cores: Cores, answer: Answered, factors: RandomFactors
    ) -> None:
        self.at_s = NEVER_S
        self.until_s = -1.0  # end of its last work
        self.busy_s = 0.0
        self.streams = 0  # open; counted by the supervisor
        self._costs = costs
        self._models = models
        self._cores = cores
        self._answer = answer
        self._factors = factors
        self._way_s = costs.path_s / 2
        self._free_s = 0.0
        self._held_until_s = 0.0
        self._messages: deque[tuple[float, Message]] = deque()
        self._results: deque[tuple[float, ModelThread, tuple[Pending, ...]]] = deque()

    def receive(self, now: float, message: Message) -> None:
        """Receive a client's message; calls are in order of time."""
        self._messages.append((now, message))
        self._wake(now)

    def deliver(self, now: float, model: ModelThread, batch: tuple[Pending, ...]) -> None:
        """Queue the answers of a batch, or of a part of it, from a model thread."""
        self._results.append((now, model, batch))
        self._wake(now)

    def act(self, now: float) -> None:
        """Process the message or result that arrived first."""
        messages, results = self._messages, self._results
        if messages and (not results or messages[0][0] <= results[0][0]):
            done_s = self._take_in(now, messages.popleft()[1])
        else:
            _, model, batch = results.popleft()
            model.acknowledge(now)
            done_s = self._hand_out(now, batch)
        self.busy_s += done_s - now
        self._free_s = self.until_s = done_s
        self._wait()

    def busy(self, now: float) -> float:
        """Busy time until `now` as a share of all time."""
        return self.busy_s / now if now > 0 else 0.0

    def hold(self, now: float, seconds: float) -> None:
        """Block the event loop while the model thread holds the interpreter lock for `seconds`."""
        self._held_until_s = max(self._free_s, now) + seconds
        self.at_s = max(self.at_s, self._held_until_s)

    def _take_in(self, now: float, message: Message) -> float:
        costs = self._costs
        done_s = now + self._cores.stretch(now, costs.receive_s if message.steps else costs.open_s)
        self._models[message.stream % len(self._models)].command(done_s, message)
        return done_s

    def _hand_out(self, now: float, batch: tuple[Pending, ...]) -> float:
        costs = self._costs
        work_s = (costs.batch_s + (costs.decode_s + costs.write_s) * len(batch)) * self._factors.loop()
        done_s = now + self._cores.stretch(now, work_s)
        for step in batch:
            message = step.item
            if isinstance(message, Message) and message.timed:
                self._answer(message.due_s, done_s + self._way_s)
        return done_s

    def _wake(self, now: float) -> None:
        """Start the item that arrives at `now`, unless an earlier item is started first."""
        if self.at_s > now:
            self.at_s = min(self.at_s, self._begin_s(now))

    def _wait(self) -> None:
        first_s = min(
            self._messages[0][0] if self._messages else NEVER_S, self._results[0][0] if self._results else NEVER_S
        )
        self.at_s = NEVER_S if first_s == NEVER_S else self._begin_s(first_s)

    def _begin_s(self, arrives_s: float) -> float:
        """Return the time at which it starts an item: immediately after other work, else after waking up."""
        ready_s = self._free_s if arrives_s <= self._free_s else arrives_s + self._costs.wake_s * self._factors.wake()
        return max(ready_s, self._held_until_s)
