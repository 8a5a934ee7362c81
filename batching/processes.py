"""Chooses the numbers of front ends, engines and threads for the available cores, and estimates each part's throughput.

Calculated from the processor time per step in each part. One core is left to the supervisor and the kernel. With up to
three cores there is one process: its event loop uses one core, its model the others if it needs them; a large model
uses all cores.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

MOST_CORES_OF_ONE_PROCESS = 3
"""Up to this number of cores, the event loop and the model threads of one process use all of them."""
MOST_FRONT_ENDS, MOST_ENGINES, MOST_THREADS = 256, 16, 64
ENGINE_GAIN = 1.1
"""Least gain in steps per second for another engine, which has a copy of the weights, and states for all streams."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Processor time of a step in each part, in µs; by default of the GRU network, whose steps have 80 ms.

    Source: docs/sizing.md, measured on two cores.
    """

    front_end_us: float = 150.0
    """Event loop of a front end. Measured 153 to 178 next to engine and client, 110 to 130 in larger batches."""
    loop_us: float = 131.0
    """Event loop of a single-process server, in the largest batches."""
    model_us: float = 27.0
    """Model thread of a single-process server, without the step."""
    engine_us: float = 15.0
    """Python and socket work of an engine process: 11 with an empty model, 17 to 19 in a prototype."""
    step_us: float = 60.0
    """The step of one thread, in batches of `thread_rows` and more."""
    thread_rows: int = 16
    """Rows of a batch below which a thread computes a row much more slowly."""
    most_engines: int = MOST_ENGINES
    loop_cores: int = 1
    """Cores of a single-process server that its event loop needs."""
    cores_besides: int = 1
    """Cores reserved for the supervisor, the kernel and a GPU's driver."""
    most_front_ends: int = MOST_FRONT_ENDS


OWN = StepCosts(front_end_us=220.0, loop_us=193.0, step_us=362.0, thread_rows=1)
"""Costs of the default network in steps of 240 ms: beam search, language model, an answer to every step. Its threads
are the limit. The event loop of a front end was not measured: it is that of one process by the GRU network's ratio."""
GRU = StepCosts()
"""Costs of a GRU network in int8, likewise. The engine's Python is the limit, so large machines get several engines."""
PUBLISHED = StepCosts(engine_us=30.0, step_us=600.0, thread_rows=4, most_engines=1)
"""Costs of a compiled published model of 26 million parameters; a larger one needs more time in the same threads. The
engine also computes the features. One engine, because the weights are large and its Python takes little of its time."""
LARGE = StepCosts(engine_us=30.0, step_us=21_000.0, thread_rows=1, most_engines=1, loop_cores=0)
"""Costs of a published model of 600 million parameters with steps of 560 ms: the event loop is idle nearly all the
time, and several threads compute even one row."""
ON_GPU = StepCosts(engine_us=11.0, step_us=0.0, most_engines=1, cores_besides=2, most_front_ends=14)
"""Costs with a model on a GPU. The engine has one thread; more than 14 front ends send more rows than it can handle."""


class Processes(NamedTuple):
    """Processes and threads of a server."""

    front_ends: int  # 0: one process does everything
    engines: int
    threads: int  # of each engine

    @property
    def cores(self) -> int:
        """Number of cores that they can use fully."""
        return max(1, self.front_ends) + self.engines * self.threads


def choose_processes(
    cores: int,
    costs: StepCosts = OWN,
    *,
    max_batch: int = 128,
    front_ends: int | None = None,
    engines: int | None = None,
    threads: int | None = None,
) -> Processes:
    """Return the processes for this number of cores, at least 1: the combination that carries the most steps a second.

    `max_batch` limits the threads: each needs `thread_rows` of a batch. Another engine must gain `ENGINE_GAIN`. Ties go
    to fewer processes, then to more threads. Numbers that are given are kept; if they do not fit the cores, all else is
    as small as possible.
    """

    def score(one: Processes) -> tuple[float, int, int, int]:
        carried = min(steps_per_s(one, costs, cores).values()) / ENGINE_GAIN ** (one.engines - 1)
        return round(carried, 3), -one.engines, -one.front_ends, one.threads

    most_threads = 1 if not costs.step_us else max(1, min(max_batch // costs.thread_rows, MOST_THREADS))
    if front_ends == 0 or (front_ends is None and cores <= MOST_CORES_OF_ONE_PROCESS):
        most_threads = min(most_threads, max(1, cores - costs.loop_cores))
        loop_bound = cores <= MOST_CORES_OF_ONE_PROCESS and costs.loop_us >= costs.model_us + costs.step_us
        return Processes(0, engines or 1, threads or (1 if loop_bound else most_threads))
    choices = [Processes(front_ends or 1, engines or 1, threads or 1)]
    widths = range(1, most_threads + 1) if threads is None else (threads,)
    for count, width in itertools.product(range(1, costs.most_engines + 1) if engines is None else (engines,), widths):
        enough = math.ceil(costs.front_end_us * count / (costs.engine_us + costs.step_us / width))
        room = cores - costs.cores_besides - count * width
        loops = front_ends or max(count, min(enough, room, costs.most_front_ends))
        if count <= loops <= room:
            choices.append(Processes(loops, count, width))
    return max(choices, key=score)


def steps_per_s(processes: Processes, costs: StepCosts, cores: int) -> dict[str, float]:
    """Return the steps a second that each part carries, by its name."""
    front_ends, engines, threads = processes
    step_us = costs.step_us / threads
    if front_ends:
        parts = {
            "event loops": costs.front_end_us / front_ends,
            "engine" if engines == 1 else "engines": (costs.engine_us + step_us) / engines,
        }
    else:
        parts = {
            "event loops": costs.loop_us,
            "engine": costs.model_us + step_us,
            "cores": (costs.loop_us + costs.model_us + costs.step_us) / cores,
        }
    return {part: 1e6 / took_us for part, took_us in parts.items()}
