"""Simulated clients: on other machines, or a load generator on the same machine that takes time itself."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from batching.simulation.calibration import Client
from batching.simulation.event_loop import NEVER_S, Cores, EventLoop
from batching.simulation.workload import Message


class Generator:
    """Sends due messages and records answers; with a `Client`, one at a time and at timer ticks."""

    def __init__(
        self, costs: Client | None, arrivals: Iterator[Message], loop: EventLoop, cores: Cores, path_s: float
    ) -> None:
        self._costs = costs
        self._arrivals = arrivals
        self._loop = loop
        self._cores = cores
        self._way_s = path_s / 2
        self._free_s = 0.0
        self._answers: deque[tuple[float, float]] = deque()  # (arrival time, due time of its message)
        self._next: Message | None = next(arrivals, None)
        self.latencies: list[tuple[float, float]] = []  # (due, seconds)
        self.sent = 0  # timed steps
        self.at_s = NEVER_S
        self._wait()

    def stop(self) -> None:
        """Stop sending."""
        self._next = None
        self._wait()

    def answered(self, due_s: float, at_s: float) -> None:
        """Record an answer; calls are in order of time."""
        if self._costs is None:
            self.latencies.append((due_s, at_s - due_s))
        else:
            self._answers.append((at_s, due_s))
            self.at_s = min(self.at_s, max(at_s, self._free_s))

    def act(self, now: float) -> None:
        """Send the next message or read the next answer, whichever comes first."""
        message, costs = self._next, self._costs
        if costs is None:
            assert message is not None
            self._send(now, message)
        elif self._answers and (message is None or self._answers[0][0] <= self._sending_s(message)):
            _, due_s = self._answers.popleft()
            self.latencies.append((due_s, now - due_s))
            self._free_s = now + self._cores.stretch(now, costs.receive_s)
        else:
            assert message is not None
            self._free_s = now + self._cores.stretch(now, costs.send_s)
            self._send(self._free_s, message)
        self._cores.client_until_s = self._free_s
        self._wait()

    def _send(self, now: float, message: Message) -> None:
        if message.timed:
            self.sent += message.steps
        self._loop.receive(now + self._way_s, message)
        self._next = next(self._arrivals, None)

    def _sending_s(self, message: Message) -> float:
        tick_s = self._costs.tick_s if self._costs is not None else 0.0
        return math.ceil(message.due_s / tick_s) * tick_s if tick_s else message.due_s

    def _wait(self) -> None:
        first_s = NEVER_S if self._next is None else self._sending_s(self._next)
        if self._answers:
            first_s = min(first_s, self._answers[0][0])
        self.at_s = max(first_s, self._free_s)
