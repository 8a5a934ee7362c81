"""`/v1/freeswitch` as a WebSocket, for mod_audio_stream: parameters are those of `/v1/listen`, the audio is L16."""

from __future__ import annotations

from fastapi import WebSocket

from server.access.keys import Credentials
from server.audio.decoder import open_decoder
from server.errors import BadParameter
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.deepgram.endpoints import QueryReader, answer_headers, created_now
from server.protocols.deepgram.parameters import TABLE
from server.protocols.deepgram.projector import Projector
from server.protocols.features import SHOWN, own_parameters
from server.protocols.freeswitch.adapter import FreeSwitchAdapter
from server.protocols.handshake import Admitted

OWN = frozenset({"key"})
USUAL = {"encoding": "linear16", "sample_rate": "8000"}


async def admit_freeswitch(queries: QueryReader, socket: WebSocket, request_id: str) -> Admitted:
    """Admit a call; the key comes in `Authorization` or `?key=`. Raises: Refused."""
    replica = queries.replica
    await replica.guard.enter(socket, Credentials.of_header_or_query(socket))
    _, listen = own_parameters(socket.query_params.multi_items(), OWN, TABLE)
    query = dict(listen)
    if query.get("encoding", USUAL["encoding"]) != USUAL["encoding"]:
        raise BadParameter(f"encoding: {query['encoding'][:SHOWN]!r} is not valid; mod_audio_stream sends linear16")
    for name, why in (("rewind", "Rewind messages"), ("resumable", "tickets")):
        if query.get(name, "false").casefold() not in ("false", "0", ""):
            raise BadParameter(f"{name}: /v1/freeswitch has no {why}; leave it out, or stream to /v1/listen")
    usual = [pair for pair in USUAL.items() if pair[0] not in query]
    request, model = await queries.read(socket, [*usual, *listen], live=True)
    decoder = open_decoder(request.form, model.config.sample_rate, multichannel=request.options.multichannel)
    session = model.session(request, replica.limits)
    projector = Projector(request, len(session.channels), request_id, created_now(), model.card)
    stream = AdapterConnection(
        socket,
        session,
        FreeSwitchAdapter(projector),
        replica.connection_context(keep_alive=False),
        protocol="freeswitch",
        encoding=request.form.encoding,
        request_id=request_id,
        decoder=decoder,
    )
    return Admitted(model, stream, headers=answer_headers(request, request_id), style=request.style)
