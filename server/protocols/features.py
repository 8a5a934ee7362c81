"""Checks shared by all protocols: parameters, unsupported features, and errors in JSON messages. Pure.

An unsupported feature that would change the transcript, or where it is sent, is refused by name. A server with
`lenient_features` ignores it and lists it in the answer, except where ignoring it would leak data. A feature whose
value is "off" is not refused.

Source: the signatures of deepgram-sdk 7.16.0 (`listen.v1`, `listen.v2`) and Deepgram's reference of older parameters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.inspect import LiteralType, StructType, UnionType, type_info

from model.prompts import MULTI
from server.audio.formats import RAW, AudioForm, audio_form
from server.errors import BadParameter
from server.text.redaction_kinds import Redaction, kinds_of

SHOWN = 64  # longest excerpt of client text in an error
MAX_EXTRA, MAX_EXTRA_CHARACTERS = 32, 2_048  # pairs, and of each. Source: Deepgram's page on extra metadata
OFF = frozenset({"false", "0"})
NOTHING: tuple[object, ...] = (None, False, 0, "", "false", "0", [], {})  # values of JSON that request nothing
MAX_IGNORED = 32
SAMPLE_RATES = range(8_000, 48_001)  # of encodings without a header
LARGEST = 10**9 - 1  # number that `whole_number` parses
DIARIZES = "-diarize"  # suffix of the names of models that distinguish speakers
REDACT = "redact"  # supported by protocols that list it
UTTERANCES = "utterances"
NEVER_IGNORED = (REDACT, "callback")  # name prefixes; ignoring these could expose text that must not be exposed
RECEIPT = "receipt"  # ours
WAIT = "wait_in_numbers"  # ours
OTHER_VERSION = frozenset({"backchannel", "eager_eot_threshold", "eot_threshold", "eot_timeout_ms", "language_hints"})
"""Parameters that only `/v2/listen` has."""

FEATURES = frozenset({
    "alternatives", "analyze_sentiment", "callback", "callback_method", "custom_intent", "custom_intent_mode",
    "custom_topic", "custom_topic_mode", "detect_entities", "detect_language", "detect_topics", "dictation", "intents",
    "keyword_boost", "language_hint", "measurements", "ner", "profanity_filter", "replace", "search", "sentiment",
    "sentiment_threshold", "summarize", "task", "topics", "translate",
})  # fmt: skip
"""Parameters of other servers whose features this server does not support."""

SPEAKERS = frozenset({
    "diarize", "diarize_max_speakers", "diarize_min_speakers", "diarize_model", "speaker", "speaker_only",
})  # fmt: skip
"""Features of `/v1/listen` on a server that distinguishes speakers."""

LISTEN = SPEAKERS | frozenset({
    "endpointing", "finals", "grammar", "interim_stability", "keyterm", "keywords", "latency", "latency_budget_ms",
    "multichannel", "numerals", "paragraphs", "punctuate", RECEIPT, "rest", "resumable", "rewind", "smart_format",
    "stable_words", "step_results", UTTERANCES, "utt_split", "utterance_end_ms", "vad_events", WAIT,
})  # fmt: skip
"""Features of `/v1/listen`: refused on a path that lacks them."""

_INDEX = re.compile(r"\[[0-9]*\]\Z")
_OFF_VALUES = {
    "alternatives": OFF | {"1"},
    "rest": frozenset[str](),  # `false` asks for something, too
    "summarize": OFF | {"none"},
    "task": OFF | {"transcribe"},
}


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A requested feature that this server does not support; with `always`, a lenient server refuses it too."""

    name: str
    always: bool


def plain_name(name: str) -> str:
    """Return a name in lower case without the suffix that some clients add to the names of lists: `[]` or `[0]`.

    `keyterms`, the name in `Configure`, is `keyterm`.
    """
    plain = _INDEX.sub("", name).casefold()
    return "keyterm" if plain == "keyterms" else plain


def in_plain_names(pairs: Iterable[tuple[str, str]], known: Collection[str]) -> list[tuple[str, str]]:
    """Return parameters with the names in `known` spelled so, whatever their case and suffix; others as they are."""
    return [(plain if (plain := plain_name(name)) in known else name, value) for name, value in pairs]


def unsupported_feature(name: str, value: str) -> Unsupported | None:
    """Return the unsupported feature that a parameter requests, or None.

    Names are compared by `plain_name`.
    """
    plain = plain_name(name)
    if plain == "language":
        return Unsupported("language", always=False) if value.casefold() == MULTI else None
    if plain == "model":
        return Unsupported("model", always=False) if value.casefold().endswith(DIARIZES) else None
    always = plain.startswith(NEVER_IGNORED)
    if not always and plain not in FEATURES | OTHER_VERSION | LISTEN:
        return None
    if plain.startswith("callback"):
        return Unsupported("callback", always)
    off = value.casefold() in _OFF_VALUES.get(plain, OFF)
    return None if off else Unsupported(plain if plain.isidentifier() else name[:SHOWN], always)


def unsupported_features(pairs: Iterable[tuple[str, str]], supported: Collection[str]) -> list[Unsupported]:
    """Return the unsupported features that parameters request; names in `supported`, spelled so, are none.

    A model or a language may be an unsupported feature by its value.
    """
    never = frozenset(supported) - {"model", "language"}
    features = (unsupported_feature(name, value) for name, value in pairs if name not in never)
    return [feature for feature in features if feature is not None]


def redaction(pairs: Iterable[tuple[str, str]]) -> frozenset[Redaction]:
    """Return what the `redact` parameters request, in any spelling of the name. Raises: BadParameter."""
    return kinds_of(value for name, value in pairs if plain_name(name) == REDACT)


def refuse_unsupported(features: Iterable[Unsupported], *, lenient: bool, here: Collection[str] = ()) -> None:
    """Refuse unsupported features, naming all of them; a lenient server ignores most. Raises: BadParameter.

    `here`: the names of `SPEAKERS` where this path has them on a server that distinguishes speakers.
    """
    refused = sorted({feature.name for feature in features if feature.always or not lenient})
    if not refused:
        return
    first, *others = refused
    also = f" (also not supported: {', '.join(others)})" if others else ""
    if first in OTHER_VERSION:
        raise BadParameter(f"{first}: a parameter of /v2/listen{also}; connect there, or leave it out")
    if first.startswith("callback"):
        raise BadParameter(f"{first}: this server sends results only on the connection{also}; leave it out")
    why = "not supported on this path" if first in LISTEN else "not supported by this server"
    if first == "language":
        why = f"{MULTI!r} is {why}, which recognizes one language per stream"
    if first == "model":
        why = f"a name ending in {DIARIZES!r} requests diarization, which is {why}"
    lenience = "" if lenient else ", or start the server with --lenient-features to have it ignored"
    if first in here or (first == "model" and here):
        why = why.replace("on this path", "by this server")
        lenience = f", or start the server with --speakers{lenience.replace('start the server ', '')}"
    if first.startswith(REDACT):
        raise BadParameter(f"{first}: {why}{also}; numbers are masked by redact={', redact='.join(Redaction)}")
    raise BadParameter(f"{first}: {why}{also}; leave it out{lenience}")


def check_single(pairs: Iterable[tuple[str, str]], repeatable: Collection[str]) -> None:
    """Refuse a repeated parameter that is not in `repeatable`. Raises: BadParameter."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1 and name not in repeatable:
            raise BadParameter(f"{name}: given {times} times; send it once")


def check_given(pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse parameters with an empty value, or one that is not text in UTF-8. Raises: BadParameter."""
    for name, value in pairs:
        if not value.strip():
            raise BadParameter(f"{name}: empty value; set one, or leave the parameter out")
        if "\ufffd" in value:  # for bytes that are none
            raise BadParameter(f"{name}: {printable(value)!r} is not valid; must be UTF-8")


def own_parameters(
    pairs: Iterable[tuple[str, str]], own: Collection[str], others: Collection[str] = ()
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return a path's own parameters, one value each, and the rest, `others` in plain names. Raises: BadParameter."""
    plain = in_plain_names(pairs, {*own, *others})
    values = [pair for pair in plain if pair[0] in own]
    check_single(values, ())
    check_given(values)
    return dict(values), [pair for pair in plain if pair[0] not in own]


def check_no_query(pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse any parameter at a path that has none. Raises: BadParameter."""
    for name, _ in pairs:
        raise BadParameter(f"{named([name])[0] if name else '?'}: not a parameter of this path; leave it out")


def read_query(
    pairs: Sequence[tuple[str, str]], known: Collection[str], *, lenient: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the values of the `known` parameters of a query, one each, and the names of ignored parameters.

    `pairs` are `in_plain_names`. Raises: BadParameter.
    """
    listed = [(name, value) for name, value in pairs if name in known]
    check_single(listed, (REDACT,))
    check_given(listed)
    features = unsupported_features(pairs, known)
    refuse_unsupported(features, lenient=lenient)
    return dict(listed), named({*unknown(pairs, known), *(feature.name for feature in features)})


def unknown(pairs: Iterable[tuple[str, str]], known: Collection[str]) -> Iterator[str]:
    """Yield the names that are neither known nor of an unsupported feature, unless their value is "off"."""
    for name, value in pairs:
        if name not in known and value.casefold() not in OFF and unsupported_feature(name, value) is None:
            yield name


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names sorted and as they may stand in a header: cut, other characters percent-encoded."""
    return tuple(sorted({quote(name[:SHOWN], safe="[]%", errors="replace") for name in names if name}))


def ignored_header(ignored: Sequence[str]) -> Mapping[str, str]:
    """Return the response header that lists ignored parameters, and counts those after the first `MAX_IGNORED`."""
    more = len(ignored) - MAX_IGNORED
    listed = [*ignored[:MAX_IGNORED], *([f"and {more} more"] if more > 0 else [])]
    return {"x-ignored-params": ",".join(listed)} if listed else {}


def extra_of(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the pairs of `extra` in a query, which the answer repeats. Raises: BadParameter."""
    pairs = [value for name, value in query if name == "extra"]
    if len(pairs) > MAX_EXTRA:
        raise BadParameter(f"extra: {len(pairs)} pairs is not valid; must be at most {MAX_EXTRA}")
    extra: dict[str, str] = {}
    for pair in pairs:
        key, colon, value = pair.partition(":")
        if not (key and colon) or len(pair) > MAX_EXTRA_CHARACTERS:
            excerpt = printable(pair[:SHOWN])
            raise BadParameter(
                f"extra: {excerpt!r} is not valid; must be KEY:VALUE of at most {MAX_EXTRA_CHARACTERS} characters"
            )
        if key in extra:
            raise BadParameter(f"extra {printable(key[:SHOWN])!r}: given 2 times; send it once")
        extra[key] = value
    return extra


def printable(text: str, limit: int = SHOWN) -> str:
    """Return an excerpt of a client's text with unprintable characters replaced."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])


def boolean(name: str, value: str) -> bool:
    """Parse a boolean. Raises: BadParameter."""
    lowered = value.lower()
    if lowered not in {"true", "1", *OFF}:
        raise BadParameter(f"{name}: {value[:SHOWN]!r} is not valid; must be true or false")
    return lowered not in OFF


def finite(value: str) -> float:
    """Parse a finite number; return NaN, which no bounds contain, for any other text."""
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def whole_number(name: str, value: str, allowed: range) -> int:
    """Parse a whole number in decimal digits. Raises: BadParameter."""
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and int(value) in allowed):
        raise BadParameter(
            f"{name}: {value[:SHOWN]!r} is not valid; must be a whole number from {allowed[0]} to {allowed[-1]}"
        )
    return int(value)


def form_of(query: Mapping[str, str], channels: int = 1) -> AudioForm:
    """Return the audio format. `sample_rate` counts only for encodings without a header. Raises: BadParameter."""
    encoding, rate = query.get("encoding"), query.get("sample_rate")
    raw = encoding in RAW
    if rate is None:
        return audio_form(encoding, None, channels)
    number = whole_number("sample_rate", rate, SAMPLE_RATES if raw else range(1, LARGEST + 1))
    return audio_form(encoding, number if raw else None, channels)


_skip = msgspec.json.Decoder(msgspec.Raw).decode  # builds no objects, of which 1 MiB may hold 100,000
_EMPTY = re.compile(rb"\{\s*\}")


def control_text(chunk: bytes) -> str | None:
    """Return the message in a binary frame, or None if the frame is audio, which is never a JSON object with fields."""
    if chunk[:1] != b"{" or _EMPTY.match(chunk):
        return None
    try:
        _skip(chunk)
    except (msgspec.DecodeError, RecursionError):
        return None
    return chunk.decode(errors="replace")


_AT = " - at `$"  # precedes the path in an error of msgspec
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_ENUM = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_ELEMENT = re.compile(r"\[[^]]*\]")  # of a list, in a path


def problem_of(error: msgspec.ValidationError, kind: Any, root: str = "") -> str:
    """Return `path: what is wrong` of a message decoded as `kind`; `root` is the path of the message itself."""
    what, _, at = str(error).rpartition(_AT) if _AT in str(error) else (str(error), "", "")
    path = [name[:SHOWN] for name in _ELEMENT.sub("", at.rstrip("`")).split(".") if name]
    if (field := _FIELD.fullmatch(what)) is not None:
        path.append(field[2][:SHOWN])
        what = "missing" if field[1].startswith("missing") else "unknown field; leave it out"
    elif (enum := _ENUM.fullmatch(what)) is not None:
        what = f"{enum[1][:SHOWN]} is not valid; must be one of {', '.join(map(str, _choices(kind, path)))}"
    else:
        what = what[:1].lower() + what[1:].replace("`", "").replace(" | ", " or ")
    dotted = ".".join(filter(None, (root, *path)))
    return f"{dotted}: {what}" if dotted else what


def _choices(root: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield the values of the enumeration at a path."""
    kinds = list(_alternatives(type_info(root)))
    for name in path:
        structs = [kind for kind in kinds if isinstance(kind, StructType)]
        fields = [field for struct in structs for field in struct.fields if field.encode_name == name]
        kinds = [alternative for field in fields for alternative in _alternatives(field.type)]
    for kind in kinds:
        if isinstance(kind, LiteralType):
            yield from kind.values


def _alternatives(info: Any) -> Sequence[Any]:
    return info.types if isinstance(info, UnionType) else (info,)
