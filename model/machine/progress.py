"""A line on the terminal that counts the seconds while functions are compiled for this processor; Ctrl-C ends that."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any, TextIO

from model.machine.compiler import LIBRARY, event

EVERY_S = 1.0
LINE = "tutti: compiling for this processor, once for each installation: {:.0f} s"
INTERRUPTED = 128 + signal.SIGINT  # as shells report it
CLEAR = "\r\x1b[K"  # ECMA-48: erase to the end of the line


def show_compilation(output: TextIO | None = None) -> None:
    """Show on a terminal, from now on, that this process compiles, and let Ctrl-C end it in the middle of a function.

    Call it in the main thread; `output`: None for standard error. Where shipped code runs it does nothing.
    """
    if LIBRARY is None:
        counter = _Counter(output or sys.stderr)
        event.register("numba:compile", counter)
        signal.signal(signal.SIGINT, counter.interrupt)


class _Counter(event.Listener):  # type: ignore[misc]
    """Listener of the compiler: shows the line from the start of a compilation to its end, without inner ones."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._compiling: list[Any] = []
        self._since_s = 0.0
        self._ended = threading.Event()

    def on_start(self, event: Any) -> None:
        """Begin the line with the outermost compilation; the seconds are those since the first one."""
        self._compiling.append(event)
        if len(self._compiling) == 1:
            self._since_s = self._since_s or time.monotonic()
            self._ended = threading.Event()
            threading.Thread(target=self._count, args=(self._ended,), daemon=True).start()

    def on_end(self, event: Any) -> None:
        """Erase the line with the end of the outermost compilation."""
        del event
        self._compiling.pop()
        if not self._compiling:
            self._ended.set()

    def interrupt(self, number: int, frame: Any) -> None:
        """End the process while it compiles, in whichever thread: a compilation cannot be cancelled."""
        if not self._compiling:
            signal.default_int_handler(number, frame)
        self._write(CLEAR)
        os._exit(INTERRUPTED)

    def _count(self, ended: threading.Event) -> None:
        while not ended.wait(EVERY_S):
            self._write(f"\r{LINE.format(time.monotonic() - self._since_s)}")
        self._write(CLEAR)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed: the terminal is gone, or the program closed it
            if self._output.isatty():
                self._output.write(text)
                self._output.flush()
