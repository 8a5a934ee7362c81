"""Number of processes of a server, from its settings, its default model and the machine's cores."""

from __future__ import annotations

from pathlib import Path

from batching.processes import ON_GPU, OWN, PUBLISHED, Overrides, Processes, StepCosts, choose_processes
from model.machine.cores import usable_cores
from model.published.files import is_published
from server.errors import SettingsError
from server.settings import Settings

STALLS = 3
"""Hung engines, one after the other, that a stream outlasts."""
GPU_DEVICE = Path("/dev/nvidiactl")  # of NVIDIA's driver; only the engine host loads torch


def with_processes(settings: Settings) -> Settings:
    """Return the settings with numbers of front ends, engines and threads; values already set are kept.

    Raises: SettingsError.
    """
    overrides = Overrides(
        None if settings.front_ends == "auto" else settings.front_ends,
        None if settings.engines == "auto" else settings.engines,
        settings.threads or None,
    )
    costs = costs_of(settings)
    chosen = choose_processes(usable_cores(), costs, max_batch=settings.max_batch, overrides=overrides)
    _check(chosen, costs)
    timeout_s = _engine_timeout_s(settings) if chosen.front_ends else settings.engine_timeout_s
    return settings.model_copy(update={**chosen._asdict(), "engine_timeout_s": timeout_s})


def _engine_timeout_s(settings: Settings) -> float:
    """Return the time after which an engine host counts as hung: long before its streams do, so that a spare can serve.

    Raises: SettingsError.
    """
    if "engine_timeout_s" not in settings.model_fields_set:
        return min(settings.engine_timeout_s, settings.stall_timeout_s / STALLS)
    if settings.engine_timeout_s >= settings.stall_timeout_s:
        raise SettingsError(
            f"engine_timeout_s: {settings.engine_timeout_s:g} s must be below stall_timeout_s "
            f"({settings.stall_timeout_s:g} s), after which streams of a hung engine end"
        )
    return settings.engine_timeout_s


def costs_of(settings: Settings) -> StepCosts:
    """Return the step costs of the default model on this machine. Raises: SettingsError."""
    if settings.device == "cuda" or (settings.device == "auto" and GPU_DEVICE.exists()):
        return ON_GPU
    model = settings.of_default.model
    return PUBLISHED if model is not None and is_published(model) else OWN


def _check(chosen: Processes, costs: StepCosts) -> None:
    """Raises: SettingsError for more engines than front ends, or several engines on a GPU."""
    if chosen.engines > 1 and costs is ON_GPU:
        raise SettingsError(f"engines: a GPU has one engine, not {chosen.engines}; leave it out, or use --device cpu")
    if chosen.engines > max(1, chosen.front_ends):
        needed = f"at least {chosen.engines} front ends" if chosen.front_ends else "--front-ends"
        raise SettingsError(f"engines: {chosen.engines} engines need {needed}, not {chosen.front_ends}")
