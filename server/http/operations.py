"""What operators ask of the whole service: metrics, state, drain, models, restart of the engine.

With one process `LocalOperations` answers; a front end asks the supervisor, so that any of them answers for all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from server.errors import ModelStays
from server.models.registry import Phase, RegistryEntry
from server.operations.drain import DrainReport
from server.replica import Replica


class ModelState(msgspec.Struct):
    """State of a model: loaded, loading, unloading or not loaded, and its open streams."""

    name: str
    phase: Phase
    streams: int
    default: bool


class Health(StrEnum):
    """State of a server, as a Deepgram engine reports it."""

    HEALTHY = "Healthy"
    DRAINING = "Draining"
    CRITICAL = "Critical"


class LoadedCard(msgspec.Struct, frozen=True):
    """A loaded model in `/v1/status`."""

    name: str
    version: str
    uuid: str


class Status(msgspec.Struct, frozen=True):
    """Response of `/v1/status`; `model` is the default one. Requests are open calls, slots are of channels."""

    system_health: Health
    active_stream_requests: int
    active_batch_requests: int
    slots_used: int
    slots_total: int
    model: LoadedCard
    models: list[LoadedCard]


class ServiceOperations(Protocol):
    """Operators' requests. Each answers for the whole service."""

    async def exposition(self) -> bytes:
        """Return the metrics in Prometheus's text format."""

    async def status(self) -> Status:
        """Return the state of the service."""

    async def begin_drain(self) -> bool:
        """Begin the drain; return False if one had already begun."""

    async def drain_report(self) -> DrainReport:
        """Return the progress of the drain."""

    async def model_states(self) -> list[ModelState]:
        """Return the state of each model, the default first."""

    async def load(self, name: str) -> ModelState:
        """Load a model. Raises: UnknownModel, ModelStays, ServerNotReady."""

    async def unload(self, name: str) -> ModelState:
        """Begin to unload a model. Raises: UnknownModel, ModelStays."""

    async def restart_engine(self) -> float:
        """Replace the engine under its streams; return the seconds until the new one was ready.

        Raises: ModelStays if it is part of this process; ServerNotReady if no new one can start.
        """


class LocalOperations:
    """Implements `ServiceOperations` for a server of one process."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def exposition(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return self._replica.metrics.exposition()

    async def status(self) -> Status:
        """Return the state of the service."""
        return status_of(self._replica)

    async def begin_drain(self) -> bool:
        """Begin the drain; return False if one had already begun."""
        return self._replica.drain.begin()

    async def drain_report(self) -> DrainReport:
        """Return the progress of the drain."""
        return self._replica.drain.report()

    async def model_states(self) -> list[ModelState]:
        """Return the state of each model, the default first."""
        return states_of(self._replica)

    async def load(self, name: str) -> ModelState:
        """Load a model. Raises: UnknownModel, ModelStays, ServerNotReady."""
        return state_of(self._replica, await self._replica.models.load(name))

    async def unload(self, name: str) -> ModelState:
        """Begin to unload a model. Raises: UnknownModel, ModelStays."""
        return state_of(self._replica, self._replica.models.unload(name))

    async def restart_engine(self) -> float:
        """Refuse. Raises: ModelStays."""
        raise ModelStays(
            "the engine is part of this server's only process: start the server with --front-ends 1 or more to "
            "restart the engine alone"
        )


def states_of(replica: Replica) -> list[ModelState]:
    """Return the state of each model of one process, the default first."""
    return [state_of(replica, entry) for entry in replica.models.entries]


def state_of(replica: Replica, entry: RegistryEntry) -> ModelState:
    """Return the state of one model of one process."""
    return ModelState(entry.name, entry.phase, entry.streams, entry.name == replica.models.names.default)


def status_of(replica: Replica) -> Status:
    """Return the status of one process."""
    draining, ready = replica.sessions.draining, replica.ready
    cards = [service.card for service in replica.models]
    models = [LoadedCard(card.name, card.version, card.uuid) for card in cards]
    return Status(
        system_health=Health.DRAINING if draining else Health.HEALTHY if ready else Health.CRITICAL,
        active_stream_requests=replica.sessions.count("deepgram"),
        active_batch_requests=replica.sessions.count("upload"),
        slots_used=replica.models.slots_used,
        slots_total=replica.settings.all_slots,
        model=models[0],
        models=models,
    )
