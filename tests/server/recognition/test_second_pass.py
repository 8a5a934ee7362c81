"""The threads of the second pass: order, errors and end."""

from __future__ import annotations

import asyncio
import threading

from server.recognition.decoding.second_pass import Outcome, SecondPass
from server.recognition.decoding.segment_threads import threads_of
from tests.support.servers.fakes import WAIT_S


def run(jobs: list[tuple[str, bool]], fails: str = "") -> list[tuple[str, Outcome]]:
    """Submit jobs while the one thread is busy; return their outcomes in the order in which they came."""

    async def running() -> list[tuple[str, Outcome]]:
        loop = asyncio.get_running_loop()
        done: asyncio.Queue[tuple[str, Outcome]] = asyncio.Queue()
        second, gate, entered = SecondPass(loop.time, 1), threading.Event(), threading.Event()

        def busy() -> tuple[()]:
            entered.set()
            assert gate.wait(WAIT_S)
            return ()

        def decode(name: str) -> tuple[()]:
            if name == fails:
                raise ArithmeticError(name)
            return ()

        second.submit(busy, lambda outcome: done.put_nowait(("busy", outcome)), background=False)
        await asyncio.to_thread(entered.wait, WAIT_S)
        for name, background in jobs:
            second.submit(
                lambda name=name: decode(name),  # type: ignore[misc]
                lambda outcome, name=name: done.put_nowait((name, outcome)),  # type: ignore[misc]
                background=background,
            )
        assert second.waiting == len(jobs)
        gate.set()
        outcomes = [await asyncio.wait_for(done.get(), WAIT_S) for _ in range(len(jobs) + 1)]
        second.stop()
        return outcomes

    return asyncio.run(running())


def test_live_segments_come_before_uploads_each_in_their_order() -> None:
    found = run([("upload 1", True), ("live 1", False), ("upload 2", True), ("live 2", False)])
    assert [name for name, _ in found] == ["busy", "live 1", "live 2", "upload 1", "upload 2"]
    assert all(outcome.words == () and outcome.error is None and outcome.wait_s >= 0 for _, outcome in found)


def test_a_decode_that_fails_is_an_outcome_and_the_thread_continues() -> None:
    found = dict(run([("a", False), ("b", False)], fails="a"))
    assert isinstance(found["a"].error, ArithmeticError)
    assert (found["a"].words, found["b"].words) == (None, ())


def test_half_as_many_threads_as_cores_are_shared_by_the_processes() -> None:
    sizes = [(1, 1), (1, 2), (1, 4), (3, 8), (5, 16), (17, 64)]
    assert [threads_of(processes, cores) for processes, cores in sizes] == [1, 1, 2, 1, 2, 2]


def test_stopped_threads_end() -> None:
    async def running() -> list[threading.Thread]:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        before, second = set(threading.enumerate()), SecondPass(loop.time, 2)
        second.submit(tuple, lambda _: done.set(), background=False)
        await asyncio.wait_for(done.wait(), WAIT_S)
        started = [thread for thread in threading.enumerate() if thread not in before]
        second.stop()
        return started

    started = asyncio.run(running())
    assert [thread.name for thread in started] == ["second pass 0", "second pass 1"]
    for thread in started:
        thread.join(WAIT_S)
        assert not thread.is_alive()
