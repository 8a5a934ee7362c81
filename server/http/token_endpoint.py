"""`POST /v1/auth/grant`: an API key in, a token in its place that a web page may hold for a while.

A token opens streams and does nothing else: it cannot ask for another. Source: Deepgram's endpoint of that name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from server.access.guard import Guard
from server.access.keys import Credentials
from server.errors import BadParameter, NotAllowed, Refused, TooLarge, TooSlow
from server.replica import Replica, new_request_id

DEFAULT_TTL_S, MAX_TTL_S = 30, 3_600
MAX_BODY_BYTES = 4_096


class GrantRequest(msgspec.Struct):
    """What is asked for; an empty body asks for the default."""

    ttl_seconds: Annotated[int, msgspec.Meta(ge=1, le=MAX_TTL_S)] = DEFAULT_TTL_S


class GrantAnswer(msgspec.Struct):
    """The token, and how many seconds it is good for."""

    access_token: str
    expires_in: int


class TokenEndpoint:
    """The endpoint of one replica."""

    def __init__(self, replica: Replica, door: Guard, time_of_day: Callable[[], float] = time.time) -> None:
        self._replica = replica
        self._door = door
        self._time_of_day = time_of_day

    async def grant(self, request: Request) -> Response:
        """Hand out a token in place of the key of this request, for `Bearer` and for the subprotocol `bearer`."""
        request_id = new_request_id()
        credentials = Credentials.read(request.headers.get("authorization"), ())
        try:
            caller = self._door.identify(request, credentials)
            if caller.by_token:
                raise NotAllowed("a token cannot ask for tokens; send an API key")
            asked = _parse(await _body(request, self._replica.settings.handshake_timeout_s))
        except Refused as error:
            return self._door.refuse(error, request_id)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is there to read it
        token = self._replica.keys.tokens.mint(caller.key.id, asked.ttl_seconds, self._time_of_day())
        answer = msgspec.json.encode(GrantAnswer(token, asked.ttl_seconds))
        headers = {"dg-request-id": request_id, "Cache-Control": "no-store"}
        return Response(answer, headers=headers, media_type="application/json")


def _parse(body: bytes) -> GrantRequest:
    """Raises: BadParameter."""
    try:
        return msgspec.json.decode(body, type=GrantRequest) if body.strip() else GrantRequest()
    except (msgspec.DecodeError, RecursionError):  # also of fields: `ValidationError` is one
        raise BadParameter(f"ttl_seconds: send a JSON object in which it is from 1 to {MAX_TTL_S}") from None


async def _body(request: Request, timeout_s: float) -> bytes:
    """Read a short body. Raises: TooLarge, TooSlow, ClientDisconnect."""
    body = b""
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise TooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {timeout_s:g} s") from error
    return body
