"""Chunks: several steps of each stream in one batch, if they wait anyway and displace no other stream."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test

from batching.batcher import Policy
from batching.events import BatchDone, EngineEvent, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.policy.chunks import Chunks
from batching.policy.service_times import ServiceTimes
from batching.stepper import Stepper
from tests.support.servers.fakes import ChunkedModel, EchoModel, FailingModel, FakeClock, OverlappedChunksModel
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.engine_bench import step

T0 = 8_675_309.25
SHORT = {1: 0.010, 8: 0.017}  # seconds by rows
LENGTHS = (1, 2, 4, 8)


class Bench:
    """A batcher whose chunks of two steps take 12 ms, of four steps 14 ms, and of eight steps 18 ms, times `scale`."""

    def __init__(
        self, policy: Policy = Policy.EAGER, *, max_batch: int = 64, step_s: float = 0.0, scale: float = 1.0
    ) -> None:
        self.batcher = Batcher(
            policy,
            max_batch=max_batch,
            max_queued=100,
            background_rows=2,
            pace=Pace(step_s, burst_s=0.1),
            service=ServiceTimes({rows: seconds * scale for rows, seconds in SHORT.items()}),
            chunk_steps=LENGTHS,
        )
        for steps in LENGTHS[1:]:
            for streams in (1, 8):
                self.batcher.measured(streams * steps, (0.010 + 0.001 * steps) * scale, steps)

    def live(self, stream: int, steps: int = 0, budget_s: float = 0.1) -> None:
        self.batcher.open(stream, budget_s=budget_s)
        self.push(stream, steps)

    def upload(self, stream: int, steps: int) -> None:
        self.batcher.open(stream, budget_s=10.0, background=True)
        self.push(stream, steps)

    def push(self, stream: int, steps: int) -> None:
        for _ in range(steps):
            self.batcher.push(stream, None, T0)

    def batch(self, now: float = T0) -> tuple[list[int], int]:
        """Return the streams of the next batch and the steps of each."""
        batch = self.batcher.next_batch(now)
        steps = steps_each(batch) if batch else 0
        assert not batch or [s.stream for s in batch] == [s.stream for s in batch[::steps] for _ in range(steps)]
        return [step.stream for step in batch[:: steps or 1]], steps


def test_uploads_without_live_streams_run_in_the_longest_chunks_that_all_of_them_have_steps_for() -> None:
    bench = Bench()
    bench.upload(1, 20)
    bench.upload(2, 11)
    assert [bench.batch() for _ in range(4)] == [([1, 2], 8), ([1, 2], 2), ([1, 2], 1), ([1], 8)]
    assert bench.batcher.queued == 1


def test_more_streams_take_precedence_over_longer_chunks() -> None:
    bench = Bench(max_batch=16)
    for stream in range(1, 10):
        bench.upload(stream, 8)
    assert bench.batch() == ([1, 2, 3, 4, 5, 6, 7, 8, 9], 1)
    for stream in range(5, 10):
        bench.batcher.close(stream)
    assert bench.batch() == ([1, 2, 3, 4], 4)


def test_with_live_streams_a_chunk_lasts_no_longer_than_a_batch_of_background_work_may() -> None:
    bench = Bench()
    bench.live(1)
    bench.upload(11, 16)
    assert bench.batch() == ([11], 4)  # 14 ms; eight steps would take 18, and one and a half batches of one row 15
    bench.batcher.close(1)
    assert bench.batch() == ([11], 8)


def test_a_chunk_of_short_steps_may_last_longer_by_the_time_between_two_batches() -> None:
    for scale, steps in ((1.0, 4), (0.01, 8)):  # eight steps take 0.18 ms instead of 18; the limit is 0.35
        bench = Bench(scale=scale)
        bench.live(1, 8)
        bench.live(2)
        assert bench.batch() == ([1], steps)


def test_the_due_steps_of_a_burst_run_in_one_chunk_and_its_early_steps_do_not() -> None:
    bench = Bench(step_s=0.08)
    bench.live(1, 8)
    assert bench.batch() == ([1], 2)  # 0.1 s may arrive at once: two steps are due
    assert bench.batch() == ([1], 4)  # the others are early


def test_a_stream_with_one_due_step_makes_all_others_of_the_batch_run_one() -> None:
    bench = Bench()
    bench.live(1, 8)
    bench.live(2, 1)
    assert bench.batch() == ([1, 2], 1)
    assert bench.batch() == ([1], 4), "stream 2 could have a due step at any moment"


def test_a_burst_with_the_earliest_deadline_runs_before_the_batch_of_the_others() -> None:
    bench = Bench()
    for stream in range(2, 9):
        bench.live(stream, 1)
    bench.live(1)
    for _ in range(6):
        bench.batcher.push(1, None, T0 + 0.001)  # a flush
    assert bench.batch(T0 + 0.002) == ([2, 3, 4, 5, 6, 7, 8, 1], 1), "the others have earlier deadlines"
    for stream in range(2, 9):
        bench.batcher.push(stream, None, T0 + 0.080)
    assert bench.batch(T0 + 0.081) == ([1], 4), "14 ms, where the batch of all takes 17"
    assert bench.batch(T0 + 0.082) == ([1, 2, 3, 4, 5, 6, 7, 8], 1)


def test_bursts_of_several_streams_share_a_chunk_as_far_as_it_is_no_longer_than_the_batch() -> None:
    bench = Bench()
    for streams, seconds in ((2, 0.016), (4, 0.030)):
        bench.batcher.measured(streams * 4, seconds, 4)
    for stream in range(1, 9):
        bench.live(stream, 4 if stream < 5 else 1)
    assert bench.batch() == ([1, 2], 4)


def test_a_burst_before_a_small_batch_or_one_that_would_be_late_for_it_runs_in_turn() -> None:
    small = Bench()
    small.live(1, 4)
    small.live(2, 1)
    assert small.batch() == ([1, 2], 1), "two steps in a chunk take 12 ms, the batch 11"
    late = Bench()
    for stream in range(1, 9):
        late.live(stream, 4 if stream == 1 else 1, budget_s=0.02)
    assert late.batch() == ([1, 2, 3, 4, 5, 6, 7, 8], 1), "in 17 of 20 ms: a chunk before it makes it late"


def test_no_deadline_is_missed_for_a_chunk_and_one_that_is_missed_anyway_does_not_count() -> None:
    bench = Bench()
    bench.live(1, 16, budget_s=0.025)
    assert bench.batch(T0) == ([1], 2)
    assert bench.batch(T0 + 0.0015) == ([1], 1)
    assert bench.batch(T0 + 0.1) == ([1], 8)


def test_a_background_chunk_ends_before_a_waiting_batch_has_to_start() -> None:
    bench = Bench(Policy.DEADLINE)
    bench.live(1, 1, budget_s=0.1)
    bench.live(2)
    bench.upload(11, 50)
    starts_at = bench.batcher._start_at()
    assert bench.batch(starts_at - 0.029) == ([11], 4)
    assert bench.batch(starts_at - 0.025) == ([11], 2)
    assert bench.batch(starts_at - 0.021) == ([11], 1)


def test_steps_that_wait_for_late_live_ones_run_one_at_a_time() -> None:
    bench = Bench()
    bench.live(1, 2, budget_s=0.001)
    bench.upload(11, 8)
    assert bench.batch() == ([1], 2), "late already, so later steps come earlier in a chunk"
    assert bench.batcher.background_waits(T0)
    assert bench.batch(T0 + 10.0) == ([11], 4), "no longer"
    for _ in range(2):
        bench.batcher.push(1, None, T0 + 11.0)
    assert bench.batch(T0 + 12.0) == ([11, 1], 1), "late again, and the upload's deadline is the earliest of all"


@pytest.mark.parametrize("policy", Policy)
def test_a_model_that_takes_one_step_at_a_time_gets_no_chunks(policy: Policy) -> None:
    batcher = Batcher(policy, max_batch=8, max_queued=9)
    batcher.open(1, budget_s=1.0, background=True)
    for _ in range(9):
        batcher.push(1, None, T0)
    assert [len(batcher.next_batch(T0)) for _ in range(10)] == [1] * 9 + [0]


def test_the_single_policy_runs_no_chunks() -> None:
    bench = Bench(Policy.SINGLE)
    bench.upload(1, 8)
    assert bench.batch() == ([1], 1)


def test_start_new_chunk_makes_the_next_step_the_first_of_its_chunk() -> None:
    bench = Bench()
    bench.upload(1, 3)
    bench.batcher.start_new_chunk(1)
    bench.push(1, 4)
    assert [bench.batch() for _ in range(4)] == [([1], 2), ([1], 1), ([1], 4), ([], 0)]


@pytest.mark.parametrize("lengths", [(2, 4), (1, 4, 2), (1, 1)])
def test_lengths_begin_with_one_and_ascend(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Chunks(lengths, ServiceTimes(), max_rows=8)


def test_times_of_chunks_are_kept_separate_from_those_of_single_steps() -> None:
    bench = Bench()
    before_s = bench.batcher.service.estimate(8)
    bench.batcher.measured(8, 5.0, 8)
    assert bench.batcher.service.estimate(8) == before_s


# The engine.


def test_the_warm_up_runs_chunks_of_every_length_that_fit_and_reports_the_times_of_single_steps() -> None:
    model = ChunkedModel(capacity=8, largest=5)
    stepper = Stepper(model)
    clock = FakeClock()
    stepper.warm_up(clock)
    model.rows.clear()
    times = stepper.warm_up_chunks(clock)
    assert {steps: list(seconds) for steps, seconds in times.items()} == {2: [1, 2], 4: [1]}
    assert sorted(set(model.rows)) == [2, 4]
    events: list[EngineEvent] = []
    DrivenEngine(model, events.append)._worker.warm_up()
    (warmed_up,) = events
    assert isinstance(warmed_up, WarmedUp)
    assert list(warmed_up.step_s) == [1, 2, 4, 5]


def test_a_reset_and_a_pending_export_end_a_chunk() -> None:
    events: list[EngineEvent] = []
    engine = DrivenEngine(ChunkedModel(capacity=4, largest=4), events.append)
    stream = engine.open(background=True, budget_s=10.0)
    for value in (1, 2, 3):
        engine.push(stream, step(value))
    engine.export(stream, "after three")
    for value in (4, 5):
        engine.push(stream, step(value))
    engine.push(stream, step(6), reset=True)
    engine.push(stream, step(7))
    engine.settle()
    received = [(e.steps, e.outputs[:, :].tolist()) if isinstance(e, BatchDone) else type(e) for e in events]
    assert received == [
        (2, [[1, 1], [1, 2]]),
        (1, [[1, 3]]),
        StateExported,
        (2, [[1, 4], [1, 5]]),
        (2, [[6, 1], [6, 2]]),
    ]


def test_a_chunk_that_fails_fails_each_of_its_streams_once() -> None:
    events: list[EngineEvent] = []
    engine = DrivenEngine(OverlappedChunksModel(capacity=4, largest=4), events.append)
    for values in ((1, FailingModel.POISON), (2, 2)):
        stream = engine.open(background=True, budget_s=10.0)
        for value in values:
            engine.push(stream, step(value))
    engine.settle()
    assert [event.stream for event in events if isinstance(event, StreamFailed)] == [1, 2]
    assert len(events) == 2


class ChunkedMachine(EngineMachine):
    """Engines with and without chunks: each stream gets the same events in the same order."""

    policy: ClassVar[Policy]
    poisons = False

    def __init__(self) -> None:
        self.received: tuple[list[EngineEvent], ...] = ([], [], [])
        models = (EchoModel(5, 4), ChunkedModel(5, 4), OverlappedChunksModel(5, 4))
        options: dict[str, Any] = {"policy": self.policy, "step_s": 0.08, "max_queued": 1_000}
        super().__init__(
            *(DrivenEngine(model, to.append, **options) for model, to in zip(models, self.received, strict=True))
        )

    @rule()
    def turn(self) -> None:
        for engine in self.engines:
            engine.turn()

    def by_stream(self, events: list[EngineEvent]) -> dict[int, list[object]]:
        received: dict[int, list[object]] = {}
        for event in events:
            match event:
                case BatchDone():
                    for stream, tag, output in zip(event.streams, event.tags, event.outputs.tolist(), strict=True):
                        received.setdefault(stream, []).append((tag, output))
                case StateExported(stream, tag, state):
                    received.setdefault(stream, []).append((tag, state))
                case StreamClosed(stream):
                    received.setdefault(stream, []).append("closed")
                case _:
                    raise AssertionError(event)
        return received

    def teardown(self) -> None:
        for engine in self.engines:
            engine.settle()
        plain, *chunked = (self.by_stream(events) for events in self.received)
        for other in chunked:
            assert other.keys() == plain.keys()
            for stream, expected in plain.items():
                found = other[stream]
                if expected[-1:] == ["closed"]:  # closed, after a few more steps in one engine than in the other
                    assert (expected[-1], found[-1]) == ("closed", "closed")
                    shorter = min(len(found), len(expected)) - 1
                    assert found[:shorter] == expected[:shorter]
                else:
                    assert found == expected
        self.count_kinds(self.received[1])


@pytest.mark.parametrize("policy", [Policy.EAGER, Policy.DEADLINE])
def test_each_stream_gets_the_same_events_with_chunks_and_without(policy: Policy) -> None:
    class Machine(ChunkedMachine):
        seen: ClassVar[dict[str, int]] = {}

    Machine.policy = policy
    options = settings(max_examples=100, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(Machine, settings=options)
    assert min(Machine.seen.get(name, 0) for name in ("chunk", "StateExported")) > 3
