"""Messages of Deepgram's Flux protocol. Pure.

Source: `listen.v2` of deepgram-sdk 7.17.0 and @deepgram/sdk 5.13.0. A `ConfigureFailure` has its code twice: the SDK
reads `code`, Pipecat 1.14 `error_code`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import BadFrame, BadParameter
from server.recognition.turns import TurnRules
from server.text.formatting import FormattedWord

END_THRESHOLDS = (0.5, 1.0)
EAGER_THRESHOLDS = (0.3, 0.9)
TIMEOUTS_MS = (500, 60_000)
SUPPORTED = frozenset({"type", "thresholds", "keyterms"})
THRESHOLDS = frozenset({"eager_eot_threshold", "eot_threshold", "eot_timeout_ms"})
_SHOWN = 32  # longest excerpt of a client's text in an error
encode = msgspec.json.Encoder().encode


class FluxCode(StrEnum):
    """Codes of `Error`, `ConfigureFailure` and `Warning`."""

    UNPARSABLE = "UNPARSABLE_CLIENT_MESSAGE"
    INTERNAL = "INTERNAL_SERVER_ERROR"
    INVALID_CONFIGURE = "INVALID_CONFIGURE"
    AUDIO = "AUDIO_WARNING"
    NO_ACTIVE_TURN = "FORCE_END_TURN_NO_ACTIVE_TURN"


class WordOut(msgspec.Struct):
    """A word with capitals and marks, where the event has them; times in seconds of the stream."""

    word: str
    confidence: float
    start: float
    end: float


class TurnInfo(msgspec.Struct, tag_field="type", tag="TurnInfo"):
    """An event of a turn. `transcript` is the whole turn so far.

    Clients take `languages[0]`, else English: absent for an English model unless the client asked for several.
    """

    request_id: str
    sequence_id: int
    event: str
    turn_index: int
    audio_window_start: float
    audio_window_end: float
    transcript: str
    words: list[WordOut]
    end_of_turn_confidence: float
    trigger: str | UnsetType = UNSET
    languages: list[str] | UnsetType = UNSET
    languages_hinted: list[str] | UnsetType = UNSET


class Connected(msgspec.Struct, tag_field="type", tag="Connected"):
    """The first message."""

    request_id: str
    sequence_id: int


class ThresholdsOut(msgspec.Struct):
    """The thresholds in force."""

    eot_threshold: float
    eot_timeout_ms: int
    eager_eot_threshold: float | UnsetType = UNSET


class ConfigureSuccess(msgspec.Struct, tag_field="type", tag="ConfigureSuccess"):
    """Answer to a `Configure` that was applied, with all values in force."""

    request_id: str
    sequence_id: int
    thresholds: ThresholdsOut
    keyterms: Sequence[str]


class ConfigureFailure(msgspec.Struct, tag_field="type", tag="ConfigureFailure"):
    """Answer to a `Configure` of which nothing was applied."""

    request_id: str
    sequence_id: int
    code: str
    error_code: str
    description: str


class WarningMessage(msgspec.Struct, tag_field="type", tag="Warning"):
    """A message without effect, or audio that was transcribed nevertheless (`kind: sentence`); the stream continues."""

    request_id: str
    sequence_id: int
    code: str
    description: str


class ErrorMessage(msgspec.Struct, tag_field="type", tag="Error"):
    """An error; the connection closes after it."""

    request_id: str
    sequence_id: int
    code: str
    description: str


def word_out(formatted: FormattedWord) -> WordOut:
    """Build one word."""
    word = formatted.word
    return WordOut(formatted.text, round(word.confidence, 4), round(word.start_s, 3), round(word.end_s, 3))


def thresholds_of(rules: TurnRules) -> ThresholdsOut:
    """Return the thresholds on the wire."""
    eager = UNSET if rules.eager_threshold is None else rules.eager_threshold
    return ThresholdsOut(rules.end_threshold, round(rules.timeout_s * 1_000), eager)


def parse_message(text: str) -> dict[str, Any]:
    """Return a client message, an object whose `type` is text. Raises: BadFrame."""
    try:
        message = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadFrame("invalid message: not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadFrame("invalid message: expected a JSON object with a type")
    return message


def rules_of(rules: TurnRules, given: dict[str, Any]) -> TurnRules:
    """Return the rules with the given thresholds; null is off for the eager one, the default for the others.

    Raises: BadParameter.
    """
    default = TurnRules()
    for name, value in given.items():
        if name == "eot_threshold":
            number = default.end_threshold if value is None else _number(name, value, END_THRESHOLDS)
            rules = replace(rules, end_threshold=number)
        elif name == "eager_eot_threshold":
            rules = replace(rules, eager_threshold=None if value is None else _number(name, value, EAGER_THRESHOLDS))
        elif name == "eot_timeout_ms":
            timeout_s = default.timeout_s if value is None else _number(name, value, TIMEOUTS_MS) / 1_000
            rules = replace(rules, timeout_s=timeout_s)
        else:
            raise BadParameter(f"{_shown(name)}: not a threshold; must be one of {', '.join(sorted(THRESHOLDS))}")
    if rules.eager_threshold is not None and rules.eager_threshold > rules.end_threshold:
        eager, end = rules.eager_threshold, rules.end_threshold
        raise BadParameter(f"eager_eot_threshold: {eager:g} is above eot_threshold={end:g}; set at most that")
    return rules


def configured(
    rules: TurnRules, message: dict[str, Any], in_force: Mapping[str, object]
) -> tuple[TurnRules, tuple[str, ...] | None]:
    """Return the rules and key terms of a `Configure`; None if it does not set key terms. Raises: BadParameter.

    `in_force` has the stream's values of settings that cannot change: a `Configure` may repeat them.
    """
    for name, value in message.items():
        if value is None or name in SUPPORTED:
            continue
        if name in in_force:
            if value != in_force[name]:
                raise BadParameter(f"{name}: cannot be changed during a stream; leave it out")
        elif value not in (False, []):
            raise BadParameter(f"{_shown(name)}: not supported by this server in Configure; leave it out")
    thresholds = message.get("thresholds")
    if thresholds is not None and not isinstance(thresholds, dict):
        raise BadParameter("thresholds: must be an object")
    terms = keyterms_of(message)
    return rules_of(rules, thresholds or {}), terms


def keyterms_of(message: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the key terms of a `Configure`, None if it does not set them. Raises: BadParameter."""
    keyterms = message.get("keyterms")
    if keyterms is None:
        return None
    if not (isinstance(keyterms, list) and all(isinstance(term, str) for term in keyterms)):
        raise BadParameter("keyterms: must be a list of texts")
    return tuple(term.strip() for term in keyterms if term.strip())


def _number(name: str, value: object, bounds: tuple[float, float]) -> float:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        shown = f"{value:g}" if isinstance(value, float) else repr(_shown(str(value)))
        raise BadParameter(f"{name}: {shown} is not valid; must be a number from {low:g} to {high:g}")
    return float(value)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:_SHOWN])
