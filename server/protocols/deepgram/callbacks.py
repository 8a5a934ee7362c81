"""`callback` of `/v1/listen`: where the result of a recording, or the finals of a stream, are posted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import structlog
from fastapi import Request
from starlette.requests import HTTPConnection

from server.access.guard import address_of, caller_of
from server.callbacks.callbacks import Callbacks
from server.callbacks.folder import CallbackEntry
from server.callbacks.hosts import Forbidden
from server.errors import (
    REFUSALS,
    BadParameter,
    ClientGone,
    Refused,
    ServerDraining,
    ServerFull,
    ServerNotReady,
    TooManyOpenings,
    TooManyStreams,
    TooManyUploads,
    UnexpectedFailure,
)
from server.protocols.features import SHOWN, in_plain_names, own_parameters
from server.protocols.handshake import RefusalBody
from server.replica import Replica

NAMES = frozenset({"callback", "callback_method"})
METHODS = ("post", "put")
LATER = (ServerFull, ServerNotReady, TooManyOpenings, TooManyStreams, TooManyUploads)  # the same is accepted later
PAUSES_S = (1.0, 30.0)  # before a recording is tried again: the first, and the longest

Pairs = Sequence[tuple[str, str]]
Transcribe = Callable[[Request, CallbackEntry, bytes], Awaitable[bytes]]
"""Returns the answer to a recording as JSON. Raises: Refused."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.callbacks")


@dataclass(frozen=True, slots=True)
class Target:
    """Where results are posted, and by which method."""

    callbacks: Callbacks
    url: str
    method: str

    def entry(self, connection: HTTPConnection, request_id: str, created: str, **more: Any) -> CallbackEntry:
        """Return an entry of the queue for an admitted request; `more` are fields of it."""
        caller = caller_of(connection)
        return CallbackEntry(
            **{"id": request_id, **more},
            call=request_id,
            url=self.url,
            method=self.method,
            key_id="" if caller is None or not caller.key.digest else caller.key.id,
            client=address_of(connection),
            created=created,
        )


def taken_callback(callbacks: Callbacks | None, pairs: Pairs) -> tuple[Target | None, Pairs]:
    """Return the target that a query names, and its other parameters. Raises: BadParameter.

    Without `callbacks` the parameters stay, to be refused as a feature that this server lacks.
    """
    if callbacks is None:
        return None, in_plain_names(pairs, NAMES)
    query, others = own_parameters(pairs, NAMES)
    if not query:
        return None, others
    method = query.get("callback_method", METHODS[0]).casefold()
    if method not in METHODS:
        raise BadParameter(f"callback_method: {method[:SHOWN]!r} is not valid; must be one of {', '.join(METHODS)}")
    if "callback" not in query:
        raise BadParameter("callback_method: needs callback; set it to a URL, or leave callback_method out")
    try:
        callbacks.hosts.check(query["callback"])
    except Forbidden as error:
        raise BadParameter(f"callback: {error}") from None
    return Target(callbacks, query["callback"], method.upper()), others


def posting(target: Target, first: CallbackEntry) -> Callable[[bytes], None]:
    """Return what posts each result of a stream that it is given, after those before it."""
    numbers = count()

    def post(payload: bytes) -> None:
        entry = msgspec.structs.replace(first, id=f"{first.id}-{next(numbers):06d}")
        target.callbacks.add_final(entry, payload)

    return post


class LaterRecordings:
    """Recognizes the recordings of callbacks, when their turn comes, as if their client still waited."""

    def __init__(self, replica: Replica, transcribe: Transcribe) -> None:
        self._replica = replica
        self._transcribe = transcribe

    async def recognize(self, entry: CallbackEntry, audio: bytes) -> bytes | None:
        """Return the answer or the refusal as JSON; None if this process drains before."""
        pause_s, longest_s = PAUSES_S
        while True:
            try:
                return await self._recognize(entry, audio)
            except (ServerDraining, ClientGone):
                return None
            except LATER:
                await asyncio.sleep(pause_s)
                pause_s = min(longest_s, 2 * pause_s)
            except Refused as error:
                return _refusal(error, entry)
            except Exception:  # noqa: BLE001 - a defect: the log has it, and the receiver a refusal
                _log.exception("recording of a callback failed", request_id=entry.call)
                return _refusal(UnexpectedFailure(), entry)

    async def _recognize(self, entry: CallbackEntry, audio: bytes) -> bytes:
        request = Request(
            {
                "type": "http",
                "method": "POST",
                "path": "/v1/listen",
                "headers": [],
                "query_string": b"",
                "client": (entry.client, 0),
            },
            receive=_nothing_more,
        )
        lease = await self._replica.guard.enter_again(request, entry.key_id)
        try:
            return await self._transcribe(request, entry, audio)
        finally:
            lease.release()


def _refusal(error: Refused, entry: CallbackEntry) -> bytes:
    return msgspec.json.encode(RefusalBody(REFUSALS[type(error)].err_code, str(error), entry.call))


async def _nothing_more() -> dict[str, Any]:
    """Receive for a request whose client has gone: waits until it is cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future has no result")
