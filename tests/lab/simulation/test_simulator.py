"""The simulator: no step is lost, queues follow theory, policies rank as expected, a seed determines the outcome."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.batcher import Batcher, Policy
from batching.engine import PATIENCE_S
from tutti_asr_lab.simulation import threads
from tutti_asr_lab.simulation.calibration import Interference, Overheads, SecondPasses, Spread
from tutti_asr_lab.simulation.service_table import ServiceTable
from tutti_asr_lab.simulation.simulator import Simulator
from tutti_asr_lab.simulation.workload import Churn, Crowd, Live

FAST = ServiceTable.constant({1: 0.001, 128: 0.009})
SERVER = Overheads(receive_s=4e-5, batch_s=1e-4, decode_s=1e-5, write_s=3e-5, engine_s=1e-4, path_s=2e-4)


class Watched(Batcher):
    """The real batcher, recording pushed steps and batches."""

    def __init__(self, policy=Policy.EAGER, max_batch=128):
        super().__init__(policy, max_batch=max_batch, max_queued=1 << 20)
        self.pushed = defaultdict(list)
        self.ran_steps = defaultdict(list)
        self.started = []

    def push(self, stream, item, now):
        self.pushed[stream].append(item.due_s)
        super().push(stream, item, now)

    def next_batch(self, now):
        batch = super().next_batch(now)
        for step in batch:
            self.ran_steps[step.stream].append(step.item.due_s)
            self.started.append((now, step.ready_s, step.deadline_s))
        return batch


def simulate(load, *, policy=Policy.EAGER, table=FAST, max_batch=128, seconds=4.0, **options):
    batcher = Batcher(policy, max_batch=max_batch, max_queued=1 << 20)
    return Simulator(batcher, table, load, **options).run(seconds)


loads = st.builds(
    Live,
    count=st.integers(1, 40),
    jitter_s=st.sampled_from([0.0, 0.02, 0.08]),
    steps=st.integers(1, 3),
    churn=st.sampled_from([None, Churn(0.5), Churn(0.2, flush_steps=5)]),
)


@settings(max_examples=30, deadline=None)
@given(load=loads, policy=st.sampled_from(Policy))
def test_every_step_is_answered_once_and_in_order(load, policy):
    batcher = Watched(policy)
    simulator = Simulator(batcher, FAST, load, overheads=SERVER)
    simulator.run(1.0, warm_up_s=0.2)
    assert batcher.ran_steps == batcher.pushed
    flushed = 0 if load.churn is None else load.churn.flush_steps
    if not flushed:
        assert sum(map(len, batcher.pushed.values())) == simulator.sent
    assert simulator.sent == len(simulator.latencies)
    assert all(items == sorted(items) for items in batcher.ran_steps.values())
    assert all(took_s > 0 for _, took_s in simulator.latencies)


def test_streams_that_end_are_closed():
    batcher = Watched()
    load = Live(20, churn=Churn(0.3))
    Simulator(batcher, FAST, load, overheads=SERVER).run(3.0)
    assert len(batcher.pushed) > 100
    assert batcher.streams <= 20


def test_alone_a_step_takes_the_sum_of_its_parts():
    outcome = simulate(Live(1), overheads=SERVER)
    parts_s = SERVER.receive_s + 0.001 + SERVER.engine_s + SERVER.batch_s + SERVER.decode_s + SERVER.write_s
    assert outcome.latency_ms.max == pytest.approx((parts_s + SERVER.path_s) * 1e3, abs=1e-3)
    assert outcome.batches == {1: 50}


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_single_with_random_arrivals_waits_as_an_m_d_1_queue(load):
    """Many streams with full jitter are nearly a Poisson process; the mean wait is ρ·s / 2(1-ρ).

    Source: Pollaczek-Khinchine formula for a constant service time.
    """
    service_s, streams = 0.0004, 400
    step_s = streams * service_s / load
    table = ServiceTable.constant({1: service_s})
    outcome = simulate(
        Live(streams, step_s=step_s, jitter_s=step_s),
        policy=Policy.SINGLE,
        table=table,
        seconds=60_000 * service_s / load,
    )
    expected_s = service_s + load * service_s / (2 * (1 - load))
    assert outcome.latency_ms.mean == pytest.approx(expected_s * 1e3, rel=0.08)
    assert outcome.model_busy == pytest.approx(load, rel=0.02)


def test_deadline_keeps_budgets_and_makes_fuller_batches_than_eager():
    load = Live(60, budget_s=0.05)
    eager, deadline = (simulate(load, policy=policy, overheads=SERVER) for policy in (Policy.EAGER, Policy.DEADLINE))
    assert deadline.mean_batch > 4 * eager.mean_batch
    assert eager.latency_ms.p50 < deadline.latency_ms.p50
    on_loop_ms = 60 * (SERVER.decode_s + SERVER.write_s + SERVER.receive_s) * 1e3  # added after the batcher's deadline
    assert deadline.latency_ms.p99 <= 50 + on_loop_ms


def test_the_same_seed_gives_the_same_outcome_and_another_seed_a_different_one():
    def run(seed):
        table = ServiceTable((1, 64), (0.0, 0.5, 1.0), ((0.001, 0.0011, 0.003), (0.005, 0.006, 0.01)))
        return simulate(Live(50, jitter_s=0.01), table=table, overheads=SERVER, seed=seed)

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_the_answers_of_a_batch_leave_together():
    costs = Overheads(write_s=1e-3)
    answers = []
    simulator = Simulator(Watched(), FAST, Live(60), overheads=costs)
    simulator._loops[0]._answer = lambda due_s, at_s: answers.append(at_s)
    simulator.run(2.0)
    assert len(set(answers)) == len(simulator._models[0].batches) < len(answers)


def test_only_a_sleeping_thread_takes_time_to_wake_up():
    idle, busy = (
        simulate(Live(count), overheads=Overheads(receive_s=receive_s, wake_s=1e-3))
        for count, receive_s in ((1, 0.0), (76, 1e-3))
    )
    assert idle.latency_ms.max == pytest.approx(3 + 1)  # event loop, model thread, event loop; and the step
    rushed = simulate(Live(76), overheads=Overheads(receive_s=1e-3))
    assert busy.latency_ms.p50 < rushed.latency_ms.p50 + 2.0


def test_two_models_take_turns():
    """Each has half of the streams and its own batches, of which one runs at a time."""
    table = ServiceTable.constant({1: 0.01, 64: 0.01})
    load = Live(40)
    batchers = [Watched(), Watched()]
    simulator = Simulator(batchers, table, load)
    outcome = simulator.run(4.0)
    one = simulate(load, table=table)
    assert {stream % 2 for stream in batchers[0].pushed} == {0}
    assert {stream % 2 for stream in batchers[1].pushed} == {1}
    assert outcome.latency_ms.p50 > 1.2 * one.latency_ms.p50
    began = sorted(at_s for model in simulator._models for at_s, _ in model.batches)
    assert len(began) < 1.15 * 5.0 / 0.01


def test_front_ends_share_the_streams_equally_and_the_event_loops_work():
    costs = Overheads(receive_s=4e-4, write_s=4e-4)
    one, three = (simulate(Live(120, churn=Churn(2.0)), overheads=costs, front_ends=n) for n in (1, 3))
    assert three.loop_busy == pytest.approx(one.loop_busy / 3, rel=0.2)
    assert three.latency_ms.p98 < one.latency_ms.p98
    simulator = Simulator(Watched(), FAST, Live(120, churn=Churn(2.0)), overheads=costs, front_ends=3)
    simulator.run(4.0)
    open_on = [loop.streams for loop in simulator._loops]
    assert max(open_on) - min(open_on) <= 12
    assert sum(open_on) == 120


def test_a_crowd_that_connects_at_once_delays_steps():
    costs = Overheads(receive_s=4e-5, open_s=2e-3)
    calm, crowded = (
        simulate(Live(50, crowd=crowd), overheads=costs, seconds=4.0) for crowd in (None, Crowd(200, at_s=3.0))
    )
    assert crowded.latency_ms.max > 100 + calm.latency_ms.max  # 200 handshakes take 0.4 s
    assert crowded.latency_ms.count > calm.latency_ms.count


def test_more_threads_than_cores_slow_one_another():
    alone, crowded = (simulate(Live(300), overheads=SERVER, cores=cores) for cores in (2, 1))
    assert simulate(Live(300), overheads=SERVER) == alone
    assert crowded.loop_busy > 1.2 * alone.loop_busy
    assert crowded.latency_ms.p50 > alone.latency_ms.p50


def test_handshakes_take_the_event_loops_time():
    costs = Overheads(open_s=0.01)
    outcome = simulate(Live(20, churn=Churn(1.0)), overheads=costs, seconds=20.0)
    assert outcome.loop_busy == pytest.approx(20 * 0.01, rel=0.25)  # 20 handshakes a second
    assert outcome.latency_ms.p98 > simulate(Live(20), overheads=costs, seconds=20.0).latency_ms.p98


def test_a_busy_event_loop_slows_the_model_thread():
    costs = Overheads(receive_s=2e-4)
    interference = Interference(idle_s=0.0, busy_s=4e-3, spread=Spread((0.0, 1.0), (0.0, 2.0)))
    held, alone = (simulate(Live(100), overheads=costs, interference=found) for found in (interference, Interference()))
    assert held.model_busy > alone.model_busy
    assert held.latency_ms.p98 > alone.latency_ms.p98


def test_batches_grow_if_the_event_loop_is_the_bottleneck_since_each_waits_for_an_acknowledgement(monkeypatch):
    costs = Overheads(receive_s=3e-4, batch_s=2e-3, write_s=1e-4)
    waiting = simulate(Live(120, jitter_s=0.08), overheads=costs)
    monkeypatch.setattr(threads, "PATIENCE_S", 0.0)
    at_once = simulate(Live(120, jitter_s=0.08), overheads=costs)
    assert waiting.mean_batch > 1.2 * at_once.mean_batch
    assert waiting.loop_busy < at_once.loop_busy


def test_a_batch_waits_no_longer_than_the_patience_for_an_event_loop_that_hangs():
    hanging = Overheads(batch_s=10.0)
    simulator = Simulator(Watched(), FAST, Live(1, steps=40), overheads=hanging)
    simulator.run(6.0)
    began = [at_s for at_s, _ in simulator._models[0].batches][1:40]  # the first result is acknowledged before the hang
    assert [later - at for at, later in pairwise(began)] == pytest.approx([0.001 + PATIENCE_S] * 38)


PASSES = SecondPasses(audio_steps=25, steps=(7, 24), seconds=(0.005, 0.015))  # 1 % of a core for a stream


def test_answers_wait_for_the_second_pass_before_them():
    alone, passed = (simulate(Live(1, passes=passes), seconds=8.0) for passes in (None, PASSES))
    assert (alone.latency_ms.max, passed.latency_ms.max) == pytest.approx((1.0, 1.0 + 15.0))
    assert (passed.latency_ms.mean - alone.latency_ms.mean) * 100 == pytest.approx(4 * (5 + 15))


def test_second_passes_slow_other_threads_that_lack_a_core_and_queue_for_their_own():
    free, two, one = (simulate(Live(60, passes=PASSES), overheads=SERVER, cores=cores) for cores in (0, 2, 1))
    assert free.model_busy < two.model_busy < one.model_busy
    assert free.latency_ms.p98 < two.latency_ms.p98 < one.latency_ms.p98
    full, shared = (simulate(Live(120, passes=PASSES), overheads=SERVER, cores=cores) for cores in (0, 4))
    assert shared.latency_ms.p98 < 200, "two threads can compute them"
    assert full.latency_ms.p98 > 500, "one cannot"
