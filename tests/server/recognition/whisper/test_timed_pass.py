"""Second passes with a deadline: what is late or too much has a reason, and uploads wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from model.ctc.words import Word
from server.recognition.decoding.second_pass import Outcome
from server.recognition.events import Fallback
from server.recognition.whisper.timed_pass import TimedPass, Unusable
from tests.support.servers.fakes import WAIT_S

WORDS = (Word("yes", 0.0, 0.5, 1.0),)
Results = dict[str, list[Outcome]]


class Bench:
    """One thread that is busy until `gate` opens."""

    def __init__(self, *, timeout_s: float, waiting: int) -> None:
        self.passes = TimedPass(asyncio.get_running_loop().time, threads=1, timeout_s=timeout_s, waiting=waiting)
        self.gate, self.entered = threading.Event(), threading.Event()
        self.outcomes: Results = {}
        self.delivered: dict[str, asyncio.Event] = {}
        self.ran: list[str] = []

    async def occupy(self) -> None:
        def busy() -> tuple[Word, ...]:
            self.entered.set()
            assert self.gate.wait(WAIT_S)
            return WORDS

        self.submit("busy", busy)
        await asyncio.to_thread(self.entered.wait, WAIT_S)

    def submit(self, name: str, decode: Callable[[], Any] | None = None, *, background: bool = False) -> None:
        def run() -> Any:
            self.ran.append(name)
            return WORDS if decode is None else decode()

        outcomes, delivered = self.outcomes.setdefault(name, []), self.delivered.setdefault(name, asyncio.Event())

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            delivered.set()

        self.passes.submit(run, done, background=background)

    async def outcome(self, name: str) -> Outcome:
        await asyncio.wait_for(self.delivered[name].wait(), WAIT_S)
        (outcome,) = self.outcomes[name]
        return outcome


def run(test: Callable[[Bench], Awaitable[None]], *, timeout_s: float = WAIT_S, waiting: int = 2) -> None:
    async def running() -> None:
        bench = Bench(timeout_s=timeout_s, waiting=waiting)
        try:
            await test(bench)
        finally:
            bench.gate.set()
            bench.passes.stop()

    asyncio.run(running())


def test_a_segment_in_time_has_its_words() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("one")
        outcome = await bench.outcome("one")
        assert (outcome.words, outcome.error, outcome.fallback) == (WORDS, None, None)

    run(test)


def test_a_late_segment_has_no_words_and_its_result_is_dropped() -> None:
    async def test(bench: Bench) -> None:
        await bench.occupy()
        bench.submit("waits")
        for name in ("busy", "waits"):
            outcome = await bench.outcome(name)
            assert (outcome.words, outcome.fallback) == (None, Fallback.LATE)
            assert outcome.wait_s >= 0.05
        bench.gate.set()
        bench.submit("next")
        assert (await bench.outcome("next")).words == WORDS
        assert bench.ran == ["busy", "next"], "an expired segment is not decoded"
        assert len(bench.outcomes["busy"]) == 1

    run(test, timeout_s=0.05)


def test_a_full_queue_refuses_the_segments_of_live_streams_at_once_but_not_within_the_call() -> None:
    async def test(bench: Bench) -> None:
        await bench.occupy()
        for name in ("a", "b", "c"):
            bench.submit(name)
        assert bench.outcomes["c"] == []
        await asyncio.sleep(0)
        (refused,) = bench.outcomes["c"]
        assert (refused.words, refused.fallback) == (None, Fallback.FULL)
        assert (bench.outcomes["a"], bench.passes.waiting) == ([], 2)
        bench.gate.set()
        assert (await bench.outcome("b")).words == WORDS
        bench.submit("d")
        assert (await bench.outcome("d")).words == WORDS, "the place of a decoded segment is free again"

    run(test)


def test_uploads_come_after_live_streams_without_a_deadline_or_a_place() -> None:
    async def test(bench: Bench) -> None:
        await bench.occupy()
        for n in range(5):
            bench.submit(f"upload {n}", background=True)
        await bench.outcome("busy")  # late
        bench.gate.set()
        bench.submit("live")
        assert [(await bench.outcome(f"upload {n}")).words for n in range(5)] == [WORDS] * 5
        assert bench.ran[1] in {"live", "upload 0"}
        assert (await bench.outcome("live")).words == WORDS

    run(test, timeout_s=0.3, waiting=1)


@pytest.mark.parametrize(
    ("error", "fallback", "counts"),
    [
        (Unusable(Fallback.REPEATED), Fallback.REPEATED, False),
        (ArithmeticError("x"), Fallback.FAILED, True),
        (None, Fallback.EMPTY, False),
    ],
)
def test_a_pass_without_usable_words_says_why(error: Exception | None, fallback: Fallback, counts: bool) -> None:
    def decode() -> tuple[Word, ...]:
        if error is not None:
            raise error
        return ()

    async def test(bench: Bench) -> None:
        bench.submit("one", decode)
        outcome = await bench.outcome("one")
        assert (outcome.fallback, outcome.error is not None) == (fallback, counts)
        bench.submit("two")
        assert (await bench.outcome("two")).words == WORDS

    run(test)
