"""When a change comes to hold on one channel: with the first step of the audio that followed it. Pure.

Steps are answered in their order and long after they were pushed, so a change waits for its turn, and the words do not
depend on how fast the engine is.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What holds, and what waits: of changes with no step between them, the last one alone."""

    def __init__(self, held: T) -> None:
        self.held = held
        self.pushed = 0  # steps that were handed to the engine
        self.answered = 0
        self._waiting: deque[tuple[int, T]] = deque()  # each with the number of steps that go before it

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def latest(self) -> T:
        """What will hold for audio that comes now."""
        return self._waiting[-1][1] if self._waiting else self.held

    def change(self, to: T) -> None:
        """Let it hold for the steps to come."""
        if self._waiting and self._waiting[-1][0] == self.pushed:
            self._waiting.pop()
        self._waiting.append((self.pushed, to))

    def turn(self) -> None:
        """Let hold whatever has its turn."""
        while self._waiting and self._waiting[0][0] <= self.answered:
            self.held = self._waiting.popleft()[1]
