"""`/admin/drain`, `/admin/models` and `/admin/engine`: endpoints for operators.

Without an admin key only direct requests from this machine are answered: not those forwarded by a proxy or sent by a
web page.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from server.access.keys import Credentials, KeyRing
from server.access.origins import is_private_name
from server.errors import BadParameter, ModelStays, NotAuthorized, ServerError, ServerNotReady, UnknownModel, of_setting
from server.http.operations import ServiceOperations
from server.models.registry import Phase
from server.operations.drain import DrainReport
from server.protocols.features import check_no_query
from server.protocols.handshake import json_response
from server.settings import Settings

INDIRECT_HEADERS = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-original-forwarded-for", "x-real-ip",
    "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-envoy-external-address", "via", "origin", "sec-fetch-site",
)  # fmt: skip
"""Headers added by proxies and browsers. A local proxy that adds none makes every request look local."""
CLOSED = (
    "/admin is closed, because this server has no admin key: set TUTTI_ADMIN_KEYS on the server, "
    "or TUTTI_ADMIN_LOCAL=true (--admin-local) if no proxy runs on its machine\n"
)
INDIRECT = (
    "without an admin key /admin answers only direct requests from the server's machine, not those of a proxy or "
    "a web page: set TUTTI_ADMIN_KEYS on the server\n"
)
_STATES: dict[int | str, dict[str, object]] = {
    401: {"description": "Missing or wrong admin key"},
    403: {
        "description": "No admin key is set, and the request is not from this machine or TUTTI_ADMIN_LOCAL is not set"
    },
}
_OF_A_MODEL: dict[int | str, dict[str, object]] = {
    **_STATES,
    404: {"description": "No such model"},
    409: {"description": "Not possible with this model or server; the message has the reason"},
}


_FAILURES: dict[type[ServerError], int] = {UnknownModel: 404, ModelStays: 409, ServerNotReady: 503}


class DrainState(msgspec.Struct):
    """Response of both drain endpoints."""

    phase: str
    sessions: dict[str, int]
    elapsed_s: float
    remaining_s: float


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Access to `/admin`: with a key of `keys`; or, if there are none and `local`, by direct local requests."""

    keys: KeyRing
    local: bool


def admin_access(settings: Settings) -> AdminAccess:
    """Return the access by the settings. Raises: SettingsError."""
    with of_setting("admin_keys_file"):
        keys = KeyRing.load((key.get_secret_value() for key in settings.admin_keys), settings.admin_keys_file)
    return AdminAccess(keys, settings.admin_local)


def is_direct(request: Request) -> bool:
    """Whether the request comes from this machine, and neither through a proxy nor from a web page.

    A page that reads from its own name (DNS rebinding) sends no header of a page, but that name.
    """
    if request.client is None or any(name in request.headers for name in INDIRECT_HEADERS):
        return False
    if not is_private_name(request.headers.get("host", "")):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def refusal_of(request: Request, access: AdminAccess) -> Response | None:
    """Return the response to a request without access, or with parameters; None if it may be served."""
    if access.keys.is_open:
        if not access.local:
            return Response(CLOSED, 403, media_type="text/plain")
        return _with_query(request) if is_direct(request) else Response(INDIRECT, 403, media_type="text/plain")
    try:
        access.keys.check(Credentials.read(request.headers.get("authorization"), ()))
    except NotAuthorized:
        return Response(
            "missing or wrong admin key\n", 401, {"WWW-Authenticate": 'Bearer realm="admin"'}, media_type="text/plain"
        )
    return _with_query(request)


def _with_query(request: Request) -> Response | None:
    try:
        check_no_query(request.query_params.multi_items())
    except BadParameter as error:
        return Response(f"{error}\n", 400, media_type="text/plain")
    return None


def admin_router(operations: ServiceOperations, access: AdminAccess) -> APIRouter:
    """Return the routes of `/admin`."""

    class Guarded(APIRoute):
        """A route that is closed to others, and answers what is not possible with its status."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                if (refused := refusal_of(request, access)) is not None:
                    return refused
                try:
                    return await answer(request)
                except tuple(_FAILURES) as error:
                    status = next(status for kind, status in _FAILURES.items() if isinstance(error, kind))
                    return Response(f"{error}\n", status, media_type="text/plain")

            return guarded

    router = APIRouter(prefix="/admin", tags=["admin"], route_class=Guarded)
    _add_drain(router, operations)
    _add_models(router, operations)
    return router


def _add_drain(router: APIRouter, operations: ServiceOperations) -> None:
    @router.post("/drain", status_code=202, response_class=Response, responses={200: {}, **_STATES})
    async def begin() -> Response:
        """Begin the drain, as the first SIGTERM does; the process exits at its end. 202, or 200 if already draining.

        A SIGTERM after this request counts as the first and does not shorten the drain.
        """
        began = await operations.begin_drain()
        return _drain_state(await operations.drain_report(), 202 if began else 200)

    @router.get("/drain", response_class=Response, responses=_STATES)
    async def progress() -> Response:
        """Return the progress of the drain and the open sessions."""
        return _drain_state(await operations.drain_report(), 200)


def _add_models(router: APIRouter, operations: ServiceOperations) -> None:
    @router.get("/models", response_class=Response, responses=_STATES)
    async def listed() -> Response:
        """List the models with their state, the default first."""
        return json_response(await operations.model_states())

    @router.post("/models/{name}/load", response_class=Response, responses={503: {}, **_OF_A_MODEL})
    async def load(name: str) -> Response:
        """Load a model and answer once it accepts streams; 200, also if it was already loaded."""
        return json_response(await operations.load(name))

    @router.post("/models/{name}/unload", response_class=Response, responses={202: {}, **_OF_A_MODEL})
    async def unload(name: str) -> Response:
        """Refuse new streams of a model and unload it when its last stream has ended: 202, or 200 if it is not loaded.

        A model loaded on demand is loaded again by the next request for it, others by `load`.
        """
        state = await operations.unload(name)
        return json_response(state, 200 if state.phase is Phase.ABSENT else 202)

    @router.post("/engine/restart", response_class=Response, responses={503: {}, **_STATES, 409: _OF_A_MODEL[409]})
    async def restart() -> Response:
        """Start a new engine process and move all streams to it; answer once it serves.

        409 with one process, and if the files of a model in use have changed.

        Clients notice a pause of less than a second; no word is lost.
        """
        return json_response({"seconds": round(await operations.restart_engine(), 3)})


def _drain_state(report: DrainReport, status: int) -> Response:
    times = round(report.elapsed_s, 3), round(report.remaining_s, 3)
    return json_response(DrainState(report.phase, report.sessions, *times), status)
