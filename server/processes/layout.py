"""How many processes a server has, by its settings and the cores of the machine."""

from __future__ import annotations

from pathlib import Path

from model.machine.runtime import usable_cores
from server.configuration.front_ends import front_ends_of
from server.settings import Settings

GPU_DEVICE = Path("/dev/nvidiactl")  # of NVIDIA's driver; torch itself is loaded by the engine host alone


def processes_of(settings: Settings) -> tuple[int, Settings]:
    """Return the number of front ends, 0 for one process, and the settings with the engine's threads.

    `threads` stays as it was set; by default the engine gets the cores that the front ends leave.
    """
    cores = usable_cores()
    on_gpu = settings.device == "cuda" or (settings.device == "auto" and GPU_DEVICE.exists())
    chosen, threads = front_ends_of(cores, gpu=on_gpu)
    front_ends = chosen if settings.front_ends == "auto" else settings.front_ends
    if settings.front_ends != "auto":
        threads = cores - 1 - front_ends
    update = {"front_ends": front_ends}
    if front_ends and not settings.threads:
        update["threads"] = max(1, threads)
    return front_ends, settings.model_copy(update=update)
