"""`/v1/twilio` as a WebSocket: the audio of a call in, its text to where the operator wants it, or back if asked."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace

from fastapi import WebSocket

from server.access.guard import Guard
from server.access.keys import Credentials
from server.audio.formats import Encoding
from server.errors import BadParameter, Close, NotAuthorised, Refused
from server.protocols.adapter_connection import AdapterConnection, serve
from server.protocols.deepgram.live import Projector
from server.protocols.deepgram.query import ListenRequest, parse_query
from server.protocols.twilio.adapter import TRACKS, TwilioAdapter
from server.protocols.twilio.forward import Forward
from server.recognition.recognizer import ActiveSession
from server.recognition.session import Session
from server.replica import Replica, created_now, new_request_id
from server.streaming.closing import ConnectionEvent
from server.streaming.outbox import OutFrame

SIGNATURE_HEADER = "x-twilio-signature"
_OWN = {"key", "reply", "track"}
_TOLD = {"encoding", "sample_rate", "channels", "multichannel"}  # by the stream's `start`
UNDELIVERED = Close(1011, "NET-0000 the text cannot be delivered", "error")


class TwilioStream(AdapterConnection):
    """A call, whose text may go elsewhere."""

    forward: Forward | None = None

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection to its end, and let the last text go out."""
        await super().run(recognition)
        if self.forward is not None:
            self.forward.end()
            await self.forward.wait(self._limits.write_timeout_s)

    def undelivered(self) -> None:
        """Nobody takes the text: there is no sense in recognising more."""
        self._transition(ConnectionEvent.BROKEN, close=UNDELIVERED)

    def _put(self, frame: OutFrame) -> None:
        if self.forward is None:
            super()._put(frame)
        elif not self.forward.put(frame):
            self._transition(ConnectionEvent.SLOW_CONSUMER)


class TwilioEndpoint:
    """The endpoint of one replica."""

    def __init__(self, replica: Replica, door: Guard) -> None:
        self._replica = replica
        self._door = door

    async def live(self, socket: WebSocket) -> None:
        """Recognise a stream of a call."""
        replica, request_id = self._replica, new_request_id()
        received_s = replica.clock()
        try:
            self._enter(socket)
            stream, session = self._stream(socket, request_id)
            await serve(socket, stream, session, replica, received_s=received_s)
        except Refused as error:
            await socket.send_denial_response(self._door.refuse(error, request_id))

    def _enter(self, socket: WebSocket) -> None:
        """Let in what Twilio signed, where its token is known, else who has a key. Raises: Refused."""
        settings = self._replica.settings
        if settings.twilio_auth_token is None:
            given = Credentials.read(socket.headers.get("authorization"), ())
            self._door.enter(socket, given if given.key else Credentials(socket.query_params.get("key"), None))
            return
        url = settings.twilio_public_url or str(socket.url)
        check_signature(socket.headers.get(SIGNATURE_HEADER), url, settings.twilio_auth_token.get_secret_value())
        self._replica.sessions.refuse_if_draining()
        self._replica.recognizer.refuse_if_full()

    def _stream(self, socket: WebSocket, request_id: str) -> tuple[TwilioStream, Session]:
        replica, query = self._replica, socket.query_params
        reply, url = query.get("reply", "false").lower() in ("true", "1"), replica.settings.twilio_forward_url
        if not reply and url is None:
            raise BadParameter("reply: this server sends text nowhere else; ask for reply=true")
        track = query.get("track", TRACKS[0])
        if track not in TRACKS:
            raise BadParameter(f"track: must be one of {', '.join(TRACKS)}")
        request, rate = self._request(socket), replica.config.sample_rate
        options = replace(request.live_options(rate), sample_rate=rate)
        session = replica.session(options, replica.limits)
        projector = Projector(request, 1, request_id, created_now(), replica.card)
        stream = TwilioStream(
            socket,
            session,
            TwilioAdapter(projector, model_rate=rate, track=track),
            replica.connection_context(),
            protocol="twilio",
            encoding=Encoding.MULAW,
            request_id=request_id,
        )
        if not reply and url is not None:
            stream.forward = Forward(url, request_id, stream.undelivered)
        return stream, session

    def _request(self, socket: WebSocket) -> ListenRequest:
        """What Deepgram's parameters ask for, but for those that say what the audio is."""
        replica = self._replica
        pairs = [pair for pair in socket.query_params.multi_items() if pair[0] not in _OWN | _TOLD]
        keyterms = replica.decoder.supports_bias
        return parse_query(pairs, replica.models, replica.settings.max_channels, supports_keyterms=keyterms)


def signature(url: str, auth_token: str) -> str:
    """What Twilio sends as `X-Twilio-Signature` with a handshake to this URL."""
    return base64.b64encode(hmac.digest(auth_token.encode(), url.encode(), hashlib.sha1)).decode()


def check_signature(given: str | None, url: str, auth_token: str) -> None:
    """Raises: NotAuthorised. Some of Twilio's regions sign the URL with a slash at its end."""
    offered = (given or "").encode("utf-8", "replace")
    expected = [signature(candidate, auth_token).encode() for candidate in (url, url.rstrip("/") + "/")]
    if not sum(hmac.compare_digest(offered, one) for one in expected):
        raise NotAuthorised("Twilio did not sign this request.")
