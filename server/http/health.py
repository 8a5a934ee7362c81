"""Health and metadata under the names of the Open Inference Protocol, which KServe and its tools ask for.

Source: https://kserve.github.io/website/latest/reference/api/ (V2, REST); operations.md 4. Inference itself is not
offered there: that protocol has no streams of audio.
"""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from fastapi import APIRouter, Response

from server.replica import Replica

_NOT_READY: dict[int | str, dict[str, object]] = {503: {"description": "Not ready: starting, draining or stalled"}}
_UNKNOWN: dict[int | str, dict[str, object]] = {404: {"description": "No such model is served here"}}


def kserve_router(replica: Replica) -> APIRouter:
    """Make the endpoints."""
    router = APIRouter(prefix="/v2", tags=["health"])

    def known(name: str) -> bool:
        return name in (replica.card.name, *replica.models.aliases)

    def readiness(**answer: object) -> Response:
        ready = replica.ready
        return _json({**answer, "ready": ready}, 200 if ready else 503)

    @router.get("", response_class=Response)
    async def server_metadata() -> Response:
        """Name the server."""
        return _json({"name": "tutti", "version": version("tutti"), "extensions": []})

    @router.get("/health/live", response_class=Response)
    async def live() -> Response:
        """Answer as `/healthz`: the process and its event loop are alive."""
        return _json({"live": True})

    @router.get("/health/ready", response_class=Response, responses=_NOT_READY)
    async def ready() -> Response:
        """Answer as `/readyz`."""
        return readiness()

    @router.get("/models/{name}/ready", response_class=Response, responses=_NOT_READY | _UNKNOWN)
    async def model_ready(name: str) -> Response:
        """Answer as `/readyz` for the model that is served, by its name or an alias."""
        return readiness(name=name) if known(name) else _json({"error": "no such model is served here"}, 404)

    return router


def _json(answer: dict[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")
