"""A front end: sockets, sessions and decoders of its share of the clients; the engines run in the engine host.

It runs the same application as a single-process server, but engines, admission and quotas are in other processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import structlog
import uvicorn

from model.facts import ModelFacts
from server.app import Application, check_files, create_app
from server.configuration.models_file import ModelEntry
from server.coordination.remote import RemoteCoordinator
from server.http.uvicorn_server import uvicorn_config
from server.models.loading import LoadedModel, auxiliary_of, load_decoders
from server.models.registry import RegistryEntry, outlines_of
from server.operations.drain import Phase
from server.operations.gc_schedule import freeze_loaded_objects
from server.operations.merged_metrics import snapshot
from server.operations.process import EXIT_LOST, end_within
from server.processes import messages
from server.processes.child import ChildProcess, run_child
from server.processes.control import Parcel
from server.processes.messages import MESSAGES, name_of
from server.processes.remote_engine import RemoteEngines
from server.processes.remote_operations import RemoteOperations, report_of
from server.recognition.session import Session
from server.serve import open_tracing, warn_of_few_files
from server.settings import Settings

REPORT_S = 0.25  # interval of reports of open connections
END_S = 2.0  # time limit for a process whose engine is lost, or whose supervisor has asked it to end
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.front_end")


class FrontEndServer(uvicorn.Server):
    """uvicorn without listening sockets and signals: its connections come from the supervisor."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Start the application only."""
        await super().startup(sockets=[])
        if self.started:
            self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the supervisor."""
        yield

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        make = cast(Any, self.config.http_protocol_class)
        made: asyncio.Protocol = make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return made


class FrontEnd:
    """One front end's application and its part of the control channel."""

    def __init__(
        self, process: ChildProcess, application: Application, sources: RemoteEngines, coordinator: RemoteCoordinator
    ) -> None:
        self._channel = process.channel
        self._sources, self._coordinator = sources, coordinator
        self._application = application
        self._replica = replica = application.replica
        self.server = FrontEndServer(uvicorn_config(application.asgi, replica), self._started)
        self._received = 0
        self._asked_to_drain = False
        self._opening: set[asyncio.Task[None]] = set()
        self.status = 0
        replica.drain.when_done(self._drained)
        process.take, process.answer = self._take, self._answer
        process.on_orphaned = self._orphaned

    def _started(self) -> None:
        self._channel.tell(messages.Ready())
        self._report()

    def _report(self) -> None:
        """Report the open connections, now and periodically."""
        connections = len(self.server.server_state.connections) + len(self._opening)
        connections += sum(port.connections for port in self._application.ports.values())
        self._channel.tell(messages.Load(connections, self._received))
        asyncio.get_running_loop().call_later(REPORT_S, self._report)

    def _take(self, parcel: Parcel) -> None:
        match parcel.message:
            case messages.Accepted(port):
                self._accept(port, parcel.descriptors)
            case messages.EngineMoved():
                self._sources.reconnect()
            case messages.Drain():
                self._asked_to_drain = True
                self._replica.drain.begin()
            case messages.Reload():
                self._replica.guard.keys.reload()
            case messages.StopNow():
                self._stop(0)
            case other:
                self._coordinator.take(other)

    def _accept(self, port: str, descriptors: Sequence[int]) -> None:
        """Serve a connection; one whose descriptor was lost is closed by the kernel, and counts as received."""
        self._received += 1
        for descriptor in descriptors:
            task = asyncio.get_running_loop().create_task(self._open(port, socket.socket(fileno=descriptor)))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, port: str, connection: socket.socket) -> None:
        connection.setblocking(False)
        other = self._application.ports.get(port)
        protocol = self.server.protocol if other is None else other.protocol
        with contextlib.suppress(OSError):  # the client has gone
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    async def _answer(self, parcel: Parcel) -> Parcel:
        match parcel.message:
            case messages.Metrics():
                return Parcel(snapshot(self._replica.metrics.registry))
            case messages.Report(kind):
                return Parcel(report_of(self._replica, kind))
            case messages.ChangeModel(name, load):
                if load:
                    await self._replica.models.load(name)
                else:
                    self._replica.models.unload(name)
                return Parcel(None)
            case other:
                raise TypeError(f"a front end does not answer {type(other).__name__}")

    # End

    def _drained(self) -> None:
        """Keep running while other front ends drain, to report their progress. Without a supervisor, end."""
        if self._asked_to_drain and not self._channel.closed:
            self._channel.tell(messages.Drained())
        else:
            self._stop(0 if self._replica.drain.lost is None else EXIT_LOST)

    def _stop(self, status: int) -> None:
        self.status = status
        self.server.should_exit = True
        if status:
            end_within(END_S, status, lambda: None)

    def _orphaned(self) -> None:
        """Handle the supervisor's end: let the open streams end, as in a drain."""
        _log.critical("the supervisor has ended: this front end drains and ends")
        if not self._replica.drain.begin() and self._replica.drain.phase is Phase.DRAINED:
            self._stop(0)


async def work(process: ChildProcess) -> int:
    """Run the front end until it is drained or asked to end; return the exit status."""
    settings = process.settings
    warn_of_few_files(settings)
    tracing = open_tracing(settings, os.environ)
    sources = RemoteEngines(process.channel)
    await asyncio.to_thread(check_files, settings)  # an engine host loads the models meanwhile
    models, outlines = await _load(process, sources)
    coordinator = RemoteCoordinator(settings, process.channel, time.perf_counter)
    application = create_app(
        settings,
        models,
        dict.fromkeys(auxiliary_of(settings), sources),
        make_session=Session if tracing is None else tracing.session,
        outlines=outlines,
        coordinator=coordinator,
        operations=lambda replica: RemoteOperations(replica, process.channel),
        listens=False,
    )
    freeze_loaded_objects()
    front_end = FrontEnd(process, application, sources, coordinator)
    try:
        await front_end.server.serve()
    finally:
        if tracing is not None:
            tracing.close()
    return front_end.status


async def _load(process: ChildProcess, sources: RemoteEngines) -> tuple[list[LoadedModel], tuple[RegistryEntry, ...]]:
    """Return the models that are loaded at the start, and the outlines of the others. Raises: ModelError."""
    loop, settings = asyncio.get_running_loop(), process.settings

    async def facts_about(name: str) -> ModelFacts:
        return cast(ModelFacts, pickle.loads(await process.channel.request(messages.Describe(name))))  # noqa: S301 - from our own process

    def load_on_thread(entry: ModelEntry | None, own: Settings) -> LoadedModel:
        name = name_of(entry)
        facts = asyncio.run_coroutine_threadsafe(facts_about(name), loop)
        return load_decoders(facts.result(), entry, own, sources)

    loaded = [
        await asyncio.to_thread(load_decoders, await facts_about(name_of(entry)), entry, own, sources)
        for entry, own in settings.of_models()
        if entry is None or not entry.on_demand
    ]
    return loaded, outlines_of(settings, load_on_thread)


if __name__ == "__main__":
    sys.exit(run_child(MESSAGES, work))
