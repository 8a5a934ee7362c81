"""Endpoints of Deepgram's protocol: `GET /v1/listen` as a WebSocket, `POST /v1/listen` with a recording as the body."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog
from fastapi import Request, Response, WebSocket
from starlette.requests import HTTPConnection

from server.access.guard import caller_of, tenant_of
from server.access.keys import Credentials, Key
from server.audio.decoder import open_decoder
from server.callbacks.folder import CallbackEntry
from server.errors import BadParameter, ClientGone, Refused
from server.models.service import ModelService
from server.operations.logs import take_request_id
from server.protocols.deepgram.callbacks import LaterRecordings, posting, taken_callback
from server.protocols.deepgram.live import DeepgramStream
from server.protocols.deepgram.parameters import TABLE
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import BIASING, ListenRequest, check_query, parse_query
from server.protocols.deepgram.receipts import StreamReceipts, digests_of, setup_of
from server.protocols.deepgram.resumable import ResumableStream
from server.protocols.deepgram.transcript import recording_answer, utterances
from server.protocols.features import ignored_header, in_plain_names
from server.protocols.handshake import Admitted, render_refusal
from server.protocols.uploads import Recordings
from server.receipts.receipt import ReceiptChain
from server.recognition.request import RECEIPT
from server.recognition.segments.speaker_rules import FIRST
from server.replica import Replica
from server.resume.tickets import tenant_digest

NO_RECEIPTS = "receipt: only live streams at /v1/listen have receipts; leave it out"
NO_KEY = (
    "receipt: this server has no key that signs receipts; set TUTTI_RECEIPT_KEY_FILE to a file that "
    "`tutti keys receipt` made, or leave receipt out"
)
MAX_LOGGED = 256  # distinct names of ignored parameters that are logged

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.listen")
Pairs = Sequence[tuple[str, str]]


def created_now() -> str:
    """Return the wall-clock time in the format of Deepgram's answers."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class QueryReader:
    """Parses queries with the settings and models of one replica; logs each ignored parameter once."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._logged: set[str] = set()

    async def read(
        self, connection: HTTPConnection, pairs: Pairs, *, live: bool, receipts: bool = False
    ) -> tuple[ListenRequest, ModelService]:
        """Return the parsed query of an admitted connection, and the model that it selects; its key terms are built.

        `receipts`: the endpoint can send them. Raises: BadParameter, ServerNotReady, TooManyOpenings.
        """
        pairs = in_plain_names(pairs, TABLE)
        replica, query = self.replica, dict(pairs)
        terms = tuple([value for name, value in pairs if name in BIASING])
        replica.terms.check(replica.guard.owner(connection), terms)
        self._check_without_model(pairs, query)
        caller = caller_of(connection)
        find = partial(self._voice, query, None if caller is None else caller.key)
        voice = await asyncio.to_thread(find) if "speaker" in query else b""
        model = await replica.models.obtain(query.get("model"), query.get("language"))
        request = self._parsed(pairs, query, model, voice, live=live)
        lacking = {} if receipts and replica.receipts is not None else {RECEIPT: NO_KEY if receipts else NO_RECEIPTS}
        request = await replica.accept(connection, model, request, terms=terms, lacking=lacking)
        for name in request.ignored:
            if name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                _log.info("query parameter ignored", name=name)
        return request, model

    def check(self, pairs: Pairs) -> None:
        """Check the query that a port gives its streams, by its model if that is loaded. Raises: BadParameter."""
        pairs = in_plain_names(pairs, TABLE)
        query = dict(pairs)
        self._check_without_model(pairs, query)
        model = self.replica.models.loaded(query.get("model"), query.get("language"))
        request = self._parsed(pairs, query, model, self._voice(query, None), live=True)
        if model is not None:
            self.replica.check(model, request)

    def _check_without_model(self, pairs: Pairs, query: Mapping[str, str]) -> None:
        settings, detects = self.replica.settings, self.replica.models.detects_language(query.get("model"))
        check_query(pairs, lenient=settings.lenient_features, detects=detects, speakers=settings.speakers)

    def _parsed(
        self, pairs: Pairs, query: Mapping[str, str], model: ModelService | None, voice: bytes, *, live: bool
    ) -> ListenRequest:
        settings, of_model = self.replica.settings, dict[str, bool]()
        if model is not None:
            model.check_keyterms(sorted(BIASING & query.keys()))
            of_model = {
                "supports_keyterms": model.decoder.supports_bias,
                "english": model.english(query.get("language")),
                "detects": model.facts.prompts is not None,
            }
        lenient, speakers = settings.lenient_features, settings.speakers
        return parse_query(
            pairs,
            settings.max_channels,
            live=live,
            lenient_features=lenient,
            speakers=speakers,
            voice=voice,
            **of_model,
        )

    def _voice(self, query: Mapping[str, str], key: Key | None) -> bytes:
        """Return the vector of the enrolled voice that a query names; empty for none. Raises: BadParameter."""
        voices, name = self.replica.voices, query.get("speaker", FIRST)
        return b"" if voices is None or name == FIRST else voices.find(name, key)


def answer_headers(request: ListenRequest, request_id: str) -> dict[str, str]:
    """Return the headers of a successful response."""
    return {"dg-request-id": request_id, **ignored_header(request.ignored)}


async def admit_live(queries: QueryReader, socket: WebSocket, request_id: str) -> Admitted:
    """Admit a live stream in Deepgram's protocol. Raises: Refused."""
    replica = queries.replica
    credentials = Credentials.read(socket.headers.get("authorization"), socket.scope["subprotocols"])
    await replica.guard.enter(socket, credentials)  # before the query: parsing key terms costs time
    whole_query = socket.query_params.multi_items()
    target, pairs = taken_callback(replica.callbacks, whole_query)
    request, model = await queries.read(socket, pairs, live=True, receipts=True)
    options, rate = request.options, model.config.sample_rate
    raw_alone = options.resumable or options.receipts
    decoder = open_decoder(request.form, rate, multichannel=options.multichannel, raw_alone=raw_alone)
    session = model.session(request, replica.limits)
    created = created_now()
    receipts = None
    if options.receipts:
        assert replica.receipts is not None, "checked by `QueryReader.read`"
        setup = setup_of(model, request, pairs, replica.limits, replica.settings.vad)
        chain = ReceiptChain(request_id, created, setup, digests_of(model, request, setup))
        receipts = StreamReceipts(chain, replica.receipts)
    projector = Projector(request, len(session.channels), request_id, created, model.card, receipts=receipts)
    make: Callable[..., DeepgramStream] = DeepgramStream
    if options.resumable:  # only with the same key, query and enrolled voice
        voice = b"" if options.speakers is None else options.speakers.voice
        tenant = tenant_digest(tenant_of(socket), [*whole_query, ("voice", voice.hex())])
        make = partial(ResumableStream, tickets=model.tickets, tenant=tenant)
    stream = make(socket, session, projector, replica.connection_context(), decoder)
    if target is not None:
        stream.on_result = posting(target, target.entry(socket, request_id, created))
    budget_s = None if request.latency_budget_ms is None else request.latency_budget_ms / 1_000
    headers = answer_headers(request, request_id)
    return Admitted(model, stream, credentials.subprotocol, headers, budget_s, request.style)


class Transcribe:
    """The upload endpoint of one replica."""

    def __init__(self, queries: QueryReader, recordings: Recordings) -> None:
        self._replica = queries.replica
        self._queries = queries
        self._recordings = recordings
        if queries.replica.callbacks is not None:
            queries.replica.callbacks.recognize = LaterRecordings(queries.replica, self._transcribe).recognize

    async def upload(self, request: Request) -> Response:
        """Recognize a recording: WAV, FLAC, Ogg, MP3, WebM or M4A as the body, or raw samples with an `encoding`."""
        request_id = take_request_id()
        try:
            await self._replica.guard.enter(request, Credentials.read(request.headers.get("authorization"), ()))
            target, pairs = taken_callback(self._replica.callbacks, request.query_params.multi_items())
            listen, model = await self._queries.read(request, pairs, live=False)
            _check_body_kind(request.headers.get("content-type", ""))
            with self._recordings.place(request):
                with model.recognizer.slots.for_recording():
                    body = await self._recordings.read(request)
                if target is None:
                    payload = await self._recognize(request, (listen, model), body, request_id, created_now())
                else:
                    entry = target.entry(request, request_id, created_now(), query=tuple(pairs), recording=True)
                    await target.callbacks.add_recording(entry, body)
                    payload = msgspec.json.encode({"request_id": request_id})
        except Refused as error:
            return render_refusal(self._replica.guard.refuse(error), request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's code for a client that disconnected
        return Response(payload, headers=answer_headers(listen, request_id), media_type="application/json")

    async def _transcribe(self, request: Request, entry: CallbackEntry, body: bytes) -> bytes:
        """Recognize a recording that was accepted before. Raises: Refused."""
        listen, model = await self._queries.read(request, entry.query, live=False)
        with self._recordings.place(request, body):
            return await self._recognize(request, (listen, model), body, entry.call, entry.created)

    async def _recognize(
        self, request: Request, read: tuple[ListenRequest, ModelService], body: bytes, request_id: str, created: str
    ) -> bytes:
        listen, model = read
        recognized = await self._recordings.recognize(
            request, body, model, listen, protocol="deepgram", request_id=request_id
        )
        punctuated, split_s = listen.style.formats, listen.utterance_split_s

        def answered() -> bytes:
            return recording_answer(
                recognized.words,
                request_id=request_id,
                sha256=hashlib.sha256(body).hexdigest(),
                created=created,
                duration_s=recognized.audio_s,
                model=model.card,
                punctuated=punctuated,
                warnings=recognized.warnings,
                utterances=utterances(recognized.words, split_s, punctuated=punctuated, request_id=request_id)
                if listen.options.spoken_order
                else (),
                with_paragraphs=listen.paragraphs,
                extra=listen.extra,
                other_words=recognized.other_words if listen.options.listens else None,
            )

        return await asyncio.to_thread(answered)  # the digest of 100 MiB takes 0.3 s, four hours of words 0.16 s


def _check_body_kind(content_type: str) -> None:
    """Refuse content types that cannot be a recording. Raises: BadParameter."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        raise BadParameter("url: this server does not fetch URLs; send the recording as the body")
    if kind.startswith("multipart/"):
        raise BadParameter("content-type: forms are not supported here; send the recording itself as the body")
