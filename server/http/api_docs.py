"""API documents: OpenAPI at `/openapi.json`, its page at `/docs`, and AsyncAPI for WebSockets at `/asyncapi.yaml`.

Endpoints return encoded msgspec structs, which FastAPI cannot describe: it provides paths, operation ids and
summaries; parameters, bodies and responses are added here.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache, partial
from importlib.resources import files

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi

from server.errors import REFUSALS
from server.http.admin import DrainState
from server.http.models import ModelOut, ModelsOut, NoSuchModel
from server.http.operations import ModelState
from server.http.page import POLICY, file_answer
from server.http.token_endpoint import DEFAULT_TTL_S, GrantAnswer, GrantRequest
from server.protocols.audiosocket.call_options import RegisteredCall
from server.protocols.deepgram.parameters import BOOLEAN, PARAMETERS, TEXT, TEXTS, Schema, parameter_table
from server.protocols.deepgram.transcript import Answer
from server.protocols.features import FEATURES
from server.protocols.handshake import RefusalBody
from server.protocols.openai.form import GRANULARITIES, AnswerFormat
from server.protocols.openai.messages import ErrorBody
from server.protocols.openai.speakers import DiarizedAnswer
from server.protocols.openai.transcriptions import PlainAnswer, TextDelta, TextDone, VerboseAnswer
from server.recognition.session_options import FINALS

JSON, PLAIN, EVENTS = "application/json", "text/plain", "text/event-stream"
COMPONENTS = "#/components/schemas/"
SHARED_NAMES = {
    "server.protocols.deepgram.messages.WordOut": "server.deepgram_messages.WordOut",
    "server.protocols.openai.transcriptions.WordOut": "server.openai.answers.WordOut",
}
"""Schema names of the two structs called WordOut, fixed so that generated clients do not change if a module moves."""

SHAPES = (
    Answer, DrainState, ErrorBody, GrantAnswer, GrantRequest, ModelOut, ModelsOut, ModelState, NoSuchModel,
    DiarizedAnswer, PlainAnswer, RefusalBody, RegisteredCall, TextDelta, TextDone, VerboseAnswer,
)  # fmt: skip
SECURITY: Schema = {
    "ApiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "`Token KEY` or `Bearer KEY`, if the server requires keys. The scheme is not case-sensitive.",
    },
    "BrowserToken": {"type": "http", "scheme": "bearer", "description": "A token from `POST /v1/auth/grant`."},
}
BY_KEY: list[Schema] = [{"ApiKey": []}, {}]
BY_KEY_OR_TOKEN: list[Schema] = [{"ApiKey": []}, {"BrowserToken": []}, {}]
MEANINGS = {
    400: "Invalid parameter or body",
    401: "Missing or wrong key",
    403: "Not allowed for this key, token or web page",
    408: "The body did not arrive in time",
    413: "The body is too large",
    429: "The key has reached its limit of open streams",
    500: "Recognition failed",
    503: "Full, draining or not ready",
}
GRANT_REFUSALS = (400, 401, 403, 408, 413)


def _object(*names: str, **properties: Schema) -> Schema:
    """Return the schema of an object with these required members; `names` may have any type."""
    schema = {"type": "object", "required": [*names, *properties]}
    return schema | ({"properties": properties} if properties else {})


def _ref(shape: type) -> Schema:
    return {"$ref": COMPONENTS + shape.__name__}


def _content(schema: Schema, *kinds: str) -> Schema:
    return {kind: {"schema": schema} for kind in kinds}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": _content(schema, JSON)}


def _text(description: str) -> Schema:
    return {"description": description, "content": _content(TEXT, PLAIN)}


def _header(description: str, schema: Schema = TEXT) -> Schema:
    return {"description": description, "required": True, "schema": schema}


def _refusals(statuses: Iterable[int]) -> Schema:
    """Return the error responses with these statuses, in Deepgram's format."""
    headers = {
        "dg-error": _header("The message in the body, as ASCII"),
        "dg-request-id": _header("Request id, as in the body"),
    }
    later = {"Retry-After": _header("Seconds", {"type": "integer", "minimum": 1})}
    retried = {entry.status for entry in REFUSALS.values() if entry.retry_after_s}
    return {
        str(status): _json(MEANINGS[status], _ref(RefusalBody))
        | {"headers": headers | (later if status in retried else {})}
        for status in statuses
    }


BINARY: Schema = {"type": "string", "format": "binary"}
COUNT: Schema = {"type": "integer", "minimum": 0}
STATUS = _object(
    system_health={"enum": ["Healthy", "Draining", "Critical"]},
    active_stream_requests=COUNT,
    active_batch_requests=COUNT,
    slots_used=COUNT,
    slots_total=COUNT,
    model=_object("name", "version", "uuid"),
    models={"type": "array", "items": _object("name", "version", "uuid")},
)
READY = _object(ready=BOOLEAN)
READINESS = {"200": _json("Ready", READY), "503": _json("Not ready", READY)}
UNKNOWN_MODEL = _json("Unknown model", _object(error=TEXT))
FORM: Schema = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": BINARY,
        "model": TEXT,
        "language": TEXT,
        "languages": TEXTS,
        "response_format": {"enum": [form.value for form in AnswerFormat]},
        "timestamp_granularities": {"type": "array", "items": {"enum": list(GRANULARITIES)}},
        "stream": BOOLEAN,
        "keywords": TEXTS,
        "grammar": TEXT,
        "finals": {"enum": list(FINALS)},
        "multichannel": BOOLEAN,
        "redact": TEXTS,
        "known_speaker_names": TEXTS,
        "known_speaker_references": TEXTS,
    },
}
ANSWER_HEADERS: Schema = {
    "dg-request-id": _header("Request id, as in `metadata` of the response"),
    "x-ignored-params": {"description": "Parameters that were ignored, percent-encoded", "schema": TEXT},
}
EVENT_DATA = {"anyOf": [_ref(shape) for shape in (TextDelta, TextDone, ErrorBody)]}
EVENT = _object(data=TEXT | {"contentMediaType": JSON, "contentSchema": EVENT_DATA})
TRANSCRIPT: Schema = {
    "description": "The transcript in the requested format",
    "headers": {"x-ignored-params": ANSWER_HEADERS["x-ignored-params"]},
    "content": _content({"anyOf": [_ref(PlainAnswer), _ref(VerboseAnswer), _ref(DiarizedAnswer)]}, JSON)
    | _content(TEXT, PLAIN, "text/vtt")
    | _content(EVENT, EVENTS),
}
DRAIN = _json("Progress of the drain", _ref(DrainState))
MODEL_STATE = _json("State of the model", _ref(ModelState))
NOT_ADMIN = {"401": _text("Missing or wrong admin key"), "403": _text("No admin key is set")}
NOT_POSSIBLE = {"404": _text("Unknown model"), "409": _text("The model cannot be loaded or unloaded")}

KEY_SET = {
    "description": "The public keys that sign receipts; empty if none are signed",
    "content": _content(_object(keys={"type": "array", "items": {"type": "object"}}), "application/jwk-set+json"),
}
CALL = {"name": "uuid", "in": "path", "required": True, "schema": TEXT | {"format": "uuid"}}
OPERATIONS: dict[tuple[str, str], Schema] = {
    ("post", "/v1/listen"): {
        "parameters": [parameter.openapi() for parameter in PARAMETERS],
        "requestBody": {
            "required": True,
            "description": "The recording: wav, flac, ogg, mp3, webm, m4a; or raw samples with `encoding`, "
            "which is ignored if the body is a container.",
            "content": _content(BINARY, "audio/*", "application/octet-stream"),
        },
        "responses": {
            "200": _json("The transcript", _ref(Answer)) | {"headers": ANSWER_HEADERS},
            **_refusals(MEANINGS),
        },
        "security": BY_KEY_OR_TOKEN,
    },
    ("post", "/v1/auth/grant"): {
        "requestBody": {
            "required": False,
            "description": f"Lifetime of the token; {DEFAULT_TTL_S} s without a body.",
            "content": _content(_ref(GrantRequest), JSON),
        },
        "responses": {"200": _json("The token", _ref(GrantAnswer)), **_refusals(GRANT_REFUSALS)},
        "security": BY_KEY,
    },
    ("post", "/v1/audiosocket/{uuid}"): {
        "description": "Options of the call with this UUID: parameters of `/v1/listen`, and `ttl_seconds`.",
        "parameters": [CALL],
        "responses": {
            "200": _json("The call is expected", _ref(RegisteredCall)),
            **_refusals((*GRANT_REFUSALS, 429, 503)),
        },
        "security": BY_KEY_OR_TOKEN,
    },
    ("delete", "/v1/audiosocket/{uuid}"): {
        "parameters": [CALL],
        "responses": {
            "204": {"description": "The call is expected no more"},
            "404": _json("No such call is expected", _ref(RefusalBody)),
            **_refusals((400, 401, 403, 503)),
        },
        "security": BY_KEY_OR_TOKEN,
    },
    ("post", "/v1/audio/transcriptions"): {
        "requestBody": {"required": True, "content": _content(FORM, "multipart/form-data")},
        "responses": {
            "200": TRANSCRIPT,
            **{str(status): _json(meaning, _ref(ErrorBody)) for status, meaning in MEANINGS.items()},
        },
        "security": BY_KEY_OR_TOKEN,
    },
    ("get", "/v1/models"): {
        "responses": {"200": _json("The models, the default first", _ref(ModelsOut)), **_refusals((401, 403))},
        "security": BY_KEY_OR_TOKEN,
    },
    ("get", "/v1/models/{name}"): {
        "responses": {
            "200": _json("The model", _ref(ModelOut)),
            "404": _json("Unknown model", _ref(NoSuchModel)),
            **_refusals((401, 403)),
        },
        "security": BY_KEY_OR_TOKEN,
    },
    ("get", "/.well-known/jwks.json"): {"responses": {"200": KEY_SET}},
    ("get", "/v1/status"): {"responses": {"200": _json("The replica", STATUS)}},
    ("get", "/healthz"): {"responses": {"200": _text("Alive")}},
    ("get", "/readyz"): {"responses": {"200": _text("Ready"), "503": _text("Not ready")}},
    ("get", "/metrics"): {"responses": {"200": _text("Prometheus metrics")}},
    ("get", "/v2"): {"responses": {"200": _json("The server", _object("name", "version", "extensions"))}},
    ("get", "/v2/health/live"): {"responses": {"200": _json("Alive", _object(live={"const": True}))}},
    ("get", "/v2/health/ready"): {"responses": READINESS},
    ("get", "/v2/models/{name}/ready"): {"responses": READINESS | {"404": UNKNOWN_MODEL}},
    ("get", "/admin/drain"): {"responses": {"200": DRAIN, **NOT_ADMIN}, "security": BY_KEY},
    ("post", "/admin/drain"): {"responses": {"200": DRAIN, "202": DRAIN, **NOT_ADMIN}, "security": BY_KEY},
    ("get", "/admin/models"): {
        "responses": {
            "200": _json("The models, the default first", {"type": "array", "items": _ref(ModelState)}),
            **NOT_ADMIN,
        },
        "security": BY_KEY,
    },
    ("post", "/admin/models/{name}/load"): {
        "responses": {"200": MODEL_STATE, **NOT_ADMIN, **NOT_POSSIBLE, "503": _text("The model could not be loaded")},
        "security": BY_KEY,
    },
    ("post", "/admin/models/{name}/unload"): {
        "responses": {"200": MODEL_STATE, "202": MODEL_STATE, **NOT_ADMIN, **NOT_POSSIBLE},
        "security": BY_KEY,
    },
    ("post", "/admin/engine/restart"): {
        "responses": {
            "200": _json("Seconds until the new engine was ready", _object(seconds={"type": "number"})),
            **NOT_ADMIN,
            "409": _text("The server has one process, or the files of a model in use have changed"),
            "503": _text("No new engine could start; the present one serves on"),
        },
        "security": BY_KEY,
    },
}


def describe(app: FastAPI) -> None:
    """Serve the OpenAPI document at `/openapi.json`, built on first request, and its page."""
    app.openapi = cache(partial(build, app))  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    _add_page(app)


def build(app: FastAPI) -> Schema:
    """Return the OpenAPI document for the current routes of the app."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    document["components"]["schemas"] |= _shapes()
    document["components"]["securitySchemes"] = SECURITY
    for (method, path), operation in OPERATIONS.items():
        if path in document["paths"]:  # /metrics can have a port of its own
            document["paths"][path][method] |= operation
    return document


def _shapes() -> dict[str, Schema]:
    """Return the schemas of `SHAPES` by name; for equal names msgspec includes the module."""
    _, shapes = msgspec.json.schema_components(SHAPES, ref_template=COMPONENTS + "{name}")
    text = msgspec.json.encode(shapes).decode()
    for module, name in SHARED_NAMES.items():
        text = text.replace(module, name)
    return msgspec.json.decode(text, type=dict[str, Schema])


SWAGGER_UI = ("swagger-ui.css", "swagger-ui-bundle.js")  # of the package `fastapi_offline`


def _add_page(app: FastAPI) -> None:
    """Serve Swagger UI at `/docs` without external resources; its URLs are relative, for proxies that add a prefix."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=f"{app.title} - Swagger UI",
        swagger_css_url=f"docs/{SWAGGER_UI[0]}",
        swagger_js_url=f"docs/{SWAGGER_UI[1]}",
        swagger_favicon_url="web/icon.svg",
        swagger_ui_parameters={"validatorUrl": None},  # no badge from an external host
    ).body
    script = re.search(rb"<script>(.*?)</script>", bytes(page), re.DOTALL)
    assert script is not None, "FastAPI starts the page with an inline script"
    digest = base64.b64encode(hashlib.sha256(script[1]).digest()).decode()
    # The inline script is allowed by its hash; Swagger UI uses inline styles and data URLs for icons.
    policy = f"{POLICY}; script-src 'self' 'sha256-{digest}'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
    app.add_route("/docs", file_answer("docs.html", bytes(page), policy), include_in_schema=False)
    for name in SWAGGER_UI:
        content = (files("fastapi_offline") / "static" / name).read_bytes()
        app.add_route(f"/docs/{name}", file_answer(name, content), include_in_schema=False)


def describe_sockets(app: FastAPI) -> None:
    """Serve `/asyncapi.yaml`, read once."""
    content = (files("server") / "asyncapi.yaml").read_bytes()

    async def asyncapi() -> Response:
        return Response(content, media_type="application/yaml")  # RFC 9512

    app.add_api_route("/asyncapi.yaml", asyncapi, methods=["GET"], include_in_schema=False)


ABOUT = f"""Streaming speech recognition, compatible with Deepgram's `/v1/listen`.

Live streams are WebSockets: `GET /v1/listen?encoding=linear16&sample_rate=16000` with `Upgrade: websocket`, binary
audio frames in, JSON frames out, as described in `/asyncapi.yaml`. The uploads below accept the same parameters; those
that apply only to live streams are listed in the response header `x-ignored-params`.

**Models.** `model` is one of `GET /v1/models`; any other name selects the default model, unless names are strict.
Without `model`, `language` selects it by a tag such as `es` or `es-419`; a language without a model is rejected. A
model that is not `loaded` is loaded by the first request for it, which waits until it is ready.

**Query parameters.** Each has one value, unless it is repeatable, and must not be empty. A feature that this server
lacks ({", ".join(f"`{name}`" for name in sorted(FEATURES))}) is rejected with its name, unless its value is `false`; so
are `flux-…` models, the parameters of `/v2/listen`, and those of `/v1/listen` on other paths that lack their feature.
With `--lenient-features` the server ignores such features and lists them, except `callback…` and other spellings of
`redact`. Other unknown parameters are accepted and listed in the response header `x-ignored-params`.

{parameter_table()}

**Callbacks:** on a server with `TUTTI_CALLBACK_HOSTS`, `callback=URL` posts the result of an upload, which is answered
at once with its `request_id`, or the finals of a live stream; `callback_method` is `post` or `put`.

**An endpoint** (`speech_final`) is sent `endpointing` ms after the last word. After 2.4 s without speech a final has
empty text and no `speech_final`. An utterance longer than the server's maximum is cut after a finished word, without
`speech_final`.

**Key terms:** at most 200 with 2,500 characters in total and 20 words each, `keyterm` and `keywords` together. Numbers
and signs in them are spelled as they are spoken (`24/7` is "twenty four seven", `3M` is "three m"); a term that
the model cannot spell or recognize, such as Chinese characters for an English model, is rejected with its name.

**Redaction:** `redact=pci`, `ssn`, `phone_number`, `numbers` or `aggressive_numbers`, repeatable, masks numbers in
all results: each is one word such as `[CREDIT_CARD_1]` with the times of all its words. Interim results mask every
number. An API key may have kinds of its own, which are always masked.

**Formatted text** is in `transcript` and `punctuated_word`; `word` is the word as recognized.

**Errors** are JSON in the format of their interface: `err_code`, `err_msg` and `request_id` on Deepgram's paths,
`{{"error": {{"message": …}}}}` on OpenAI's, also for unknown paths (404) and wrong methods (405, with `Allow`). Every
path that supports GET supports HEAD.

**Text frames from the client:** `KeepAlive`, `Finalize` (flush, stay open), `CloseStream`, and `Configure` with
`keyterms`, which replaces the key terms for the audio that follows (`null`: no change, `[]`: none); `features` cannot
change (`CONFIGURE_NOT_SUPPORTED`). `ConfigureSuccess` lists the key terms in use; `ConfigureFailure` has the reason why
the previous ones stay: too many, one that cannot be recognized, a greedy decoder, or too many changes
(`CONFIGURE_ALREADY_PENDING`): allowed are a full set at once, and then 500 characters per second of audio; and for
each key or address 4,000 characters of new key terms per second, after a burst of 20,000.
"""
