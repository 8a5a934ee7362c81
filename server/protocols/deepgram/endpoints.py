"""`GET /v1/listen` as a WebSocket and `POST /v1/listen` with a recording in the body."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

from fastapi import Request, Response, WebSocket

from server.access.guard import Guard, tenant_of
from server.access.keys import Credentials
from server.audio.decoder import open_decoder_for_request
from server.errors import BadParameter, ClientGone, Refused
from server.protocols.deepgram.live import DeepgramStream, Projector
from server.protocols.deepgram.query import ListenRequest
from server.protocols.deepgram.resumable import ResumableStream
from server.protocols.deepgram.transcript import recording_answer
from server.protocols.uploads import Recordings, Wanted
from server.replica import Replica, created_now, new_request_id
from server.resume.tickets import tenant_digest


class Listen:
    """The live endpoint of one replica."""

    def __init__(self, replica: Replica, door: Guard) -> None:
        self._replica = replica
        self._door = door

    async def live(self, socket: WebSocket) -> None:
        """Recognise a live stream, Deepgram's protocol."""
        replica = self._replica
        received_s, request_id = replica.clock(), new_request_id()
        credentials = Credentials.read(socket.headers.get("authorization"), socket.scope["subprotocols"])
        try:
            request = self._door.admit(socket, credentials, live=True)
            rate = replica.config.sample_rate
            decoder = open_decoder_for_request(request.form, rate, multichannel=request.multichannel)
            session = replica.session(request.live_options(rate), replica.limits)
            projector = Projector(request, len(session.channels), request_id, created_now(), replica.card)
            make = self._resumable(socket) if request.resumable else DeepgramStream
            stream = make(socket, session, projector, replica.connection_context(), decoder)
            budget_ms = request.latency_budget_ms
            recognition = replica.recognizer.open(
                session, stream, budget_s=None if budget_ms is None else budget_ms / 1_000
            )
        except Refused as error:
            await socket.send_denial_response(self._door.refuse(error, request_id))
            return
        replica.sessions.add(stream, "deepgram")
        try:
            headers = [(k.encode(), v.encode()) for k, v in self._door.headers(request, request_id).items()]
            await socket.accept(credentials.subprotocol, headers)
            replica.metrics.handshake.observe(replica.clock() - received_s)
            await stream.run(recognition)
        finally:
            recognition.close()
            replica.sessions.remove(stream)

    def _resumable(self, socket: WebSocket) -> Callable[..., DeepgramStream]:
        """Return what makes a stream that its own client, and no other, can take up again with the same query."""
        tenant = tenant_digest(tenant_of(socket), socket.query_params.multi_items())
        return partial(ResumableStream, tickets=self._replica.tickets, tenant=tenant)


class Transcribe:
    """The upload endpoint of one replica."""

    def __init__(self, replica: Replica, door: Guard, recordings: Recordings) -> None:
        self._replica = replica
        self._door = door
        self._recordings = recordings

    async def upload(self, request: Request) -> Response:
        """Recognise a recording: wav, flac, ogg, mp3, webm, m4a as the body, or raw samples with an `encoding`."""
        request_id = new_request_id()
        credentials = Credentials.read(request.headers.get("authorization"), ())
        try:
            asked = self._door.admit(request, credentials, live=False)
            _check_body_kind(request.headers.get("content-type", ""))
            with self._recordings.place():
                body = await self._recordings.read(request)
                payload = await self._recognise(request, asked, body, request_id)
        except Refused as error:
            return self._door.refuse(error, request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's word for it; nobody is there to read it
        return Response(payload, headers=self._door.headers(asked, request_id), media_type="application/json")

    async def _recognise(self, request: Request, asked: ListenRequest, body: bytes, request_id: str) -> bytes:
        created = created_now()
        wanted = Wanted(asked.form, asked.multichannel, asked.endpointing_ms, asked.keyterms, asked.style)
        recognised = await self._recordings.recognise(request, body, wanted)
        return recording_answer(
            recognised.words,
            request_id=request_id,
            sha256=hashlib.sha256(body).hexdigest(),
            created=created,
            duration_s=recognised.audio_s,
            model=self._replica.card,
            punctuated=asked.punctuated_words,
        )


def _check_body_kind(content_type: str) -> None:
    """Any kind is taken for a recording but those that cannot be one. Raises: BadParameter."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        raise BadParameter("url: this server fetches nothing; send the recording as the body")
    if kind.startswith("multipart/"):
        raise BadParameter("content-type: send the recording itself as the body, not a form")
