"""What can go wrong with a whole process while it serves, looked for by the pulse. Pure: told what is, says what to do.

A stream's own trouble ends the stream. These end nothing by themselves, and would go on unseen: an engine that is gone
or stands still, a device on which every step fails, and a process that has no file descriptor left.
"""

from __future__ import annotations

import errno
import os

FAILURES = 16
"""Streams broken one after another, without one good batch between, after which the device is thought to be lost. What
one client sends cannot break a step: it is checked before."""


class EngineVigil:
    """Decides when an engine is given up."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._batches = 0.0
        self._failed = 0.0

    def look(self, *, moves: bool, batches: float, failed: float) -> str | None:
        """Take what was counted so far; return why the engine is to be given up, None if it is not.

        `moves` is false for an engine that has ended, or has been at one piece of work for `timeout_s`.
        """
        if not moves:
            return f"the engine has ended, or has been at one step for {self.timeout_s:g} s"
        if batches != self._batches:
            self._batches, self._failed = batches, failed
        if failed - self._failed >= FAILURES:
            return f"{FAILURES} streams in a row failed, and no step succeeded between them"
        return None


def free_descriptor() -> bool:
    """Whether this process can open another file or socket: tried, because the limit may be the system's too."""
    try:
        os.close(os.dup(1))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
