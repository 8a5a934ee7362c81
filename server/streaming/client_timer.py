"""Timer of a wait for a client, which does not blame it for a time in which this process stood still.

A process stands still while its machine is paused, its memory is swapped in, or its event loop is blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LATE_S = 1.0  # a timer that is later than this was held up: the client gets the time again
READ_S = 0.01  # what the client sent is read within this time, which takes one turn of the event loop


class ClientTimer:
    """Calls `action` after `seconds`, at the earliest one turn of the event loop later, which reads the sockets.

    If it is called more than `LATE_S` too late, the time starts anew, with `LATE_S` at least.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, action: Callable[[], None]) -> None:
        self._loop = loop
        self.stood_still_s = 0.0  # in all
        self.start(seconds, action)

    def start(self, seconds: float, action: Callable[[], None]) -> None:
        """Start anew, after `cancel` or in the action."""
        self._seconds = seconds
        self._action = action  # only while it runs, so that no cycle is left
        self._due_s = self._loop.time() + seconds
        self._handle = self._loop.call_at(self._due_s, self._look)

    def cancel(self) -> None:
        """Do not call the action."""
        self._handle.cancel()
        self._action = _nothing

    def _look(self) -> None:
        late_s = self._loop.time() - self._due_s
        if late_s > LATE_S:
            self.stood_still_s += late_s
            self.start(max(self._seconds, LATE_S), self._action)
        else:
            self._handle = self._loop.call_later(READ_S, self._action)
            self._action = _nothing


def _nothing() -> None:
    """Action of a timer that does not run."""
