"""Threads that run the second pass over ended segments, separate from the event loop and the model thread.

Live streams' segments come first. There is no time limit and none is skipped: a final's text must not depend on the
load. The queue is bounded because audio received after a pending final counts as its stream's backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from model.ctc.words import Word
from model.machine.cores import usable_cores
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
_END = -1  # sort key of the job that ends a thread: before all others


@dataclass(frozen=True, slots=True)
class _Work:
    decode: Decode
    done: Done
    loop: asyncio.AbstractEventLoop
    submitted_s: float


@dataclass(order=True, slots=True)
class _Job:
    background: bool
    number: int
    work: _Work | None = field(default=None, compare=False)  # None: the thread ends


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
    """The threads and their queue. The threads start with the first segment."""

    delays_admission = True

    def __init__(self, clock: Callable[[], float], workers: int | None = None, *, processes: int = 1) -> None:
        """By default half as many threads as cores, shared by `processes`; the rest is for models and event loop."""
        self._clock = clock
        self._workers = workers or max(1, usable_cores() // (2 * processes))
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        """Segments in the queue."""
        return self._jobs.qsize()

    def submit(self, decode: Decode, done: Done, *, background: bool) -> None:
        """Run `decode` on a thread, then `done` on the running event loop."""
        while len(self._threads) < self._workers:
            name = f"second pass {len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        work = _Work(decode, done, asyncio.get_running_loop(), self._clock())
        self._jobs.put(_Job(background, next(self._numbers), work))

    def stop(self) -> None:
        """Let each thread end after its current segment; waiting ones are dropped."""
        for _ in self._threads:
            self._jobs.put(_Job(background=False, number=_END))
        self._threads = []

    def _work(self) -> None:
        while (work := self._jobs.get().work) is not None:
            self._do(work)

    def _do(self, work: _Work) -> None:
        began_s = self._clock()
        words, failed = None, None
        try:
            words = work.decode()
        except Exception as error:  # noqa: BLE001 - a failed segment must not end the thread
            failed = error
        outcome = Outcome(words, failed, began_s - work.submitted_s, self._clock() - began_s)
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the process ends
            work.loop.call_soon_threadsafe(work.done, outcome)
