"""`POST /v1/auth/grant`: exchanges an API key for a short-lived token, for use in a web page.

A token can only open streams; it cannot be exchanged for another token. Source: Deepgram's endpoint of that name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import Request, Response

from server.access.keys import Credentials
from server.errors import BadParameter, ClientGone, NotAllowed, Refused
from server.operations.logs import take_request_id
from server.protocols.features import check_no_query, problem_of
from server.protocols.handshake import json_response, render_refusal
from server.protocols.uploads import read_body
from server.replica import Replica

DEFAULT_TTL_S, MAX_TTL_S = 30, 3_600
MAX_BODY_BYTES = 4_096
BODY_TIMEOUT_S = 10.0


class GrantRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request body; an empty body means the default lifetime."""

    ttl_seconds: Annotated[int, msgspec.Meta(ge=1, le=MAX_TTL_S)] = DEFAULT_TTL_S


class GrantAnswer(msgspec.Struct):
    """The token and its lifetime in seconds."""

    access_token: str
    expires_in: int


class TokenEndpoint:
    """The endpoint of one replica."""

    def __init__(self, replica: Replica, time_of_day: Callable[[], float] = time.time) -> None:
        self._guard = replica.guard
        self._time_of_day = time_of_day

    async def grant(self, request: Request) -> Response:
        """Exchange the key of this request for a token, for the scheme or subprotocol `bearer`."""
        request_id = take_request_id()
        credentials = Credentials.read(request.headers.get("authorization"), ())
        try:
            caller = self._guard.identify(request, credentials)
            if caller.by_token:
                raise NotAllowed("a token cannot be exchanged for another token; send an API key")
            check_no_query(request.query_params.multi_items())
            asked = _parse(await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S))
        except Refused as error:
            return render_refusal(self._guard.refuse(error), request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's status for a client that disconnected
        token = self._guard.keys.tokens.mint(caller.key.id, asked.ttl_seconds, self._time_of_day())
        headers = {"dg-request-id": request_id, "Cache-Control": "no-store"}
        return json_response(GrantAnswer(token, asked.ttl_seconds), headers=headers)


def _parse(body: bytes) -> GrantRequest:
    """Parse the body. Raises: BadParameter."""
    try:
        return msgspec.json.decode(body, type=GrantRequest) if body.strip() else GrantRequest()
    except msgspec.ValidationError as error:
        raise BadParameter(problem_of(error, GrantRequest)) from None
    except (msgspec.DecodeError, RecursionError):
        raise BadParameter('body: not JSON; send {"ttl_seconds": 30}, or nothing') from None
