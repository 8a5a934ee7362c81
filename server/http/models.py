"""`GET /v1/models` and `/v1/models/{id}`: the models, in one format for clients of OpenAI and Deepgram."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from server.access.keys import Credentials
from server.errors import REFUSALS, BadParameter, Refused
from server.models.registry import Phase, RegistryEntry
from server.models.selection import SHOWN
from server.operations.logs import take_request_id
from server.protocols.handshake import json_response, render_refusal
from server.replica import Replica

OWNER = "tutti"


class ModelOut(msgspec.Struct):
    """A model: the first four fields are OpenAI's, the others Deepgram's. `languages` is empty if unknown."""

    id: str
    created: int  # seconds since 1970: start of this server, since checkpoints have no creation time
    object: str
    owned_by: str
    name: str
    canonical_name: str
    architecture: str
    languages: tuple[str, ...]
    version: str
    uuid: str
    loaded: bool  # False: loaded by the first request for it, or by an operator
    batch: bool = True
    streaming: bool = True
    formatted_output: bool = True


class ModelsOut(msgspec.Struct):
    """All models: OpenAI clients read `data`, Deepgram clients `stt`."""

    object: str
    data: list[ModelOut]
    stt: list[ModelOut]
    tts: list[ModelOut] = []


class NoSuchModel(msgspec.Struct):
    """Error for an unknown name, in a format that both kinds of client show."""

    error: dict[str, str]
    err_code: str
    err_msg: str
    request_id: str


def models_router(replica: Replica, created: int) -> APIRouter:
    """Return the routes of `/v1/models`, which need a key if streams do. `created` is reported for every model."""
    router = APIRouter(tags=["models"])

    def refusal(request: Request, request_id: str) -> Response | None:
        try:
            replica.guard.identify(request, Credentials.read(request.headers.get("authorization"), ()))
        except Refused as error:
            return render_refusal(replica.guard.refuse(error), request_id)
        return None

    @router.get("/v1/models", response_class=Response)
    async def models(request: Request) -> Response:
        """List the models, the default first; some are loaded by the first request for them."""
        listed = [_model(entry, created) for entry in replica.models.entries]
        return refusal(request, take_request_id()) or json_response(ModelsOut("list", listed, listed))

    @router.get("/v1/models/{name}", response_class=Response)
    async def model(request: Request, name: str) -> Response:
        """Return one model by its name, uuid or alias."""
        request_id = take_request_id()
        refused = refusal(request, request_id)
        if refused is not None:
            return refused
        by_uuid = [entry for entry in replica.models.entries if entry.card.uuid == name]
        entry = by_uuid[0] if by_uuid else replica.models.known(name)
        return json_response(_model(entry, created)) if entry is not None else _unknown(name, request_id)

    @router.get("/.well-known/jwks.json", response_class=Response)
    async def receipt_keys() -> Response:
        """Return the public keys of receipts as JWKS, without a key of the caller; empty if no receipts are signed."""
        keys = replica.receipts
        text = '{"keys": []}' if keys is None else keys.as_text(private=False)
        return Response(text, media_type="application/jwk-set+json")

    return router


def _model(entry: RegistryEntry, created: int) -> ModelOut:
    card = entry.card
    return ModelOut(
        id=card.name,
        created=created,
        object="model",
        owned_by=OWNER,
        name=card.name,
        canonical_name=card.name,
        architecture=card.architecture,
        languages=entry.languages,
        version=card.version,
        uuid=card.uuid,
        loaded=entry.phase is Phase.LOADED,
    )


def _unknown(name: str, request_id: str) -> Response:
    said = f"model: {name[:SHOWN]!r} is not served here; GET /v1/models lists the models"
    error = {"message": said, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    return json_response(NoSuchModel(error, REFUSALS[BadParameter].err_code, said, request_id), 404)
