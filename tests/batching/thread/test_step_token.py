"""StepToken: engines that share one run their batches one after the other, and wait a bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from batching.thread.step_token import StepToken
from tests.support.servers.fakes import WAIT_S, EchoModel
from tests.support.streams.engine_bench import Start, step

LONG_S = 60.0


def test_a_waiter_proceeds_after_its_patience_and_releases_nothing() -> None:
    token, go = StepToken(0.01), threading.Event()
    inside = threading.Event()

    def slow() -> None:
        with token.held():
            inside.set()
            assert go.wait(WAIT_S)

    thread = threading.Thread(target=slow)
    thread.start()
    assert inside.wait(WAIT_S)
    for _ in range(2):  # if the first waiter released the token of the slow one, the second would not wait
        began_s = time.perf_counter()
        with token.held():
            assert thread.is_alive()
        assert time.perf_counter() - began_s >= 0.01
    go.set()
    thread.join(WAIT_S)


def test_the_token_is_free_again_after_an_error() -> None:
    token = StepToken(LONG_S)
    with pytest.raises(ValueError, match="once"), token.held():
        raise ValueError("once")
    with token.held():
        pass


class Watched(EchoModel):
    """Record how many models of this class run at once."""

    def __init__(self, running: list[int], most: list[int]) -> None:
        super().__init__(capacity=4)
        self._running, self._most = running, most

    def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
        self._running.append(1)
        self._most.append(len(self._running))
        time.sleep(0.002)
        self._running.pop()
        return super().run(slots)


@pytest.mark.parametrize(("shared", "most_at_once"), [(True, 1), (False, 2)])
def test_engines_that_share_a_token_never_step_at_once(start_engine: Start, shared: bool, most_at_once: int) -> None:
    token = StepToken(LONG_S)
    running: list[int] = []
    most: list[int] = []
    benches = [
        start_engine(Watched(running, most), step_token=token if shared else None, max_queued=64) for _ in range(2)
    ]
    streams = [bench.engine.open() for bench in benches]
    for value in range(32):  # by turns: neither engine is done before the other begins
        for bench, stream in zip(benches, streams, strict=True):
            bench.engine.push(stream, step(value))
    for bench in benches:
        bench.answers(32)
    assert max(most) == most_at_once
