"""Times of the real engine: of batches of each size, and from one full batch to the next."""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import BatchDone, EngineEvent
from model.acoustic import AcousticModel

BATCHES = 60
"""Timed batches of each size: one lies beyond p98."""

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Seconds by rows: each batch's step, and the median from one batch's start to the next."""

    step_s: dict[int, list[float]]
    cycle_s: dict[int, float]

    def outside_s(self) -> tuple[float, float]:
        """Seconds of a cycle that are not the step: for each batch, and for each row."""
        outside = [self.cycle_s[rows] - statistics.median(self.step_s[rows]) for rows in self.cycle_s]
        row_s, batch_s = np.polyfit(list(self.cycle_s), outside, 1)
        return max(0.0, float(batch_s)), max(0.0, float(row_s))


def measure_engine(model: AcousticModel, sizes: Sequence[int], batches: int = BATCHES) -> EngineTimes:
    """Time full batches of each size, one size after another: `rows` streams always have a step ready."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    engine = Engine(
        model,
        capacity=max(sizes),
        policy=Policy.EAGER,
        max_batch=max(sizes),
        max_queued=batches + 8,
        deliver=events.put,
        warm_up=True,
    )
    engine.start()
    steps, cycles = {}, {}
    try:
        for rows in sizes:
            done = _batches(engine, events, model, rows, batches)
            steps[rows] = [batch.step_s for batch in done]
            starts = [batch.started_s for batch in done]
            cycles[rows] = float(np.median(np.diff(starts)))
    finally:
        engine.stop(WAIT_S)
    return EngineTimes(steps, cycles)


def _batches(
    engine: Engine, events: queue.SimpleQueue[EngineEvent], model: AcousticModel, rows: int, batches: int
) -> list[BatchDone]:
    """Batches of exactly `rows` rows that began after the last step had been pushed."""
    rng = np.random.default_rng(rows)
    audio = rng.integers(-300, 300, (8, model.config.step_samples), dtype=np.int16)
    streams = [engine.open(budget_s=1.0) for _ in range(rows)]
    for number in range(batches + 4):  # the first few begin while others are still being pushed
        for stream in streams:
            engine.push(stream, audio[number % len(audio)])
    pushed_s, answered, done = time.perf_counter(), 0, []
    while answered < rows * (batches + 4):
        event = events.get(timeout=WAIT_S)
        if isinstance(event, BatchDone):
            answered += len(event.streams)
            if len(event.streams) == rows and event.started_s > pushed_s:
                done.append(event)
    for stream in streams:
        engine.close(stream)
    return done
