"""How many front-end processes and engine threads a server starts, by the cores that it may use. Pure."""

from __future__ import annotations

from typing import NamedTuple

MOST_CORES_OF_ONE_PROCESS = 3
"""Up to here the event loop and the model's threads of one process fill the cores."""
ENGINE_SHARE = 0.45
"""Share of the cores for the engine's threads: with it both parts carry about as many streams, `tutti plan --cores`."""
ROWS_OF_A_THREAD = 16
"""Rows of a batch below which a thread computes a row more slowly: 67 µs in batches of 8, 57 to 60 from 16 on."""
MOST_FRONT_ENDS, MOST_FRONT_ENDS_ON_GPU = 8, 14
"""Front ends that one engine can feed, since its own Python is one thread: `tutti plan --cores 64 --max-batch 256`. A
further one would only hold another language model in memory."""
CORES_BESIDES_ON_GPU = 3
"""For the engine's thread, for the driver, and for supervisor and kernel."""


class Processes(NamedTuple):
    """Processes and threads of a server."""

    front_ends: int  # 0: one process does everything
    engine_threads: int


def front_ends_of(cores: int, *, gpu: bool = False, max_batch: int = 128) -> Processes:
    """Return the front ends and engine threads for this number of cores, at least 1.

    One core is left to supervisor and kernel. The engine of a GPU has one thread.
    """
    if cores <= MOST_CORES_OF_ONE_PROCESS:
        return Processes(0, 1 if gpu else max(1, cores - 1))
    if gpu:
        return Processes(min(cores - CORES_BESIDES_ON_GPU, MOST_FRONT_ENDS_ON_GPU), 1)
    threads = max(1, min(round(ENGINE_SHARE * (cores - 1)), max_batch // ROWS_OF_A_THREAD))
    return Processes(min(cores - 1 - threads, MOST_FRONT_ENDS), threads)
