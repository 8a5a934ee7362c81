"""Python overhead of the engine around a model that does nothing: time to queue steps, and to run a batch of them.

`python -m loadtest.benchmarks.engine_python` measures this tree; `--against DIRECTORY` compares it with another one,
whose `batching` is measured by the same code in alternation. Times are CPU time of a single thread, so that other
processes have little influence. `--served` measures an engine whose front ends are other processes
(`engine_served.py`), with this model and with one that waits. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import EngineEvent

SIZES = (1, 8, 32, 128)
STREAMS = 2_048
STEPS = 6  # per stream
STEP_S = 0.08
REPEATS = 9
SAMPLES = 1_280  # per step: 80 ms at 16 kHz
SERVED_STREAMS, SOCKETS = 4_000, 4
DEVICE_S = 0.0006  # of a batch on a GPU

Costs = dict[str, float]
"""Microseconds by name and rows: `push 32` is the work of other threads for 32 steps; `take 32` is that of the model
thread to queue them, `batch 32` to run a batch of them, and `take + batch 32` for both."""


class IdleModel:
    """A slot model that always returns the same memory, after `wait_s` if that is given."""

    state_bytes = 8

    def __init__(self, capacity: int, largest: int, wait_s: float = 0.0) -> None:
        self.capacity = capacity
        self._wait_s = wait_s
        self.inputs: NDArray[np.int16] = np.zeros((largest, SAMPLES), np.int16)
        self._outputs: NDArray[np.float32] = np.zeros((largest, 2, 29), np.float32)

    def run(self, slots: Sequence[int]) -> NDArray[np.float32]:
        """(B, samples) int16 -> (B, frames, V) float32."""
        if self._wait_s:
            time.sleep(self._wait_s)
        return self._outputs[: len(slots)]

    def reset(self, slot: int) -> None:
        """Do nothing."""

    def export(self, _slot: int) -> bytes:
        """Return zeros."""
        return bytes(self.state_bytes)

    def restore(self, slot: int, state: bytes) -> None:
        """Do nothing."""


class DrivenEngine(Engine):
    """An engine whose work is done in the calling thread."""

    def __init__(self, largest: int) -> None:
        self.last: deque[EngineEvent] = deque(maxlen=1)
        model: Any = IdleModel(STREAMS, largest)
        # Each reading is later by the time between two streams' steps, so that all streams are live in real time.
        clock = itertools.count(1.0, STEP_S / STREAMS).__next__
        super().__init__(
            model, policy=Policy.EAGER, max_queued=STEPS, deliver=self.last.append, step_s=STEP_S, clock=clock
        )
        self.streams = [self.open() for _ in range(STREAMS)]
        self._drain_commands()

    def times(self, streams: Sequence[int], inputs: NDArray[np.int16]) -> tuple[float, float, float, float]:
        """Return clock readings around pushing, queuing and running one step of each stream."""
        clock = time.thread_time
        began_s = clock()
        for stream in streams:
            self.push(stream, inputs)
        pushed_s = clock()
        self._drain_commands()
        taken_s = clock()
        self._worker.run_batch()
        return began_s, pushed_s, taken_s, clock()


def measure(rows: int) -> NDArray[np.float64]:
    """Return the microseconds to push `rows` steps, to queue them, and to run a batch of them, (3,)."""
    engine = DrivenEngine(rows)
    inputs: NDArray[np.int16] = np.zeros(SAMPLES, np.int16)
    parts = [engine.streams[first : first + rows] for first in range(0, STREAMS, rows)]
    readings_s = np.array([engine.times(part, inputs) for _ in range(STEPS) for part in parts])  # (batches, 4)
    took: NDArray[np.float64] = 1e6 * (np.diff(readings_s, axis=1).mean(axis=0) - _reading_s())
    return took


def _reading_s() -> float:
    """Return the seconds that a clock reading takes, which is significant for a batch of one row."""
    clock = time.thread_time
    began_s = clock()
    for _ in range(1_000):
        clock()
    return (clock() - began_s) / 1_000


def costs() -> Costs:
    """Return the medians of several runs."""
    found: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        for rows in SIZES:
            push, take, batch = measure(rows)
            for name, took in (("push", push), ("take", take), ("batch", batch), ("take + batch", take + batch)):
                found.setdefault(f"{name} {rows}", []).append(float(took))
    return {name: statistics.median(values) for name, values in found.items()}


def _costs_of(tree: Path) -> Costs:
    """Measure the `batching` of another tree, in a separate process."""
    path = {"PYTHONPATH": str(tree)}
    command = [sys.executable, __file__]
    environment = {**os.environ, **path, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(  # noqa: S603 - this program
        command, env=environment, check=True, capture_output=True, text=True, cwd=tree
    )
    found: Costs = json.loads(ran.stdout.splitlines()[-1])
    return found


def _compare(here: Path, other: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return medians over alternating rounds: this tree, the other one, and the ratio within each round."""
    pairs = [(_costs_of(here), _costs_of(other)) for _ in range(rounds)]
    return {
        name: {
            "here_us": statistics.median(ours[name] for ours, _ in pairs),
            "there_us": statistics.median(theirs[name] for _, theirs in pairs),
            "ratio": statistics.median(theirs[name] / ours[name] for ours, theirs in pairs),
        }
        for name in pairs[0][0]
    }


def _served(seconds: float) -> dict[str, dict[str, float]]:
    """Measure a served engine, with a model that does nothing and with one that waits as a GPU does."""
    from loadtest.benchmarks.engine_served import measure  # another tree has none

    return {
        name: measure(
            IdleModel(SERVED_STREAMS, SIZES[-1], wait_s), streams=SERVED_STREAMS, sockets=SOCKETS, seconds=seconds
        )
        for name, wait_s in (("idle", 0.0), ("waits", DEVICE_S))
    }


def main() -> None:
    """Measure, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another tree to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--served", action="store_true", help="measure an engine for front ends in other processes")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement with --served")
    options = parser.parse_args()
    if options.against is None and not options.served:
        sys.stdout.write(json.dumps(costs()) + "\n")
        return
    from loadtest.reports.machine import processor  # an older tree may have none

    if options.served:
        served = {"processor": processor(), "python": platform.python_version(), "served": _served(options.seconds)}
        sys.stdout.write(json.dumps(served) + "\n")
        return
    here = Path(__file__).resolve().parents[2]
    found = _compare(here, options.against.resolve(), options.rounds)
    for name, row in found.items():
        line = f"{name:>16}: {row['there_us']:8.2f} -> {row['here_us']:8.2f} µs, {row['ratio']:.2f} times\n"
        sys.stdout.write(line)
    report = {"processor": processor(), "python": platform.python_version(), "costs": found}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
