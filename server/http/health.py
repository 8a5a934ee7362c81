"""Health endpoints: `/healthz`, `/readyz`, `/metrics`, `/v1/status`, and those of the Open Inference Protocol."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Response

from server.http.operations import ServiceOperations
from server.http.unmatched import HeadAsGet
from server.models.registry import Phase
from server.models.selection import SHOWN
from server.protocols.handshake import json_response, refuse_unknown
from server.replica import Replica

_NOT_READY: dict[int | str, dict[str, object]] = {503: {"description": "Not ready: starting, draining or stalled"}}
_UNKNOWN: dict[int | str, dict[str, object]] = {404: {"description": "Unknown model"}}


def kserve_router(replica: Replica) -> APIRouter:
    """Return the routes of the Open Inference Protocol."""
    router = APIRouter(prefix="/v2", tags=["health"])

    def readiness(*, loaded: bool = True, **answer: object) -> Response:
        ready = replica.ready and loaded
        return json_response({**answer, "ready": ready}, 200 if ready else 503)

    @router.get("", response_class=Response)
    async def server_metadata() -> Response:
        """Return name and version of the server."""
        return json_response({"name": "tutti", "version": version("tutti-asr"), "extensions": []})

    @router.get("/health/live", response_class=Response)
    async def live() -> Response:
        """Answer as `/healthz`: the process and its event loop are alive."""
        return json_response({"live": True})

    @router.get("/health/ready", response_class=Response, responses=_NOT_READY)
    async def ready() -> Response:
        """Answer as `/readyz`."""
        return readiness()

    @router.get("/models/{name}/ready", response_class=Response, responses=_NOT_READY | _UNKNOWN)
    async def model_ready(name: str) -> Response:
        """Answer as `/readyz` for a model, by its name or an alias; 503 while it is not loaded."""
        place = replica.models.known(name)
        if place is None:
            return json_response(
                {"error": f"model {name[:SHOWN]!r} is not served here; GET /v1/models lists the models"}, 404
            )
        return readiness(loaded=place.phase is Phase.LOADED, name=name)

    return router


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def add_health(app: FastAPI, replica: Replica, operations: ServiceOperations) -> None:
    """Add `/healthz`, `/readyz` and `/v1/status`."""

    @app.get("/healthz", response_class=Response)
    async def healthz() -> Response:
        """Answer 200: the process and its event loop are alive. The engine is not checked."""
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz", response_class=Response)
    async def readyz() -> Response:
        """Answer 200 while new streams are accepted: loaded, warm, not stalled or draining. A full replica is ready."""
        ready = replica.ready
        return Response("ready\n" if ready else "not ready\n", 200 if ready else 503, media_type="text/plain")

    @app.get("/v1/status", response_class=Response)
    async def status() -> Response:
        """Return the state of the service in the format of a self-hosted Deepgram engine."""
        return json_response(await operations.status())


def add_metrics(app: FastAPI, operations: ServiceOperations) -> None:
    """Add `/metrics`."""

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Expose Prometheus metrics."""
        return Response(await operations.exposition(), media_type=METRICS_TYPE)


def metrics_app(operations: ServiceOperations, replica: Replica) -> FastAPI:
    """Return the app of the port for metrics alone: probes ask the main port, whose clients they stand for."""
    app = FastAPI(openapi_url=None)
    app.add_middleware(HeadAsGet)
    add_metrics(app, operations)

    why = "this port serves only /metrics; everything else is on the server's main port"
    app.router.default = refuse_unknown(replica.guard, why)
    return app
