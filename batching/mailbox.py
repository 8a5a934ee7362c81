"""The engine's one queue of commands: any thread appends, the model thread takes, and sleeps while there is nothing.

No lock of ours: `deque` is safe for one end each, and a bell wakes a sleeper.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Sequence

from batching.commands import Command


class Mailbox:
    """Commands in their order. Whoever appends one while the taker sleeps rings the bell."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Append one, from any thread."""
        self._commands.append(command)
        self._ring()

    def put_all(self, commands: Sequence[Command]) -> None:
        """Append several, with one ring."""
        self._commands.extend(commands)
        self._ring()

    def take(self) -> Command:
        """Remove and return the oldest. Raises: IndexError if there is none."""
        return self._commands.popleft()

    def sleep(self, seconds: float | None) -> None:
        """Wait for a command, or so long; the taker alone calls it."""
        self._asleep = True
        if not self._commands:  # whoever appended before the flag was up did not ring
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=seconds)
        self._asleep = False

    def _ring(self) -> None:
        if self._asleep:
            self._asleep = False  # one ring is enough for all that is appended until it wakes
            self._bell.put(None)
