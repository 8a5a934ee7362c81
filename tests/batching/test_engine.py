"""The engine end to end with fake models: each stream gets its own answers, in order, as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest

from batching.batcher import Policy
from batching.events import StreamClosed, WarmedUp
from tests.support.servers.fakes import WAIT_S, EchoModel, FakeClock, GatedModel
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


def test_a_reset_makes_the_next_step_a_fresh_streams_first(start_engine: Start) -> None:
    bench = start_engine(EchoModel())
    a, b = bench.engine.open(), bench.engine.open()
    for stream, value, reset in (
        (a, 1, False),
        (b, 2, False),
        (a, 3, False),
        (a, 4, True),
        (a, 5, False),
        (b, 6, False),
    ):
        bench.engine.push(stream, step(value), reset=reset)
    assert bench.answers(6) == {a: [[1, 1], [1, 2], [4, 1], [4, 2]], b: [[2, 1], [2, 2]]}


@pytest.mark.parametrize("tile_rows", [None, 8])
def test_batched_equals_alone(start_engine: Start, tile_rows: int | None) -> None:
    """Bit-identical with fixed tiles; without them within fp32 rounding, because products vary with the batch size."""
    inputs = np.random.default_rng(3).standard_normal((12, 6, 24), dtype=np.float32)  # (streams, steps, features)

    def run(members: range) -> dict[int, np.ndarray]:
        bench = start_engine(TorchSlots(TinyGru(), capacity=12, largest=12, tile_rows=tile_rows))
        streams = {bench.engine.open(): member for member in members}
        rows: dict[int, list[np.ndarray]] = {member: [] for member in members}
        for n in range(inputs.shape[1]):
            for stream, member in streams.items():
                bench.engine.push(stream, inputs[member, n])
        while any(len(found) < inputs.shape[1] for found in rows.values()):
            event = bench.done()
            for stream, output in zip(event.streams, event.outputs, strict=True):
                rows[streams[stream]].append(output)
        return {member: np.stack(found) for member, found in rows.items()}

    together = run(range(12))
    for member in range(12):
        alone = run(range(member, member + 1))[member]
        if tile_rows:
            np.testing.assert_array_equal(together[member], alone)
        else:
            np.testing.assert_allclose(together[member], alone, atol=1e-5)


def test_the_deadline_policy_holds_a_batch_for_the_streams_that_are_missing(start_engine: Start) -> None:
    bench = start_engine(EchoModel(), policy=Policy.DEADLINE, warm_up=True)
    assert isinstance(bench.event(), WarmedUp)
    a, b = bench.engine.open(budget_s=WAIT_S), bench.engine.open(budget_s=WAIT_S)
    bench.engine.push(a, step(1))
    bench.engine.push(b, step(2))
    assert bench.done().streams == (a, b)


def test_a_held_batch_starts_before_its_deadline(start_engine: Start) -> None:
    bench = start_engine(EchoModel(), policy=Policy.DEADLINE, warm_up=True)
    assert isinstance(bench.event(), WarmedUp)
    a, _silent = bench.engine.open(budget_s=0.3), bench.engine.open(budget_s=0.3)
    bench.engine.push(a, step(1))
    assert bench.done().queue_wait_s[0] > 0.01


def test_warm_up_steps_every_size_before_the_first_answer_and_leaves_states_fresh(start_engine: Start) -> None:
    model = EchoModel(capacity=8, largest=5)
    bench = start_engine(model, warm_up=True)
    stream = bench.engine.open()
    bench.engine.push(stream, step(7))
    warmed_up = bench.event()
    assert isinstance(warmed_up, WarmedUp)
    assert sorted(warmed_up.step_s) == [1, 2, 4, 5]  # powers of two and the largest
    assert all(seconds > 0 for seconds in warmed_up.step_s.values())
    assert bench.answers(1) == {stream: [[7, 1]]}
    assert list(dict.fromkeys(model.rows)) == [1, 2, 3, 4, 5]


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
