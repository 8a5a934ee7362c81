"""Turns handshakes away while nobody can come in, before they have cost anything.

The whole way to a refusal, a task and a dozen layers, takes 0.37 ms of the event loop; a replica that is full, and
whose clients ask again and again, has no such time to give (loadtest/LOG.md). The answer is the same.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope

from server.access.guard import Door
from server.access.keys import Credentials
from server.errors import Refused
from server.http.access_log import Access
from server.replica import Replica, new_request_id

PATH = "/v1/listen"  # where the many are


class Turnstile:
    """Asked for each handshake as it arrives. Whoever has no right to an answer of 503 goes the whole way."""

    def __init__(self, replica: Replica, door: Door, access: Access) -> None:
        self._replica = replica
        self._door = door
        self._access = access

    def __call__(self, scope: Scope) -> Response | None:
        """Return the refusal of a handshake with this scope, None if it may go on."""
        if scope["path"] != PATH:
            return None
        try:
            self._replica.sessions.refuse_if_draining()
            self._replica.recognizer.refuse_if_full()
        except Refused as error:
            return self._refuse(scope, error)
        return None

    def _refuse(self, scope: Scope, error: Refused) -> Response | None:
        began_s, connection = self._replica.clock(), HTTPConnection(scope)
        offered = connection.headers.get("sec-websocket-protocol", "")
        credentials = Credentials.read(
            connection.headers.get("authorization"), [item.strip() for item in offered.split(",")]
        )
        try:
            caller = self._door.identify(connection, credentials)
        except Refused:
            return None
        if self._door.limit(caller) is not None:  # it may be told of its quota first
            return None
        request_id = new_request_id()
        response = self._door.refuse(error, request_id)
        self._access.turned_away(scope, response.status_code, self._replica.clock() - began_s, request_id)
        return response
