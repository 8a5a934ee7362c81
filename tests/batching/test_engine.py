"""The engine end to end with fake models: each stream gets its own answers, in order, as if it were alone."""

from __future__ import annotations

import pytest

from batching.events import StreamClosed
from tests.support.servers.fakes import FakeClock, GatedModel
from tests.support.streams.engine_bench import Start, step


def test_steps_pushed_during_a_batch_run_in_the_next_one(start_engine: Start) -> None:
    model = GatedModel()
    bench = start_engine(model)
    a, b, c = (bench.engine.open() for _ in range(3))
    bench.engine.push(a, step(1))
    assert model.wait_inside() == 1
    bench.engine.push(b, step(2), tag="b")
    bench.engine.push(c, step(3), tag="c")
    model.go_on(2)
    assert bench.done().streams == (a,)
    second = bench.done()
    assert (second.streams, second.tags) == ((b, c), ("b", "c"))


def test_a_batch_reports_waits_step_time_and_queue_by_the_engines_clock(start_engine: Start) -> None:
    model, clock = GatedModel(largest=1), FakeClock()
    bench = start_engine(model, clock=clock)
    a, b = bench.engine.open(), bench.engine.open()
    assert bench.engine.busy_since() in (None, clock())
    bench.engine.push(a, step(1))
    model.wait_inside()
    assert bench.engine.busy_since() == clock()
    bench.engine.push(b, step(2))
    clock.advance(0.25)
    bench.engine.push(b, step(2))
    clock.advance(0.5)
    assert bench.engine.busy_since() == clock() - 0.75
    model.go_on(2)
    first, second = bench.done(), bench.done()
    assert (first.queue_wait_s, first.step_s, first.started_s) == ((0.0,), 0.75, clock() - 0.75)
    assert (second.queue_wait_s, second.step_s, second.queued) == ((0.75,), 0.0, 1)


def test_a_batch_reports_whether_background_work_waits_for_late_live_steps(start_engine: Start) -> None:
    model, clock = GatedModel(), FakeClock()
    bench = start_engine(model, clock=clock)
    bench.engine._worker._batcher.measured(1, 0.2)  # longer than the budget
    live, file = bench.engine.open(budget_s=0.1), bench.engine.open(background=True, budget_s=10.0)
    bench.engine.push(live, step(1))
    model.wait_inside()
    clock.advance(0.2)
    bench.engine.push(live, step(1))
    bench.engine.push(file, step(2))
    model.go_on(3)
    first, second = bench.done(), bench.done()
    assert (first.streams, first.background_waits) == ((live,), False)
    assert (second.streams, second.background_waits) == ((live,), True)
    bench.engine.close(live)
    assert isinstance(bench.event(), StreamClosed)
    third = bench.done()
    assert (third.streams, third.background_waits) == ((file,), False)


def test_live_wait_is_measured_from_the_due_time_and_for_live_steps_only(start_engine: Start) -> None:
    model, clock = GatedModel(), FakeClock()
    bench = start_engine(model, clock=clock, step_s=0.08, max_queued=20)
    live, file = bench.engine.open(), bench.engine.open(background=True, budget_s=10.0)
    bench.engine.push(live, step(1))
    model.wait_inside()
    for _ in range(9):
        bench.engine.push(live, step(1))  # 0.8 s of audio at once; half a second of it is not early
    bench.engine.push(file, step(2))
    clock.advance(0.02)
    model.go_on(20)
    batches = [bench.done() for _ in range(10)]
    assert batches[0].live_wait_s == (0.0,)
    waits = [wait_s for batch in batches for wait_s in batch.live_wait_s]
    assert len(waits) == 10
    assert sum(len(batch.queue_wait_s) for batch in batches) == 11
    assert waits[1] == pytest.approx(0.02)
    assert waits[9] == pytest.approx(0.02 - (9 * 0.064 - 0.5))
