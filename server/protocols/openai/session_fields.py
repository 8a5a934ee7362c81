"""Fields of a `session.update`: those that this server reads, does without, or refuses by name. Pure.

A field that the interface does not have is an error, as those of the retired beta (`input_audio_format`, a flat
`turn_detection`): ignored, they would have the audio misread. One that changes no text is named in the description of
the session, as `ignored_params`. Source: the types of the `openai` package 3.51.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from server.errors import BadFrame
from server.protocols.features import SHOWN


class FieldKind(Enum):
    """What a field is to this server."""

    READ = "read"
    HARMLESS = "harmless"  # the text means the same without it
    LACKED = "lacked"
    UNKNOWN = "unknown"


READ, HARMLESS, LACKED, UNKNOWN = FieldKind
Tree = Mapping[str, Any]  # of each field its kind, or the tree of an object's fields
TURNS: Tree = {
    "type": READ, "silence_duration_ms": READ, "threshold": HARMLESS, "prefix_padding_ms": HARMLESS,
    "create_response": HARMLESS, "interrupt_response": HARMLESS, "idle_timeout_ms": LACKED, "eagerness": LACKED,
}  # fmt: skip
TRANSCRIPTION: Tree = {
    "model": READ, "language": READ, "languages": READ, "keywords": READ, "delay": HARMLESS, "prompt": LACKED,
}  # fmt: skip
INPUT: Tree = {
    "format": {"type": READ, "rate": READ},
    "transcription": TRANSCRIPTION,
    "turn_detection": TURNS,
    "noise_reduction": {"type": HARMLESS, "strength": HARMLESS},
}
SESSION: Tree = {"type": READ, "include": LACKED, "audio": {"input": INPUT}}
INSTEAD = {
    "prompt": "name words to listen for in keywords",
    "eagerness": "turns end by silence_duration_ms",
    "idle_timeout_ms": "the server's own time limit closes an idle session",
}
_OFF: tuple[object, ...] = (None, "", [], {})  # values that ask for nothing
MAX_NAMED = 16  # fields that one error names


class BadField(BadFrame):
    """A field of an event that is not taken; `code` and `param` are those of the error for the client."""

    def __init__(self, code: str, param: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param[: 4 * SHOWN]


@dataclass(frozen=True, slots=True)
class Found:
    """A field of an update by its path."""

    path: str
    kind: FieldKind


def walk(given: object, tree: Tree = SESSION, path: str = "session") -> Iterator[Found]:
    """Yield the fields of an update that are not read, in order; what is no object where one belongs has none."""
    if not isinstance(given, dict):
        return
    for name, value in given.items():
        below, here = tree.get(name, UNKNOWN), f"{path}.{name[:SHOWN]}"
        if isinstance(below, Mapping):
            yield from walk(value, below, here)
        elif below is UNKNOWN or (below is not READ and value not in _OFF):
            yield Found(here, below)


def checked(found: list[Found], *, lenient: bool) -> tuple[str, ...]:
    """Refuse fields that are unknown, or lacked and asked for; return the paths of those that are ignored.

    Raises: BadField.
    """
    unknown = [field.path for field in found if field.kind is UNKNOWN]
    if unknown:
        raise unknown_parameter(*unknown)
    lacked = [field.path for field in found if field.kind is LACKED]
    if lacked and not lenient:
        raise unsupported(*lacked)
    return tuple(field.path for field in found)


def unknown_parameter(param: str, *others: str) -> BadField:
    """Return the error of fields that the interface does not have, in the words of OpenAI's service."""
    also = f" So are: {_listed(others)}." if others else ""
    return BadField("unknown_parameter", param, f"Unknown parameter: '{param}'.{also}")


def unsupported(param: str, *others: str, what: str = "") -> BadField:
    """Return the error of fields that the interface has and this server lacks; `what` begins it with a value."""
    also = f" (nor is {_listed(others)})" if others else ""
    name = param.rpartition(".")[2]
    instead = INSTEAD.get(name, "leave it out")
    return BadField("unsupported_parameter", param, f"{param}: {what}not supported by this server{also}; {instead}")


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(paths[:MAX_NAMED])
