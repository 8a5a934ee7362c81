"""Threads that run the turn model, separate from the event loop and the model thread, with a bounded queue.

An answer is useful only during the pause. A question that meets a full queue, or waits too long in it, gets no answer,
and silence alone decides. A question takes 50 ms of one core, so only as many streams are admitted as the threads can
serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model.machine.cores import usable_cores
from server.audio.pcm import PCM
from server.errors import ServerFull

WAITING = 3  # questions per thread: about as many as it answers before they expire
TOO_OLD_S = 0.2
QUESTIONS_PER_S = 0.5  # rate of a stream with speech: 19 pauses of 200 ms a minute, some of them longer
LOAD = 0.6  # share of the threads' time that admitted streams may use
WARM_UP = 5  # questions, whose median processor time is the cost

Done = Callable[[float], bool]
"""Takes an answer; returns whether it is in time."""
Count = Callable[[str], object]
"""Counts a question by its result: `answered`, `late`, `refused` or `failed`."""


class Answering(Protocol):
    """A turn model."""

    def probability(self, samples: PCM) -> float:
        """Return the probability that the turn is over after these samples at 16 kHz."""


@dataclass(frozen=True, slots=True)
class _Question:
    samples: PCM
    done: Done
    loop: asyncio.AbstractEventLoop
    asked_s: float


class TurnQuestions:
    """The threads, their queue, and the room for streams that ask."""

    def __init__(
        self,
        load: Callable[[], Answering],
        count: Count,
        clock: Callable[[], float],
        *,
        busy_clock: Callable[[], float] = time.thread_time,
        processes: int = 1,
        threads: int | None = None,
    ) -> None:
        """`load` is called once per thread; half the cores are used, divided among `processes`.

        `busy_clock`: processor time of this thread, which does not grow while other programs have the cores. Raises:
        ModelError.
        """
        threads = threads or max(1, usable_cores() // (2 * processes))
        self._models = [load() for _ in range(threads)]
        self._count, self._clock = count, clock
        self._waiting: queue.Queue[_Question | None] = queue.Queue(maxsize=WAITING * threads)
        self._threads: list[threading.Thread] = []
        self.cost_s = _cost_s(self._models[0], busy_clock)
        self.room = max(1, int(LOAD * threads / (self.cost_s * QUESTIONS_PER_S)))
        self.streams = 0

    def enter(self, streams: int) -> None:
        """Count streams that ask. Raises: ServerFull."""
        if self.streams and self.streams + streams > self.room:
            raise ServerFull(f"the turn model answers {self.room} streams at most")
        self.streams += streams

    def leave(self, streams: int) -> None:
        """Stop counting streams that ask."""
        self.streams -= streams

    def ask(self, samples: PCM, done: Done) -> None:
        """Ask about the end of these samples; `done` gets the answer on the running event loop, if there is one."""
        while len(self._threads) < len(self._models):
            model = self._models[len(self._threads)]
            name = f"turn model {len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, args=(model,), name=name, daemon=True))
            self._threads[-1].start()
        try:
            self._waiting.put_nowait(_Question(samples, done, asyncio.get_running_loop(), self._clock()))
        except queue.Full:
            self._count("refused")

    def stop(self) -> None:
        """Let each thread end after its current question; waiting ones are dropped."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
        for _ in self._threads:
            self._waiting.put(None)
        self._threads = []

    def _work(self, model: Answering) -> None:
        while (question := self._waiting.get()) is not None:
            answer, result = None, "late"
            if self._clock() - question.asked_s < TOO_OLD_S:
                try:
                    answer, result = model.probability(question.samples), "answered"
                except Exception:  # noqa: BLE001 - a failed question must not end the thread
                    result = "failed"
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the process ends
                question.loop.call_soon_threadsafe(self._deliver, question.done, answer, result)

    def _deliver(self, done: Done, answer: float | None, result: str) -> None:
        self._count("late" if answer is not None and not done(answer) else result)


def _cost_s(model: Answering, busy_clock: Callable[[], float]) -> float:
    """Return the median processor time of a question, in seconds."""
    times = []
    for _ in range(WARM_UP):
        began_s = busy_clock()
        model.probability(np.zeros(0, np.int16))
        times.append(busy_clock() - began_s)
    return max(sorted(times)[WARM_UP // 2], 1e-3)
