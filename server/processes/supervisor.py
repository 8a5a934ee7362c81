"""The supervisor: accepts connections, distributes them to N front ends, and makes all server-wide decisions.

It runs no model and reads no audio. It starts and replaces the other processes, passes accepted connections to them,
answers the front ends' requests (admission, quotas, used tickets, engines, metrics of the whole server), and drains all
at the first signal. A second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog
from pydantic import SecretStr

from batching.wire.sockets import data_sockets
from server.configuration.addresses import ListenAddress, bound_for, check_addresses, open_address
from server.coordination.messages import Request
from server.coordination.serving import CoordinationServer
from server.errors import EngineDead
from server.operations.drain import SPREAD_S
from server.operations.logs import configure_logs
from server.operations.merged_metrics import Totals, snapshot
from server.operations.metrics import process_registry, processes_lost
from server.operations.process import EXIT_LOST, raise_file_limit, reopen_closed_stdio
from server.operations.start_message import announcement
from server.processes import messages
from server.processes.children import Child, Role, start_child
from server.processes.control import Answer, ChannelClosed, Parcel
from server.processes.engine_hosts import EngineAssignment, EngineHosts
from server.processes.front_ends import FrontEnds
from server.processes.listeners import Listener
from server.processes.messages import MESSAGES
from server.settings import Settings

ANSWER_S = 1.0  # time limit for a child's part of the metrics or of a report
LOOK_S = 0.5  # interval of checks of the children
FLUSH_S = 8.0  # of a front end's drain, after the time that settings give: docs/faults.md
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.supervisor")


def run(settings: Settings) -> int:
    """Serve with the processes of the settings until a signal or the end of a drain. Raises: ModelError, SettingsError.

    `front_ends` and `engines` are numbers, as `layout.with_processes` sets them.
    Returns the exit status: 0 after a drain, 128 + signal if forced, `EXIT_LOST` without an engine.
    """
    reopen_closed_stdio()
    log_lines = configure_logs(settings)
    raise_file_limit()
    try:
        return asyncio.run(_serve(_with_keys(settings), log_lines.write))
    except EngineDead as error:
        _log.critical("the server could not start", reason=str(error))
        return EXIT_LOST
    finally:
        log_lines.drain(ANSWER_S)


def _with_keys(settings: Settings) -> Settings:
    """Return the settings with the secrets that each process would otherwise generate separately."""
    keys_by_name = {
        "token_keys": settings.token_keys or settings.token_keys_file,
        "resume_keys": settings.resume_keys or settings.resume_keys_file,
    }
    missing = [name for name, keys in keys_by_name.items() if not keys]
    if missing:
        _log.info("made for this server, until it restarts", keys=missing)
    return settings.model_copy(update={name: (SecretStr(secrets.token_urlsafe(32)),) for name in missing})


async def _serve(settings: Settings, say: Callable[[str], object]) -> int:
    supervisor = Supervisor(settings)
    try:
        await supervisor.begin()
        supervisor.announce(say)
        return await supervisor.ended
    finally:
        await supervisor.stop()


class Supervisor:
    """Owns the other processes of a server, the listening sockets and the server-wide decisions."""

    def __init__(self, settings: Settings) -> None:
        assert settings.front_ends != "auto", "it was chosen before"
        assert settings.engines != "auto", "it was chosen before"
        self._settings = settings
        self._numbers = itertools.count(1)
        self._assignment = EngineAssignment(settings.engines)
        self._coordination = CoordinationServer(
            settings, time.perf_counter, on_hint=self._tell_front_ends, engine_of=self._assignment.of
        )
        self._registry = process_registry()
        self._lost = processes_lost(self._registry)
        self._totals = Totals()
        self.hosts = EngineHosts(
            lambda background: self._start(Role.ENGINE_HOST, next(self._numbers), in_background=background),
            places=settings.engines,
            spare=settings.engine_spare,
            timeout_s=settings.engine_timeout_s,
            on_moved=self._engine_moved,
            on_lost=self._engine_lost,
        )
        self.front_ends = FrontEnds(settings.front_ends, self._start_front_end, on_gone=self._front_end_gone)
        self._listeners: list[Listener] = []
        self._watches: set[asyncio.Task[None]] = set()
        self._signalled = self._forced = False
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # Start and end

    async def begin(self) -> None:
        """Start all processes, and accept once they are ready. Raises: ModelError, SettingsError, EngineDead."""
        check_addresses(self._settings.addresses)
        for setting, address in self._settings.addresses.items():
            self._listen(setting, address)
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._on_signal, sig)
        loop.add_signal_handler(signal.SIGHUP, self._tell_front_ends, messages.Reload())
        starting = loop.create_task(self._start_all())
        waited: list[asyncio.Future[Any]] = [starting, self.ended]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self.ended.done():
            starting.cancel()
            return
        await starting
        self._watch(self._look())
        for listener in self._listeners:
            listener.start()
        self.hosts.look_after_spare()

    async def _start_all(self) -> None:
        """Start hosts and front ends at once; a front end asks for its model while its host still loads it."""
        starting = [asyncio.ensure_future(children.begin()) for children in (self.hosts, self.front_ends)]
        try:
            await asyncio.gather(*starting)
        finally:
            for children in starting:
                children.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.hosts.look()
            self.front_ends.look()

    def _listen(self, setting: str, address: ListenAddress) -> None:
        sockets = bound_for(setting, address)
        self._listeners.append(Listener(sockets, lambda descriptor: self.front_ends.hand_on(setting, descriptor)))

    def announce(self, say: Callable[[str], object]) -> None:
        """Log the address; on a terminal, also print how to use it."""
        if self.ended.done():
            return
        settings, limit = self._settings, int(self._coordination.coordinator.limit)
        url = open_address(settings.host, self._listeners[0].port)
        said = announcement(settings, url, limit, say)
        counts = {"front_ends": len(self.front_ends.ready), "engines": settings.engines, "threads": settings.threads}
        _log.info("listening", url=url, **counts, **said)

    async def stop(self) -> None:
        """End all running processes and close all sockets."""
        for listener in self._listeners:
            listener.close()
        if self._forced:
            for child in (*self.front_ends.children, *self.hosts.children):
                child.leaving = True
                child.kill()
        await self.front_ends.stop()
        await self.hosts.stop()
        for watch in self._watches:
            watch.cancel()

    def _on_signal(self, sig: int) -> None:
        """Drain at the first signal, end all at once at the second or before the start is over."""
        if self._signalled or not self.front_ends.ready:
            self._forced = True
            self._finish(128 + sig)
        self._signalled = True
        self.drain()

    def drain(self) -> None:
        """Ask every front end to drain; the server ends once all have."""
        if self.front_ends.draining:
            return
        self.front_ends.begin_drain()
        self._tell_front_ends(messages.Drain())
        self._watch(self._end_when_empty())

    async def _end_when_empty(self) -> None:
        drain_s = self._settings.drain_timeout_s + SPREAD_S
        try:
            await asyncio.wait_for(self.front_ends.empty.wait(), drain_s + FLUSH_S)
        except TimeoutError:
            _log.error("front ends did not end their drain in time; they are killed")
        self._finish(0 if self.hosts.lost is None else EXIT_LOST)

    def _finish(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    # Children

    async def _start_front_end(self) -> Child:
        number = next(self._numbers)
        self._assignment.assign(number)
        try:
            return await self._start(Role.FRONT_END, number)
        except BaseException:
            self._assignment.forget(number)
            raise

    async def _start(self, role: Role, number: int, *, in_background: bool = False) -> Child:
        start = partial(start_child, answer=self._answering, take=self._take)
        child = await start(role, number, self._settings, MESSAGES, in_background=in_background)
        self._watch(self._watch_end(child))
        return child

    async def _watch_end(self, child: Child) -> None:
        await child.process.wait()
        child.channel.close()
        if not child.leaving and not self.front_ends.draining:
            self._lost.labels(child.role).inc()
        if child.role is Role.FRONT_END:
            self.front_ends.ended(child)
        else:
            self.hosts.ended(child)
        self._totals.end(child.number)

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    def _front_end_gone(self, child: Child) -> None:
        self._coordination.forget(child.number)
        self._assignment.forget(child.number)

    def _engine_moved(self, place: int) -> None:
        for child in self.front_ends.children:
            if self._assignment.of(child.number) == place:
                child.channel.tell(messages.EngineMoved())

    def _engine_lost(self, why: str) -> None:
        _log.critical("the engine is lost, this server ends", reason=why)
        self.drain()

    def _tell_front_ends(self, message: Any) -> None:
        for child in self.front_ends.children:
            child.channel.tell(message)

    # Messages and requests of children

    def _take(self, child: Child, parcel: Parcel) -> None:
        match parcel.message:
            case messages.Load() as load:
                self.front_ends.loaded(child, load)
            case messages.Busy(seconds):
                self.hosts.reported(child, seconds)
            case messages.Drained():
                self.front_ends.drained(child)
            case messages.Drain():
                self.drain()
            case notice:
                self._coordination.take(child.number, notice)

    def _answering(self, child: Child) -> Answer:
        def answer(parcel: Parcel) -> Awaitable[Parcel]:
            if isinstance(parcel.message, Request):  # decided here, hence in the order of the requests
                return _packed(self._coordination.decide(child.number, parcel.message))
            return self._answer(child, parcel.message)

        return answer

    async def _answer(self, child: Child, request: Any) -> Parcel:
        match request:
            case messages.Describe():
                host = await self.hosts.current(self._assignment.of(child.number))
                return Parcel(await host.channel.request(request))
            case messages.Connect(engine):
                return await self._connect(child, engine)
            case messages.Metrics():
                return Parcel(await self._metrics())
            case messages.Report():
                reports = await asyncio.gather(*(_within(child, request) for child in self.front_ends.ready))
                return Parcel([report for report in reports if report is not None])
            case messages.ChangeModel():
                await asyncio.gather(*(each.channel.request(request) for each in self.front_ends.ready))
                return Parcel(None)
            case messages.RestartEngine():
                return Parcel(await self.hosts.restart())
            case other:
                raise TypeError(f"the supervisor does not answer {type(other).__name__}")

    async def _connect(self, child: Child, engine: str) -> Parcel:
        """Return one end of a new data socket; the other end goes to the front end's host. Raises: EngineDead."""
        host = await self.hosts.current(self._assignment.of(child.number))
        theirs, hosts = data_sockets()
        host.channel.tell(messages.Attach(engine), (hosts.detach(),))
        return Parcel(None, (theirs.detach(),))

    async def _metrics(self) -> bytes:
        self._totals.take(0, snapshot(self._registry))
        children = [*self.front_ends.ready, *self.hosts.children]
        answers = await asyncio.gather(*(_within(child, messages.Metrics()) for child in children))
        for child, answer in zip(children, answers, strict=True):
            if answer is not None:
                self._totals.take(child.number, answer)
        return self._totals.exposition()


async def _packed(answer: Awaitable[Any]) -> Parcel:
    return Parcel(await answer)


async def _within(child: Child, request: Any) -> bytes | None:
    """Return the bytes that a child answers in time; None if it does not."""
    with contextlib.suppress(TimeoutError, ChannelClosed, EngineDead):
        async with asyncio.timeout(ANSWER_S):
            return bytes(await child.channel.request(request))
    return None
