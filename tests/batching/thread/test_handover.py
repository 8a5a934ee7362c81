"""Handover: a batch begins once the results of the last one were taken; with what came meanwhile, and not for ever."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from batching.events import BatchDone, EngineEvent
from batching.thread.handover import Handover
from tests.support.servers.fakes import WAIT_S, EchoModel
from tests.support.streams.engine_bench import Start, step


def done() -> BatchDone:
    return BatchDone((), (), None, (), (), 0.0, 0.0, 0, 0)  # type: ignore[arg-type]


def test_nothing_is_waited_for_before_a_batch_and_after_it_was_taken() -> None:
    events: list[EngineEvent] = []
    between = Handover(events.append, patience_s=60.0)
    between.wait()
    between.deliver(done())
    assert len(events) == 1
    between.taken()
    between.wait()


def test_a_wait_ends_when_the_batch_is_taken() -> None:
    between = Handover(lambda _: None, patience_s=60.0)
    between.deliver(done())
    waiter = threading.Thread(target=between.wait)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    between.taken()
    waiter.join(WAIT_S)
    assert not waiter.is_alive()


def test_a_receiver_that_takes_nothing_is_waited_for_no_longer_than_the_patience() -> None:
    between = Handover(lambda _: None, patience_s=0.02)
    between.deliver(done())
    began_s = time.perf_counter()
    between.wait()
    assert 0.02 <= time.perf_counter() - began_s < WAIT_S


def test_steps_that_come_while_results_wait_are_one_batch(start_engine: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batching.engine.Handover", partial(Handover, patience_s=60.0))
    bench = start_engine(EchoModel(capacity=4), acknowledged=True)
    streams = [bench.engine.open() for _ in range(4)]
    bench.engine.push(streams[0], step(1))
    assert len(bench.done().streams) == 1
    for stream in streams:
        bench.engine.push(stream, step(2))
    assert bench.silent(0.1)
    bench.engine.taken()
    assert len(bench.done().streams) == 4
    bench.engine.taken()
