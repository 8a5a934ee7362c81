"""Latency and batch sizes of the policies, on a virtual clock, with budgets per stream and known service times."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from batching.batcher import Batcher, Policy
from batching.policy.pace import Pace
from batching.policy.service_times import ServiceTimes

STEP_S = 0.08
T0 = 8_675_309.25


def batch_s(rows: int) -> float:
    """Seconds of a batch: 1 ms plus 70 µs per row."""
    return 0.001 + 0.00007 * rows


WARM_UP = {rows: batch_s(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)}


@dataclass
class Run:
    """Result: batch sizes, and the waits of each live stream from push to answer."""

    batches: list[int] = field(default_factory=list)
    waits_s: dict[int, list[float]] = field(default_factory=dict)

    def p98_s(self) -> float:
        """The 98th percentile over all streams."""
        waits = sorted(wait for of_stream in self.waits_s.values() for wait in of_stream)
        return waits[int(0.98 * len(waits))]

    def mean_batch(self) -> float:
        """Rows of a batch."""
        return sum(self.batches) / len(self.batches)


class World:
    """Streams that send in real time, uploads that send when answered, streams faster than real time; one model."""

    def __init__(self, policy: Policy, *, jitter: float = 0.0, seed: int = 1) -> None:
        service = ServiceTimes(WARM_UP)
        self.batcher = Batcher(policy, max_batch=128, max_queued=1_000, pace=Pace(STEP_S), service=service)
        self.random = random.Random(seed)
        self.jitter = jitter
        self.events: list[tuple[float, int]] = []  # (time, stream that sends)
        self.run = Run()
        self.files: set[int] = set()
        self.answers: dict[int, float] = {}  # stream -> time of its last answer
        self.count = 0

    def live(self, budget_s: float = 0.1) -> int:
        """Add a stream in real time with a random offset within the first step."""
        self.count += 1
        self.batcher.open(self.count, budget_s=budget_s)
        self.run.waits_s[self.count] = []
        heapq.heappush(self.events, (T0 + self.random.uniform(0, STEP_S), self.count))
        return self.count

    def file(self) -> int:
        """Add an upload, which always has waiting steps."""
        self.count += 1
        self.files.add(self.count)
        self.batcher.open(self.count, budget_s=10.0, background=True)
        for _ in range(50):
            self.batcher.push(self.count, None, T0)
        return self.count

    def hasty(self, steps: int) -> int:
        """Add a live stream that sends `steps` steps at once and then nothing."""
        self.count += 1
        self.batcher.open(self.count, budget_s=0.1)
        for _ in range(steps):
            self.batcher.push(self.count, None, T0)
        return self.count

    def go(self, seconds: float) -> Run:
        """Run the virtual clock: sends, sleeps until `wake_at`, batches."""
        now = T0
        while now < T0 + seconds:
            while self.events and self.events[0][0] <= now:
                sent_s, stream = heapq.heappop(self.events)
                self.batcher.push(stream, None, sent_s)
                heapq.heappush(self.events, (sent_s + STEP_S, stream))
            batch = self.batcher.next_batch(now)
            if not batch:
                wake_at = self.batcher.wake_at(now)
                now = min([moment for moment in (wake_at, self.events[0][0] if self.events else None) if moment])
                continue
            took_s = batch_s(len(batch)) * (1 + self.jitter * self.random.random())
            now += took_s
            self.run.batches.append(len(batch))
            for step in batch:
                self.answers[step.stream] = now
                if step.stream in self.files:
                    self.batcher.push(step.stream, None, now)
                elif step.stream in self.run.waits_s:
                    self.run.waits_s[step.stream].append(now - step.ready_s)
        return self.run


@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_the_deadline_policy_keeps_every_budget_and_fills_batches(jitter: float) -> None:
    runs: dict[Policy, Run] = {}
    for policy in (Policy.EAGER, Policy.DEADLINE):
        world = World(policy, jitter=jitter)
        budgets = {world.live(budget_s): budget_s for budget_s in (0.04, 0.1, 0.25) for _ in range(60)}
        runs[policy] = world.go(5.0)
        for stream, waits_s in runs[policy].waits_s.items():
            assert max(waits_s) <= budgets[stream]
    assert runs[Policy.DEADLINE].mean_batch() > 3 * runs[Policy.EAGER].mean_batch()


@pytest.mark.parametrize("live", [10, 100, 300])
def test_uploads_use_idle_time_and_raise_live_latency_by_a_fifth_at_most(live: int) -> None:
    def world(files: int) -> World:
        made = World(Policy.EAGER)
        for _ in range(live):
            made.live()
        for _ in range(files):
            made.file()
        return made

    alone, with_uploads = world(0).go(4.0), world(4)
    run = with_uploads.go(4.0)
    # With few streams most uploads run in batches of their own: a live step may arrive during one.
    assert run.p98_s() <= max(1.2 * alone.p98_s(), alone.p98_s() + 1.3 * batch_s(4))
    steps = sum(run.batches) - sum(len(waits) for waits in run.waits_s.values())
    assert steps > 4 * 4.0 / STEP_S * 10  # ten times real time each, or more


@pytest.mark.parametrize("policy", [Policy.EAGER, Policy.DEADLINE])
def test_streams_faster_than_real_time_do_not_delay_others_and_catch_up_quickly(policy: Policy) -> None:
    def world(hasty: int) -> World:
        made = World(policy)
        for _ in range(200):
            made.live()
        for _ in range(hasty):
            made.hasty(125)  # ten seconds of audio
        return made

    calm, busy = world(0).go(5.0), world(10)
    run = busy.go(5.0)
    assert run.p98_s() <= 1.2 * calm.p98_s() + 0.001
    assert busy.batcher.queued <= 200, "ten seconds of audio were not processed within five"


def test_all_streams_recover_quickly_from_a_common_stall() -> None:
    """All streams send two seconds of audio at once; all of them recover."""
    world = World(Policy.EAGER)
    for _ in range(300):
        stream = world.live()
        for _ in range(25):
            world.batcher.push(stream, None, T0)
    run = world.go(4.0)
    for waits_s in run.waits_s.values():
        assert max(waits_s[-5:]) < 0.05
