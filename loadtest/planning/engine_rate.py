"""How much of the bare step's rate the whole engine keeps: queue, batcher, gather, scatter and delivery included."""

from __future__ import annotations

import queue
import time

import numpy as np

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import BatchDone, EngineEvent
from model.acoustic import AcousticModel

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
