"""Who comes in: authentication, then the query, then whether this replica takes anybody; and how a refusal is told."""

from __future__ import annotations

import msgspec
import structlog
from starlette.requests import HTTPConnection
from starlette.responses import Response

from server.auth import Credentials
from server.deepgram_query import ListenRequest, parse_query
from server.errors import REFUSALS, Refused
from server.replica import Replica
from server.retry import RetryAfter

MAX_NOTED = 256  # names of ignored parameters that are remembered, so that each is logged once

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.door")


class RefusalBody(msgspec.Struct):
    """The JSON of a refusal. Source: protocols.md 3.3."""

    err_code: str
    err_msg: str
    request_id: str


class Door:
    """Admission of one replica, the same for handshakes and for uploads."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._noted: set[str] = set()
        self._retry = RetryAfter()

    def admit(self, connection: HTTPConnection, credentials: Credentials, *, live: bool) -> ListenRequest:
        """Return what the query asks for. Raises: Refused. An upload has no endpoints unless it asks for them."""
        replica = self._replica
        replica.keys.check(credentials)
        replica.sessions.refuse_if_draining()  # these two before the query, whose key terms cost time
        replica.recognizer.refuse_if_full()
        pairs = connection.query_params.multi_items()
        request = parse_query(
            pairs,
            replica.models,
            replica.settings.max_channels,
            default_endpointing=live,
            supports_keyterms=replica.decoder.supports_bias,
        )
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

    def _note(self, ignored: tuple[str, ...]) -> None:
        for name in ignored:
            if name not in self._noted and len(self._noted) < MAX_NOTED:
                self._noted.add(name)
                _log.info("query parameter ignored", name=name)
