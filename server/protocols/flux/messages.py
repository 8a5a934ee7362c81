"""Query and messages of Deepgram's Flux protocol. Pure.

Every parameter that this server does not support is refused by name, or listed in `ignored` by a lenient server, except
values that switch a feature off and those that change no text (`mip_opt_out`, `tag`).

Source: `listen.v2` of deepgram-sdk 7.17.0 and @deepgram/sdk 5.13.0. A `ConfigureFailure` has its code twice: the SDK
reads `code`, Pipecat 1.14 `error_code`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from model.ctc.words import Word
from model.prompts import Prompts
from server.errors import BadFrame, BadParameter
from server.models.selection import ModelNames, is_english
from server.protocols.features import (
    NEVER_IGNORED,
    OFF,
    WAIT,
    boolean,
    check_given,
    check_single,
    extra_of,
    form_of,
    in_plain_names,
    named,
    plain_name,
    printable,
    redaction,
)
from server.recognition.keyterms.keyterms import Keyterms
from server.recognition.request import Request
from server.recognition.session_options import SessionOptions, finals_of
from server.recognition.turns import TurnRules
from server.text.formatting import Style

END_THRESHOLDS = (0.5, 1.0)
EAGER_THRESHOLDS = (0.3, 0.9)
TIMEOUTS_MS = (500, 60_000)
SUPPORTED = frozenset({"type", "thresholds", "keyterms", "backchannel"})
BACKCHANNELS = ("mark", "hold")
THRESHOLDS = frozenset({"eager_eot_threshold", "eot_threshold", "eot_timeout_ms"})
_SHOWN = 32  # longest excerpt of a client's text in an error
ENGLISH, MULTILINGUAL = "flux-general-en", "flux-general-multi"
LENIENCE = "leave it out, or start the server with --lenient-features to have it ignored"
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
REPEATABLE = frozenset({"extra", "keyterm", "language_hint", "redact", "tag"})
QUERY = frozenset({
    "model", "encoding", "sample_rate", "eager_eot_threshold", "eot_threshold", "eot_timeout_ms", "backchannel",
    "extra", "finals", "keyterm", "language_hint", "numerals", "profanity_filter", "mip_opt_out", "redact", "rest",
    "tag", "wait_in_numbers",
})  # fmt: skip
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
    backchannel: bool | UnsetType = UNSET  # extension: true while the turn only acknowledges, "uh-huh"


def word_out(word: Word, text: str) -> WordOut:
    """Build one word, which is written as `text`."""
    return WordOut(text, round(word.confidence, 4), round(word.start_s, 3), round(word.end_s, 3))


def thresholds_of(rules: TurnRules) -> dict[str, float]:
    """Return the thresholds on the wire."""
    thresholds = {"eot_threshold": rules.end_threshold, "eot_timeout_ms": round(rules.timeout_s * 1_000)}
    return thresholds | ({} if rules.eager_threshold is None else {"eager_eot_threshold": rules.eager_threshold})


def parse_message(text: str) -> dict[str, Any]:
    """Return a client message, an object whose `type` is text. Raises: BadFrame."""
    try:
        message = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadFrame("invalid message: not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadFrame("invalid message: expected a JSON object with a type")
    return message


def rules_of(rules: TurnRules, thresholds: dict[str, Any]) -> TurnRules:
    """Return the rules with the given thresholds; null is off for the eager one, the default for the others.

    Raises: BadParameter.
    """
    default = TurnRules()
    for name, value in thresholds.items():
        if name == "eot_threshold":
            number = default.end_threshold if value is None else _number(name, value, END_THRESHOLDS)
            rules = replace(rules, end_threshold=number)
        elif name == "eager_eot_threshold":
            rules = replace(rules, eager_threshold=None if value is None else _number(name, value, EAGER_THRESHOLDS))
        elif name == "eot_timeout_ms":
            timeout_s = default.timeout_s if value is None else _number(name, value, TIMEOUTS_MS) / 1_000
            rules = replace(rules, timeout_s=timeout_s)
        else:
            raise BadParameter(
                f"{printable(name, _SHOWN)}: not a threshold; must be one of {', '.join(sorted(THRESHOLDS))}"
            )
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
            raise BadParameter(f"{printable(name, _SHOWN)}: not supported by this server in Configure; leave it out")
    thresholds = message.get("thresholds")
    if thresholds is not None and not isinstance(thresholds, dict):
        raise BadParameter("thresholds: must be an object")
    rules = replace(rules_of(rules, thresholds or {}), **backchannel_of(message.get("backchannel")))
    return rules, keyterms_of(message)


def backchannel_of(value: object) -> dict[str, bool]:
    """Return the rule that a value of `backchannel` sets, none for None. Raises: BadParameter."""
    if value is None:
        return {}
    if value not in BACKCHANNELS:
        excerpt = repr(printable(str(value), _SHOWN))
        raise BadParameter(f"backchannel: {excerpt} is not one of {', '.join(BACKCHANNELS)}")
    return {"holds_backchannel": value == "hold"}


def hints_of(message: dict[str, Any], prompts: Prompts) -> tuple[str, ...] | None:
    """Return the language hints of a `Configure`, None if it does not set them. Raises: BadParameter."""
    hints = message.get("language_hints")
    if hints is None:
        return None
    if not (isinstance(hints, list) and all(isinstance(hint, str) for hint in hints)):
        raise BadParameter("language_hints: must be a list of texts")
    for hint in hints:
        if prompts.choice(hint) is None:
            raise BadParameter(
                f"language_hints: {printable(hint, _SHOWN)!r} is not one of {', '.join(prompts.languages)}"
            )
    return tuple(hints)


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
        excerpt = f"{value:g}" if isinstance(value, float) else repr(printable(str(value), _SHOWN))
        raise BadParameter(f"{name}: {excerpt} is not valid; must be a number from {low:g} to {high:g}")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxRequest(Request):
    """A parsed query. `model`, `language` and `hints` select the model.

    `multilingual`: the language is that of the hints, which the server has to know.
    """

    model: str | None
    language: str | None
    rules: TurnRules
    phrases: tuple[str, ...]  # key terms, which `with_keyterms` adds to the options
    hints: tuple[str, ...] = ()
    multilingual: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)  # which `Connected` repeats
    ignored: tuple[str, ...] = ()

    def with_keyterms(self) -> FluxRequest:
        """Raises: BadParameter."""
        return replace(self, options=replace(self.options, keyterms=Keyterms.of_request("keyterm", self.phrases)))


def parse_query(pairs: Sequence[tuple[str, str]], *, lenient: bool = False, detects: bool = False) -> FluxRequest:
    """Parse the query; a `lenient` server ignores unsupported features.

    `detects`: the default model finds out the language. Raises: BadParameter, which names the first.
    """
    pairs = in_plain_names(pairs, QUERY)
    listed = [(name, value) for name, value in pairs if name in QUERY]
    check_single(listed, REPEATABLE)
    check_given(listed)
    query = dict(listed)
    ignored = list(_unsupported(pairs, lenient=lenient))
    if boolean("profanity_filter", query.get("profanity_filter", "false")):
        ignored.append("profanity_filter")
        if not lenient:
            raise BadParameter(f"profanity_filter: not supported by this server; {LENIENCE}")
    boolean("mip_opt_out", query.get("mip_opt_out", "false"))
    model, language = _model(query.get("model"))
    thresholds = {name: _float(name, query[name]) for name in sorted(query) if name.startswith(("eot_", "eager_"))}
    style = Style(punctuate=True, numerals=boolean("numerals", query.get("numerals", "false")))
    phrases = tuple(value.strip() for name, value in listed if name == "keyterm")
    hints = tuple(value.strip() for name, value in listed if name == "language_hint")
    rules = rules_of(TurnRules(**backchannel_of(query.get("backchannel"))), thresholds)
    multilingual = query["model"].casefold() == MULTILINGUAL
    if multilingual and not hints and not detects:
        ignored.append("model")
        if not lenient:
            raise BadParameter(
                f"language_hint: missing; a stream has one language here, so {MULTILINGUAL} needs it, for example en"
            )
    form = form_of(query)
    options = SessionOptions(
        form.decoded_rate(0),
        partials=True,
        every_step=True,
        speech_events=True,
        endpointing_ms=0.0,  # the operator's minimum
        scored_end=rules.scored_end,
        finals=finals_of(query.get("finals", "")),
        redact=redaction(listed),
        fork_after_s=rules.fork_after_s,
        forks=True,
        marks_acknowledgements=True,
        rest=boolean("rest", query["rest"]) if "rest" in query else None,
        wait_in_numbers=boolean(WAIT, query[WAIT]) if WAIT in query else None,
    )
    return FluxRequest(
        form=form,
        options=options,
        style=style,
        model=model,
        language=language,
        rules=rules,
        phrases=phrases,
        hints=hints,
        multilingual=multilingual,
        extra=extra_of(listed),
        ignored=named(ignored),
    )


def _unsupported(pairs: Sequence[tuple[str, str]], *, lenient: bool) -> Iterator[str]:
    """Yield the names of parameters that this path does not have. Raises: BadParameter unless it may ignore them."""
    for name, value in pairs:
        never = plain_name(name).startswith(NEVER_IGNORED)
        if name in QUERY or (value.casefold() in OFF and not never):
            continue
        if never or not lenient:
            raise BadParameter(
                f"{printable(name)}: not supported at /v2/listen; {'leave it out' if never else LENIENCE}"
            )
        yield name


def _model(name: str | None) -> tuple[str | None, str | None]:
    """Return the model and language to select. Raises: BadParameter."""
    if name is None:
        raise BadParameter(f"model: missing; set model={ENGLISH} or the name of a model of this server")
    if name.casefold() == ENGLISH:
        return None, "en"
    return (None if name.casefold() == MULTILINGUAL else name), None


def language_of(request: FluxRequest, names: ModelNames) -> str | None:
    """Return the language to select. A stream has one language: the hints choose it. Raises: BadParameter."""
    hints = request.hints
    if request.language is not None and hints and not is_english(hints):
        raise BadParameter(f"language_hint: {printable(hints[0])!r} needs model={MULTILINGUAL} or the name of a model")
    return names.one_language("language_hint", request.model, hints) or request.language


def _float(name: str, value: str) -> float:
    if _NUMBER.fullmatch(value) is None:
        raise BadParameter(f"{name}: {printable(value)!r} is not valid; must be a number such as 0.7")
    return float(value)
