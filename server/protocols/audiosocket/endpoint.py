"""Port of Asterisk's AudioSocket: a connection is a call, whose text goes to a WebSocket of the operator.

The protocol has no keys. So the port is that of the setting `audiosocket_port`, which names its address itself. A call
whose UUID was registered at `/v1/audiosocket/UUID` is one of the key that did so, and has the options that were
registered with it, once, whichever process of the server it comes to.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from server.access.guard import CountedRefusal, QuotaRelease
from server.audio.formats import Encoding
from server.configuration.addresses import ListenAddress
from server.errors import BadFrame, NotAuthorized, of_setting
from server.protocols.audiosocket.adapter import (
    DTMF,
    END,
    END_FRAME,
    ERROR,
    RATES,
    SILENCE,
    STOP,
    TOO_HIGH,
    UUID,
    UUID_BYTES,
    AudioSocketAdapter,
    AudioSocketFrame,
    parse_frame,
)
from server.protocols.audiosocket.call_options import REGISTERED, SETTING, AudioSocketOptions, call_query
from server.protocols.deepgram.endpoints import QueryReader, created_now
from server.protocols.deepgram.projector import Projector
from server.protocols.forwarding import ForwardingStream
from server.protocols.handshake import Admitted, live_endpoint
from server.replica import Replica
from server.streaming.tcp import StreamSocket, asked_of

PROTOCOL = "audiosocket"
UNHEARD_S = 0.2
"""Seconds without a frame after which Asterisk is sent silence: its thread of a channel may read until something comes,
and send nothing meanwhile. Source: asterisk/asterisk#2089."""


class AudioSocketPort:
    """Admission of the port's calls."""

    def __init__(self, replica: Replica, address: ListenAddress) -> None:
        """Raises: SettingsError, also for options that no call can have."""
        self._queries = QueryReader(replica)
        self._options = AudioSocketOptions.read(address)
        with of_setting(SETTING):
            self._queries.check(call_query(self._options.defaults, ()))
        self._live = live_endpoint(replica, self._admit, _render)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call; an ASGI application."""
        await self._live(WebSocket(scope, receive, send))

    async def _admit(self, socket: WebSocket, request_id: str) -> Admitted:
        """Raises: Refused."""
        replica = self._queries.replica
        call = await replica.guard.coordinator.take_call(asked_of(socket))
        if call is not None:
            await replica.guard.enter_registered(socket, call.key_id)
        elif self._options.only_registered:
            raise NotAuthorized(f"the call's UUID was not registered, and {SETTING} has {REGISTERED}")
        else:
            await replica.guard.enter_without_key(socket)
        options = () if call is None else call.query
        request, model = await self._queries.read(socket, call_query(self._options.defaults, options), live=True)
        rate = model.config.sample_rate
        request = replace(request, options=replace(request.options, sample_rate=rate))
        projector = Projector(request, 1, request_id, created_now(), model.card)
        stream = ForwardingStream(
            socket,
            model.session(request, replica.limits),
            AudioSocketAdapter(projector, rate, asked_of(socket)),
            replica.connection_context(keep_alive=False),
            protocol=PROTOCOL,
            encoding=Encoding.LINEAR16,
            request_id=request_id,
            forward_url=self._options.forward_url,
        )
        return Admitted(model, stream, style=request.style)

    def skip(self) -> None:
        """Count a frame that is not understood."""
        self._queries.replica.metrics.skipped[PROTOCOL].inc()


def _render(refusal: CountedRefusal, request_id: str) -> Response:
    return Response(END_FRAME, refusal.status, {"dg-request-id": request_id})  # the header is for the log line


class CallSocket(StreamSocket[AudioSocketFrame]):
    """One connection of Asterisk."""

    path, one_stream = "/audiosocket", True

    def __init__(self, app: ASGIApp, connections: set[Any], port: AudioSocketPort) -> None:
        super().__init__(app, connections)
        self._port = port
        self._audio: int | None = None  # kind of the last audio frame
        self._identified = False
        self._heard = True  # since the last look
        self._look: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Handle what Asterisk sends."""
        self._heard = True
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _answer_silence(self) -> None:
        """Send silence if nothing has come, while the call is open."""
        if not self._heard and self.expects_messages:
            self.write(SILENCE)
        self._heard = False
        self._look = self._loop.call_later(UNHEARD_S, self._answer_silence)

    def parse(self, received: bytearray) -> tuple[AudioSocketFrame, int] | int:
        """Return the next frame."""
        return parse_frame(received)

    def failure(self, code: int, why: str) -> bytes:  # noqa: ARG002 - the protocol has no error message; the log has it
        """Return the frame that ends the connection."""
        return END_FRAME

    def handle(self, message: AudioSocketFrame) -> bool:
        """Handle a frame; those of an unknown kind are counted. Raises: BadFrame."""
        kind, payload = message.kind, message.payload
        if kind == UUID:
            if self._identified or len(payload) != UUID_BYTES:
                raise BadFrame(f"a call begins with one frame of kind 0x01, whose UUID has {UUID_BYTES} bytes")
            self._identified = True
            self._answer_silence()
            self.open(str(uuid.UUID(bytes=payload)))
        elif not self._identified:
            raise BadFrame("a call begins with its UUID, a frame of kind 0x01")
        elif kind in RATES:
            if kind != self._audio:
                self._audio = kind
                self.deliver(f"{RATES[kind]}")
            self.deliver(payload)
        elif kind in TOO_HIGH:
            raise BadFrame("audio of 96 and 192 kHz is not supported; choose a codec up to slin48")
        elif kind == DTMF and len(payload) == 1 and payload.isascii():
            self.deliver(f"dtmf {payload.decode()}")
        elif kind in (END, ERROR):
            self.finish(STOP)
        else:
            self._port.skip()
        return True

    def handle_end(self) -> bool:
        """Finish the text: Asterisk only closes its side when the caller hangs up."""
        if not self.is_open:
            return False
        self.finish(STOP)
        return True


def audiosocket_protocols(replica: Replica, address: ListenAddress) -> tuple[ASGIApp, Callable[..., CallSocket]]:
    """Return the application of the port's calls, and what makes its connections. Raises: SettingsError."""
    port = AudioSocketPort(replica, address)
    return QuotaRelease(port), partial(CallSocket, port=port)
