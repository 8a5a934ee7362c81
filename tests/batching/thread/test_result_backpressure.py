"""Backpressure of an engine: a batch starts once the last one was acknowledged, or after the patience."""

from __future__ import annotations

import time

from tests.support.servers.fakes import WAIT_S, EchoModel
from tests.support.streams.engine_bench import Start, step


def test_steps_pushed_before_the_acknowledgement_join_one_batch(start_engine: Start) -> None:
    bench = start_engine(EchoModel(capacity=4), acknowledged=True, patience_s=60.0)
    streams = [bench.engine.open() for _ in range(4)]
    for number in range(2):
        bench.engine.push(streams[0], step(number))
        assert len(bench.done().streams) == 1, "it waits for nothing before the first batch, and after an answer"
        for stream in streams:
            bench.engine.push(stream, step(2))
        assert bench.silent(0.1)
        bench.engine.acknowledge()
        assert len(bench.done().streams) == 4
        bench.engine.acknowledge()


def test_without_an_acknowledgement_the_wait_ends_after_the_patience(start_engine: Start) -> None:
    bench = start_engine(EchoModel(capacity=4), acknowledged=True, patience_s=0.05)
    stream = bench.engine.open()
    began_s = time.perf_counter()
    for number in range(3):
        bench.engine.push(stream, step(number))
        bench.done()
    assert 0.1 <= time.perf_counter() - began_s < WAIT_S
