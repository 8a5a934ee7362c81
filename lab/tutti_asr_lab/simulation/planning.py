"""Capacity planning from a calibration: replicas needed for a number of streams within a latency objective.

Owns the search. All loads of a search share one seed, so that they differ only in the number of streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from batching.batcher import Batcher, Policy
from tutti_asr_lab.simulation.calibration import Calibration, Overheads, SecondPasses
from tutti_asr_lab.simulation.outcome import Outcome
from tutti_asr_lab.simulation.simulator import Simulator
from tutti_asr_lab.simulation.workload import Churn, Crowd, Live

UNBOUNDED = 1 << 30
"""Maximum of a stream's waiting steps, never reached, so that an overload shows as latency and not as an error."""

MANY_STEPS = 60_000
"""Most steps of a simulated load: 1,200 of them are above p98, and the simulation takes half a second."""

SHORTEST_S, LONGEST_S = 4.0, 40.0

SPARE_CORES = 2
"""Cores of a simulated server with front ends, in addition to theirs: for the engine, the supervisor and the kernel."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Settings of a replica and of its streams."""

    policy: Policy = Policy.EAGER
    max_batch: int = 128
    budget_s: float = 0.1
    stream_s: float = 60.0
    """Mean duration of a stream, after which another one starts; inf = streams never end."""
    models: int = 1
    """Models that take turns on the same cores, each with an equal share of the streams."""
    front_ends: int = 0
    """Number of event-loop processes that share one model process; 0 = one process for both."""
    crowd: int = 0
    """Additional streams that connect at once in the middle of the simulated time."""
    finals: str = "fast"
    """Finals of all streams: `fast`, or those of a second pass that the calibration has."""


@dataclass(frozen=True, slots=True)
class Point:
    """A number of streams on one replica and the outcome."""

    streams: int
    outcome: Outcome

    def within(self, slo_s: float) -> bool:
        """Whether p98 is within the objective and the load is stable."""
        latency = self.outcome.latency_ms
        return latency is not None and self.outcome.stable and latency.p98 <= slo_s * 1e3


@dataclass(frozen=True, slots=True)
class Plan:
    """Replicas needed for a load; `at`: a replica with its share of the streams; `limit`: a replica at its capacity."""

    replicas: int
    streams_per_replica: int
    capacity: int
    at: Point
    limit: Point


def run_load(
    calibration: Calibration, serving: Serving, streams: int, *, seconds: float | None = None, seed: int = 1
) -> Outcome:
    """Simulate `streams` live streams on one replica."""
    step_s = calibration.step_s
    if seconds is None:
        seconds = min(LONGEST_S, max(SHORTEST_S, MANY_STEPS * step_s / streams))
    batchers = [
        Batcher(serving.policy, max_batch=serving.max_batch, max_queued=UNBOUNDED) for _ in range(serving.models)
    ]
    churn = Churn(serving.stream_s, flush_steps=calibration.flush_steps) if serving.stream_s < math.inf else None
    crowd = Crowd(serving.crowd, at_s=seconds / 2) if serving.crowd else None
    cores = serving.front_ends + SPARE_CORES if serving.front_ends else calibration.provenance.cores
    passes = calibration.passes.get(serving.finals)
    load = Live(streams, step_s=step_s, budget_s=serving.budget_s, churn=churn, crowd=crowd, passes=passes)
    simulator = Simulator(
        batchers,
        calibration.table,
        load,
        overheads=_overheads(calibration, passes),
        interference=calibration.interference,
        spreads=calibration.spreads,
        cores=max(1.0, cores - streams * calibration.overheads.other_s / step_s) if cores else 0,
        front_ends=serving.front_ends,
        seed=seed,
    )
    return simulator.run(seconds)


def _overheads(calibration: Calibration, passes: SecondPasses | None) -> Overheads:
    costs = calibration.overheads
    return costs if passes is None else replace(costs, decode_s=max(0.0, costs.decode_s + passes.loop_s))


def most_streams(calibration: Calibration, serving: Serving) -> int:
    """Number of streams that exceeds the throughput of model thread or event loop, so that no latency can be kept.

    One more than the lower throughput of the two with full batches.
    """
    costs, rows = _overheads(calibration, calibration.passes.get(serving.finals)), serving.max_batch
    fullest = max(
        size / (calibration.table.mean(size) + costs.engine_s + costs.engine_row_s * size) for size in _sizes(rows)
    )
    on_loop_s = costs.receive_s + costs.decode_s + costs.write_s + costs.batch_s / rows
    on_loop_s += costs.open_s * calibration.step_s / serving.stream_s
    loops = max(1, serving.front_ends)
    steps_per_s = min(fullest, loops / on_loop_s if on_loop_s else math.inf)
    return math.ceil(steps_per_s * calibration.step_s) + 1


def capacity(calibration: Calibration, serving: Serving, slo_s: float, *, seed: int = 1) -> Point | None:
    """Find the most streams of one replica within the objective; None if it cannot carry one.

    Bisection between bounds that do not depend on the objective: a load within a strict objective is within a looser
    one at every step, so the answer never decreases when the objective is relaxed.
    """
    low, high = 0, most_streams(calibration, serving)
    best: Point | None = None
    while high - low > max(1, high // 100):
        streams = (low + high) // 2
        point = Point(streams, run_load(calibration, serving, streams, seed=seed))
        if point.within(slo_s):
            low, best = streams, point
        else:
            high = streams
    return best


def plan(
    calibration: Calibration, serving: Serving, *, streams: int, slo_s: float, headroom: float = 0.2, seed: int = 1
) -> Plan | None:
    """Distribute the streams over replicas that keep `headroom` of their capacity free; None if one stream is too much.

    Raises: ValueError.
    """
    if streams < 1 or slo_s <= 0 or not 0 <= headroom < 1:
        raise ValueError(
            f"streams ({streams}) and slo_s ({slo_s:g}) must be positive, headroom ({headroom:g}) in 0 <= headroom < 1"
        )
    limit = capacity(calibration, serving, slo_s, seed=seed)
    if limit is None:
        return None
    usable = max(1, math.floor(limit.streams * (1 - headroom)))
    replicas = math.ceil(streams / usable)
    each = math.ceil(streams / replicas)
    at = Point(each, run_load(calibration, serving, each, seed=seed))
    return Plan(replicas, each, limit.streams, at, limit)


def _sizes(largest: int) -> list[int]:
    return [*(1 << power for power in range(largest.bit_length()) if 1 << power < largest), largest]
