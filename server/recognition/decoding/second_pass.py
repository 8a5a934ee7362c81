"""Threads that run the second pass over ended segments, separate from the event loop and the model thread.

Live streams' segments come first. There is no time limit and none is skipped: a final's text must not depend on the
load. The queue is bounded because audio received after a pending final counts as its stream's backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from model.ctc.words import Word
from server.recognition.decoding.segment_threads import SegmentThreads, threads_of
from server.recognition.events import Fallback

Words = tuple[Word, ...]
Decode = Callable[[], Words]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a second pass: its words, or None and the error; seconds of waiting and of running.

    `fallback`: why a second pass that may be left out gave no words; None for one that may not, and for words.
    """

    words: Words | None
    error: Exception | None
    wait_s: float
    decode_s: float
    fallback: Fallback | None = None


Done = Callable[[Outcome], None]


class SegmentPass(Protocol):
    """What runs second passes: `SecondPass`, or one that may leave some out."""

    @property
    def delays_admission(self) -> bool:
        """Whether new streams are refused while segments wait too long."""

    @property
    def waiting(self) -> int:
        """Segments in the queue."""

    def submit(self, decode: Decode, done: Done, *, background: bool) -> None:
        """Run `decode` on a thread, then `done` on the running event loop."""

    def stop(self) -> None:
        """Let each thread end after its current segment."""


class SecondPass:
    """Runs second passes on threads, without a time limit."""

    delays_admission = True

    def __init__(self, clock: Callable[[], float], workers: int | None = None, *, processes: int = 1) -> None:
        """By default `threads_of` the server's `processes`."""
        self._clock = clock
        self._threads = SegmentThreads("second pass", workers or threads_of(processes))

    @property
    def waiting(self) -> int:
        """Segments in the queue."""
        return self._threads.waiting

    def submit(self, decode: Decode, done: Done, *, background: bool) -> None:
        """Run `decode` on a thread, then `done` on the running event loop."""
        loop, submitted_s = asyncio.get_running_loop(), self._clock()

        def run() -> None:
            began_s = self._clock()
            words, failed = None, None
            try:
                words = decode()
            except Exception as error:  # noqa: BLE001 - a failed segment must not end the thread
                failed = error
            outcome = Outcome(words, failed, began_s - submitted_s, self._clock() - began_s)
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the process ends
                loop.call_soon_threadsafe(done, outcome)

        self._threads.put(run, background=background)

    def stop(self) -> None:
        """Let each thread end after its current segment; waiting ones are dropped."""
        self._threads.stop()
