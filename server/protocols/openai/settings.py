"""Settings of a Realtime transcription session: updates, values in force, and their description for the client. Pure.

Unknown fields of an update are errors, including those of the retired beta (`input_audio_format`, a flat
`turn_detection`): if they were ignored, the audio would be misread. A harmless field is listed in the description, as
`ignored_params`. Source: the types of the `openai` package 3.51.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.audio.raw import PlainCodec
from server.errors import BadFrame, BadParameter
from server.models.selection import ModelNames
from server.protocols.features import SHOWN, problem_of, unsupported_feature
from server.recognition.segments.endpointing import ScoredEnd


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
INSTEAD = {"idle_timeout_ms": "leave it out; the server's own idle timeout applies"}
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


def walk(fields: object, tree: Tree = SESSION, path: str = "session") -> Iterator[tuple[str, FieldKind]]:
    """Yield the fields of an update that are not read, by path, in order; none of a value that is not an object."""
    if not isinstance(fields, dict):
        return
    for name, value in fields.items():
        kind, field_path = tree.get(name, UNKNOWN), f"{path}.{name[:SHOWN]}"
        if isinstance(kind, Mapping):
            yield from walk(value, kind, field_path)
        elif kind is UNKNOWN or (kind is not READ and value not in _OFF):
            yield field_path, kind


def checked(fields: Sequence[tuple[str, FieldKind]], *, lenient: bool) -> tuple[str, ...]:
    """Refuse unknown fields, and unsupported ones unless lenient; return the paths of the ignored fields.

    Raises: BadField.
    """
    unknown = [path for path, kind in fields if kind is UNKNOWN]
    if unknown:
        raise unknown_parameter(*unknown)
    refused = [path for path, kind in fields if kind is UNSUPPORTED]
    if refused and not lenient:
        raise unsupported(*refused)
    return tuple(path for path, _ in fields)


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


RATE = 24_000  # Hz, the default for audio/pcm
TELEPHONE_RATE = 8_000
RATES = range(8_000, 48_001)
SILENCE_MS = 500  # Source: the documented default of silence_duration_ms
SILENCES_MS = range(20, 60_001)
MAX_PROMPT = 4_096  # characters; of its words the last 100 count
_CODECS = {"audio/pcm": PlainCodec.S16, "audio/pcmu": PlainCodec.MULAW, "audio/pcma": PlainCodec.ALAW}


class FormatIn(msgspec.Struct, frozen=True):
    """Audio format; only audio/pcm has a choice of rates."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int | None = None


Text = Annotated[str, Meta(min_length=1)]


class TranscriptionIn(msgspec.Struct, frozen=True):
    """Model, one or several languages that may be spoken, key terms, and a text whose rare words are key terms."""

    model: Text | None = None
    language: Text | None = None
    languages: Annotated[list[Text], Meta(min_length=1)] | UnsetType = UNSET
    keywords: list[str] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    prompt: str | None = None


Eagerness = Literal["low", "medium", "high", "auto"]
# Source of the timeouts: OpenAI's guide to voice activity detection. The thresholds: docs/voice-agents.md.
_MEDIUM = ScoredEnd(0.93, 4.0)
EAGERNESS: dict[Eagerness, ScoredEnd] = {
    "low": ScoredEnd(0.97, 8.0),
    "medium": _MEDIUM,
    "high": ScoredEnd(0.85, 2.0),
    "auto": _MEDIUM,
}


class TurnDetection(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a turn of speech ends: after silence (server_vad), or by the score of its end (semantic_vad)."""

    type: Literal["server_vad", "semantic_vad"]
    silence_duration_ms: int | None = None
    eagerness: Eagerness | None = None
    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    prefix_padding_ms: Annotated[int, Meta(ge=0)] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


class NoiseReductionIn(msgspec.Struct, frozen=True):
    """Kind of microphone; has no effect here."""

    type: Literal["near_field", "far_field"] | None = None
    strength: Annotated[float, Meta(ge=0, le=1)] | None = None


DEFAULT_TURNS = TurnDetection("server_vad", SILENCE_MS)


class InputIn(msgspec.Struct, frozen=True):
    """Settings of incoming audio; omitted ones stay unchanged."""

    format: FormatIn | UnsetType = UNSET
    transcription: TranscriptionIn | UnsetType | None = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET
    noise_reduction: NoiseReductionIn | UnsetType | None = UNSET


class AudioIn(msgspec.Struct, frozen=True):
    """Audio settings: only input."""

    input: InputIn = InputIn()


class SessionIn(msgspec.Struct, frozen=True):
    """The `session` of a `session.update`."""

    type: Literal["transcription"] = "transcription"
    audio: AudioIn = AudioIn()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings in force. `served` is the session's model, `model` the name that the client gave, None if it gave none.

    `turns` is None if only the client ends turns.
    """

    served: str
    model: str | None = None
    format: str = "audio/pcm"
    rate: int = RATE
    language: str | None = None
    keywords: tuple[str, ...] = ()
    prompt: str = ""
    languages: tuple[str, ...] = ()  # that may be spoken, if the client gave a list
    turns: TurnDetection | None = DEFAULT_TURNS
    ignored: tuple[str, ...] = ()  # fields without effect in the last update

    @property
    def codec(self) -> PlainCodec:
        """Sample encoding."""
        return _CODECS[self.format]

    def updated(self, raw: msgspec.Raw, names: ModelNames, *, lenient: bool = False) -> SessionSettings:
        """Return the settings after an update; a `lenient` server ignores unsupported fields.

        Raises: BadFrame, whose message is meant for the client.
        """
        try:
            fields = msgspec.json.decode(raw)
            ignored = () if _other_type(fields) else checked(list(walk(fields)), lenient=lenient)
            update = msgspec.convert(fields, SessionIn)
        except msgspec.ValidationError as error:
            raise BadFrame(problem_of(error, SessionIn, "session")) from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadFrame(f"session: {error}") from error
        changes = update.audio.input
        settings = replace(self, ignored=ignored)
        if changes.format is not UNSET:
            settings = replace(settings, format=changes.format.type, rate=_rate(changes.format))
        if changes.transcription:
            settings = _with_transcription(settings, changes.transcription, names, lenient=lenient)
        if changes.turn_detection is not UNSET:
            settings = replace(settings, turns=_turns(changes.turn_detection))
        return settings

    @property
    def silence_ms(self) -> float:
        """Silence in ms that ends an utterance, whether or not it ends a turn."""
        if self.scored_end is not None:
            return 0.0  # the operator's minimum
        asked_ms = None if self.turns is None else self.turns.silence_duration_ms
        return float(SILENCE_MS if asked_ms is None else asked_ms)

    @property
    def scored_end(self) -> ScoredEnd | None:
        """Rule by which the score of an end of turn ends utterances; None with server_vad."""
        if self.turns is None or self.turns.type == "server_vad":
            return None
        return EAGERNESS[self.turns.eagerness or "auto"]

    def described(self, session_id: str, min_silence_ms: float) -> dict[str, object]:
        """Return the session as sent to the client; `min_silence_ms` is the shortest silence that ends a turn."""
        turns: dict[str, object] | None = None
        if self.turns is not None:
            turns = {"type": self.turns.type}
            if self.turns.type == "server_vad":
                silence_ms = round(max(self.silence_ms, min_silence_ms))
                turns |= {"threshold": 0.5, "prefix_padding_ms": 0, "silence_duration_ms": silence_ms}
            else:
                turns["eagerness"] = self.turns.eagerness or "auto"
        pcm = {"type": self.format, "rate": self.rate} if self.format == "audio/pcm" else {"type": self.format}
        transcription: dict[str, object] = {"model": self.model or self.served, "language": self.language}
        if self.languages:
            transcription["languages"] = self.languages
        if self.keywords:
            transcription["keywords"] = self.keywords
        if self.prompt:
            transcription["prompt"] = self.prompt
        audio = {"format": pcm, "noise_reduction": None, "transcription": transcription, "turn_detection": turns}
        ignored = {"ignored_params": self.ignored} if self.ignored else {}
        return {
            "id": session_id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": {"input": audio},
            "include": None,
            **ignored,
        }


def _other_type(fields: object) -> bool:
    """Return whether an update is for another type of session, which has other fields."""
    return isinstance(fields, dict) and fields.get("type", "transcription") != "transcription"


def _rate(form: FormatIn) -> int:
    if form.type != "audio/pcm":
        allowed, rate = range(TELEPHONE_RATE, TELEPHONE_RATE + 1), TELEPHONE_RATE
    else:
        allowed, rate = RATES, RATE
    if form.rate is None:
        return rate
    if form.rate not in allowed:
        valid = f"{allowed[0]}" if len(allowed) == 1 else f"from {allowed[0]} to {allowed[-1]}"
        raise BadFrame(f"session.audio.input.format.rate: {form.rate} is not valid for {form.type}; must be {valid}")
    return form.rate


def _with_transcription(
    settings: SessionSettings, changes: TranscriptionIn, names: ModelNames, *, lenient: bool
) -> SessionSettings:
    path = "session.audio.input.transcription"
    keywords = settings.keywords if changes.keywords is None else tuple(changes.keywords)
    prompt = settings.prompt if changes.prompt is None else changes.prompt
    if len(prompt) > MAX_PROMPT:
        raise BadFrame(f"{path}.prompt: {len(prompt)} characters; at most {MAX_PROMPT}")
    settings = replace(settings, prompt=prompt)
    model, languages = changes.model or settings.model, settings.languages
    if changes.languages is not UNSET:
        languages = tuple(changes.languages)
    elif changes.language:
        languages = ()
    language = languages[0] if languages else changes.language or settings.language
    spoken = [*languages, *([changes.language] if changes.language else [])]
    for name, values in (("model", [changes.model or ""]), ("language", spoken)):
        if not lenient and any(unsupported_feature(name, value) for value in values):
            raise unsupported(f"{path}.{name}", what=f"{values[0]!r} is ")
    try:
        names.one_language("languages" if languages else "language", model, spoken)
        served = names.choose(model, language)
    except BadParameter as error:
        raise BadFrame(f"{path}.{error}") from error
    return replace(settings, served=served, model=model, language=language, languages=languages, keywords=keywords)


def _turns(turns: TurnDetection | None) -> TurnDetection | None:
    """Raises: BadFrame."""
    if turns is None:
        return None
    path, silence_ms = "session.audio.input.turn_detection", turns.silence_duration_ms
    if turns.type == "semantic_vad" and silence_ms is not None:
        raise BadFrame(f"{path}.silence_duration_ms: cannot be combined with semantic_vad; set eagerness instead")
    if turns.type == "server_vad" and turns.eagerness is not None:
        raise BadFrame(f"{path}.eagerness: cannot be combined with server_vad; set silence_duration_ms instead")
    if silence_ms is not None and silence_ms not in SILENCES_MS:
        allowed = f"from {SILENCES_MS[0]} to {SILENCES_MS[-1]}"
        raise BadFrame(f"{path}.silence_duration_ms: {silence_ms} is not valid; must be {allowed}")
    return turns
