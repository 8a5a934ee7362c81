"""`/v1/twilio` as a WebSocket: audio of a call in; its text to the operator's URL, or back with `reply=true`."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace

from fastapi import WebSocket

from server.access.keys import Credentials
from server.audio.formats import Encoding
from server.errors import BadParameter, NotAuthorized
from server.protocols.deepgram.endpoints import QueryReader, answer_headers, created_now
from server.protocols.deepgram.projector import Projector
from server.protocols.features import SHOWN, boolean, named, own_parameters, whole_number
from server.protocols.forwarding import ForwardingStream
from server.protocols.handshake import Admitted
from server.protocols.twilio.adapter import BOTH, RATES, TRACKS, TwilioAdapter
from server.replica import Replica

SIGNATURE_HEADER = "x-twilio-signature"
OWN = frozenset({"key", "reply", "track"})
IN_START = frozenset({"encoding", "sample_rate", "channels", "multichannel"})  # checked; the `start` message sets them
USUAL = {"encoding": "mulaw", "sample_rate": "8000"}  # audio of calls; other values are listed as ignored
ENCODINGS = ("mulaw", "alaw")


async def admit_call(queries: QueryReader, socket: WebSocket, request_id: str) -> Admitted:
    """Admit a stream of a call. Raises: Refused."""
    replica = queries.replica
    await _check_caller(replica, socket)
    query, listen = own_parameters(socket.query_params.multi_items(), OWN | IN_START)
    reply, url = boolean("reply", query.get("reply", "false")), replica.settings.twilio_forward_url
    if not reply and url is None:
        raise BadParameter("reply: this server has no forward URL; set reply=true")
    track, channels = _track(query, replica.settings.max_channels)
    _check_form(query)
    request, model = await queries.read(socket, listen, live=True)
    unusual = {name for name, usual in USUAL.items() if query.get(name, usual) != usual}
    if request.options.rewind_s:
        raise BadParameter("rewind: /v1/twilio has no Rewind messages; leave it out, or stream to /v1/listen")
    rate = model.config.sample_rate
    options = replace(request.options, sample_rate=rate, channels=channels, multichannel=channels > 1)
    request = replace(request, options=options, ignored=named({*request.ignored, *unusual}))
    session = model.session(request, replica.limits)
    projector = Projector(request, channels, request_id, created_now(), model.card)
    stream = ForwardingStream(
        socket,
        session,
        TwilioAdapter(projector, model_rate=rate, track=track),
        replica.connection_context(),
        protocol="twilio",
        encoding=Encoding.MULAW,
        request_id=request_id,
        forward_url=None if reply else url,
    )
    return Admitted(model, stream, headers=answer_headers(request, request_id), style=request.style)


async def _check_caller(replica: Replica, socket: WebSocket) -> None:
    """Check Twilio's signature if the account's token is configured, else the API key. Raises: Refused."""
    settings, guard = replica.settings, replica.guard
    if settings.twilio_auth_token is None:
        await guard.enter(socket, Credentials.of_header_or_query(socket))
        return
    url = settings.twilio_public_url or str(socket.url)
    check_signature(socket.headers.get(SIGNATURE_HEADER), url, settings.twilio_auth_token.get_secret_value())
    guard.refuse_if_unavailable()


def _track(query: Mapping[str, str], max_channels: int) -> tuple[str, int]:
    """Return the requested track of a call, and its channels. Raises: BadParameter."""
    track = query.get("track", TRACKS[0])
    if track not in (*TRACKS, BOTH):
        raise BadParameter(f"track: {track[:SHOWN]!r} is not valid; must be one of {', '.join((*TRACKS, BOTH))}")
    channels = len(TRACKS) if track == BOTH else 1
    if channels > max_channels:
        raise BadParameter("track: both needs two channels, and this server allows one; open two streams")
    return track, channels


def _check_form(query: Mapping[str, str]) -> None:
    """Refuse query parameters that no call's audio can have. Raises: BadParameter."""
    encoding = query.get("encoding", ENCODINGS[0])
    if encoding not in ENCODINGS:
        raise BadParameter(f"encoding: {encoding[:SHOWN]!r} is not valid; must be one of {', '.join(ENCODINGS)}")
    whole_number("sample_rate", query.get("sample_rate", str(RATES[0])), RATES)
    whole_number("channels", query.get("channels", "1"), range(1, 2))
    if boolean("multichannel", query.get("multichannel", "false")):
        raise BadParameter("multichannel: leave it out; select tracks with track=inbound, outbound or both")


def signature(url: str, auth_token: str) -> str:
    """Compute the `X-Twilio-Signature` of a handshake to this URL."""
    return base64.b64encode(hmac.digest(auth_token.encode(), url.encode(), hashlib.sha1)).decode()


def check_signature(header: str | None, url: str, auth_token: str) -> None:
    """Verify a signature; some of Twilio's regions sign the URL with a trailing slash. Raises: NotAuthorized."""
    offered = (header or "").encode("utf-8", "replace")
    expected = [signature(candidate, auth_token).encode() for candidate in (url, url.rstrip("/") + "/")]
    if not sum(hmac.compare_digest(offered, one) for one in expected):
        raise NotAuthorized("invalid or missing X-Twilio-Signature")
