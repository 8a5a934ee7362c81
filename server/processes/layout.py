"""Number of processes of a server, from its settings, its default model and the machine's cores."""

from __future__ import annotations

from pathlib import Path

from batching.processes import GRU, LARGE, ON_GPU, OWN, PUBLISHED, Processes, StepCosts, choose_processes
from model import checkpoint
from model.attention_config import AttentionConfig
from model.errors import CheckpointError
from model.machine.cores import usable_cores
from model.published.files import is_published, parameters_of
from server.errors import SettingsError
from server.settings import Settings

LARGE_PARAMETERS = 256e6
GPU_DEVICE = Path("/dev/nvidiactl")  # of NVIDIA's driver; only the engine host loads torch


def with_processes(settings: Settings) -> Settings:
    """Return the settings with numbers of front ends, engines and threads; values already set are kept.

    Raises: SettingsError.
    """
    costs = costs_of(settings)
    chosen = choose_processes(
        usable_cores(),
        costs,
        max_batch=settings.max_batch,
        front_ends=None if settings.front_ends == "auto" else settings.front_ends,
        engines=None if settings.engines == "auto" else settings.engines,
        threads=settings.threads or None,
    )
    _check(chosen, costs)
    return settings.model_copy(update=chosen._asdict())


def costs_of(settings: Settings) -> StepCosts:
    """Return the step costs of the default model on this machine. Raises: SettingsError."""
    model = settings.of_default.model
    if not _on_cpu_alone(model) and (settings.device == "cuda" or (settings.device == "auto" and GPU_DEVICE.exists())):
        return ON_GPU
    if model is None or not is_published(model):
        return OWN if _on_cpu_alone(model) else GRU
    return LARGE if parameters_of(model) >= LARGE_PARAMETERS else PUBLISHED


def _on_cpu_alone(model: Path | None) -> bool:
    """Whether this is a network of ours with attention, which no GPU runs; False for a file that cannot be read."""
    if model is not None and is_published(model):
        return False
    try:
        path = checkpoint.SHIPPED if model is None else checkpoint.named(model)
        return isinstance(checkpoint.read_config(path), AttentionConfig)
    except CheckpointError:
        return False  # it is refused where it is loaded


def _check(chosen: Processes, costs: StepCosts) -> None:
    """Raises: SettingsError for more engines than front ends, or several engines on a GPU."""
    if chosen.engines > 1 and costs is ON_GPU:
        raise SettingsError(f"engines: a GPU has one engine, not {chosen.engines}; leave it out, or use --device cpu")
    if chosen.engines > max(1, chosen.front_ends):
        needed = f"at least {chosen.engines} front ends" if chosen.front_ends else "--front-ends"
        raise SettingsError(f"engines: {chosen.engines} engines need {needed}, not {chosen.front_ends}")
