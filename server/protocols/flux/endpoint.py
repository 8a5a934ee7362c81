"""`/v2/listen` as a WebSocket: admission of a Flux stream."""

from __future__ import annotations

from dataclasses import replace

from fastapi import WebSocket

from server.access.keys import Credentials
from server.audio.decoder import open_decoder
from server.errors import BadParameter
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.features import SHOWN, ignored_header
from server.protocols.flux.adapter import FluxAdapter
from server.protocols.flux.messages import ENGLISH, language_of, parse_query
from server.protocols.handshake import Admitted
from server.replica import Replica


async def admit_turns(replica: Replica, socket: WebSocket, request_id: str) -> Admitted:
    """Admit a stream of turns. Raises: Refused."""
    credentials = Credentials.read(socket.headers.get("authorization"), socket.scope["subprotocols"])
    await replica.guard.enter(socket, credentials)
    detects, lenient = replica.models.detects_language(None), replica.settings.lenient_features
    request = parse_query(socket.query_params.multi_items(), lenient=lenient, detects=detects)
    replica.terms.check(replica.guard.owner(socket), request.phrases)
    if request.model is not None and replica.models.known(request.model) is None:
        excerpt = request.model[:SHOWN]
        raise BadParameter(f"model: {excerpt!r} is not served here; set {ENGLISH} or the name of a model")
    language = language_of(request, replica.models.names)
    model = await replica.models.obtain(request.model, language)
    if model.facts.prompts is not None and len(request.hints) > 1:
        language = None  # the model finds out which of them it is
    request = replace(request, options=replace(request.options, language=language))
    if request.phrases:
        model.check_keyterms(["keyterm"])
    request = await replica.accept(socket, model, request.with_keyterms(), terms=request.phrases)
    delay_s = model.config.delay_frames * model.config.frame_s
    decoder = open_decoder(request.form, model.config.sample_rate)
    session = model.session(request, replica.limits)
    stream = AdapterConnection(
        socket,
        session,
        FluxAdapter(
            request,
            request_id,
            languages=model.spoken(language),
            prompts=model.facts.prompts,
            delay_s=delay_s,
            forks=session.options.forks,
            audio_warnings=lambda: decoder.warnings,
            marks=model.marks_acknowledgements(request),
        ),
        replica.connection_context(keep_alive=False),
        protocol="flux",
        encoding=request.form.encoding,
        request_id=request_id,
        decoder=decoder,
    )
    headers = {"dg-request-id": request_id, **ignored_header(request.ignored)}
    return Admitted(model, stream, credentials.subprotocol, headers, style=request.style)
