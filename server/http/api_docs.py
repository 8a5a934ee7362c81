"""The OpenAPI document of the HTTP endpoints at `/openapi.json`, and the sockets' at `/asyncapi.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from server.errors import REFUSALS
from server.http.admin import DrainState
from server.http.api_parameters import listen_parameters
from server.http.token_endpoint import DEFAULT_TTL_S, GrantAnswer, GrantRequest
from server.protocols.deepgram.transcript import Answer
from server.protocols.handshake import RefusalBody
from server.protocols.openai.answers import AnswerFormat, PlainAnswer, VerboseAnswer
from server.protocols.openai.form import GRANULARITIES
from server.protocols.openai.messages import ErrorBody
from server.protocols.openai.transcriptions import TextDelta, TextDone

Schema = dict[str, Any]

JSON, TEXT, EVENTS = "application/json", "text/plain", "text/event-stream"
BYTES = "application/octet-stream"
COMPONENTS = "#/components/schemas/"
SECURITY: Schema = {
    "ApiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "`Token KEY`, where the server asks for keys; the scheme in any case, `Bearer KEY` too.",
    },
    "BrowserToken": {"type": "http", "scheme": "bearer", "description": "What `POST /v1/auth/grant` gave."},
}
MEANINGS = {
    400: "A parameter or the body cannot be used",
    401: "No key, or a wrong one",
    403: "The key, the token or the web page may not do this",
    408: "The body did not arrive in time",
    413: "The body is too large",
    429: "The key has as many streams open as it may",
    500: "Recognition failed",
    503: "Full, draining or not ready",
}
GRANT_REFUSALS, LISTEN_REFUSALS = (400, 401, 403, 408, 413), tuple(MEANINGS)
STREAM_COUNTS = {"type": "integer", "minimum": 0}
STATUS: Schema = {
    "type": "object",
    "required": [
        "system_health",
        "active_stream_requests",
        "active_batch_requests",
        "slots_used",
        "slots_total",
        "model",
    ],
    "properties": {
        "system_health": {"enum": ["Healthy", "Draining", "Critical"]},
        "active_stream_requests": STREAM_COUNTS,
        "active_batch_requests": STREAM_COUNTS,
        "slots_used": STREAM_COUNTS,
        "slots_total": STREAM_COUNTS,
        "model": {"type": "object", "required": ["name", "version", "uuid"]},
    },
}
NAME: Schema = {"type": "object", "required": ["name", "version", "extensions"]}
READY: Schema = {"type": "object", "required": ["ready"], "properties": {"ready": {"type": "boolean"}}}
LIVE: Schema = {"type": "object", "required": ["live"], "properties": {"live": {"const": True}}}
UNKNOWN: Schema = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}

SHAPES = (
    Answer, DrainState, ErrorBody, GrantAnswer, GrantRequest, PlainAnswer, RefusalBody, TextDelta, TextDone,
    VerboseAnswer,
)  # fmt: skip
FORM: Schema = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string"},
        "response_format": {"enum": [form.value for form in AnswerFormat]},
        "timestamp_granularities": {"type": "array", "items": {"enum": list(GRANULARITIES)}},
        "stream": {"type": "boolean"},
        "keywords": {"type": "array", "items": {"type": "string"}},
    },
}


def describe(app: FastAPI) -> None:
    """Make the app answer with this document, built when it is first asked for."""

    def document() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = build(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the framework's own way to extend it


def build(app: FastAPI) -> Schema:
    """Return the document for the routes that the app has now."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= _components(*SHAPES)
    document["components"]["securitySchemes"] = SECURITY
    for path, methods in _operations().items():
        for method, operation in methods.items():
            document["paths"][path][method] |= operation
    return document


def _operations() -> dict[str, dict[str, Schema]]:
    """What the framework does not know of each path: parameters, bodies, answers."""
    return {
        "/v1/listen": {"post": _listen()},
        "/v1/auth/grant": {"post": _grant()},
        "/v1/audio/transcriptions": {"post": _transcriptions()},
        "/v1/status": {"get": {"responses": {"200": _json("The replica", STATUS)}}},
        "/healthz": {"get": {"responses": {"200": _text("Alive")}}},
        "/readyz": {"get": {"responses": {"200": _text("Ready"), "503": _text("Not ready")}}},
        "/metrics": {"get": {"responses": {"200": _text("Prometheus metrics")}}},
        "/v2": {"get": {"responses": {"200": _json("The server", NAME)}}},
        "/v2/health/live": {"get": {"responses": {"200": _json("Alive", LIVE)}}},
        "/v2/health/ready": {"get": {"responses": {"200": _json("Ready", READY), "503": _json("Not ready", READY)}}},
        "/v2/models/{name}/ready": {"get": {"responses": _model_ready()}},
        "/admin/drain": {
            "get": {"responses": _drain(200), "security": [{"ApiKey": []}, {}]},
            "post": {"responses": _drain(200, 202), "security": [{"ApiKey": []}, {}]},
        },
    }


def _listen() -> Schema:
    body = {
        "required": True,
        "description": "The recording itself: wav, flac, ogg, mp3, webm, m4a; or raw samples with an `encoding`.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("audio/*", BYTES)},
    }
    answer = _json("The transcript", {"$ref": COMPONENTS + "Answer"})
    answer["headers"] = {
        "dg-request-id": _header("Names the request, as in the answer's `metadata`"),
        "x-ignored-params": {"description": "Parameters that were not understood", "schema": {"type": "string"}},
    }
    return {
        "parameters": listen_parameters(),
        "requestBody": body,
        "responses": {"200": answer, **_refusals(LISTEN_REFUSALS)},
        "security": [{"ApiKey": []}, {"BrowserToken": []}, {}],
    }


def _grant() -> Schema:
    body = {
        "required": False,
        "description": f"How long the token is to last; {DEFAULT_TTL_S} s without a body.",
        "content": {JSON: {"schema": {"$ref": COMPONENTS + "GrantRequest"}}},
    }
    responses = {"200": _json("The token", {"$ref": COMPONENTS + "GrantAnswer"}), **_refusals(GRANT_REFUSALS)}
    return {"requestBody": body, "responses": responses, "security": [{"ApiKey": []}, {}]}


def _transcriptions() -> Schema:
    text = {"schema": {"type": "string"}}
    shapes = [{"$ref": COMPONENTS + shape.__name__} for shape in (PlainAnswer, VerboseAnswer)]
    told = [{"$ref": COMPONENTS + shape.__name__} for shape in (TextDelta, TextDone, ErrorBody)]
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": told}}
    event = {"schema": {"type": "object", "required": ["data"], "properties": {"data": data}}}
    kinds = {JSON: {"schema": {"anyOf": shapes}}, TEXT: text, "text/vtt": text, EVENTS: event}
    refused = {"schema": {"$ref": COMPONENTS + ErrorBody.__name__}}
    responses = {str(status): {"description": MEANINGS[status], "content": {JSON: refused}} for status in MEANINGS}
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}},
        "responses": {"200": {"description": "The transcript, in the format asked for", "content": kinds}, **responses},
        "security": [{"ApiKey": []}, {"BrowserToken": []}, {}],
    }


def _drain(*statuses: int) -> Schema:
    state = _json("How far the drain is", {"$ref": COMPONENTS + "DrainState"})
    refused = {"401": _text("No admin key, or a wrong one"), "403": _text("Without admin keys: not from this machine")}
    return {str(status): state for status in statuses} | refused


def _model_ready() -> Schema:
    return {
        "200": _json("Ready", READY),
        "404": _json("No such model is served here", UNKNOWN),
        "503": _json("Not ready", READY),
    }


def _refusals(statuses: Sequence[int]) -> Schema:
    found = {}
    for status in statuses:
        refusal = _json(MEANINGS[status], {"$ref": COMPONENTS + "RefusalBody"})
        refusal["headers"] = {
            "dg-error": _header("The message of the body, in ASCII"),
            "dg-request-id": _header("Names the request, as in the body"),
        }
        if any(entry.status == status and entry.retry_after_s for entry in REFUSALS.values()):
            refusal["headers"]["Retry-After"] = _header("Seconds", {"type": "integer", "minimum": 1})
        found[str(status)] = refusal
    return found


def _header(description: str, schema: Mapping[str, object] | None = None) -> Schema:
    return {"description": description, "required": True, "schema": schema or {"type": "string"}}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _text(description: str) -> Schema:
    return {"description": description, "content": {TEXT: {"schema": {"type": "string"}}}}


def _components(*types: type) -> Schema:
    """JSON schemas of our own structures, and of what they are made of."""
    _, components = msgspec.json.schema_components(types, ref_template=COMPONENTS + "{name}")
    return components


FILE = "asyncapi.yaml"
MEDIA_TYPE = "application/yaml"  # RFC 9512


def describe_sockets(app: FastAPI) -> None:
    """Serve the file, read once."""
    content = (files("server") / FILE).read_bytes()

    async def asyncapi() -> Response:
        return Response(content, media_type=MEDIA_TYPE)

    app.add_api_route(f"/{FILE}", asyncapi, methods=["GET"], include_in_schema=False)


ABOUT = """Streaming speech recognition, compatible with Deepgram's `/v1/listen`.

Live streams are WebSockets: `GET /v1/listen?encoding=linear16&sample_rate=16000` with `Upgrade: websocket`, binary
frames of audio in, JSON frames out: `/asyncapi.yaml` describes them. The uploads below take the same parameters.

**Query parameters.** What is not listed is accepted and named in the answer's `x-ignored-params` header.

| parameter | default | meaning |
|---|---|---|
| `encoding`, `sample_rate` | – | `linear16`, `linear32` (float), `mulaw`, `alaw`, `opus` (one packet a \
message) with `sample_rate`, 8 to 48 kHz; `ogg-opus`, `flac`; without it the first bytes tell WAV, Ogg Opus, \
WebM or FLAC |
| `channels`, `multichannel` | 1, `false` | interleaved channels, mixed down unless `multichannel`; of a live \
container `channels` says how many it has |
| `resumable` (ours) | `false` | tickets with which a stream goes on after a lost connection, on any replica; \
only with `linear16`, `linear32`, `mulaw`, `alaw` |
| `interim_results` | `false` | partials, each time the words changed |
| `interim_interval_ms` (ours) | 0 | at most one partial of a segment in so much audio |
| `stable_words` (ours) | `false` | adds `tutti.stable_words`: so many words, from the first, can no longer change |
| `step_results` (ours) | `false` | answers every step, and adds where the time of the step went |
| `latency` (ours) | `false` | adds `tutti.latency` to each result that answers audio: where its time went |
| `endpointing` | 10 ms | silence that ends an utterance, at least the server's minimum; `false`: none |
| `utterance_end_ms` | off | sends `UtteranceEnd` after so much silence |
| `latency_budget_ms` (ours) | the server's | time in which a live step should be answered, 20 to 10,000 ms |
| `vad_events` | `false` | sends `SpeechStarted` |
| `keyterm` | – | a word or phrase to listen for; repeatable. Greedy decoding ignores it, as the next |
| `keywords` | – | the older form: `word` or `word:boost`, a boost below 0 for words not to hear; repeatable |
| `punctuate` | `false` | capitals, and a mark at the end of each utterance: a guess from the words |
| `numerals` | `false` | in final results, numbers with digits: the words "twenty one" become one, 21; \
a number below 4 that stands alone stays a word, and digits told one by one stay apart |
| `smart_format` | `false` | `punctuate` and `numerals` |
| `model`, `version`, `tag`, `extra`, `no_delay`, `mip_opt_out` | – | accepted |

**An endpoint** (`speech_final`) comes when the last word lies `endpointing` ms back, and with empty text when nothing
was said for 2.4 s. An utterance longer than the server's maximum is cut behind a finished word, without `speech_final`.

**Key terms** are at most 200, of 2,500 characters together, of 20 words each, `keyterm` and `keywords` taken as one.

**Formatted text** is the `transcript`, and `punctuated_word` beside each word as it was recognised.

**Text frames from the client:** `KeepAlive`, `Finalize` (flush, stay open), `CloseStream`, and `Configure` with
`keyterms`, which replaces those of `keyterm` for the audio that follows (`null`: leave them, `[]`: none); its
`features` are ignored. `ConfigureSuccess` names the key terms that hold; `ConfigureFailure` says why the old ones do:
too many, a greedy decoder, or (`CONFIGURE_ALREADY_PENDING`) too many changes: a full set at once is not, nor are 500
characters for each second of audio.
"""
