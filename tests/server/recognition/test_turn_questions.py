"""Questions to a turn model on threads of their own: a bounded queue, late answers, failures, room for streams."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import Callable, Coroutine

import numpy as np
import pytest

from server.audio.pcm import PCM
from server.errors import ServerFull
from server.recognition.turn_questions import LOAD, QUESTIONS_PER_S, TOO_OLD_S, WAITING, WARM_UP, TurnQuestions
from tests.support.servers.fakes import WAIT_S, FakeClock

AUDIO = np.ones(3, np.int16)
COST_S = 0.05


class _Model:
    """Answers with the sum of the samples once `free` is set; each question takes `COST_S` of the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.asked, self.free = clock, 0, threading.Event()
        self.free.set()
        self.begun = threading.Semaphore(0)

    def probability(self, samples: PCM) -> float:
        self.asked += 1
        if self.asked <= WARM_UP:
            self.clock.advance(COST_S)
            return 0.5
        self.begun.release()
        assert self.free.wait(WAIT_S)
        if len(samples) == 0:
            raise ArithmeticError("no samples")
        return float(samples.sum()) / 10


class _Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.model = _Model(self.clock)
        self.counted = Counter[str]()
        self.questions = TurnQuestions(lambda: self.model, self._count, self.clock, busy_clock=self.clock, threads=1)
        self.changed = asyncio.Event()

    def _count(self, result: str) -> None:
        self.counted[result] += 1
        self.changed.set()

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not check():
                self.changed.clear()
                await self.changed.wait()


def taking(answers: list[float], *, in_time: bool = True) -> Callable[[float], bool]:
    """Return what keeps an answer and says whether it is in time."""

    def take(answer: float) -> bool:
        answers.append(answer)
        return in_time

    return take


def in_loop(work: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Return a test that runs this one in an event loop."""

    @functools.wraps(work)
    def test() -> None:
        asyncio.run(work())

    return test


@in_loop
async def test_an_answer_comes_on_the_event_loop_and_a_failed_question_has_none() -> None:
    bench, answers = _Bench(), list[float]()
    for audio in (AUDIO, AUDIO[:0], AUDIO[:2]):
        bench.questions.ask(audio, taking(answers))
        assert bench.model.begun.acquire(timeout=WAIT_S)
    await bench.until(lambda: bench.counted.total() == 3)
    assert answers == [0.3, 0.2]
    assert bench.counted == {"answered": 2, "failed": 1}
    bench.questions.stop()


@in_loop
async def test_an_answer_that_is_not_in_time_counts_as_late() -> None:
    bench = _Bench()
    bench.questions.ask(AUDIO, taking([], in_time=False))
    await bench.until(lambda: bench.counted.total() == 1)
    assert bench.counted == {"late": 1}
    bench.questions.stop()


@in_loop
async def test_a_question_that_finds_the_queue_full_or_waits_too_long_has_no_answer() -> None:
    bench, answers = _Bench(), list[float]()
    bench.model.free.clear()
    bench.questions.ask(AUDIO, taking(answers))
    assert bench.model.begun.acquire(timeout=WAIT_S)  # it is out of the queue
    for _ in range(WAITING + 2):
        bench.questions.ask(AUDIO, taking(answers))
    assert bench.counted == {"refused": 2}
    bench.clock.advance(2 * TOO_OLD_S)
    bench.model.free.set()
    await bench.until(lambda: bench.counted.total() == WAITING + 3)
    assert bench.counted == {"answered": 1, "late": WAITING, "refused": 2}
    assert answers == [0.3]
    bench.questions.stop()


def test_as_many_streams_enter_as_the_threads_can_answer_and_one_always() -> None:
    questions = _Bench().questions
    assert questions.room == int(LOAD / (COST_S * QUESTIONS_PER_S))
    questions.enter(questions.room)
    with pytest.raises(ServerFull, match=f"{questions.room} streams"):
        questions.enter(1)
    questions.leave(questions.room)
    questions.enter(questions.room + 1)
