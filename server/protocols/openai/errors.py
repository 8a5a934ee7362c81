"""Refusals in OpenAI's form. Pure. Source: the `openai` package 3.51.0, which reads what is in `error`."""

from __future__ import annotations

import msgspec

MESSAGE, SERVER, KEY = "invalid_request_error", "server_error", "authentication_error"
_CODES = {401: "invalid_api_key", 403: "insufficient_permissions", 429: "rate_limit_exceeded", 503: "server_overloaded"}


class ErrorDetail(msgspec.Struct):
    """What went wrong; `param` names the field that it is about."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of an answer that is a refusal."""

    error: ErrorDetail


def error_body(status: int, message: str) -> bytes:
    """Build the body of a refusal with this HTTP status."""
    field, colon, _ = message.partition(": ")
    param = field if colon and field.isidentifier() else None
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, _kind(status), param, _CODES.get(status))))


def _kind(status: int) -> str:
    if status in (401, 403):
        return KEY
    return SERVER if status >= 500 else MESSAGE
