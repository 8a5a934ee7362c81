"""Log lines on their way out, by a thread of their own: whoever reads them, or does not, holds no stream up.

A line is kept in a bounded queue and written by one thread. A full disk, a reader that is gone and one that stands
still cost lines, never the server. What is lost is counted, and said in the log as soon as it can be written again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable

MAX_LINES = 4_096  # about a megabyte: a second of the busiest server
RETRY_S = 1.0  # after an error of the file


class LogLines:
    """A text file as structlog and logging want one, over a file descriptor that stays the caller's."""

    def __init__(self, fd: int, said_lost: Callable[[int], str]) -> None:
        """`said_lost` makes the line that tells how many were lost."""
        self._fd = fd
        self._said_lost = said_lost
        self._lines: deque[str] = deque()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = threading.Event()
        self._unsaid = 0
        self._lost = 0
        self._count: Callable[[float], None] | None = None
        self._thread = threading.Thread(target=self._main, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue a line; never waits, never raises."""
        if len(self._lines) >= MAX_LINES:
            self._lose(1)
        else:
            self._idle.clear()
            self._lines.append(text)
            self._wake.set()
        return len(text)

    def flush(self) -> None:
        """Do nothing: `drain` waits."""

    def isatty(self) -> bool:
        """Say that colours are not wanted."""
        return False

    def drain(self, timeout_s: float) -> None:
        """Wait until all is written, at most so long: before the process ends."""
        self._stopping.set()
        self._idle.wait(timeout_s)

    def count_lost(self, count: Callable[[float], None]) -> None:
        """Tell this how many lines are lost, on any thread, from now on and so far."""
        self._count = count
        count(self._lost)

    def _lose(self, count: int) -> None:
        self._lost += count
        self._unsaid += count
        if self._count is not None:
            self._count(count)

    def _main(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                self._send()
            self._idle.set()
            if self._lines:  # queued between the last look and the flag
                self._idle.clear()

    def _send(self) -> None:
        """Write all that is queued, or lose it."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        unsaid = self._unsaid
        text = (self._said_lost(unsaid) if unsaid else "") + "".join(lines)
        try:
            _write_all(self._fd, text.encode(errors="backslashreplace"))
        except OSError:
            self._lose(len(lines))
            self._stopping.wait(RETRY_S)  # an error that lasts must not take a core
        else:
            self._unsaid -= unsaid


def _write_all(fd: int, data: bytes) -> None:
    while data:
        with contextlib.suppress(InterruptedError):
            data = data[os.write(fd, data) :]
