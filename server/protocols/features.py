"""Rules for the parameters of every protocol: one value each, none empty, and features that this server lacks. Pure.

A feature that changes the transcript, or where it goes, is refused by name. A server with `lenient_features` ignores
and names it instead, for clients that migrate, except where ignoring it would leak data. An off value is no request.

Source: the signatures of deepgram-sdk 7.16.0 (`listen.v1`, `listen.v2`) and Deepgram's reference of older parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.errors import BadParameter
from server.models.selection import MULTI

SHOWN = 64  # characters of a client's own text that an error repeats
OFF = frozenset({"false", "0"})
MAX_IGNORED = 32
DIARIZES = "-diarize"  # the end of the name of a model that tells speakers apart
NEVER_IGNORED = ("redact", "callback")  # beginnings of names: without them text is shown, or sent, where it may not be
OTHER_VERSION = frozenset({"eager_eot_threshold", "eot_threshold", "eot_timeout_ms", "language_hints"})
"""Parameters of `/v2/listen`, on which the meaning of a stream depends there."""

FEATURES = frozenset({
    "alternatives", "analyze_sentiment", "callback", "callback_method", "custom_intent", "custom_intent_mode",
    "custom_topic", "custom_topic_mode", "detect_entities", "detect_language", "detect_topics", "diarize",
    "diarize_model", "diarize_version", "dictation", "intents", "keyword_boost", "language_hint", "measurements", "ner",
    "paragraphs", "profanity_filter", "redact", "replace", "search", "sentiment", "sentiment_threshold", "summarize",
    "topics", "translate", "utterances",
})  # fmt: skip
"""Features of other servers that this one lacks, by the parameter that asks for them."""

_OFF_VALUES = {"alternatives": OFF | {"1"}, "summarize": OFF | {"none"}}


@dataclass(frozen=True, slots=True)
class Lacking:
    """A feature that a request asks for and that this server lacks. `always`: not even a lenient server ignores it."""

    name: str
    always: bool


def lacking(name: str, value: str) -> Lacking | None:
    """Return the feature that a parameter asks for; None where it asks for none, or for one that this server has.

    Names count in any case, and with the `[]` that clients add to lists.
    """
    plain = name.casefold().removesuffix("[]")
    if plain == "language":
        return Lacking("language", always=False) if value.casefold() == MULTI else None
    if plain == "model":
        return Lacking("model", always=False) if value.casefold().endswith(DIARIZES) else None
    always = plain.startswith(NEVER_IGNORED)
    if not always and plain not in FEATURES | OTHER_VERSION:
        return None
    if plain.startswith("callback"):
        return Lacking("callback", always)
    off = value.casefold() in _OFF_VALUES.get(plain, OFF)
    return None if off else Lacking(plain if plain.isidentifier() else name[:SHOWN], always)


def refuse_lacking(found: Iterable[Lacking], *, lenient: bool) -> None:
    """Refuse features, all of them by name, those that a lenient server ignores excepted. Raises: BadParameter."""
    refused = sorted({feature.name for feature in found if feature.always or not lenient})
    if not refused:
        return
    first, *others = refused
    also = f" (nor is {', '.join(others)})" if others else ""
    if first in OTHER_VERSION:
        raise BadParameter(f"{first}: a parameter of /v2/listen, which this server does not have{also}; leave it out")
    if first.startswith("callback"):
        raise BadParameter(f"{first}: this server sends results on the connection only{also}; leave it out")
    why = "not supported by this server"
    if first == "language":
        why = f"{MULTI!r} is {why}, which recognizes one language at a time"
    if first == "model":
        why = f"names that end in {DIARIZES!r} ask for speakers, which are {why}"
    lenience = "" if lenient else "; only a server with --lenient-features ignores what it lacks"
    raise BadParameter(f"{first}: {why}{also}; leave it out{lenience if not first.startswith('redact') else ''}")


def check_single(pairs: Iterable[tuple[str, str]], repeatable: Collection[str]) -> None:
    """Refuse a parameter that is given more than once, unless it is `repeatable`. Raises: BadParameter."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1 and name not in repeatable:
            raise BadParameter(f"{name}: given {times} times; it takes one value")


def check_given(pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse parameters without a value. Raises: BadParameter."""
    for name, value in pairs:
        if not value.strip():
            raise BadParameter(f"{name}: the value is empty; leave the parameter out")


def read_query(
    pairs: Sequence[tuple[str, str]], known: Collection[str], *, lenient: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the values of a query whose `known` parameters take one value each, and the names that it ignores.

    Raises: BadParameter.
    """
    mine = [(name, value) for name, value in pairs if name in known]
    check_single(mine, ())
    check_given(mine)
    features = [feature for name, value in pairs if (feature := lacking(name, value)) is not None]
    refuse_lacking(features, lenient=lenient)
    others = {name for name, value in pairs if name not in known and value.casefold() not in OFF}
    return dict(mine), named(others | {feature.name for feature in features})


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of ignored parameters that fit a header, in order."""
    safe = {name for name in names if len(name) <= SHOWN and name.isascii() and _plain(name)}
    return tuple(sorted(safe)[:MAX_IGNORED])


def ignored_header(ignored: Sequence[str]) -> Mapping[str, str]:
    """Return the header of an answer that names ignored parameters, if there are any."""
    return {"x-ignored-params": ",".join(ignored)} if ignored else {}


def boolean(name: str, value: str) -> bool:
    """Read a switch. Raises: BadParameter."""
    lowered = value.lower()
    if lowered not in {"true", "1", *OFF}:
        raise BadParameter(f"{name}: {value[:SHOWN]!r} is not true or false")
    return lowered not in OFF


def whole_number(name: str, value: str, allowed: range) -> int:
    """Read a whole number in decimal digits. Raises: BadParameter."""
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and int(value) in allowed):
        raise BadParameter(
            f"{name}: {value[:SHOWN]!r} is not valid; must be a whole number from {allowed[0]} to {allowed[-1]}"
        )
    return int(value)


def _plain(name: str) -> bool:
    return bool(name) and all(character.isalnum() or character in "_.-" for character in name)
