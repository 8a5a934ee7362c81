"""`POST` and `DELETE /v1/audiosocket/UUID`: options of one call of AudioSocket, registered before it comes.

The protocol carries nothing but the UUID. The call that comes with it is one of the key that registered it; it may come
to any process of this server, once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import msgspec
from fastapi import Request, Response

from server.access.keys import Caller, Credentials
from server.coordination.limits import ExpectedCall
from server.errors import BadParameter, ClientGone, Refused, UnknownPath
from server.operations.logs import take_request_id
from server.protocols.audiosocket.endpoint import call_query, check_names, defaults_of
from server.protocols.deepgram.endpoints import QueryReader
from server.protocols.deepgram.parameters import TABLE
from server.protocols.features import check_single, in_plain_names, printable, whole_number
from server.protocols.handshake import json_response, render_refusal
from server.protocols.uploads import read_body
from server.replica import Replica

TTL, DEFAULT_TTL_S, MAX_TTL_S = "ttl_seconds", 60, 3_600
MAX_CHARACTERS = 4_096  # of a call's options
MAX_BODY_BYTES, BODY_TIMEOUT_S = 1_024, 10.0


class RegisteredCall(msgspec.Struct):
    """The UUID as the call has it, and the seconds within which the call may come."""

    uuid: str
    expires_in: int


class CallRegistration:
    """The endpoints of one replica whose `audiosocket_port` is set."""

    def __init__(self, queries: QueryReader) -> None:
        self._queries = queries
        self._replica: Replica = queries.replica
        self._defaults = defaults_of(queries.replica.settings.addresses)

    async def register(self, request: Request) -> Response:
        """Expect a call with the options of the query, instead of those of its UUID before."""
        request_id = take_request_id()
        try:
            caller, called = self._identify(request)
            self._replica.sessions.refuse_if_draining()
            pairs = in_plain_names(request.query_params.multi_items(), {*TABLE, TTL})
            own = [pair for pair in pairs if pair[0] == TTL]
            check_single(own, ())
            ttl_s = whole_number(TTL, dict(own).get(TTL, str(DEFAULT_TTL_S)), range(1, MAX_TTL_S + 1))
            options = _checked([pair for pair in pairs if pair[0] != TTL])
            if (await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S)).strip():
                raise BadParameter("body: leave it empty; the options of a call are in the query")
            await self._queries.read(request, call_query(self._defaults, options), live=True)
            await self._replica.guard.coordinator.expect_call(ExpectedCall(called, caller.key.id, options), ttl_s)
        except Refused as error:
            return render_refusal(self._replica.guard.refuse(error), request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's status for a client that disconnected
        return json_response(RegisteredCall(called, ttl_s), headers={"dg-request-id": request_id})

    async def delete(self, request: Request) -> Response:
        """Expect a call no more: if it comes, it has the options of the port."""
        request_id = take_request_id()
        try:
            caller, called = self._identify(request)
            if await self._replica.guard.coordinator.take_call(called, caller.key.id) is None:
                raise UnknownPath("no call with this UUID is expected for this key")
        except Refused as error:
            return render_refusal(self._replica.guard.refuse(error), request_id)
        return Response(status_code=204, headers={"dg-request-id": request_id})

    def _identify(self, request: Request) -> tuple[Caller, str]:
        """Return who asks, and the UUID. Raises: NotAuthorized, NotAllowed, BadParameter."""
        credentials = Credentials.read(request.headers.get("authorization"), ())
        caller, given = self._replica.guard.identify(request, credentials), request.path_params["uuid"]
        try:
            return caller, str(uuid.UUID(given))
        except ValueError:
            example = "40325ec2-5efd-4bd3-805f-53576e581d13"
            raise BadParameter(f"uuid: {printable(given)!r} is not valid; must be one such as {example}") from None


def _checked(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Raises: BadParameter."""
    for name in check_names(pairs):
        raise BadParameter(f"{printable(name)}: not a parameter of /v1/listen for calls; leave it out")
    if (length := _characters(pairs)) > MAX_CHARACTERS:
        raise BadParameter(f"query: has {length} characters; the options of a call have at most {MAX_CHARACTERS}")
    return tuple(pairs)


def _characters(pairs: Iterable[tuple[str, str]]) -> int:
    return sum(len(name) + len(value) for name, value in pairs)
