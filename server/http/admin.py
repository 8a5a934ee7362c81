"""`/admin/drain`: begin the drain, and report its progress. For operators, never for clients.

Without an admin key only direct requests of this machine are answered: none that a proxy forwards, none of a page in a
browser.
"""

from __future__ import annotations

import ipaddress

import msgspec
from fastapi import APIRouter, Request, Response

from server.access.keys import Credentials, KeyRing
from server.errors import NotAuthorised
from server.operations.drain import Drain
from server.settings import Settings

INDIRECT_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via", "origin", "sec-fetch-site")
"""Headers of proxies and of browsers. A proxy on this machine makes every request look local."""
_STATES: dict[int | str, dict[str, object]] = {
    401: {"description": "No admin key, or a wrong one"},
    403: {"description": "No admin key is set, and the request does not come straight from this machine"},
}


class DrainState(msgspec.Struct):
    """The answer of both requests."""

    phase: str
    sessions: dict[str, int]
    elapsed_s: float
    remaining_s: float


def load_admin_keys(settings: Settings) -> KeyRing:
    """Return the admin keys; an empty ring admits direct requests of this machine. Raises: SettingsError."""
    return KeyRing.load((key.get_secret_value() for key in settings.admin_keys), settings.admin_keys_file)


def is_direct(request: Request) -> bool:
    """Whether the request comes from this machine, but not through a proxy or from a page in a browser."""
    if request.client is None or any(name in request.headers for name in INDIRECT_HEADERS):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def admin_router(drain: Drain, keys: KeyRing) -> APIRouter:
    """Return the routes of `/admin`."""
    router = APIRouter(prefix="/admin", tags=["admin"])

    def refusal(request: Request) -> Response | None:
        if keys.is_open:
            return None if is_direct(request) else Response("not from here\n", 403, media_type="text/plain")
        try:
            keys.check(Credentials.read(request.headers.get("authorization"), ()))
        except NotAuthorised:
            return Response(
                "an admin key is needed\n", 401, {"WWW-Authenticate": 'Bearer realm="admin"'}, media_type="text/plain"
            )
        return None

    @router.post("/drain", status_code=202, response_class=Response, responses={200: {}, **_STATES})
    async def begin(request: Request) -> Response:
        """Begin the drain, as the first SIGTERM does: 202 if this began it, 200 if it had begun; the process then ends.

        A SIGTERM after this request is the first one still, and does not cut the drain short.
        """
        return refusal(request) or _state(drain, 202 if drain.begin() else 200)

    @router.get("/drain", response_class=Response, responses=_STATES)
    async def progress(request: Request) -> Response:
        """Say how far the drain is, and who is still there."""
        return refusal(request) or _state(drain, 200)

    return router


def _state(drain: Drain, status: int) -> Response:
    report = drain.report()
    state = DrainState(report.phase, report.sessions, round(report.elapsed_s, 3), round(report.remaining_s, 3))
    return Response(msgspec.json.encode(state), status, media_type="application/json")
