"""`GET /v1/listen` as a WebSocket and `POST /v1/listen` with a recording in the body."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog
from fastapi import Request, Response, WebSocket

from server.access.guard import tenant_of
from server.access.keys import Credentials
from server.audio.decoder import open_decoder
from server.errors import BadParameter, ClientGone, Refused
from server.models.service import ModelService
from server.operations.logs import take_request_id
from server.protocols.deepgram.live import DeepgramStream, Projector
from server.protocols.deepgram.query import BIASING, ListenRequest, check_query, parse_query
from server.protocols.deepgram.resumable import ResumableStream
from server.protocols.deepgram.transcript import recording_answer
from server.protocols.features import ignored_header
from server.protocols.handshake import Admitted, render_refusal, serve
from server.protocols.uploads import Recordings, Wanted
from server.replica import Replica
from server.resume.tickets import tenant_digest

MAX_LOGGED = 256  # names of ignored parameters, each logged once

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.door")


def created_now() -> str:
    """Return the wall-clock time as Deepgram's answers have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class QueryReader:
    """Reads queries of Deepgram's parameters as one replica takes them; logs each ignored parameter once."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._logged: set[str] = set()

    async def read(self, pairs: Sequence[tuple[str, str]], *, live: bool) -> tuple[ListenRequest, ModelService]:
        """Return what a query asks for, and the model that it chooses. Raises: BadParameter, ServerNotReady.

        An upload has endpoints only if it asks for them.
        """
        replica, query = self._replica, dict(pairs)
        check_query(pairs, lenient=replica.settings.lenient_features)
        model = await replica.models.obtain(query.get("model"), query.get("language"))
        model.check_keyterms(sorted(BIASING & query.keys()))
        model.check_grammar(query.get("grammar", ""))
        request = parse_query(
            pairs,
            replica.settings.max_channels,
            live=live,
            default_endpointing=live,
            supports_keyterms=model.decoder.supports_bias,
            lenient_features=replica.settings.lenient_features,
            english=model.english,
        )
        model.check_finals(request.finals, request.without_accurate)
        for name in request.ignored:
            if name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                _log.info("query parameter ignored", name=name)
        return request, model


def answer_headers(request: ListenRequest, request_id: str) -> dict[str, str]:
    """Return the headers of an answer that is no refusal."""
    return {"dg-request-id": request_id, **ignored_header(request.ignored)}


class Listen:
    """The live endpoint of one replica."""

    def __init__(self, replica: Replica, queries: QueryReader) -> None:
        self._replica = replica
        self._queries = queries

    async def live(self, socket: WebSocket) -> None:
        """Recognise a live stream, Deepgram's protocol."""
        await serve(socket, self._replica, self._admit)

    async def _admit(self, socket: WebSocket, request_id: str) -> Admitted:
        """Raises: Refused."""
        replica = self._replica
        credentials = Credentials.read(socket.headers.get("authorization"), socket.scope["subprotocols"])
        replica.guard.enter(socket, credentials)  # before the query, whose key terms cost time
        request, model = await self._queries.read(socket.query_params.multi_items(), live=True)
        rate = model.config.sample_rate
        decoder = open_decoder(request.form, rate, multichannel=request.multichannel, raw_alone=request.resumable)
        session = model.session(request.live_options(rate), replica.limits)
        projector = Projector(request, len(session.channels), request_id, created_now(), model.card)
        make = self._resumable(socket, model) if request.resumable else DeepgramStream
        stream = make(socket, session, projector, replica.connection_context(), decoder)
        budget_s = None if request.latency_budget_ms is None else request.latency_budget_ms / 1_000
        headers = answer_headers(request, request_id)
        return Admitted(model, stream, session, credentials.subprotocol, headers, budget_s)

    def _resumable(self, socket: WebSocket, model: ModelService) -> Callable[..., DeepgramStream]:
        """Return the constructor of a stream that only its own key, with the same query, can resume."""
        tenant = tenant_digest(tenant_of(socket), socket.query_params.multi_items())
        return partial(ResumableStream, tickets=model.tickets, tenant=tenant)


class Transcribe:
    """The upload endpoint of one replica."""

    def __init__(self, replica: Replica, queries: QueryReader, recordings: Recordings) -> None:
        self._replica = replica
        self._queries = queries
        self._recordings = recordings

    async def upload(self, request: Request) -> Response:
        """Recognise a recording: wav, flac, ogg, mp3, webm, m4a as the body, or raw samples with an `encoding`."""
        request_id = take_request_id()
        try:
            self._replica.guard.enter(request, Credentials.read(request.headers.get("authorization"), ()))
            asked, model = await self._queries.read(request.query_params.multi_items(), live=False)
            _check_body_kind(request.headers.get("content-type", ""))
            with self._recordings.place(request):
                body = await self._recordings.read(request)
                payload = await self._recognise(request, asked, model, body, request_id)
        except Refused as error:
            return render_refusal(self._replica.guard.refuse(error), request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's code for a client that left
        return Response(payload, headers=answer_headers(asked, request_id), media_type="application/json")

    async def _recognise(
        self, request: Request, asked: ListenRequest, model: ModelService, body: bytes, request_id: str
    ) -> bytes:
        created = created_now()
        wanted = Wanted(
            model,
            asked.form,
            asked.multichannel,
            asked.endpointing_ms,
            asked.keyterms,
            asked.style,
            asked.grammar,
            asked.finals,
        )
        recognised = await self._recordings.recognise(request, body, wanted)
        return recording_answer(
            recognised.words,
            request_id=request_id,
            sha256=hashlib.sha256(body).hexdigest(),
            created=created,
            duration_s=recognised.audio_s,
            model=model.card,
            punctuated=asked.punctuated_words,
            warnings=recognised.warnings,
        )


def _check_body_kind(content_type: str) -> None:
    """Refuse the kinds of body that cannot be a recording. Raises: BadParameter."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        raise BadParameter("url: this server fetches nothing; send the recording as the body")
    if kind.startswith("multipart/"):
        raise BadParameter("content-type: send the recording itself as the body, not a form")
