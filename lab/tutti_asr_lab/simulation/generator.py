"""Simulated clients on other machines: they send due messages and record the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tutti_asr_lab.simulation.event_loop import NEVER_S
from tutti_asr_lab.simulation.workload import Message

Receive = Callable[[float, Message], None]
"""Delivers a message to the server at this time."""


class Generator:
    """Sends each message when it is due; `path_s` is the time of a round trip outside all threads."""

    def __init__(self, arrivals: Iterator[Message], receive: Receive, *, path_s: float) -> None:
        self._arrivals = arrivals
        self._receive = receive
        self._way_s = path_s / 2
        self._next: Message | None = next(arrivals, None)
        self.latencies: list[tuple[float, float]] = []  # (due, seconds)
        self.sent = 0  # timed steps

    @property
    def at_s(self) -> float:
        """Due time of the next message."""
        return NEVER_S if self._next is None else self._next.due_s

    def stop(self) -> None:
        """Stop sending."""
        self._next = None

    def answered(self, due_s: float, at_s: float) -> None:
        """Record an answer; those of one event loop come in order of time."""
        self.latencies.append((due_s, at_s - due_s))

    def act(self, now: float) -> None:
        """Send the next message."""
        message = self._next
        assert message is not None, "it is due"
        if message.timed:
            self.sent += message.steps
        self._receive(now + self._way_s, message)
        self._next = next(self._arrivals, None)
