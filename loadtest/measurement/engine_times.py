"""Times of the real engine: of batches by size, and from one full batch to the next."""

from __future__ import annotations

import queue
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import BatchDone, EngineEvent
from batching.slot_model import SlotModel

BATCHES = 60
"""Timed batches of each size, so that one is above p98."""

PARTS = 3

WARM_UP = 4  # untimed batches
WAIT_S = 60.0

MakeSlots = Callable[..., SlotModel]
"""A model's `slots`: make(capacity=…, largest=…)."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Seconds by rows: step of each batch, and median time from one batch's start to the next."""

    step_s: dict[int, list[float]]
    cycle_s: dict[int, float]


def measure_engine(make_slots: MakeSlots, sizes: Sequence[int], batches: int = BATCHES, tries: int = 1) -> EngineTimes:
    """Time full batches of each size that the model supports, in `PARTS` runs.

    With more `tries` there are as many times more runs, of which the fastest count: those that other programs
    disturbed least. Raises: queue.Empty if it hangs.
    """
    steps, cycles = {}, {}
    largest = len(make_slots(capacity=max(sizes), largest=max(sizes)).inputs)
    for rows in [size for size in sizes if size <= largest]:
        runs = [
            _batches(make_slots(capacity=max(sizes), largest=max(sizes)), rows, batches // PARTS)
            for _ in range(PARTS * tries)
        ]
        runs.sort(key=lambda run: statistics.median(batch.step_s for batch in run))
        steps[rows] = [batch.step_s for run in runs[:PARTS] for batch in run]
        cycles[rows] = float(np.median([np.diff([batch.started_s for batch in run]) for run in runs[:PARTS]]))
    return EngineTimes(steps, cycles)


def _batches(slots: SlotModel, rows: int, batches: int) -> list[BatchDone]:
    """Run batches of exactly `rows` rows: all steps of `rows` streams are queued before the engine starts."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    engine = Engine(slots, policy=Policy.EAGER, max_queued=WARM_UP + batches, deliver=events.put, chunks=False)
    audio = np.random.default_rng(rows).integers(-300, 300, (8, *slots.inputs.shape[1:]), dtype=np.int16)
    streams = [engine.open(budget_s=1.0) for _ in range(rows)]
    for number in range(WARM_UP + batches):
        for stream in streams:
            engine.push(stream, audio[number % len(audio)])
    engine.start()
    done: list[BatchDone] = []
    try:
        while len(done) < WARM_UP + batches:
            event = events.get(timeout=WAIT_S)
            if isinstance(event, BatchDone):
                done.append(event)
    finally:
        engine.stop(WAIT_S)
    assert all(len(batch.streams) == rows for batch in done)
    return done[WARM_UP:]
