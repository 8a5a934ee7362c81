"""Fields of a `session.update`: which are read, ignored or refused. Pure.

Unknown fields are errors, including those of the retired beta (`input_audio_format`, a flat `turn_detection`): if they
were ignored, the audio would be misread. A harmless field is listed in the session's description, as `ignored_params`.
Source: the types of the `openai` package 3.51.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from server.errors import BadFrame
from server.protocols.features import SHOWN


class FieldKind(Enum):
    """How a field of an update is treated."""

    READ = "read"  # has its documented effect
    HARMLESS = "harmless"  # ignored: the text means the same without it
    UNSUPPORTED = "unsupported"  # refused, unless the server is lenient
    UNKNOWN = "unknown"  # refused


READ, HARMLESS, UNSUPPORTED, UNKNOWN = FieldKind
Tree = Mapping[str, Any]  # field name to its kind, or to the tree of an object's fields
TURNS: Tree = {
    "type": READ, "silence_duration_ms": READ, "threshold": HARMLESS, "prefix_padding_ms": HARMLESS,
    "create_response": HARMLESS, "interrupt_response": HARMLESS,
    "eagerness": READ, "idle_timeout_ms": UNSUPPORTED,
}  # fmt: skip
TRANSCRIPTION: Tree = {
    "model": READ, "language": READ, "languages": READ, "keywords": READ, "delay": HARMLESS, "prompt": READ,
}  # fmt: skip
INPUT: Tree = {
    "format": {"type": READ, "rate": READ},
    "transcription": TRANSCRIPTION,
    "turn_detection": TURNS,
    "noise_reduction": {"type": HARMLESS, "strength": HARMLESS},
}
SESSION: Tree = {"type": READ, "include": UNSUPPORTED, "audio": {"input": INPUT}}
INSTEAD = {
    "idle_timeout_ms": "leave it out; the server's own idle timeout applies",
}
_OFF: tuple[object, ...] = (None, "", [], {})  # values that request nothing
MAX_NAMED = 16  # fields listed in one error


class ErrorCode(StrEnum):
    """Codes of `error` events in a session."""

    INVALID_VALUE = "invalid_value"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    COMMIT_EMPTY = "input_audio_buffer_commit_empty"
    SESSION_EXPIRED = "session_expired"
    SERVER_ERROR = "server_error"


class BadField(BadFrame):
    """A refused field of an event; `code` and `param` are those of the error sent to the client."""

    def __init__(self, code: ErrorCode, param: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param[: 4 * SHOWN]


@dataclass(frozen=True, slots=True)
class Found:
    """A field of an update that is not read, by its path."""

    path: str
    kind: FieldKind


def walk(given: object, tree: Tree = SESSION, path: str = "session") -> Iterator[Found]:
    """Yield the fields of an update that are not read, in order; nothing for a value that is not an object."""
    if not isinstance(given, dict):
        return
    for name, value in given.items():
        below, here = tree.get(name, UNKNOWN), f"{path}.{name[:SHOWN]}"
        if isinstance(below, Mapping):
            yield from walk(value, below, here)
        elif below is UNKNOWN or (below is not READ and value not in _OFF):
            yield Found(here, below)


def checked(found: list[Found], *, lenient: bool) -> tuple[str, ...]:
    """Refuse unknown fields, and unsupported ones unless lenient; return the paths of the ignored fields.

    Raises: BadField.
    """
    unknown = [field.path for field in found if field.kind is UNKNOWN]
    if unknown:
        raise unknown_parameter(*unknown)
    refused = [field.path for field in found if field.kind is UNSUPPORTED]
    if refused and not lenient:
        raise unsupported(*refused)
    return tuple(field.path for field in found)


def unknown_parameter(param: str, *others: str) -> BadField:
    """Return the error for unknown fields, in the words of OpenAI's service."""
    also = f" Also unknown: {_listed(others)}." if others else ""
    return BadField(ErrorCode.UNKNOWN_PARAMETER, param, f"Unknown parameter: '{param}'.{also}")


def unsupported(param: str, *others: str, what: str = "") -> BadField:
    """Return the error for unsupported fields; `what` is inserted before "not supported"."""
    also = f" (also not supported: {_listed(others)})" if others else ""
    name = param.rpartition(".")[2]
    instead = INSTEAD.get(name, "leave it out")
    return BadField(
        ErrorCode.UNSUPPORTED_PARAMETER, param, f"{param}: {what}not supported by this server{also}; {instead}"
    )


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(paths[:MAX_NAMED])
