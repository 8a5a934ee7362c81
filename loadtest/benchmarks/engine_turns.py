"""An engine whose work is done turn by turn in the calling thread, and a process that measures such turns.

A turn is one step of each of `rows` streams, as front ends send it: its frames are written to their sockets, the engine
reads them, runs them and writes the results, and these are read. Only the engine's part is timed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batching.batcher import Policy
from batching.events import BatchDone
from batching.slot_model import SlotModel
from batching.wire.engine_server import EngineServer
from batching.wire.remote import RemoteConnection
from batching.wire.sockets import data_sockets
from model.acoustic import load_model
from model.machine.runtime import shorten_switches

READ_BYTES = 1 << 20
START_S = 0.02  # for the slowest process to wake up
WARM_TURNS, LEAST_TURNS = 3, 5
MAX_QUEUED = 4
LEVEL = 3_000.0  # of the noise that is recognized
AUDIO = 8  # different steps


@dataclass(frozen=True, slots=True)
class Turns:
    """What the engine took for each turn of `rows` streams, in seconds: in all, and in the model alone."""

    rows: int
    took_s: tuple[float, ...]
    step_s: tuple[float, ...]

    @property
    def rows_per_s(self) -> float:
        """Rows that this engine computes in a second of its own time."""
        return self.rows * len(self.took_s) / sum(self.took_s)


class _FrontEnd:
    """One front end's end of a socket, and its streams."""

    def __init__(self, engine: EngineServer, audio: NDArray[Any], streams: int) -> None:
        self._socket, served = data_sockets()
        engine.attach(served)
        self._socket.setblocking(False)
        self._connection = RemoteConnection()
        self._connection.received(self._socket.recv(READ_BYTES))  # the hello
        self._audio = audio
        self._streams = [self._connection.open(budget_s=1.0) for _ in range(streams)]
        self._unsent = memoryview(b"")

    def push(self, number: int) -> None:
        """Push the next step of each stream."""
        for stream in self._streams:
            self._connection.push(stream, self._audio[number % AUDIO])

    def send(self) -> bool:
        """Send what the socket takes; return whether that was anything."""
        if not self._unsent:
            self._unsent = memoryview(self._connection.take_output())
        if not self._unsent:
            return False
        self._unsent = self._unsent[self._socket.send(self._unsent) :]
        return True

    def batches(self) -> list[BatchDone]:
        """Return the results that have arrived."""
        try:
            events = self._connection.received(self._socket.recv(READ_BYTES))
        except BlockingIOError:
            return []
        return [event for event in events if isinstance(event, BatchDone)]


class TurnedEngine(EngineServer):
    """A served engine and its front ends, all driven by the calling thread."""

    def __init__(self, model: SlotModel, rows: int, front_ends: int) -> None:
        """Open `rows` streams, shared out among the front ends."""
        super().__init__(model, policy=Policy.EAGER, max_queued=MAX_QUEUED, chunks=False)
        noise = np.random.default_rng(1).normal(0.0, LEVEL, (AUDIO, *model.inputs.shape[1:]))
        audio = noise.astype(model.inputs.dtype)
        borders = [rows * place // front_ends for place in range(front_ends + 1)]
        shares = [last - first for first, last in itertools.pairwise(borders) if last > first]
        self._front_ends = [_FrontEnd(self, audio, share) for share in shares]
        self._turn_rows = rows
        self._feed()

    def turn(self, number: int) -> tuple[float, float]:
        """Answer one step of each stream; return the seconds of the engine, and of the model alone."""
        for front_end in self._front_ends:
            front_end.push(number)
        took_s, step_s, answered = self._feed(), 0.0, 0
        while answered < self._turn_rows:
            began_s = time.perf_counter()
            self._worker.run_batch()
            self._sockets.serve()
            took_s += time.perf_counter() - began_s
            for front_end in self._front_ends:
                for batch in front_end.batches():
                    answered += len(batch.streams)
                    step_s += batch.step_s * batch.leads
        return took_s, step_s

    def _feed(self) -> float:
        """Send what waits for the engine, as far as its sockets take it, and let it read; return its seconds."""
        took_s = 0.0
        while sum(front_end.send() for front_end in self._front_ends):
            began_s = time.perf_counter()
            self._drain_commands()
            took_s += time.perf_counter() - began_s
        return took_s


def _serve(path: Path | None, threads: int, front_ends: int, requests: Connection) -> None:
    """Measure turns as asked: (rows, start, seconds) gives `Turns`, or None for no more."""
    shorten_switches()
    model = load_model(path, device="cpu", threads=threads)
    requests.send(f"{model.config.name}, {model.precision}")
    engines: dict[int, TurnedEngine] = {}
    while (asked := requests.recv()) is not None:
        rows, start_s, seconds = asked
        if rows not in engines:
            engines[rows] = TurnedEngine(model.slots(capacity=rows, largest=rows), rows, front_ends)
            for number in range(WARM_TURNS):
                engines[rows].turn(number)
            requests.send(None)
            continue
        time.sleep(max(0.0, start_s - time.perf_counter()))
        found: list[tuple[float, float]] = []
        while len(found) < LEAST_TURNS or time.perf_counter() < start_s + seconds:
            found.append(engines[rows].turn(len(found)))
        took_s, step_s = zip(*found, strict=True)
        requests.send(Turns(rows, took_s, step_s))


class EngineProcess:
    """A process with a model of its own, which measures turns when asked."""

    def __init__(self, path: Path | None, threads: int, front_ends: int) -> None:
        """Start it; `begun` waits until its model is loaded."""
        context = multiprocessing.get_context("spawn")
        self._requests, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(path, threads, front_ends, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begun(self) -> str:
        """Return the name and precision of the loaded model. Raises: EOFError if the process ended."""
        named: str = self._requests.recv()
        return named

    def prepare(self, rows: int) -> None:
        """Allocate an engine for this number of rows, and run it a few times. Raises: EOFError."""
        self._requests.send((rows, 0.0, 0.0))
        self._requests.recv()

    def ask(self, rows: int, start_s: float, seconds: float) -> None:
        """Let it measure from `start_s` of `time.perf_counter` on; `answer` has the result."""
        self._requests.send((rows, start_s, seconds))

    def answer(self) -> Turns:
        """Return what was measured. Raises: EOFError if the process ended."""
        found: Turns = self._requests.recv()
        return found

    def stop(self) -> None:
        """End it."""
        self._requests.send(None)
        self._process.join()


def measure_together(processes: Sequence[EngineProcess], rows: int, seconds: float) -> list[Turns]:
    """Let all processes measure at the same time, each an equal share of the rows."""
    start_s = time.perf_counter() + START_S
    for process in processes:
        process.ask(rows // len(processes), start_s, seconds)
    return [process.answer() for process in processes]
