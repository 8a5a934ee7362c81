"""Operators' requests to one front end, answered for the whole service with the supervisor's help."""

from __future__ import annotations

from typing import Any

import msgspec

from server.errors import UnknownModel
from server.http.combined_reports import combined_models, combined_status
from server.http.operations import ModelState, Status, states_of, status_of
from server.operations.drain import DrainReport, combined_drain
from server.processes.control import ControlChannel
from server.processes.messages import Bytes, ChangeModel, Collect, DrainAll, Gather, RestartEngine
from server.replica import Replica

DRAIN, MODELS, STATUS = "drain", "models", "status"


class RemoteOperations:
    """Implements `ServiceOperations` for a front end."""

    def __init__(self, replica: Replica, channel: ControlChannel) -> None:
        self._replica, self._channel = replica, channel

    async def exposition(self) -> bytes:
        """Return the metrics of all processes. Raises: ChannelClosed."""
        answer: Bytes = await self._channel.request(Collect())
        return answer.data

    async def status(self) -> Status:
        """Return the state of the service."""
        return combined_status(await self._gather(STATUS, Status))

    async def begin_drain(self) -> bool:
        """Begin the drain of all front ends; return False if it had begun."""
        began = not self._replica.sessions.draining
        self._replica.drain.announce()
        self._channel.tell(DrainAll())
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
        answer = await self._channel.request(RestartEngine())
        return float(answer.seconds)

    async def _change(self, name: str, *, load: bool) -> ModelState:
        await self._channel.request(ChangeModel(name, load))
        for state in await self.model_states():
            if state.name == name:
                return state
        raise UnknownModel(f"no model is named {name!r}")

    async def _gather(self, kind: str, of: Any) -> list[Any]:
        answer = await self._channel.request(Gather(kind))
        return [msgspec.json.decode(each, type=of) for each in answer.each]


def report_of(replica: Replica, kind: str) -> bytes:
    """Return one report of this front end, JSON."""
    if kind == DRAIN:
        return msgspec.json.encode(replica.drain.report())
    return msgspec.json.encode(states_of(replica) if kind == MODELS else status_of(replica))
