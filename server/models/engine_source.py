"""Where a model's steps are computed, and the sizes and rules of the engine that computes them.

`LocalEngines` makes engines as threads of this process. Another source can connect to engines elsewhere; then this
process needs the facts about a model, but not its weights.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from batching.batcher import Policy
from batching.engine import Engine
from batching.slot_model import SlotModel
from batching.thread.step_token import StepToken
from model.description import ModelDescription
from model.facts import AcousticModel, ModelFacts
from server.errors import SettingsError
from server.operations.dependent_rows import warn_of_dependent_rows
from server.operations.process import free_memory
from server.recognition.engines import Deliver, MakeEngine, on_loop
from server.recognition.session_options import MAX_BACKLOG_S
from server.settings import Settings

TILE_ROWS = 16  # of `reproducible`: small enough not to waste much on a few streams, a full vector width on many
GIB = 2**30
FLUSHES = 8  # that may wait in a queue on top of the audio

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.engine_source")


class BatchedModel(Protocol):
    """A model that an engine can step."""

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> SlotModel:
        """Return the model over `capacity` streams, in batches of at most `largest`.

        With `tile_rows` its arithmetic runs on exactly that many rows at a time, where that makes a difference.
        """


class AuxiliaryModel(BatchedModel, Protocol):
    """A small model whose results the recognizer's rows wait for, such as voice activity."""

    @property
    def digest(self) -> str:
        """Digest of its weights."""

    @property
    def step_samples(self) -> int:
        """Most samples of a row, at 16 kHz."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Sizes and rules of one engine. They follow from settings and description, so every process gets the same."""

    name: str
    capacity: int  # slots of streams, and of their forks
    largest: int  # rows of a batch
    tile_rows: int | None
    policy: Policy
    max_queued: int  # steps of a stream
    step_s: float
    fixed: bool = False  # whether the number of streams is a setting
    resting: int = 0  # streams that can be open besides, because as many rest

    @classmethod
    def of(cls, settings: Settings, config: ModelDescription, name: str, row_samples: int | None = None) -> EnginePlan:
        """Return the plan of a model's engine; `row_samples`: most samples of a row in an auxiliary model's engine.

        Such a row has the windows of one step of the model, or a part of them.
        """
        forks = settings.fork_slots if row_samples is None else 0
        step_samples = config.step_samples // -(-config.step_samples // (row_samples or config.step_samples))
        longest_s = max(settings.max_backlog_s, MAX_BACKLOG_S)
        flushes = FLUSHES * (config.flush_steps + 2)
        return cls(
            name=name,
            capacity=settings.all_slots + forks,
            largest=settings.max_batch,
            tile_rows=TILE_ROWS if settings.reproducible else None,
            policy=Policy(settings.policy),
            max_queued=math.ceil(longest_s * config.sample_rate / step_samples) + flushes,
            step_s=step_samples / config.sample_rate,
            fixed=settings.max_streams != "auto",
            resting=settings.connected - settings.slots,
        )

    @property
    def streams(self) -> int:
        """Streams that can be open."""
        return self.capacity + self.resting

    def slots_of(self, model: BatchedModel) -> SlotModel:
        """Return a model with slots of these sizes. Raises: SettingsError.

        Every stream's state takes its memory now if their number is a setting, else once a stream has its slot.
        """
        free_bytes = free_memory()
        try:
            slots = model.slots(capacity=self.capacity, largest=self.largest, tile_rows=self.tile_rows)
        except MemoryError as error:
            raise SettingsError(
                f"max_streams: {self.name}: the states of {self.capacity} streams, uploads and forks cannot be "
                f"allocated ({error}); set a lower number, or add memory"
            ) from error
        facts = getattr(model, "facts", None)  # auxiliary models have none
        if not isinstance(facts, ModelFacts) or facts.device.type == "cpu":
            self.check_memory(slots.state_bytes, free_bytes)
            for slot in range(self.capacity if self.fixed else 0):
                slots.reset(slot)  # takes the memory now, so that the next model's check counts it
        return slots

    def check_memory(self, state_bytes: int, free_bytes: int) -> None:
        """Check that memory is enough for all states. Raises: SettingsError if the number of streams is a setting.

        Otherwise a warning is logged: fewer streams than there are slots may be open at a time.
        """
        fitting = free_bytes // max(1, state_bytes)
        if self.capacity <= fitting:
            return
        needed, free = (f"{size / GIB:.1f} GiB" for size in (self.capacity * state_bytes, free_bytes))
        if self.fixed:
            raise SettingsError(
                f"max_streams: {self.name}: {self.capacity} states of {state_bytes / 2**20:.1f} MiB, for live streams, "
                f"uploads and forks, need {needed}, but {free} of memory are free; set a lower number, or add memory"
            )
        _log.warning("memory is enough for fewer streams than slots", model=self.name, streams=fitting, free=free)


class EngineSource(Protocol):
    """Makes the engines of one model."""

    def maker(self, plan: EnginePlan, step_token: StepToken | None, clock: Callable[[], float]) -> MakeEngine:
        """Return a function that makes an engine by a plan; `step_token` is shared by engines of this process."""

    @property
    def gpu(self) -> str | None:
        """Name of torch's device if this process computes the steps on a GPU, else None."""

    def warn_of_dependent_rows(self, reproducible: bool) -> None:
        """Check the model's batches where this process has its weights, and log warnings; takes up to a second."""


class LocalEngines:
    """Engines that are threads of this process, of a model that is loaded here."""

    def __init__(self, model: BatchedModel, acoustic: AcousticModel | None = None) -> None:
        """`acoustic`: the model again, if it is not an auxiliary one."""
        self._model, self._acoustic = model, acoustic
        self.gpu = "cuda" if acoustic is not None and acoustic.facts.device.type == "cuda" else None

    @classmethod
    def of(cls, model: AcousticModel) -> LocalEngines:
        """Return the engines of an acoustic model."""
        return cls(model, model)

    def maker(self, plan: EnginePlan, step_token: StepToken | None, clock: Callable[[], float]) -> MakeEngine:
        """Return a function that makes an engine by a plan, whose thread starts later."""

        def make(deliver: Deliver, loop: asyncio.AbstractEventLoop) -> Engine:
            return Engine(
                plan.slots_of(self._model),
                policy=plan.policy,
                max_queued=plan.max_queued,
                max_streams=plan.streams,
                deliver=on_loop(deliver, loop),
                step_s=plan.step_s,
                warm_up=True,
                acknowledged=True,
                clock=clock,
                step_token=step_token,
                name=plan.name,
            )

        return make

    def warn_of_dependent_rows(self, reproducible: bool) -> None:
        """Check the model's batches, and log warnings; takes up to a second."""
        if self._acoustic is not None:
            warn_of_dependent_rows(self._acoustic, reproducible)
