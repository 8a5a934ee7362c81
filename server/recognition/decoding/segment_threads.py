"""Threads for work on ended segments, separate from the event loop and the model thread; live streams' come first."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from model.machine.cores import usable_cores

_END = -1  # sort key of the job that ends a thread: before all others


@dataclass(order=True, slots=True)
class _Job:
    background: bool
    number: int
    work: Callable[[], None] | None = field(default=None, compare=False)  # None: the thread ends


class SegmentThreads:
    """The threads and their queue. The threads start with the first segment."""

    def __init__(self, name: str, threads: int) -> None:
        """`name`: of the threads, for people."""
        self._name, self._count = name, threads
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        """Segments in the queue."""
        return self._jobs.qsize()

    def put(self, work: Callable[[], None], *, background: bool) -> None:
        """Run `work`, which raises nothing, on a thread."""
        while len(self._threads) < self._count:
            name = f"{self._name} {len(self._threads)}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._threads[-1].start()
        self._jobs.put(_Job(background, next(self._numbers), work))

    def stop(self) -> None:
        """Let each thread end after its current segment; waiting ones are dropped."""
        for _ in self._threads:
            self._jobs.put(_Job(background=False, number=_END))
        self._threads = []

    def _run(self) -> None:
        while (work := self._jobs.get().work) is not None:
            work()


def threads_of(processes: int, cores: int | None = None) -> int:
    """Return the threads of a process: half as many as cores, rounded, shared by `processes` of this server.

    The rest is for models and event loop. `cores`: by default those of this machine.
    """
    return max(1, round((cores or usable_cores()) / (2 * processes)))
