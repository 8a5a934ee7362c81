"""Commands to the engine from other threads: immutable messages, and the queue from which they are executed.

`Step` is a named tuple, because there is one for every step and a frozen dataclass takes three times as long to create.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batching.batcher import StreamId


@dataclass(frozen=True, slots=True)
class Open:
    """Open a stream."""

    stream: StreamId
    budget_s: float
    background: bool


class Step(NamedTuple):
    """Queue one step. `ready_s`: time of the push, so that queue wait includes the wait in the command queue.

    `inputs`: the row, or its bytes.
    """

    stream: StreamId
    inputs: np.ndarray | bytes
    tag: object
    reset: bool
    ready_s: float


@dataclass(frozen=True, slots=True)
class Export:
    """Deliver a stream's state after the steps pushed before this command."""

    stream: StreamId
    tag: object


@dataclass(frozen=True, slots=True)
class Restore:
    """Set a stream's state to an exported one, for the steps pushed after this command."""

    stream: StreamId
    state: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close a stream."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Stop:
    """End the model thread."""


Command = Open | Step | Export | Restore | Close | Stop


class Mailbox:
    """Queue of commands: any thread appends, the model thread removes, and sleeps while it is empty.

    It has no lock: `deque` operations are atomic, and a `SimpleQueue` wakes the model thread.
    """

    def __init__(self) -> None:
        self.commands: deque[Command] = deque()
        """Waiting commands; the model thread removes them, other threads may only count them."""
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False

    def put(self, command: Command) -> None:
        """Append a command; callable from any thread."""
        self.commands.append(command)
        if self._asleep:
            self._asleep = False  # one wake-up suffices for all commands appended before the model thread runs
            self._wakeups.put(None)

    def sleep(self, seconds: float | None) -> None:
        """Wait for a command, at most `seconds` (None = no limit); called by the model thread alone."""
        self._asleep = True
        if not self.commands:  # a `put` before the flag was set sent no wake-up
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=seconds)
        self._asleep = False
