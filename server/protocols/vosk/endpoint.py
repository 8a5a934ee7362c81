"""vosk-server's WebSocket endpoint: `/vosk` beside the other protocols, and every path of a port of its own."""

from __future__ import annotations

from dataclasses import replace

from fastapi import WebSocket

from server.access.guard import Door
from server.access.keys import Credentials
from server.audio.formats import Encoding
from server.errors import BadParameter, NotAllowed, Refused
from server.protocols.adapter_connection import AdaptedStream, serve
from server.protocols.vosk.adapter import VoskAdapter
from server.protocols.vosk.messages import RATES
from server.recognition.session import SessionOptions
from server.replica import Replica, new_request_id


class VoskEndpoint:
    """The endpoint of one replica."""

    def __init__(self, replica: Replica, door: Door) -> None:
        self._replica = replica
        self._door = door

    async def live(self, socket: WebSocket) -> None:
        """Recognise a stream; a key comes as `Authorization`, or as `?key=`: the protocol has no place for one."""
        authorization = socket.headers.get("authorization")
        credentials = Credentials.read(authorization, ())
        if credentials.key is None:
            credentials = Credentials(socket.query_params.get("key"), None)
        await self._serve(socket, credentials)

    async def live_open(self, socket: WebSocket) -> None:
        """Recognise a stream of whoever can reach the port that has been opened for this."""
        await self._serve(socket, None)

    async def _serve(self, socket: WebSocket, credentials: Credentials | None) -> None:
        replica, request_id = self._replica, new_request_id()
        received_s = replica.clock()
        try:
            if credentials is not None:
                self._door.enter(socket, credentials)
            else:
                _refuse_pages(socket)
                replica.sessions.refuse_if_draining()
                replica.recognizer.refuse_if_full()
            rate = replica.config.sample_rate
            session = replica.session(SessionOptions(rate, partials=True), replica.limits)
            stream = AdaptedStream(
                socket,
                session,
                VoskAdapter(rate, rate=_rate(socket, replica.settings.vosk_sample_rate)),
                protocol="vosk",
                encoding=Encoding.LINEAR16,
                replica=replica,
                limits=replace(replica.live_limits, idle_timeout_s=replica.settings.quiet_timeout_s),
                request_id=request_id,
            )
            await serve(socket, stream, session, replica, received_s=received_s)
        except Refused as error:
            await socket.send_denial_response(self._door.refuse(error, request_id))


def _refuse_pages(socket: WebSocket) -> None:
    """No page that somebody happens to visit may use an open port of their network. Raises: NotAllowed."""
    if "origin" in socket.headers:
        raise NotAllowed("web pages are not let in here; use /vosk")


def _rate(socket: WebSocket, default: int) -> int:
    """The rate that holds until the client's `config` says another one. Raises: BadParameter."""
    given = socket.query_params.get("sample_rate")
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 9 and int(given) in RATES):
        raise BadParameter(f"sample_rate: must be a whole number from {RATES[0]} to {RATES[-1]}")
    return int(given)
