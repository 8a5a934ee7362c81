"""How long the real engine takes for batches of each size, and what share of the bare step's rate it keeps."""

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
"""Of each size: one lies beyond p98."""

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
    """Keep so many streams always ready, one size after another."""
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
    """Batches of exactly so many rows, which began when everything had been pushed."""
    rng = np.random.default_rng(rows)
    audio = rng.integers(-300, 300, (8, model.config.step_samples), dtype=np.int16)
    streams = [engine.open(budget_s=1.0) for _ in range(rows)]
    for number in range(batches + 4):  # the first few ride while others are still being pushed
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


STEPS = 24  # of each stream, all waiting before the first batch: the engine never waits for input
WARM_UP = 4  # batches that are not timed
WITHIN_S = 60.0


def batch_ms(model: AcousticModel, rows: int) -> float:
    """Mean milliseconds from one full batch's delivery to the next's. Raises: queue.Empty if the engine hangs."""
    events: queue.SimpleQueue[tuple[float, EngineEvent]] = queue.SimpleQueue()
    engine = Engine(
        model,
        capacity=rows,
        policy=Policy.EAGER,
        max_batch=rows,
        max_queued=STEPS,
        deliver=lambda event: events.put((time.perf_counter(), event)),
    )
    noise = np.random.default_rng(0).integers(-8_000, 8_000, (rows, *model.input_spec.shape), dtype=np.int16)
    streams = [engine.open(budget_s=WITHIN_S) for _ in range(rows)]
    for _ in range(STEPS):
        for stream, samples in zip(streams, noise, strict=True):
            engine.push(stream, samples)
    engine.start()  # and with that all of it is there at once
    try:
        delivered_s: list[float] = []
        while len(delivered_s) < STEPS:
            at_s, event = events.get(timeout=WITHIN_S)
            if isinstance(event, BatchDone):
                delivered_s.append(at_s)
    finally:
        engine.stop(WITHIN_S)
    return (delivered_s[-1] - delivered_s[WARM_UP]) / (STEPS - 1 - WARM_UP) * 1e3
