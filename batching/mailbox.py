"""The engine's one queue of commands: any thread appends, the model thread takes, and sleeps while it is empty.

No lock of ours: `deque` is safe for one thread at each end, and a `SimpleQueue` wakes the model thread.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque

from batching.commands import Command


class Mailbox:
    """Commands in order of arrival; `put` wakes the taker if it sleeps."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False

    def __len__(self) -> int:
        """Number of waiting commands."""
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Append a command, from any thread."""
        self._commands.append(command)
        if self._asleep:
            self._asleep = False  # one wake-up is enough for all that is appended until the taker runs
            self._wakeups.put(None)

    def take(self) -> Command:
        """Remove and return the oldest command. Raises: IndexError if there is none."""
        return self._commands.popleft()

    def sleep(self, seconds: float | None) -> None:
        """Wait for a command, at most `seconds` (None: without limit); the taker alone calls it."""
        self._asleep = True
        if not self._commands:  # a `put` before the flag was set sent no wake-up
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=seconds)
        self._asleep = False
