"""Admission of a request: key, page origin, quota, drain state, capacity. Refusals are counted and told here."""

from __future__ import annotations

import random
from typing import cast

import msgspec
import structlog
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access.keys import Caller, Credentials
from server.access.origins import allowed_origins, check_origin
from server.access.quota import Lease, Quotas
from server.errors import REFUSALS, Refused
from server.protocols.deepgram.query import ListenRequest, parse_query
from server.replica import Replica

MAX_NOTED = 256  # names of ignored parameters that are remembered, so that each is logged once
LEASES, CALLER = "tutti.leases", "tutti.caller"  # in the scope of a connection

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.door")


class RefusalBody(msgspec.Struct):
    """The JSON of a refusal, in the form of Deepgram's errors."""

    err_code: str
    err_msg: str
    request_id: str


class QuotaRelease:
    """ASGI middleware: what a connection took of a quota comes back when its endpoint ends, however it ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the endpoint."""
        leases: list[Lease] = []
        scope[LEASES] = leases
        try:
            await self._app(scope, receive, send)
        finally:
            for lease in leases:
                lease.release()


class Guard:
    """Admission of one replica, the same for handshakes and for uploads."""

    def __init__(self, replica: Replica) -> None:
        """Raises: SettingsError."""
        settings = replica.settings
        self._replica = replica
        self._noted: set[str] = set()
        self._retry = RetryAfter()
        self._allowed = allowed_origins(settings)
        self._default_limit = settings.max_streams_per_key
        self.quotas = Quotas()

    def identify(self, connection: HTTPConnection, credentials: Credentials) -> Caller:
        """Say who calls, and check from which page. Raises: NotAuthorised, NotAllowed."""
        caller = self._replica.keys.check(credentials)
        listed = caller.key.origins
        headers = connection.headers
        check_origin(headers.getlist("origin"), headers.get("host", ""), self._allowed if listed is None else listed)
        connection.scope[CALLER] = caller
        return caller

    def enter(self, connection: HTTPConnection, credentials: Credentials, *, streams: int = 1) -> Caller:
        """Let a connection in that wants so many streams, before it has cost anything. Raises: Refused.

        Its place in the quota comes back when its endpoint ends; `server.app` puts `QuotaRelease` around them all.
        """
        caller = self.identify(connection, credentials)
        self._replica.sessions.refuse_if_draining()
        limit = self.limit(caller)
        cast(list[Lease], connection.scope[LEASES]).append(self.quotas.take(caller.key.id, streams, limit))
        self._replica.recognizer.refuse_if_full()
        return caller

    def admit(self, connection: HTTPConnection, credentials: Credentials, *, live: bool) -> ListenRequest:
        """Return what the query asks for. Raises: Refused. An upload has no endpoints unless it asks for them."""
        replica = self._replica
        caller = self.enter(connection, credentials)  # before the query, whose key terms cost time
        request = parse_query(
            connection.query_params.multi_items(),
            replica.models,
            replica.settings.max_channels,
            default_endpointing=live,
            supports_keyterms=replica.decoder.supports_bias,
            strict_features=replica.settings.strict_features,
        )
        if live and request.multichannel:
            connection.scope[LEASES][-1].grow(request.channels - 1, self.limit(caller))
        self._note(request.ignored)
        return request

    def refuse(self, error: Refused, request_id: str) -> Response:
        """Build the answer to a refused request, and count it."""
        entry = REFUSALS[type(error)]
        self._replica.metrics.rejected.labels(entry.reason).inc()
        message = str(error)
        one_line = message.encode("ascii", "replace").decode().replace("\r", " ").replace("\n", " ")
        headers = {"dg-error": one_line, "dg-request-id": request_id}
        if entry.retry_after_s is not None:
            headers["Retry-After"] = str(self._retry.seconds(entry.retry_after_s, self._replica.clock()))
        body = msgspec.json.encode(RefusalBody(entry.err_code, message, request_id))
        return Response(body, entry.status, headers, media_type="application/json")

    def headers(self, request: ListenRequest, request_id: str) -> dict[str, str]:
        """Headers of an answer that is no refusal."""
        named = {"x-ignored-params": ",".join(request.ignored)} if request.ignored else {}
        return {"dg-request-id": request_id, **named}

    def limit(self, caller: Caller) -> int | None:
        """Streams that a caller may have open. Where everybody is let in nobody has a quota."""
        if self._replica.keys.is_open:
            return None
        return self._default_limit if caller.key.streams is None else caller.key.streams

    def _note(self, ignored: tuple[str, ...]) -> None:
        for name in ignored:
            if name not in self._noted and len(self._noted) < MAX_NOTED:
                self._noted.add(name)
                _log.info("query parameter ignored", name=name)


def tenant_of(connection: HTTPConnection) -> str:
    """Name whose stream this is: the same on every replica, for the key and for its tokens. Once it has entered."""
    caller: Caller = connection.scope[CALLER]
    return caller.key.id


PER_S = 50.0
"""Appointments in a second."""
LONGEST_S = 30.0


class RetryAfter:
    """One replica's answer to "when?"."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._booked_s = 0.0  # the last appointment
        self._rng = rng or random.Random()

    def seconds(self, shortest_s: int, now: float) -> int:
        """Whole seconds to wait, `shortest_s` at least while few are refused; a crowd beyond bounds is spread."""
        self._booked_s = max(now + shortest_s, min(self._booked_s + 1 / PER_S, now + LONGEST_S))
        wait_s = self._booked_s - now
        if wait_s >= LONGEST_S:
            wait_s = self._rng.uniform(LONGEST_S / 2, LONGEST_S)
        return max(shortest_s, round(wait_s))
