"""The models of a replica by name: which one serves a request; loading and unloading while other streams run.

A model that is loaded on demand costs nothing before the first request for it. That request waits, for seconds, while
a thread reads the weights and the engine warms up; requests that arrive meanwhile wait for the same load. Unloading a
model refuses new streams of it, lets the open ones end, and stops its engine. A model that was loaded on demand can be
unloaded after a time without use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from time import perf_counter

import structlog

from batching.errors import EngineDown
from model import checkpoint
from model.published.files import is_published
from server.configuration.models_file import ModelEntry
from server.errors import ModelStays, ServerNotReady, SettingsError, UnknownModel
from server.models.loading import Load, LoadedModel, ModelCard, load_local
from server.models.selection import ModelNames
from server.models.service import ModelService
from server.models.service_builder import ServiceBuilder
from server.operations.gc_schedule import freeze_what_came
from server.settings import Settings

FAILED_S = 10.0  # after a failed load, requests are refused for this long: clients that retry at once would repeat it
LOOK_S = 10.0  # between two checks for idle models
STOP_TIMEOUT_S = 5.0  # for the batch that is running

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.models")
OnService = Callable[[ModelService], None]


class Phase(StrEnum):
    """State of a model, as `/admin/models` reports it."""

    ABSENT = "not loaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(slots=True)
class RegistryEntry:
    """A model of the registry: what is known without its weights, and its service while it is loaded.

    `load` loads it, if it can be loaded again; `on_demand`: the first request for it does.
    """

    name: str
    languages: tuple[str, ...]
    card: ModelCard
    load: Callable[[], LoadedModel] | None = None
    on_demand: bool = False
    service: ModelService | None = None
    loading: asyncio.Task[ModelService] | None = None
    unloading: asyncio.Task[None] | None = None
    refuse_until_s: float = 0.0
    used_s: float = 0.0  # last request for it, or last time that a stream of it was open

    @property
    def phase(self) -> Phase:
        """Its state."""
        if self.service is None:
            return Phase.ABSENT if self.loading is None else Phase.LOADING
        return Phase.LOADED if self.unloading is None else Phase.UNLOADING

    @property
    def streams(self) -> int:
        """Its open streams, and recordings that are received or decoded for it."""
        return 0 if self.service is None else self.service.recognizer.slots.slots_used


def outlines_of(settings: Settings, load: Load = load_local) -> tuple[RegistryEntry, ...]:
    """Return what is known of each named model without its weights; `load` loads one of them later.

    Raises: ModelError, SettingsError.
    """
    return tuple(_outline(entry, own, load) for entry, own in settings.of_models() if entry is not None)


def _outline(entry: ModelEntry, settings: Settings, load: Load) -> RegistryEntry:
    load_this = partial(load, entry, settings)
    if is_published(entry.path):
        if entry.on_demand and not entry.languages:
            raise SettingsError(
                f"models_file: the model {entry.name!r} is loaded on demand, so `languages` must be set for it"
            )
        return RegistryEntry(entry.name, entry.languages, ModelCard(entry.name, "", ""), load_this, entry.on_demand)
    config, digest = checkpoint.outline(checkpoint.named(entry.path))
    card = ModelCard.of(entry.name, config.version, digest, config.architecture)
    return RegistryEntry(entry.name, entry.languages or config.languages, card, load_this, entry.on_demand)


class ModelRegistry:
    """All models of one replica; the first is the default, which is always loaded. Used on the event loop alone."""

    def __init__(
        self,
        builder: ServiceBuilder,
        settings: Settings,
        loaded: Iterable[LoadedModel],
        outlines: Iterable[RegistryEntry] = (),
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`outlines` are of models that can be loaded, those that are loaded among them. Raises: SettingsError."""
        self._builder, self._clock = builder, clock
        self._reproducible = settings.reproducible
        minutes = settings.unload_idle_minutes
        self._idle_s = None if minutes is None else 60 * minutes
        self._idle_watch: asyncio.Task[None] | None = None
        known = {entry.name: entry for entry in outlines}
        self._entries: dict[str, RegistryEntry] = {}
        self._on_loaded: OnService = lambda _: None
        self._on_unloaded: OnService = lambda _: None
        for model in loaded:
            entry = known.pop(model.name, None) or RegistryEntry(model.name, model.languages, model.card)
            entry.languages, entry.card, entry.service = model.languages, model.card, builder.build(model)
            self._add(entry)
        for entry in known.values():
            self._add(entry)
        languages = {entry.name: entry.languages for entry in self._entries.values()}
        self.names = ModelNames(languages, settings.model_aliases)
        self.names.check_aliases()

    def _add(self, entry: RegistryEntry) -> None:
        if entry.name.casefold() in (name.casefold() for name in self._entries):
            raise SettingsError(f"models_file: two models are named {entry.name!r}")
        self._entries[entry.name] = entry

    # Requests

    @property
    def limit(self) -> int:
        """How many channels may be open at the present mix of models."""
        return int(self._builder.limit())

    @property
    def default(self) -> ModelService:
        """The model of a request that asks for none."""
        service = self._entries[self.names.default].service
        assert service is not None, "it is never unloaded"
        return service

    async def obtain(self, model: str | None, language: str | None) -> ModelService:
        """Return the model for a request; load it first if it is loaded on demand.

        Raises: BadParameter for a model that is not served; ServerNotReady for one that is not available now.
        """
        entry = self._entries[self.names.choose(model, language)]
        if entry.on_demand and entry.unloading is not None and not entry.streams:
            # It is unloading without open streams: wait for that, then load it again.
            await asyncio.shield(entry.unloading)
        if entry.phase is Phase.ABSENT and not entry.on_demand:
            raise ServerNotReady(f"the model {entry.name!r} is not loaded")
        return await self._loaded(entry)

    def loaded(self, model: str | None, language: str | None) -> ModelService | None:
        """Return the model for a request, if it is loaded. Raises: BadParameter for one that is not served."""
        return self._entries[self.names.choose(model, language)].service

    def detects_language(self, model: str | None) -> bool:
        """Whether the model of this name, or the default, is loaded and finds out the language of a stream."""
        service = self._entries[self.names.known(model or "") or self.names.default].service
        return service is not None and service.facts.prompts is not None

    def known(self, name: str) -> RegistryEntry | None:
        """Return the model that a name or an alias stands for, loaded or not; None for other names."""
        served = self.names.known(name)
        return None if served is None else self._entries[served]

    @property
    def entries(self) -> tuple[RegistryEntry, ...]:
        """All models, the default first."""
        return tuple(self._entries.values())

    def __iter__(self) -> Iterator[ModelService]:
        """Those that are loaded, the default first."""
        return iter([entry.service for entry in self._entries.values() if entry.service is not None])

    @property
    def slots_used(self) -> int:
        """Slots that are taken, of all models."""
        return sum(service.recognizer.slots.slots_used for service in self)

    def update_estimates(self) -> None:
        """Update the capacity estimates at times without batches, which update them otherwise."""
        for service in self:
            service.recognizer.slots.look()

    # Loading and unloading

    def notify(self, *, on_loaded: OnService, on_unloaded: OnService) -> None:
        """Register callbacks: a service's engines have started; they have stopped."""
        self._on_loaded, self._on_unloaded = on_loaded, on_unloaded

    async def load(self, name: str) -> RegistryEntry:
        """Load a model, unless it is loaded. Raises: UnknownModel, ModelStays, ServerNotReady."""
        entry = self._entry(name)
        if entry.service is None and entry.load is None:
            raise ModelStays(f"the model {name!r} cannot be loaded again")
        entry.refuse_until_s = 0.0  # an operator does not have to wait
        await self._loaded(entry)
        return entry

    def unload(self, name: str) -> RegistryEntry:
        """Begin to unload a model, unless it is not loaded. Raises: UnknownModel, ModelStays."""
        entry = self._entry(name)
        if entry.name == self.names.default:
            raise ModelStays(f"{name!r} is the default model, which cannot be unloaded")
        if entry.load is None:
            raise ModelStays(f"the model {name!r} could not be loaded again")
        if entry.phase is Phase.LOADING:
            raise ModelStays(f"the model {name!r} is being loaded; unload it afterwards")
        if entry.phase is Phase.LOADED and entry.service is not None:
            _log.info("model unloading", model=name, streams=entry.streams)
            entry.unloading = asyncio.create_task(self._unload(entry, entry.service))
        return entry

    def _entry(self, name: str) -> RegistryEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownModel(f"no model is named {name!r}; there is {', '.join(self._entries)}")
        return entry

    async def _loaded(self, entry: RegistryEntry) -> ModelService:
        """Return the service once it is warm. Raises: ServerNotReady."""
        entry.used_s = self._clock()
        if entry.phase is Phase.UNLOADING:
            raise ServerNotReady(f"the model {entry.name!r} is being unloaded")
        if entry.service is not None:
            return entry.service
        if entry.loading is None:
            if self._clock() < entry.refuse_until_s:
                raise ServerNotReady(f"the model {entry.name!r} could not be loaded")
            entry.loading = asyncio.create_task(self._load(entry))
        return await asyncio.shield(entry.loading)  # a client that disconnects does not cancel it for the others

    async def _load(self, entry: RegistryEntry) -> ModelService:
        assert entry.load is not None, "asked before"
        began_s, service = self._clock(), None
        try:
            loaded = await asyncio.to_thread(self._read, entry.load)
            service = self._builder.build(loaded)
            await service.recognizer.start()
        except Exception as error:  # one model that fails must not end the streams of others
            if service is not None:
                await self._end(service)
            entry.refuse_until_s = self._clock() + FAILED_S
            _log.exception("model not loaded", model=entry.name)
            raise ServerNotReady(f"the model {entry.name!r} could not be loaded") from error
        finally:
            entry.loading = None
        entry.service, entry.card, entry.languages = service, service.card, service.languages
        entry.used_s = self._clock()
        how = {"precision": loaded.facts.precision, "seconds": round(self._clock() - began_s, 2)}
        _log.info("model loaded", model=entry.name, languages=entry.languages, **how)
        self._on_loaded(service)
        freeze_what_came()
        return service

    def _read(self, load: Callable[[], LoadedModel]) -> LoadedModel:
        """Runs on a thread."""
        loaded = load()
        loaded.engines.warn_of_dependent_rows(self._reproducible)
        return loaded

    async def _watch_idleness(self, idle_s: float) -> None:
        while True:
            await asyncio.sleep(min(idle_s / 4, LOOK_S))
            self.unload_idle(idle_s)

    def unload_idle(self, idle_s: float) -> None:
        """Begin to unload what is loaded on demand and has had no stream and no request for `idle_s`."""
        now = self._clock()
        for entry in self._entries.values():
            if entry.streams:
                entry.used_s = now
            elif entry.on_demand and entry.phase is Phase.LOADED and now - entry.used_s >= idle_s:
                self.unload(entry.name)

    async def _unload(self, entry: RegistryEntry, service: ModelService) -> None:
        await service.recognizer.slots.empty()
        await self._end(service)
        entry.service = entry.unloading = None
        _log.info("model unloaded", model=entry.name)

    async def _end(self, service: ModelService) -> None:
        """Stop and release it. A thread that hangs is abandoned, as at the end of the process."""
        self._on_unloaded(service)
        await asyncio.to_thread(_stop, service)
        self._builder.release(service)

    # The replica's start and end

    async def start(self) -> None:
        """Start the engines of all that is loaded, one after another: a warm-up measures times. Raises: EngineDead."""
        for service in self:
            await service.recognizer.start()
            self._on_loaded(service)
        if self._idle_s is not None:
            self._idle_watch = asyncio.create_task(self._watch_idleness(self._idle_s))

    def close(self) -> None:
        """Cancel loads and unloads: the process is about to end."""
        tasks = [task for entry in self._entries.values() for task in (entry.loading, entry.unloading)]
        for task in (self._idle_watch, *tasks):
            if task is not None:
                task.cancel()

    def stop(self) -> None:
        """End all engines. A thread that hangs ends with the process."""
        for service in self:
            _stop(service)
        self._builder.stop()

    def ready(self, stall_s: float) -> bool:
        """Return whether the engines of all that is loaded run, are warm and have not been at one step for `stall_s`.

        Models that are not loaded, loading or unloading do not count.
        """
        services = [entry.service for entry in self._entries.values() if entry.phase is Phase.LOADED]
        return all(service.recognizer.engines.ready(stall_s) for service in services if service is not None)


def _stop(service: ModelService) -> None:
    try:
        service.recognizer.engines.stop(STOP_TIMEOUT_S)
    except EngineDown:
        _log.exception("engine did not stop", model=service.name)
