"""The models of a replica by name: which one a request gets; loading and unloading while others' streams run.

A model that is loaded on demand costs nothing before the first request for it. That request waits, in seconds, while
a thread reads the weights and the engine warms up; those that come meanwhile wait for the same loading. To unload a
model is to refuse new streams of it, let those that are open end, and stop its engine. One that was loaded on demand
may be unloaded once nobody has used it for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter

import structlog

from batching.errors import EngineDown
from server.errors import ModelStays, ServerFull, ServerNotReady, SettingsError, UnknownModel
from server.models.loading import LoadedModel, ModelCard, ModelOutline
from server.models.selection import ModelNames
from server.models.service import ModelService, ServiceBuilder
from server.operations.dependent_rows import warn_of_dependent_rows
from server.operations.gc_schedule import freeze_what_came
from server.settings import Settings

FAILED_S = 10.0  # after a loading that failed, refusals until the next try: clients that return at once would go on
LOOK_S = 10.0  # between looks for models that nobody uses
STOP_TIMEOUT_S = 5.0  # for the batch that is running

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.models")
OnService = Callable[[ModelService], None]


class Phase(StrEnum):
    """What a model is doing, as `/admin/models` says it."""

    ABSENT = "not loaded"
    LOADING = "loading"
    LOADED = "loaded"
    LEAVING = "unloading"


@dataclass(slots=True)
class Place:
    """A model's place in the catalogue: what is known of it without its weights, and its service while it has one."""

    name: str
    languages: tuple[str, ...]
    card: ModelCard
    outline: ModelOutline | None
    service: ModelService | None = None
    loading: asyncio.Task[ModelService] | None = None
    leaving: asyncio.Task[None] | None = None
    refuse_until_s: float = 0.0
    used_s: float = 0.0  # when a request got it, or a stream of it was last seen open

    @property
    def on_demand(self) -> bool:
        """Whether the first request for it loads it."""
        return self.outline is not None and self.outline.on_demand

    @property
    def phase(self) -> Phase:
        """What it is doing."""
        if self.service is None:
            return Phase.ABSENT if self.loading is None else Phase.LOADING
        return Phase.LOADED if self.leaving is None else Phase.LEAVING

    @property
    def streams(self) -> int:
        """Its open streams."""
        return 0 if self.service is None else self.service.recognizer.slots_used


class Catalogue:
    """All models of one replica; the first is the default, which is always loaded. Belongs to the event loop."""

    def __init__(
        self,
        builder: ServiceBuilder,
        settings: Settings,
        loaded: Iterable[LoadedModel],
        outlines: Iterable[ModelOutline] = (),
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`outlines` are of models that can be loaded, those that are loaded among them. Raises: SettingsError."""
        self._builder, self._clock = builder, clock
        self._reproducible = settings.reproducible
        minutes = settings.unload_idle_minutes
        self._idle_s = None if minutes is None else 60 * minutes
        self._idle_watch: asyncio.Task[None] | None = None
        known = {outline.name: outline for outline in outlines}
        self._places: dict[str, Place] = {}
        self._on_loaded: OnService = _ignore
        self._on_unloaded: OnService = _ignore
        for model in loaded:
            outline = known.pop(model.name, None)
            self._add(Place(model.name, model.languages, model.card, outline, builder.build(model)))
        for outline in known.values():
            self._add(Place(outline.name, outline.languages, outline.card, outline))
        languages = {place.name: place.languages for place in self._places.values()}
        self.names = ModelNames(languages, settings.model_aliases, strict=settings.strict_models)

    def _add(self, place: Place) -> None:
        if place.name.casefold() in (name.casefold() for name in self._places):
            raise SettingsError(f"models_file: two models are named {place.name!r}")
        self._places[place.name] = place

    # Requests

    @property
    def limit(self) -> int:
        """How many channels may be open at the present mix of models."""
        return int(self._builder.limit())

    @property
    def default(self) -> ModelService:
        """The model of a request that asks for none."""
        service = self._places[self.names.default].service
        assert service is not None, "it is never unloaded"
        return service

    async def obtain(self, model: str | None, language: str | None) -> ModelService:
        """Return the model for a request; load it if that is to be done on demand.

        Raises: BadParameter for what is not served; ServerNotReady for a model that cannot be had now.
        """
        place = self._places[self.names.choose(model, language)]
        if place.on_demand and place.leaving is not None and not place.streams:  # it goes at once, and comes back
            await asyncio.shield(place.leaving)
        if place.phase is Phase.ABSENT and not place.on_demand:
            raise ServerNotReady(f"the model {place.name!r} is not loaded")
        return await self._loaded(place)

    def known(self, name: str) -> Place | None:
        """Return the model that a name or an alias stands for, loaded or not; None for other names."""
        served = self.names.known(name)
        return None if served is None else self._places[served]

    @property
    def places(self) -> tuple[Place, ...]:
        """All models, the default first."""
        return tuple(self._places.values())

    def __iter__(self) -> Iterator[ModelService]:
        """Those that are loaded, the default first."""
        return iter([place.service for place in self._places.values() if place.service is not None])

    @property
    def slots_used(self) -> int:
        """Slots that are taken, of all models."""
        return sum(service.recognizer.slots_used for service in self)

    def refuse_if_full(self) -> None:
        """Refuse a request before any work on it if no model can take a stream. Raises: ServerFull."""
        *others, last = self
        for service in others:
            with contextlib.suppress(ServerFull):
                service.recognizer.refuse_if_full()
                return
        last.recognizer.refuse_if_full()

    def note_request(self) -> None:
        """Note for the estimates of capacity that a client connected or sent a request, whatever comes of it."""
        for service in self:
            service.recognizer.admission.capacity.requested(1)

    def update_estimates(self) -> None:
        """Update the estimates of capacity, which batches do while there are any."""
        for service in self:
            service.recognizer.look()

    # Loading and unloading

    def tell(self, *, on_loaded: OnService, on_unloaded: OnService) -> None:
        """Call these with each service whose engines have started, and once they have been stopped."""
        self._on_loaded, self._on_unloaded = on_loaded, on_unloaded

    async def load(self, name: str) -> Place:
        """Load a model, unless it is loaded. Raises: UnknownModel, ModelStays, ServerNotReady."""
        place = self._place(name)
        if place.service is None and place.outline is None:
            raise ModelStays(f"the model {name!r} cannot be loaded again")
        place.refuse_until_s = 0.0  # an operator does not have to wait
        await self._loaded(place)
        return place

    def unload(self, name: str) -> Place:
        """Begin to unload a model, unless it is not loaded. Raises: UnknownModel, ModelStays."""
        place = self._place(name)
        if place.name == self.names.default:
            raise ModelStays(f"{name!r} is the default model, which stays")
        if place.outline is None:
            raise ModelStays(f"the model {name!r} could not be loaded again")
        if place.phase is Phase.LOADING:
            raise ModelStays(f"the model {name!r} is being loaded; unload it afterwards")
        if place.phase is Phase.LOADED and place.service is not None:
            _log.info("model leaves", model=name, streams=place.streams)
            place.leaving = asyncio.create_task(self._leave(place, place.service))
        return place

    def _place(self, name: str) -> Place:
        place = self._places.get(name)
        if place is None:
            raise UnknownModel(f"no model is named {name!r}; there is {', '.join(self._places)}")
        return place

    async def _loaded(self, place: Place) -> ModelService:
        """Return the service once it is warm. Raises: ServerNotReady."""
        place.used_s = self._clock()
        if place.phase is Phase.LEAVING:
            raise ServerNotReady(f"the model {place.name!r} is being unloaded")
        if place.service is not None:
            return place.service
        if place.loading is None:
            if self._clock() < place.refuse_until_s:
                raise ServerNotReady(f"the model {place.name!r} could not be loaded")
            place.loading = asyncio.create_task(self._load(place))
        return await asyncio.shield(place.loading)  # a client that leaves does not end it for the others

    async def _load(self, place: Place) -> ModelService:
        assert place.outline is not None, "asked before"
        began_s, service = self._clock(), None
        try:
            loaded = await asyncio.to_thread(self._read, place.outline)
            service = self._builder.build(loaded)
            await service.recognizer.start()
        except Exception as error:  # whatever is wrong with one model, the streams of the others go on
            if service is not None:
                await self._end(service)
            place.refuse_until_s = self._clock() + FAILED_S
            _log.exception("a model could not be loaded", model=place.name)
            raise ServerNotReady(f"the model {place.name!r} could not be loaded") from error
        finally:
            place.loading = None
        place.service, place.card, place.languages = service, service.card, service.languages
        place.used_s = self._clock()
        how = {"precision": loaded.acoustic.precision, "seconds": round(self._clock() - began_s, 2)}
        _log.info("model loaded", model=place.name, languages=place.languages, **how)
        self._on_loaded(service)
        freeze_what_came()
        return service

    def _read(self, outline: ModelOutline) -> LoadedModel:
        """Runs on a thread."""
        loaded = outline.load()
        warn_of_dependent_rows(loaded.acoustic, self._reproducible)
        return loaded

    async def _watch_idleness(self, idle_s: float) -> None:
        while True:
            await asyncio.sleep(min(idle_s / 4, LOOK_S))
            self.unload_idle(idle_s)

    def unload_idle(self, idle_s: float) -> None:
        """Begin to unload what is loaded on demand and has had no stream and no request for `idle_s`."""
        now = self._clock()
        for place in self._places.values():
            if place.streams:
                place.used_s = now
            elif place.on_demand and place.phase is Phase.LOADED and now - place.used_s >= idle_s:
                self.unload(place.name)

    async def _leave(self, place: Place, service: ModelService) -> None:
        await service.recognizer.empty()
        await self._end(service)
        place.service = place.leaving = None
        _log.info("model unloaded", model=place.name)

    async def _end(self, service: ModelService) -> None:
        """Stop its engines, and let go of it. A thread that hangs is left, as at the end of the process."""
        self._on_unloaded(service)
        try:
            await asyncio.to_thread(service.recognizer.stop, STOP_TIMEOUT_S)
        except EngineDown:
            _log.exception("an engine did not stop", model=service.name)
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
        """Begin nothing more, and wait no longer for streams of models that leave: the process is about to end."""
        tasks = [task for place in self._places.values() for task in (place.loading, place.leaving)]
        for task in (self._idle_watch, *tasks):
            if task is not None:
                task.cancel()

    def stop(self, timeout_s: float) -> None:
        """End all engines. Raises: EngineDown if a thread does not end."""
        with contextlib.ExitStack() as stopping:  # each is stopped, even if one before it hangs
            stopping.callback(self._builder.stop)
            for service in self:
                stopping.callback(service.recognizer.stop, timeout_s)

    def ready(self, stall_s: float) -> bool:
        """Return whether the engines of all that is loaded run, are warm and have not been at one step for `stall_s`.

        A model that is not loaded, or comes or goes, keeps nobody else out.
        """
        services = [place.service for place in self._places.values() if place.phase is Phase.LOADED]
        return all(service.recognizer.engines.ready(stall_s) for service in services if service is not None)


def _ignore(_: ModelService) -> None:
    """Nobody is to be told."""
