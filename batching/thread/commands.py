"""Commands to the engine from other threads: immutable messages, and the one queue that they are executed from.

`Step` is a tuple, not a frozen dataclass: there is one for each step of each stream, and a tuple takes a third of the
time to make.
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
    """Admit a stream."""

    stream: StreamId
    budget_s: float
    background: bool


class Step(NamedTuple):
    """Queue one step; `ready_s` is the time of the push, so that queue wait includes the wait in the engine's queue."""

    stream: StreamId
    inputs: np.ndarray
    tag: object
    reset: bool
    ready_s: float


@dataclass(frozen=True, slots=True)
class Export:
    """Deliver a stream's state as it is after the steps that were pushed before this."""

    stream: StreamId
    tag: object


@dataclass(frozen=True, slots=True)
class Restore:
    """Set a stream's state, for the steps that are pushed after this, to one that was exported."""

    stream: StreamId
    state: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """End a stream."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread."""


Command = Open | Step | Export | Restore | Close | Stop


class Mailbox:
    """Commands in order of arrival: any thread puts, the model thread takes, and sleeps while there are none.

    No lock of ours: `deque` is safe for one thread at each end, and a `SimpleQueue` wakes the model thread.
    """

    def __init__(self) -> None:
        self.commands: deque[Command] = deque()
        """Waiting commands, for the taker to remove, and for others to count."""
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False

    def put(self, command: Command) -> None:
        """Append a command, from any thread."""
        self.commands.append(command)
        if self._asleep:
            self._asleep = False  # one wake-up is enough for all that is appended until the taker runs
            self._wakeups.put(None)

    def sleep(self, seconds: float | None) -> None:
        """Wait for a command, at most `seconds` (None: without limit); the taker alone calls it."""
        self._asleep = True
        if not self.commands:  # a `put` before the flag was set sent no wake-up
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=seconds)
        self._asleep = False
