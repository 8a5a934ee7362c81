"""`GET /v1/listen` as a WebSocket: no accept before a slot is certain, and a slot comes back on every way out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import WebSocket

from server.access.guard import Door, tenant_of
from server.access.keys import Credentials
from server.audio.decoder import open_at_the_door
from server.errors import Refused
from server.protocols.deepgram.deepgram import Projector
from server.protocols.deepgram.live import LiveStream
from server.protocols.deepgram.resumable import ResumableStream
from server.replica import Replica, created_now, new_request_id
from server.resume.office import tenant_digest


class Listen:
    """The live endpoint of one replica."""

    def __init__(self, replica: Replica, door: Door) -> None:
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
            decoder = open_at_the_door(request.form, rate, multichannel=request.multichannel)
            session = replica.session(request.live_options(rate), replica.limits)
            projector = Projector(request, len(session.channels), request_id, created_now(), replica.card)
            make = self._resumable(socket) if request.resumable else LiveStream
            stream = make(
                socket,
                session,
                projector,
                limits=replica.live_limits,
                metrics=replica.metrics,
                clock=replica.clock,
                request_id=request_id,
                form=request.form,
                decoder=decoder,
                pool=replica.decoding,
                tags=request.tags,
            )
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

    def _resumable(self, socket: WebSocket) -> Callable[..., LiveStream]:
        """Return what makes a stream that its own client, and no other, can take up again with the same query."""
        tenant = tenant_digest(tenant_of(socket), socket.query_params.multi_items())
        return partial(ResumableStream, office=self._replica.tickets, tenant=tenant)
