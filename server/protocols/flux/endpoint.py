"""`/v2/listen` as a WebSocket: admission of a Flux stream."""

from __future__ import annotations

from dataclasses import replace

from fastapi import WebSocket

from server.access.guard import redaction_of
from server.access.keys import Credentials
from server.audio.decoder import open_decoder
from server.errors import BadParameter
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.features import SHOWN, ignored_header, redaction
from server.protocols.flux.adapter import FluxAdapter, scored_end
from server.protocols.flux.query import ENGLISH, FluxRequest, language_of, parse_query
from server.protocols.handshake import Admitted, serve
from server.recognition.session_options import SessionOptions
from server.replica import Replica
from server.text.redaction_kinds import Redaction


class FluxEndpoint:
    """The live endpoint of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def live(self, socket: WebSocket) -> None:
        """Serve a stream of turns."""
        await serve(socket, self._replica, self._admit)

    async def _admit(self, socket: WebSocket, request_id: str) -> Admitted:
        """Raises: Refused."""
        replica = self._replica
        credentials = Credentials.read(socket.headers.get("authorization"), socket.scope["subprotocols"])
        await replica.guard.enter(socket, credentials)
        pairs = socket.query_params.multi_items()
        request = parse_query(pairs, lenient=replica.settings.lenient_features)
        redact = redaction(pairs) | redaction_of(socket)
        owner = replica.guard.owner(socket)
        replica.terms.check(owner, request.phrases)
        if request.model is not None and replica.models.known(request.model) is None:
            shown = request.model[:SHOWN]
            raise BadParameter(f"model: {shown!r} is not served here; set {ENGLISH} or the name of a model")
        model = await replica.models.obtain(request.model, language_of(request, replica.models.names))
        if request.phrases:
            model.check_keyterms(["keyterm"])
        model.check_redaction(redact, resumable=False)
        request = replace(request, style=request.style.with_own(replica.own_forms, redact))
        rate = model.config.sample_rate
        delay_s = model.config.delay_frames * model.config.frame_s
        decoder = open_decoder(request.form, rate)
        options = _session_options(request, rate, redact)
        await replica.terms.build(owner, request.phrases, options.keyterms.bias, model.decoder)
        session = model.session(options, replica.limits)
        stream = AdapterConnection(
            socket,
            session,
            FluxAdapter(
                request,
                request_id,
                languages=model.languages,
                delay_s=delay_s,
                audio_warnings=lambda: decoder.warnings,
            ),
            replica.connection_context(replica.settings.quiet_timeout_s),
            protocol="flux",
            encoding=request.form.encoding,
            request_id=request_id,
            decoder=decoder,
        )
        headers = {"dg-request-id": request_id, **ignored_header(request.ignored)}
        return Admitted(model, stream, session, credentials.subprotocol, headers, style=request.style)


def _session_options(request: FluxRequest, rate: int, redact: frozenset[Redaction]) -> SessionOptions:
    return SessionOptions(
        request.form.decoded_rate(rate),
        partials=True,
        every_step=True,
        speech_events=True,
        endpointing_ms=0.0,  # the operator's minimum
        scored_end=scored_end(request.rules),
        fork_after_s=request.rules.fork_after_s,
        keyterms=request.keyterms,
        redact=redact,
    )
