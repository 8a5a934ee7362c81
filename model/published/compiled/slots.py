"""Slots of a compiled published network: a row of bytes per stream in one slab, work space per thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.machine.memory import CompiledStates, aligned
from model.published.compiled import team
from model.published.compiled.fastconformer.network import FastConformerStep
from model.published.compiled.zipformer2.network import Zipformer2Step

LARGE_BYTES = 128 << 20
"""Bytes of the weights of a large network: more than the caches of a processor hold."""
DIVIDED = 4
"""Rows of a large network from which on the threads divide rows: products take most of the time of fewer rows, and with
more rows the rest of the step, which one thread computes, takes longer than reading the weights once for each thread.
"""


CompiledStep = FastConformerStep | Zipformer2Step
"""A network whose step is compiled; shared by all its slots."""


class Team:
    """Threads that help the thread of a step with its products (`model.published.compiled.team`)."""

    def __init__(self, pool: ThreadPoolExecutor, helpers: int) -> None:
        self._pool, self._helpers = pool, helpers
        self._words = aligned(team.TEAM_BYTES).view(np.int64)
        self._calls: list[Future[None]] = []

    @contextmanager
    def helping(self) -> Iterator[int]:
        """Have the threads help until the end of the block. Yields: the address for `CompiledStep.run`."""
        wait([call for call in self._calls if not call.cancel()])  # they ended with the last step, or soon after
        self._words[:] = 0
        self._words[team.THREADS] = 1 + self._helpers
        self._calls = [self._pool.submit(_help, self._words) for _ in range(self._helpers)]
        try:
            yield int(self._words.ctypes.data)
        finally:
            self._words[team.STATE] = team.CLOSED


def _help(words: NDArray[np.int64]) -> None:
    team.help_out(int(words.ctypes.data))  # `words` may have no other owner by then


class CompiledSlots:
    """A compiled network with the states of its streams; the counterpart of `GraphSlots`.

    The rows of a batch are divided among the threads. Few rows of a large network are not: the threads divide each
    product, so that its weights are read once.
    """

    def __init__(self, step: CompiledStep, *, capacity: int, threads: int = 1, large: int = LARGE_BYTES) -> None:
        """`large`: bytes of the weights of a large network."""
        self.states = CompiledStates(step.fresh, capacity=capacity)
        self.result_shape = step.result_shape
        self._step = step
        self._works = [aligned(step.work_bytes) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads - 1, "compiled") if threads > 1 else None
        self._team = Team(self._pool, threads - 1) if self._pool and step.weight_bytes >= large else None

    def run(
        self, slots: NDArray[np.int64], windows: NDArray[Any], prompts: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Step the streams in these slots by one window, (R, L, F). Returns: (R, …) in new memory.

        `prompts`: numbers of their languages, (R,); None: 0.
        """
        chosen = np.zeros(len(slots), np.int64) if prompts is None else np.ascontiguousarray(prompts, np.int64)
        slots, windows = np.ascontiguousarray(slots, np.int64), np.ascontiguousarray(windows, np.float32)
        count, results = len(slots), np.empty((len(slots), *self.result_shape), np.float32)
        together = self._team is not None and count < DIVIDED
        parts = 1 if together else min(len(self._works), count)
        borders = [count * part // parts for part in range(parts + 1)]

        def run_part(part: int, team: int = 0) -> None:
            for first in range(borders[part], borders[part + 1], self._step.block):
                last = min(first + self._step.block, borders[part + 1])
                memory = (
                    windows[first:].ctypes.data,
                    slots[first:].ctypes.data,
                    self.states.slab.ctypes.data,
                    self.states.stride,
                    results[first:].ctypes.data,
                    chosen[first:].ctypes.data,
                )
                self._step.run(self._works[part].ctypes.data, memory, last - first, team)

        if self._team is not None and together:
            with self._team.helping() as address:
                run_part(0, address)
            return results
        others = [self._pool.submit(run_part, part) for part in range(1, parts)] if self._pool else []
        run_part(0)
        for other in others:
            other.result()
        return results
