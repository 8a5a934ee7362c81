"""Simulated clients: on other machines, or as a load generator on the same machine that uses processor time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from tutti_asr_lab.simulation.calibration import Client, RandomFactors
from tutti_asr_lab.simulation.event_loop import NEVER_S, Cores
from tutti_asr_lab.simulation.workload import Message

Receive = Callable[[float, Message], None]
"""Delivers a message to the server at this time."""


class Generator:
    """Sends due messages and records answers.

    With a `Client` on the same machine it does one thing at a time, and sends at timer ticks: all messages that are due
    by then leave together, when the last one is made.
    """

    def __init__(
        self,
        costs: Client | None,
        arrivals: Iterator[Message],
        receive: Receive,
        cores: Cores,
        *,
        path_s: float,
        wake_s: float,
        factors: RandomFactors,
    ) -> None:
        self._costs = costs
        self._arrivals = arrivals
        self._receive = receive
        self._cores = cores
        self._way_s = path_s / 2
        self._wake_s = wake_s
        self._factors = factors
        self._free_s = 0.0
        self._answers: list[tuple[float, float]] = []  # heap: (arrival time, due time of its message)
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
        """Record an answer; those of one event loop come in order of time."""
        if self._costs is None:
            self.latencies.append((due_s, at_s - due_s))
        else:
            if at_s > self._free_s and not self._answers:
                at_s += self._wake_s * self._factors.wake()
            heapq.heappush(self._answers, (at_s, due_s))
            self.at_s = min(self.at_s, max(at_s, self._free_s))

    def act(self, now: float) -> None:
        """Send the messages that are due or read the next answer, whichever comes first."""
        message, costs = self._next, self._costs
        if costs is None:
            assert message is not None
            self._send(now, message)
        elif self._answers and (message is None or self._answers[0][0] <= self._sending_s(message)):
            _, due_s = heapq.heappop(self._answers)
            self.latencies.append((due_s, now - due_s))
            self._free_s = now + self._cores.stretch(now, costs.receive_s)
        else:
            self._send_due(now, costs)
        self._cores.client_until_s = self._free_s
        self._wait()

    def _send_due(self, now: float, costs: Client) -> None:
        work_s, due = 0.0, []
        while (message := self._next) is not None and message.due_s <= now:
            work_s += costs.send_s if message.steps else costs.open_s
            due.append(message)
            self._next = next(self._arrivals, None)
        self._free_s = now + self._cores.stretch(now, work_s)
        for message in due:
            self._pass_on(self._free_s, message)

    def _send(self, now: float, message: Message) -> None:
        self._pass_on(now, message)
        self._next = next(self._arrivals, None)

    def _pass_on(self, now: float, message: Message) -> None:
        if message.timed:
            self.sent += message.steps
        self._receive(now + self._way_s, message)

    def _sending_s(self, message: Message) -> float:
        tick_s = self._costs.tick_s if self._costs is not None else 0.0
        # The quotient may round down to a tick just before the message is due.
        return max(message.due_s, math.ceil(message.due_s / tick_s) * tick_s) if tick_s else message.due_s

    def _wait(self) -> None:
        first_s = NEVER_S if self._next is None else self._sending_s(self._next)
        if self._answers:
            first_s = min(first_s, self._answers[0][0])
        self.at_s = max(first_s, self._free_s)
