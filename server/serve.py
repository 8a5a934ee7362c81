"""The server process that `tutti serve` runs: threads, logs, uvicorn, signals, exit status.

uvicorn closes every WebSocket as soon as it is stopped, so the first signal begins a drain instead, and uvicorn is
stopped when no stream is left. A second signal stops at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING

import structlog
import uvicorn
from uvicorn.config import STARTUP_FAILURE

from batching.errors import BatchingError
from model.errors import install_hint
from model.machine.instructions import instruction_set
from model.machine.runtime import shorten_switches
from server.app import Application, check_files, create_app
from server.configuration.addresses import check_addresses, open_address
from server.errors import EngineDead
from server.http.uvicorn_server import uvicorn_config
from server.models.loading import load_served
from server.models.registry import outlines_of
from server.operations.gc_schedule import freeze_loaded_objects
from server.operations.logs import FLUSH_S, LogLines, configure_logs
from server.operations.process import (
    EXIT_LOST,
    end_within,
    files_needed,
    raise_file_limit,
    reopen_closed_stdio,
    return_large_blocks,
)
from server.operations.start_message import announcement
from server.recognition.session import Session
from server.replica import Replica
from server.settings import Settings

if TYPE_CHECKING:
    from server.recognition.tracing import Tracing


OTEL_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
END_TIMEOUT_S = 2.0  # for a process that got a second signal, or whose engine is lost

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.serve")


class DrainingServer(uvicorn.Server):
    """uvicorn that stops when its streams have ended, or were flushed and closed with 1012."""

    def __init__(self, application: Application) -> None:
        self._replica = replica = application.replica
        super().__init__(uvicorn_config(application.asgi, replica))
        self.config.lifespan = "off"  # `_serve` has it
        self._running = application.asgi.router.lifespan_context(application.asgi)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signalled = False
        self.forced_by: int | None = None
        self.on_forced: Callable[[int], None] = lambda _: None
        self.on_message: Callable[[str], object] = lambda _: None  # of the start, for a person at a terminal
        replica.drain.when_done(self._stop)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and log the address; JSON lines say in fields what the message says to a person."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            settings, models = self._replica.settings, self._replica.models
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            url = open_address(host, port)
            said = announcement(settings, url, models.limit, self.on_message)
            _log.info("listening", url=url, models=[service.name for service in models], **said)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Drain at the first signal, stop at once at the second. A drain begun by other means counts as no signal."""
        if self._loop is None or self._signalled:
            self.forced_by = sig
            self.should_exit = self.force_exit = True
            self.on_forced(sig)
        else:
            self._signalled = True
            self._replica.drain.announce()
            self._loop.call_soon_threadsafe(self._replica.drain.begin)

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Run the app's parts around uvicorn, which would skip their end after a forced stop, and log their errors."""
        async with self._running:
            await super()._serve(sockets)

    def _stop(self) -> None:
        self.should_exit = True


def run(settings: Settings) -> int:
    """Serve until a signal or the end of the drain. Raises: ModelError, SettingsError.

    Returns the exit status: 0 after a drain, 128 + signal if forced, `EXIT_LOST` without an engine, uvicorn's own if
    it, or an engine, could not start.
    """
    reopen_closed_stdio()
    check_addresses(settings.addresses)  # before the models are loaded; uvicorn listens after that
    log_lines = configure_logs(settings)
    warn_of_few_files(settings)
    shorten_switches()
    return_large_blocks()
    tracing = open_tracing(settings, os.environ)
    make_session = Session if tracing is None else tracing.session
    check_files(settings)
    models, auxiliary = load_served(settings)
    outlines = outlines_of(settings)
    for model in models:
        how = {"precision": model.facts.precision, "device": str(model.facts.device)}
        _log.info("model loaded", model=model.name, languages=model.languages, instructions=instruction_set(), **how)
        model.engines.warn_of_dependent_rows(settings.reproducible)
    application = create_app(settings, models, auxiliary, make_session=make_session, outlines=outlines)
    replica = application.replica
    log_lines.count_lost(replica.metrics.log_lines_lost.inc)
    server = DrainingServer(application)
    server.on_message = log_lines.write
    server.on_forced = lambda sig: _end(128 + sig, replica, log_lines)
    replica.drain.when_done(lambda: _end(EXIT_LOST, replica, log_lines) if replica.drain.lost is not None else None)
    freeze_loaded_objects()
    try:
        server.run()
    except SystemExit as error:  # uvicorn's way to say that it could not start; it has logged why
        return int(error.code or 0)
    except (EngineDead, BatchingError):
        _log.exception("the server could not start")
        return STARTUP_FAILURE
    finally:
        if not server.started:  # else the app's end has stopped them
            replica.models.stop()
        if tracing is not None:
            tracing.close()
    if replica.drain.lost is not None:
        return EXIT_LOST
    return 0 if server.forced_by is None else 128 + server.forced_by


def open_tracing(settings: Settings, environment: Mapping[str, str]) -> Tracing | None:
    """Return the tracing of streams if OpenTelemetry's variables set an endpoint and its packages are installed."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    if not any(environment.get(name) for name in OTEL_ENDPOINTS):
        return None
    try:
        from server.recognition.tracing import Tracing
    except ImportError:
        _log.warning("streams are not traced, though OTEL_… variables ask for it", needed=install_hint("otel"))
        return None
    _log.info("streams are traced", endpoint="as OTEL_… variables say")
    return Tracing.over_http({"tutti.commit": settings.commit})


def _end(code: int, replica: Replica, log_lines: LogLines) -> None:
    """Exit with a code soon after `END_TIMEOUT_S` at the latest."""

    def flush() -> None:
        replica.usage.close(FLUSH_S)
        log_lines.drain(FLUSH_S)

    end_within(END_TIMEOUT_S, code, flush)


def warn_of_few_files(settings: Settings) -> None:
    """Raise the limit of open files; log a warning if it stays below what the streams need."""
    limit, needed = raise_file_limit(), files_needed(settings.connected)
    if limit < needed:
        _log.warning("few file descriptors: connections may be dropped", limit=limit, needed=needed)
