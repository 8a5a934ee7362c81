"""Discrete-event simulation of a replica: the real batcher with simulated event loops, model threads and clients.

It consists of servers with one queue each: `Generator`, and the threads of `threads.py`. The server with the
earliest next event acts; nothing is computed between events. The same seed gives the same outcome.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from batching.batcher import Batcher
from server.recognition.decoding.segment_threads import threads_of
from tutti_asr_lab.simulation.calibration import Interference, Overheads, RandomFactors, Spreads
from tutti_asr_lab.simulation.outcome import Outcome, Percentiles
from tutti_asr_lab.simulation.service_table import ServiceTable
from tutti_asr_lab.simulation.threads import NEVER_S, Cores, EventLoop, ModelThread, PassThread, StepToken
from tutti_asr_lab.simulation.workload import Arrivals, Live, Message

GROWTH, GROWTH_S = 1.5, 0.02
"""A load is unstable if the median latency of the last quarter is above 1.5 times that of the first, plus 20 ms."""


class Generator:
    """Sends the clients' messages when due and records the answers; `path_s`: a round trip outside all threads."""

    def __init__(
        self, arrivals: Iterator[Message], receive: Callable[[float, Message], None], *, path_s: float
    ) -> None:
        self._arrivals = arrivals
        self._receive = receive
        self._way_s = path_s / 2
        self._next: Message | None = next(arrivals, None)
        self.latencies: list[tuple[float, float]] = []  # (due, seconds)
        self.sent = 0  # timed steps

    @property
    def at_s(self) -> float:
        """Due time of the next message."""
        return NEVER_S if self._next is None else self._next.due_s

    def stop(self) -> None:
        """Stop sending."""
        self._next = None

    def answered(self, due_s: float, at_s: float) -> None:
        """Record an answer; those of one event loop come in order of time."""
        self.latencies.append((due_s, at_s - due_s))

    def act(self, now: float) -> None:
        """Send the next message."""
        message = self._next
        assert message is not None, "it is due"
        if message.timed:
            self.sent += message.steps
        self._receive(now + self._way_s, message)
        self._next = next(self._arrivals, None)


class Simulator:
    """One run of one replica under one load."""

    def __init__(
        self,
        batchers: Batcher | Sequence[Batcher],
        table: ServiceTable,
        load: Live,
        *,
        overheads: Overheads | None = None,
        interference: Interference | None = None,
        spreads: Spreads | None = None,
        cores: float = 0,
        front_ends: int = 0,
        seed: int = 1,
    ) -> None:
        """Build the replica. The batchers must be new, one per model, each with as many of the streams.

        Their `max_queued` must never be reached, so that an overload shows as latency. `cores` are shared by all
        threads; 0 = one core per thread. `front_ends`: number of event-loop
        processes, among which a supervisor distributes the connections; 0 = one process with the model.
        """
        costs, factors = overheads or Overheads(), RandomFactors(spreads or Spreads(), seed + 2)
        token, shared = StepToken(), Cores(cores)
        self._models = [
            ModelThread(
                batcher,
                table,
                costs,
                interference or Interference(),
                rng=random.Random(seed + 1 + 10 * number),
                factors=factors,
                token=token,
                cores=shared,
                shares_lock=not front_ends,
            )
            for number, batcher in enumerate([batchers] if isinstance(batchers, Batcher) else batchers)
        ]
        processes = range(max(1, front_ends))
        self._loops = [EventLoop(costs, self._models, shared, self._answered, factors) for _ in processes]
        threads = threads_of(len(processes), math.ceil(cores) or 2)
        for loop in self._loops:
            loop.pass_threads = [PassThread(loop, shared) for _ in range(threads)]
        self._passes = [thread for loop in self._loops for thread in loop.pass_threads]
        shared.models, shared.loops, shared.passes = self._models, self._loops, self._passes
        self._supervisor = Supervisor(self._loops, costs.wake_s, factors)
        for model in self._models:
            model.loops, model.routes = self._loops, self._supervisor.routes
        receive = self._supervisor.receive if front_ends else self._loops[0].receive
        self._clients = Generator(iter(Arrivals(load, seed)), receive, path_s=costs.path_s)

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
        busy = _most_busy(self._models) / end_s, _most_busy(self._loops) / end_s
        self._clients.stop()
        self._advance(math.inf)  # until every sent step is answered
        return self._outcome(warm_up_s, end_s, busy)

    def _answered(self, due_s: float, at_s: float) -> None:
        self._clients.answered(due_s, at_s)

    def _advance(self, end_s: float) -> None:
        servers: list[Generator | EventLoop | ModelThread | PassThread] = [self._clients, *self._loops, *self._models]
        servers += self._passes
        while True:
            first, first_s = servers[0], servers[0].at_s
            for server in servers:
                if server.at_s < first_s:
                    first, first_s = server, server.at_s
            if first_s >= end_s:
                return
            first.act(first_s)

    def _outcome(self, from_s: float, end_s: float, busy: tuple[float, float]) -> Outcome:
        measured = [(due_s, took_s) for due_s, took_s in self.latencies if from_s <= due_s < end_s]
        batches = Counter(
            rows for model in self._models for began_s, rows in model.batches if from_s <= began_s < end_s
        )
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


class Supervisor:
    """Accepts connections and hands each to the event loop with the fewest; a handover wakes up two processes."""

    def __init__(self, loops: Sequence[EventLoop], wake_s: float, factors: RandomFactors) -> None:
        self.routes: dict[int, EventLoop] = {}
        self._loops = loops
        self._wake_s = wake_s
        self._factors = factors

    def receive(self, now: float, message: Message) -> None:
        """Pass a message to the event loop of its stream."""
        loop = self.routes.get(message.stream)
        if loop is None:
            loop = self.routes[message.stream] = min(self._loops, key=lambda each: each.streams)
            loop.streams += 1
            now += self._wake_s * (self._factors.wake() + self._factors.wake())
        if message.last:
            loop.streams -= 1
        loop.receive(now, message)


def _most_busy(servers: Sequence[ModelThread] | Sequence[EventLoop]) -> float:
    return max(server.busy_s for server in servers)


def _keeps_up(measured: Sequence[tuple[float, float]], from_s: float, end_s: float) -> bool:
    quarter_s = (end_s - from_s) / 4
    first = [took_s for due_s, took_s in measured if due_s < from_s + quarter_s]
    last = [took_s for due_s, took_s in measured if due_s >= end_s - quarter_s]
    if not first or not last:
        return True
    return float(np.median(last)) <= GROWTH * float(np.median(first)) + GROWTH_S
