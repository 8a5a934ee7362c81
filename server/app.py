"""The application: the endpoints of one replica, and the lifespan in which its engine runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from time import perf_counter

from fastapi import FastAPI, Response

from server.access.guard import QuotaRelease
from server.access.origins import allow_pages, allowed_origins
from server.configuration.addresses import ListenAddress
from server.coordination.coordinator import Coordinator
from server.http.admin import admin_access, admin_router
from server.http.api_docs import ABOUT, describe, describe_sockets
from server.http.health import add_health, add_metrics, kserve_router, metrics_app
from server.http.models import models_router
from server.http.operations import LocalOperations, ServiceOperations
from server.http.page import page_router
from server.http.sagemaker import SageMaker
from server.http.token_endpoint import TokenEndpoint
from server.http.unmatched import HeadAsGet, answer_unmatched
from server.http.uvicorn_server import MakeProtocols, SecondPort, http_port, tcp_port
from server.models.engine_source import EngineSource
from server.models.loading import LoadedModel, check_model_files
from server.models.registry import RegistryEntry
from server.models.service import NO_AUXILIARY, MakeSession, ModelService
from server.models.service_builder import resume_keys
from server.operations.process import on_sighup
from server.operations.watchdog import Watchdog, WatchedEngine
from server.protocols.audiosocket import call_options as audiosocket
from server.protocols.audiosocket.endpoint import audiosocket_protocols
from server.protocols.deepgram.endpoints import QueryReader, Transcribe, admit_live
from server.protocols.flux.endpoint import admit_turns
from server.protocols.freeswitch.endpoint import admit_freeswitch
from server.protocols.handshake import live_endpoint, refuse_unknown
from server.protocols.openai.endpoint import admit_session, render_error
from server.protocols.openai.transcriptions import Transcriptions
from server.protocols.twilio.endpoint import admit_call
from server.protocols.uploads import Recordings
from server.protocols.vosk.endpoint import admit_by_key, app_without_keys
from server.protocols.wyoming import endpoint as wyoming
from server.recognition.session import Session
from server.recognition.steps import Auxiliary
from server.replica import (
    Replica,
    build_replica,
    callback_folder,
    callback_rules,
    client_keys,
    enrolled_voices,
    receipt_keys,
    usage_files,
)
from server.settings import Settings
from server.text.own_forms import own_forms_of


@dataclass(frozen=True, slots=True)
class Application:
    """What a server process runs: the ASGI app, its replica, and its other ports by the names of their settings."""

    asgi: FastAPI
    replica: Replica
    ports: Mapping[str, SecondPort]


def _ports_options(settings: Settings) -> None:
    """Read the options that ports of their own give their streams. Raises: SettingsError."""
    addresses = settings.addresses
    if "wyoming_port" in addresses:
        wyoming.WyomingOptions.read(addresses["wyoming_port"])
    if "audiosocket_port" in addresses:
        audiosocket.AudioSocketOptions.read(addresses["audiosocket_port"])


FILES: tuple[Callable[[Settings], object], ...] = (
    client_keys,
    resume_keys,
    admin_access,
    allowed_origins,
    receipt_keys,
    callback_rules,
    enrolled_voices,
    _ports_options,
    lambda settings: own_forms_of(settings.written_forms),
)
"""Read the keys, lists and small files that settings name. Each raises SettingsError or ModelError."""


def check_files(settings: Settings) -> None:
    """Read what settings name besides models, before these are loaded. Raises: SettingsError, ModelError."""
    for read in (*FILES, callback_folder, usage_files, check_model_files):
        read(settings)


def create_app(
    settings: Settings,
    models: Sequence[LoadedModel],
    auxiliary: Mapping[Auxiliary, EngineSource] = NO_AUXILIARY,
    clock: Callable[[], float] = perf_counter,
    *,
    make_session: MakeSession = Session,
    outlines: Sequence[RegistryEntry] = (),
    coordinator: Coordinator | None = None,
    operations: Callable[[Replica], ServiceOperations] = LocalOperations,
    listens: bool = True,
) -> Application:
    """Build the app around loaded models. Their engines run from the app's start-up to its shutdown.

    `outlines` are of models that can be loaded, or loaded again, while it runs. `coordinator` None: this process is the
    whole server. `operations` answers operators. Without `listens` connections of every port come from elsewhere.
    """
    replica = build_replica(
        settings, models, auxiliary, clock, make_session=make_session, outlines=outlines, coordinator=coordinator
    )
    of_service = operations(replica)
    ports = _second_ports(replica, of_service)
    lifespan = partial(_run, replica=replica, ports=tuple(ports.values()), listens=listens)
    app = FastAPI(
        title="tutti", version=version("tutti-asr"), description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.add_middleware(QuotaRelease)
    app.add_middleware(HeadAsGet)
    if settings.sagemaker:
        app.add_middleware(SageMaker, guard=replica.guard)
    allow_pages(app, settings)
    _add_recognition(app, replica)
    app.include_router(page_router())
    app.include_router(models_router(replica, created=int(time.time())))
    app.include_router(kserve_router(replica))
    app.include_router(admin_router(of_service, admin_access(settings)))
    add_health(app, replica, of_service)
    if "metrics_port" not in ports:
        add_metrics(app, of_service)
    describe(app)
    describe_sockets(app)
    return Application(app, replica, ports)


def _second_ports(replica: Replica, operations: ServiceOperations) -> dict[str, SecondPort]:
    """Return the ports that are set, but for the main one. Raises: SettingsError."""
    keyless, addresses = {"keys": "none needed"}, replica.settings.addresses
    kinds: dict[str, tuple[Callable[[ListenAddress], MakeProtocols], dict[str, str]]] = {
        "vosk_port": (lambda _: http_port(app_without_keys(replica), replica), {"scheme": "ws", "protocol": "vosk"}),
        "metrics_port": (
            lambda _: http_port(metrics_app(operations, replica), replica),
            {"scheme": "http", "serves": "/metrics"},
        ),
        "wyoming_port": (
            lambda address: tcp_port(*wyoming.wyoming_protocols(replica, address), replica),
            {"scheme": "tcp", "protocol": "wyoming"},
        ),
        "audiosocket_port": (
            lambda address: tcp_port(*audiosocket_protocols(replica, address), replica),
            {"scheme": "tcp", "protocol": "audiosocket"},
        ),
    }
    ports = {}
    for name, (make, said) in kinds.items():
        if name in addresses:
            keys = {} if name == "metrics_port" else keyless
            ports[name] = SecondPort(make(addresses[name]), addresses[name], **said, **keys)
    return ports


@asynccontextmanager
async def _run(_: FastAPI, *, replica: Replica, ports: Sequence[SecondPort], listens: bool) -> AsyncIterator[None]:
    """Run the parts of a replica, and its other ports, from start-up to shutdown."""
    timeout_s = replica.settings.engine_timeout_s
    watchdog = Watchdog(
        replica.metrics,
        replica.sessions,
        replica.drain,
        replica.clock,
        engine_timeout_s=timeout_s,
        update_estimates=replica.models.update_estimates,
    )
    replica.models.notify(
        on_loaded=lambda service: watchdog.watch(_watched(service, timeout_s)),
        on_unloaded=lambda service: watchdog.forget(service.name),
    )
    await replica.models.start()
    watchdog.start()
    replica.usage.start()
    if replica.callbacks is not None:
        replica.callbacks.start()
    if listens:
        for port in ports:
            await port.start()
    on_sighup(replica.guard.keys.reload)
    try:
        yield
    finally:
        for port in ports:
            port.stop()
        watchdog.stop()
        if replica.callbacks is not None:
            await replica.callbacks.stop()
        replica.decoding.close()
        replica.forks.stop()
        replica.terms.close()
        replica.models.close()
        replica.usage.report_open()
        await asyncio.to_thread(replica.usage.close)
        await asyncio.to_thread(replica.models.stop)


def _watched(service: ModelService, timeout_s: float) -> WatchedEngine:
    """Return a model as the watchdog sees it."""
    return WatchedEngine(
        service.name,
        moves=lambda: service.recognizer.engines.ready(timeout_s),
        ended=lambda: service.recognizer.engines.ended,
        batches=lambda: service.metrics.inference.count,
        failed=lambda: service.metrics.failed_steps,
    )


def _add_recognition(app: FastAPI, replica: Replica) -> None:
    """Add the endpoints of every protocol, and the one that gives tokens for them."""
    queries, recordings = QueryReader(replica), Recordings(replica)
    sockets = {
        "/v1/listen": live_endpoint(replica, partial(admit_live, queries)),
        "/v2/listen": live_endpoint(replica, partial(admit_turns, replica)),
        "/vosk": live_endpoint(replica, partial(admit_by_key, replica)),
        "/v1/realtime": live_endpoint(replica, partial(admit_session, replica), render_error),
        "/v1/twilio": live_endpoint(replica, partial(admit_call, queries)),
        "/v1/freeswitch": live_endpoint(replica, partial(admit_freeswitch, queries)),
    }
    for path, live in sockets.items():
        app.add_api_websocket_route(path, live)
    why = f"no such WebSocket path; valid: {', '.join(sockets)}"  # a path may contain a key
    app.router.default = refuse_unknown(replica.guard, why, app.router.default)
    answer_unmatched(app, replica.guard, tuple(sockets))
    for path, post in (
        ("/v1/auth/grant", TokenEndpoint(replica).grant),
        ("/v1/listen", Transcribe(queries, recordings).upload),
        ("/v1/audio/transcriptions", Transcriptions(replica, recordings).create),
    ):
        app.add_api_route(path, post, methods=["POST"], response_class=Response)
    if replica.settings.audiosocket_port is not None:
        calls, path = audiosocket.CallRegistration(queries), "/v1/audiosocket/{uuid}"
        app.add_api_route(path, calls.register, methods=["POST"], response_class=Response)
        app.add_api_route(path, calls.delete, methods=["DELETE"], response_class=Response, status_code=204)
