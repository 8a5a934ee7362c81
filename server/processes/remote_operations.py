"""Answers operators' requests to one front end for the whole service, by querying the supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from server.errors import UnknownModel
from server.http.operations import Health, ModelState, Status, states_of, status_of
from server.models.registry import Phase
from server.operations.drain import DrainReport, combined_drain
from server.processes.control import ControlChannel
from server.processes.messages import ChangeModel, Drain, Metrics, Report, RestartEngine
from server.replica import Replica

DRAIN, MODELS, STATUS = "drain", "models", "status"


class RemoteOperations:
    """Implements `ServiceOperations` for a front end."""

    def __init__(self, replica: Replica, channel: ControlChannel) -> None:
        self._replica, self._channel = replica, channel

    async def exposition(self) -> bytes:
        """Return the metrics of all processes. Raises: ChannelClosed."""
        return bytes(await self._channel.request(Metrics()))

    async def status(self) -> Status:
        """Return the state of the service."""
        return combined_status(await self._gather(STATUS, Status))

    async def begin_drain(self) -> bool:
        """Begin the drain of all front ends; return False if it had begun."""
        began = not self._replica.sessions.draining
        self._replica.drain.announce()
        self._channel.tell(Drain())
        return began

    async def drain_report(self) -> DrainReport:
        """Return the progress of the drain of all front ends."""
        return combined_drain(await self._gather(DRAIN, DrainReport))

    async def model_states(self) -> list[ModelState]:
        """Return the state of each model, the default first."""
        return combined_models(await self._gather(MODELS, list[ModelState]))

    async def load(self, name: str) -> ModelState:
        """Load a model in every front end. Raises: UnknownModel, ModelStays, ServerNotReady."""
        return await self._change(name, load=True)

    async def unload(self, name: str) -> ModelState:
        """Begin to unload a model in every front end. Raises: UnknownModel, ModelStays."""
        return await self._change(name, load=False)

    async def restart_engine(self) -> float:
        """Replace the engine host; return the seconds until it was ready. Raises: ServerNotReady."""
        return float(await self._channel.request(RestartEngine()))

    async def _change(self, name: str, *, load: bool) -> ModelState:
        await self._channel.request(ChangeModel(name, load))
        for state in await self.model_states():
            if state.name == name:
                return state
        raise UnknownModel(f"no model is named {name!r}")

    async def _gather(self, kind: str, of: Any) -> list[Any]:
        return [msgspec.json.decode(report, type=of) for report in await self._channel.request(Report(kind))]


def report_of(replica: Replica, kind: str) -> bytes:
    """Return one report of this front end, JSON."""
    if kind == DRAIN:
        return msgspec.json.encode(replica.drain.report())
    return msgspec.json.encode(states_of(replica) if kind == MODELS else status_of(replica))


def combined_models(reports: Sequence[Sequence[ModelState]]) -> list[ModelState]:
    """Return the state of each model, in the order of the first report: all streams, and the phase of the whole.

    A model loaded on demand is loaded only in processes that received a request for it; it counts as loaded.
    """
    by_name: dict[str, list[ModelState]] = {}
    for state in (state for report in reports for state in report):
        by_name.setdefault(state.name, []).append(state)
    return [
        msgspec.structs.replace(
            states[0],
            phase=_phase({state.phase for state in states}),
            streams=sum(state.streams for state in states),
        )
        for states in by_name.values()
    ]


def _phase(phases: set[Phase]) -> Phase:
    """Combine the phases of a model in all processes: a transition in one process applies to the whole."""
    return next(phase for phase in (Phase.UNLOADING, Phase.LOADING, Phase.LOADED, Phase.ABSENT) if phase in phases)


def combined_status(reports: Sequence[Status]) -> Status:
    """Return the status of the service: all requests and slots in use, and the models that any process has loaded.

    `slots_total` is a limit of the service, which each process shows as a whole.
    """
    health = {report.system_health for report in reports}
    first = reports[0]
    models = {model.uuid: model for report in reports for model in report.models}
    return msgspec.structs.replace(
        first,
        system_health=next(word for word in (Health.DRAINING, Health.CRITICAL, Health.HEALTHY) if word in health),
        active_stream_requests=sum(report.active_stream_requests for report in reports),
        active_batch_requests=sum(report.active_batch_requests for report in reports),
        slots_used=sum(report.slots_used for report in reports),
        slots_total=max(report.slots_total for report in reports),
        models=list(models.values()),
    )
