"""Discrete-event simulation of a replica: the real batcher with a simulated event loop, model thread and clients.

Three servers, each with one queue: `generator.py`, `event_loop.py`, `model_thread.py`. The one with the earliest next
event acts; nothing is computed between events. The same seed gives the same outcome.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from batching.batcher import Batcher
from batching.simulation.calibration import Client, Interference, Overheads
from batching.simulation.event_loop import Cores, EventLoop
from batching.simulation.generator import Generator
from batching.simulation.model_thread import ModelThread
from batching.simulation.outcome import Outcome, Percentiles
from batching.simulation.service_table import ServiceTable
from batching.simulation.workload import Arrivals, Live

GROWTH, GROWTH_S = 1.5, 0.02
"""A load is unstable if the median latency of the last quarter is above 1.5 times that of the first, plus 20 ms."""


class Simulator:
    """One run of one replica under one load."""

    def __init__(
        self,
        batcher: Batcher,
        table: ServiceTable,
        load: Live,
        *,
        overheads: Overheads | None = None,
        interference: Interference | None = None,
        client: Client | None = None,
        cores: int = 0,
        seed: int = 1,
    ) -> None:
        """`batcher` must be new, with a `max_queued` that is never reached, so that an overload shows as latency.

        `cores` are shared by all threads, including the client's if there is one; 0 = one core per thread.
        """
        costs = overheads or Overheads()
        arrivals = Arrivals(load, seed)
        self._model = ModelThread(batcher, table, costs, interference or Interference(), random.Random(seed + 1))
        shared = Cores(cores, self._model)
        self._loop = EventLoop(costs, self._model, shared, self._answered)
        self._model.loop = self._loop
        self._clients = Generator(client, iter(arrivals), self._loop, shared, costs.path_s)

    @property
    def sent(self) -> int:
        """Number of timed steps sent so far."""
        return self._clients.sent

    @property
    def latencies(self) -> Sequence[tuple[float, float]]:
        """(due time of its message, seconds until the answer) of each timed step, in order of the answers."""
        return self._clients.latencies

    def run(self, seconds: float, warm_up_s: float = 1.0) -> Outcome:
        """Simulate the warm-up and `seconds`, then continue until every sent step is answered."""
        end_s = warm_up_s + seconds
        self._advance(end_s)
        busy = self._model.busy_s / end_s, self._loop.busy_s / end_s
        self._clients.stop()
        self._advance(math.inf)  # until every sent step is answered
        return self._outcome(warm_up_s, end_s, busy)

    def _answered(self, due_s: float, at_s: float) -> None:
        self._clients.answered(due_s, at_s)

    def _advance(self, end_s: float) -> None:
        clients, loop, model = self._clients, self._loop, self._model
        while True:
            client_s, loop_s, model_s = clients.at_s, loop.at_s, model.at_s
            if client_s <= loop_s and client_s <= model_s:
                if client_s >= end_s:
                    return
                clients.act(client_s)
            elif loop_s <= model_s:
                if loop_s >= end_s:
                    return
                loop.act(loop_s)
            else:
                if model_s >= end_s:
                    return
                model.act(model_s)

    def _outcome(self, from_s: float, end_s: float, busy: tuple[float, float]) -> Outcome:
        measured = [(due_s, took_s) for due_s, took_s in self.latencies if from_s <= due_s < end_s]
        batches = Counter(rows for began_s, rows in self._model.batches if from_s <= began_s < end_s)
        steps = sum(rows * count for rows, count in batches.items())
        return Outcome(
            latency_ms=Percentiles.of([took_s for _, took_s in measured]) if measured else None,
            batches=dict(sorted(batches.items())),
            model_busy=round(busy[0], 4),
            loop_busy=round(busy[1], 4),
            stable=_keeps_up(measured, from_s, end_s),
            background_steps=max(0, steps - len(measured)),
            seconds=end_s - from_s,
        )


def _keeps_up(measured: Sequence[tuple[float, float]], from_s: float, end_s: float) -> bool:
    quarter_s = (end_s - from_s) / 4
    first = [took_s for due_s, took_s in measured if due_s < from_s + quarter_s]
    last = [took_s for due_s, took_s in measured if due_s >= end_s - quarter_s]
    if not first or not last:
        return True
    return float(np.median(last)) <= GROWTH * float(np.median(first)) + GROWTH_S
