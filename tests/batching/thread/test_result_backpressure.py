"""ResultBackpressure: a batch starts once the last one was acknowledged, or after the patience."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from batching.events import BatchDone
from batching.thread.result_backpressure import ResultBackpressure
from tests.support.servers.fakes import WAIT_S, EchoModel
from tests.support.streams.engine_bench import Start, step


def done() -> BatchDone:
    return BatchDone((), (), None, (), (), 0.0, 0.0, 0, 0)  # type: ignore[arg-type]


def test_a_wait_ends_with_the_acknowledgement() -> None:
    results = ResultBackpressure(lambda _: None, patience_s=60.0)
    results.deliver(done())
    waiter = threading.Thread(target=results.wait)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    results.acknowledge()
    waiter.join(WAIT_S)
    assert not waiter.is_alive()


def test_without_an_acknowledgement_the_wait_ends_after_the_patience() -> None:
    results = ResultBackpressure(lambda _: None, patience_s=0.02)
    results.deliver(done())
    began_s = time.perf_counter()
    results.wait()
    assert 0.02 <= time.perf_counter() - began_s < WAIT_S


def test_steps_pushed_during_the_wait_join_one_batch(start_engine: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batching.engine.ResultBackpressure", partial(ResultBackpressure, patience_s=60.0))
    bench = start_engine(EchoModel(capacity=4), acknowledged=True)
    streams = [bench.engine.open() for _ in range(4)]
    bench.engine.push(streams[0], step(1))
    assert len(bench.done().streams) == 1
    for stream in streams:
        bench.engine.push(stream, step(2))
    assert bench.silent(0.1)
    bench.engine.acknowledge()
    assert len(bench.done().streams) == 4
    bench.engine.acknowledge()
