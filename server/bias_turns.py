"""When a change of key terms comes to hold on one channel: with the first step of the audio that followed it. Pure.

Steps are answered in their order and long after they were pushed, so a change waits for its turn, and the words do not
depend on how fast the engine is.
"""

from __future__ import annotations

from collections import deque

from model.ctc.bias import Bias


class BiasTurns:
    """The bias that holds, and those that wait: of changes with no step between them, the last one alone."""

    def __init__(self, bias: Bias) -> None:
        self.held = bias
        self.pushed = 0  # steps that were handed to the engine
        self.answered = 0
        self._waiting: deque[tuple[int, Bias]] = deque()  # each with the number of steps that go before it

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def change(self, bias: Bias) -> None:
        """Let it hold for the steps to come."""
        if self._waiting and self._waiting[-1][0] == self.pushed:
            self._waiting.pop()
        self._waiting.append((self.pushed, bias))

    def turn(self) -> bool:
        """Take the bias whose turn has come; return whether there was one."""
        came = False
        while self._waiting and self._waiting[0][0] <= self.answered:
            self.held = self._waiting.popleft()[1]
            came = True
        return came
