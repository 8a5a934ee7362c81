"""Admission of a request: key, page origin, quota, drain state, capacity. Counts refusals; protocols render them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import cast

import structlog
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access.keys import Caller, Credentials, KeyRing
from server.access.origins import allowed_origins, check_origin
from server.coordination.coordinator import CallLease, Coordinator
from server.errors import REFUSALS, Refused
from server.operations.drain import OpenSessions
from server.operations.logs import note_refusal
from server.operations.metrics import Metrics
from server.settings import Settings
from server.text.redaction_kinds import Redaction

LEASES, CALLER = "tutti.leases", "tutti.caller"  # keys in the ASGI scope of a connection


class QuotaRelease:
    """ASGI middleware that releases a connection's share of its key's quota when its endpoint ends or fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the endpoint, then release the leases."""
        leases: list[CallLease] = []
        scope[LEASES] = leases
        try:
            await self._app(scope, receive, send)
        finally:
            for lease in leases:
                lease.release()


@dataclass(frozen=True, slots=True)
class CountedRefusal:
    """A refusal, already counted in the metrics, for a protocol to render. `retry_after_s`: None for no Retry-After."""

    status: int
    err_code: str
    message: str
    retry_after_s: int | None


class Guard:
    """Admission to one replica, the same for live connections and uploads."""

    def __init__(
        self, keys: KeyRing, sessions: OpenSessions, coordinator: Coordinator, *, metrics: Metrics, settings: Settings
    ) -> None:
        """Read limits and origins from `settings`. Raises: SettingsError."""
        self.keys = keys
        self.coordinator = coordinator
        self._sessions = sessions
        self._metrics = metrics
        self._allowed = allowed_origins(settings)
        self._default_limit = settings.max_streams_per_key

    def identify(self, connection: HTTPConnection, credentials: Credentials) -> Caller:
        """Check the key and the page's origin; return the caller. Raises: NotAuthorized, NotAllowed."""
        caller = self.keys.check(credentials)
        listed = caller.key.origins
        headers = connection.headers
        allowed = self._allowed if listed is None else listed
        check_origin(headers.getlist("origin"), headers.get("host", ""), allowed, keyless=self.keys.is_open)
        connection.scope[CALLER] = caller
        return caller

    async def enter(self, connection: HTTPConnection, credentials: Credentials) -> None:
        """Admit a request for one stream, before any expensive work. Raises: Refused.

        The stream's quota is released by `QuotaRelease`, which `server.app` puts around all endpoints.
        """
        caller = self.identify(connection, credentials)
        if caller.key.name:
            structlog.contextvars.bind_contextvars(key_name=caller.key.name)  # the operator's, in all its log lines
        self._sessions.refuse_if_draining()
        openings = [_address_owner(connection)]
        if not self.keys.is_open:
            openings.append(f"key {caller.key.id}")
        lease = await self.coordinator.enter(caller.key.id, self.limit(caller), openings)
        cast(list[CallLease], connection.scope[LEASES]).append(lease)

    async def enter_again(self, connection: HTTPConnection, key_id: str) -> CallLease:
        """Admit work that was accepted before, for the key of this id; its lease ends with it. Raises: Refused."""
        caller = connection.scope[CALLER] = self.keys.caller_of(key_id)
        self._sessions.refuse_if_draining()
        return await self.coordinator.enter(caller.key.id, self.limit(caller), ())

    async def enter_registered(self, connection: HTTPConnection, key_id: str) -> None:
        """Admit a request whose key was checked before it came; its quota is released as that of `enter`.

        Raises: Refused.
        """
        lease = await self.enter_again(connection, key_id)
        cast(list[CallLease], connection.scope[LEASES]).append(lease)

    async def enter_without_key(self, connection: HTTPConnection) -> None:
        """Admit a request for one stream on an endpoint without keys. Raises: Refused."""
        self._sessions.refuse_if_draining()
        (await self.coordinator.enter("", None, [_address_owner(connection)])).release()

    def refuse_if_unavailable(self) -> None:
        """Refuse a stream while the replica is draining or full. Raises: ServerDraining, ServerFull."""
        self._sessions.refuse_if_draining()
        self.coordinator.refuse_if_full()

    def refuse_if_too_fast(self, connection: HTTPConnection) -> None:
        """Apply the address check of `enter` early, without counting an opening. Raises: TooManyOpenings."""
        self.coordinator.refuse_if_too_fast(_address_owner(connection))

    def refuse(self, error: Refused) -> CountedRefusal:
        """Count a refusal; return its status, code, message and Retry-After."""
        entry = REFUSALS[type(error)]
        self._metrics.rejected.labels(entry.reason).inc()
        note_refusal(error)
        shortest_s = entry.retry_after_s
        retry_after_s = None if shortest_s is None else self.coordinator.retry_after_s(shortest_s)
        return CountedRefusal(entry.status, entry.err_code, str(error), retry_after_s)

    def owner(self, connection: HTTPConnection) -> str:
        """Return the unit of fair sharing: the key of an admitted request, or its address if it needed none."""
        if self.keys.is_open or caller_of(connection) is None:
            return address_of(connection)
        return tenant_of(connection)

    def limit(self, caller: Caller) -> int | None:
        """Return the number of calls that a caller may have open; None: no limit, as on a server without keys."""
        if self.keys.is_open:
            return None
        return self._default_limit if caller.key.streams is None else caller.key.streams


def tenant_of(connection: HTTPConnection) -> str:
    """Return the id of an admitted connection's key: the same on every replica, and for the key and its tokens."""
    caller: Caller = connection.scope[CALLER]
    return caller.key.id


def redaction_of(connection: HTTPConnection) -> frozenset[Redaction]:
    """Return what an admitted connection's key always masks; nothing if the connection has no key."""
    caller = caller_of(connection)
    return frozenset() if caller is None else caller.key.redact


def caller_of(connection: HTTPConnection) -> Caller | None:
    """Return who sent an admitted request; None at an endpoint without keys."""
    caller: Caller | None = connection.scope.get(CALLER)
    return caller


def address_of(connection: HTTPConnection) -> str:
    """Return the address of a connection's client; for IPv6 its /64 network, since a client usually has all of it.

    A proxy that uvicorn trusts (`FORWARDED_ALLOW_IPS`, 127.0.0.1 by default) sends the client in `X-Forwarded-For`.
    """
    if connection.client is None:
        return ""
    try:
        address = ipaddress.ip_address(connection.client.host)
    except ValueError:
        return connection.client.host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:  # from dual-stack proxies
        address = address.ipv4_mapped
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))


def _address_owner(connection: HTTPConnection) -> str:
    return f"address {address_of(connection)}"


NETWORK_BITS = 64
