"""Live streams on one thread: audio arrives in real time; latency is measured from the time it is due to its result.

Includes only the device and the batching core, without event loop and decoding.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import BatchDone, EngineEvent, StreamFailed
from batching.slot_model import SlotModel
from batching.thread.commands import Close, Command, Open, Step
from tutti_asr_lab.benchmarks.gpu.networks import noise
from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import EAGER, GRAPH, fastest, network_of, precision_of, rungs, slots
from tutti_asr_lab.benchmarks.gpu.timing import percentile

LARGEST = 128
MAX_QUEUED = 64  # steps of one stream: five seconds of audio
BUDGET_S = 0.1
WARM_S = 1.0  # warm-up at the start of a level, not measured
DRAIN_S = 2.0  # after a level, for queued steps; those left are reported as `unanswered`
NAP_S = 0.0003  # a sleep may end this late: the rest of a gap is spent polling the clock
SEED = 7


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield all levels for the fastest rung; some for the other rungs and the small network."""
    first, *others = context.scale.networks[:2]
    rung = fastest(context.device)
    levels = [(first, rung, streams) for streams in context.scale.streams]
    few = context.scale.streams[1::4]
    levels += [(name, rung, streams) for name in others for streams in few]
    levels += [
        (first, each, streams) for each in rungs(context.device) if each in {GRAPH, EAGER} - {rung} for streams in few
    ]
    for name, which, streams in levels:
        case: Case = {"network": name, "rung": which, "streams": streams}
        yield case, partial(_level, context, name, which, streams)


@cache
def _slots(context: Context, name: str, rung: str) -> SlotModel:
    network = network_of(name, context.device, precision_of(rung, context.device))
    capacity = max(*context.scale.streams, LARGEST)
    return slots(network, rung, context.device, capacity=capacity, largest=LARGEST)


def _level(context: Context, name: str, rung: str, streams: int) -> Values:
    model = _slots(context, name, rung)
    step_s = network_of(name, context.device, precision_of(rung, context.device)).config.step_samples / 16_000
    thread = Thread(model, step_s)
    thread.open(range(1, streams + 1))
    thread.run(range(1, streams + 1), WARM_S * min(1.0, context.scale.level_s))
    thread.forget()
    thread.run(range(1, streams + 1), context.scale.level_s)
    thread.close()
    step: Any = getattr(model, "step", None)
    if hasattr(step, "check"):
        step.check()
    return thread.values()


@dataclass(slots=True)
class Delivered:
    """Delivered results: latency of each live step, rows and seconds of each batch."""

    latency_s: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Thread:
    """The model thread of a benchmark: runs the worker and real-time arrivals on the same thread.

    A step's tag is the time at which its audio is due.
    """

    def __init__(self, model: SlotModel, step_s: float) -> None:
        # The engine is not started: its worker runs here, so that arrivals and batches share a thread.
        engine = Engine(model, policy=Policy.EAGER, max_queued=MAX_QUEUED, deliver=self._take, step_s=step_s)
        self._worker = engine._worker
        self._batcher = self._worker._batcher
        self._step_s = step_s
        self._audio: list[NDArray[np.int16]] = list(noise(64, model.inputs.shape[1]).numpy())
        self._streams: list[int] = []
        self.delivered = Delivered()
        self._idle_s = self._wall_s = 0.0
        self._worker.warm_up()
        gc.collect()
        gc.freeze()

    def _take(self, event: EngineEvent) -> None:
        delivered = self.delivered
        if isinstance(event, BatchDone):
            now = time.perf_counter()
            delivered.latency_s += [now - tag for tag in event.tags if isinstance(tag, float)]
            delivered.rows.append(len(event.tags))
            delivered.step_s.append(event.step_s)
        elif isinstance(event, StreamFailed):
            delivered.failures.append(str(event.error))

    def open(self, streams: Sequence[int]) -> None:
        """Open streams with these IDs."""
        self._streams += streams
        for stream in streams:
            self._worker.execute(deque([Open(stream, BUDGET_S, False)]))

    def forget(self) -> None:
        """Reset the measurements."""
        self.delivered = Delivered()
        self._idle_s = self._wall_s = 0.0

    def run(self, live: Sequence[int], seconds: float) -> None:
        """Push audio of unsynchronized live streams in real time, for `seconds`."""
        began = time.perf_counter()
        offsets = np.random.default_rng(SEED).random(len(live)) * self._step_s
        due = [(began + float(offset), stream) for offset, stream in zip(offsets, live, strict=True)]
        heapq.heapify(due)
        ends = began + seconds
        while (now := time.perf_counter()) < ends:
            arrived: deque[Command] = deque()
            while due and due[0][0] <= now:
                at, stream = due[0]
                arrived.append(Step(stream, self._audio[stream % 64], at, False, now))
                heapq.heapreplace(due, (at + self._step_s, stream))
            self._worker.execute(arrived)
            if not self._batcher.queued:
                self._worker.run_batch()  # delivers pending results of an overlapping model
                self._wait(min(due[0][0] if due else ends, ends))
            else:
                self._worker.run_batch()
        drained = time.perf_counter() + DRAIN_S
        while self._batcher.queued and time.perf_counter() < drained:
            self._worker.run_batch()
        self._worker.run_batch()
        self._wall_s += time.perf_counter() - began

    def _wait(self, until_s: float) -> None:
        began = time.perf_counter()
        if until_s - began > 2 * NAP_S:
            time.sleep(until_s - began - NAP_S)
        while time.perf_counter() < until_s:
            pass
        self._idle_s += time.perf_counter() - began

    def close(self) -> None:
        """Close every stream."""
        for stream in self._streams:
            self._worker.execute(deque([Close(stream)]))
        gc.unfreeze()

    def values(self) -> Values:
        """Return percentiles of the latency in ms, the mean batch, and the shares of the thread's time."""
        delivered = self.delivered
        ordered = sorted(delivered.latency_s)
        steps = sum(delivered.rows)
        if not ordered or not steps:
            return {"count": 0, "failures": len(delivered.failures)}
        named = {f"ms_p{int(100 * share)}": round(1e3 * percentile(ordered, share), 3) for share in (0.5, 0.98, 0.99)}
        busy_s = self._wall_s - self._idle_s
        return {
            **named,
            "ms_most": round(1e3 * ordered[-1], 3),
            "count": len(ordered),
            "rows_mean": round(steps / len(delivered.rows), 2),
            "step_us_mean": round(1e6 * sum(delivered.step_s) / len(delivered.rows), 1),
            "step_share": round(sum(delivered.step_s) / self._wall_s, 3),
            "idle_share": round(self._idle_s / self._wall_s, 3),
            "host_us_a_row": round(1e6 * (busy_s - sum(delivered.step_s)) / steps, 2),
            "unanswered": self._batcher.queued,
            "failures": len(delivered.failures),
        }
