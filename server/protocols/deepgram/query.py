"""Parser of the query of Deepgram's `/v1/listen`. Pure.

Invalid values and unsupported features (`server.protocols.features`) are refused. Harmless parameters without effect
here are accepted, and listed in `ignored` if they request something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.errors import BadParameter
from server.protocols.deepgram.parameters import BOOLEAN, DIARIZERS, DOWNMIX_CHANNELS, NUMBER, SMART, TABLE, Kind
from server.protocols.features import (
    LISTEN,
    OFF,
    RECEIPT,
    REDACT,
    SHOWN,
    SPEAKERS,
    UTTERANCES,
    WAIT,
    boolean,
    check_given,
    check_single,
    extra_of,
    finite,
    form_of,
    in_plain_names,
    named,
    printable,
    redaction,
    refuse_unsupported,
    unsupported_features,
    whole_number,
)
from server.recognition.keyterms.keyterms import NO_KEYTERMS, Keyterms, Keyword
from server.recognition.request import Request
from server.recognition.segments.endpointing import SMART_END
from server.recognition.segments.speaker_rules import FIRST, MOST, SpeakerRules
from server.recognition.session_options import DEFAULT_ENDPOINTING_MS, SessionOptions, finals_of, interim_stability_of
from server.text.formatting import Style
from server.text.speaker_turns import SPLIT_S

Pairs = Iterable[tuple[str, str]]

_REPEATABLE = frozenset(name for name, parameter in TABLE.items() if parameter.repeatable)
BIASING = frozenset({"keyterm", "keywords"})
LIVE_ONLY = frozenset(name for name, parameter in TABLE.items() if parameter.live_only)
MAX_BOOST = 100.0  # of `keywords`: far above any useful value
_BOOST = re.compile(r"-?[0-9]{1,3}(\.[0-9]{1,6})?")
MAX_TAGS = 8  # `tag`: the client's own labels of a stream, for the logs


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenRequest(Request):
    """A parsed query, with what the answers need besides."""

    latency: bool
    latency_budget_ms: float | None
    utterance_split_s: float
    paragraphs: bool
    tags: tuple[str, ...]
    extra: Mapping[str, str]
    ignored: tuple[str, ...]

    @property
    def switches(self) -> dict[str, bool]:
        """Formatting parameters and whether each is on."""
        style = self.style
        both = style.punctuate and style.numerals
        return {"punctuate": style.punctuate, "numerals": style.numerals, "smart_format": both}


def parse_query(
    pairs: Pairs,
    max_channels: int,
    *,
    live: bool = True,
    supports_keyterms: bool = True,
    lenient_features: bool = False,
    english: bool = True,
    detects: bool = False,
    speakers: bool = False,
    voice: bytes = b"",
) -> ListenRequest:
    """Parse the query of a live stream or upload once its model is known; only streams have endpoints by default.

    `detects`: it can find out the language of a stream; `speakers`: the server distinguishes speakers; `voice`: vector
    of the enrolled voice that it names. Raises: BadParameter.
    """
    pairs = in_plain_names(pairs, TABLE)
    query = dict(pairs)
    ignored = check_query(pairs, lenient=lenient_features, detects=detects, speakers=speakers)
    ignored |= _refuse_paragraphs(query, lenient=lenient_features) if live else set()
    ignored |= _without_effect(pairs, live=live, supports_keyterms=supports_keyterms)
    multichannel = _boolean(query, "multichannel")
    smart_end = query.get("endpointing", "").casefold() == SMART
    if smart_end and not live:
        raise BadParameter(f"endpointing: {SMART} is for live streams; set milliseconds")
    if live and _boolean(query, WAIT) and not smart_end:
        raise BadParameter(f"{WAIT}: needs endpointing={SMART}; set that, or leave it out")
    allowed = range(1, max_channels + 1) if multichannel else DOWNMIX_CHANNELS
    channels = whole_number("channels", query.get("channels", "1"), allowed)
    form = form_of(query, channels)
    options = SessionOptions(
        form.decoded_rate(0),
        form.decoded_channels(multichannel=multichannel),
        multichannel,
        partials=_boolean(query, "interim_results"),
        every_step=_boolean(query, "step_results"),
        tell_stable=_boolean(query, "stable_words"),
        partial_interval_ms=float(_integer(query, "interim_interval_ms")),
        interim_stability=interim_stability_of(query.get("interim_stability", "low")),
        # No word may last over a pause between two utterances.
        endpointing_ms=0.0 if smart_end else _endpointing(query, live or _boolean(query, UTTERANCES)),
        scored_end=SMART_END if smart_end else None,
        utterance_end_ms=_utterance_end(query),
        keyterms=_keyterms(pairs) if supports_keyterms else NO_KEYTERMS,
        resumable=_boolean(query, "resumable"),
        speech_events=_boolean(query, "vad_events"),
        language=query.get("language"),
        grammar=query.get("grammar", ""),
        finals=finals_of(query.get("finals", "")),
        redact=redaction(pairs),
        spoken_order=_boolean(query, UTTERANCES),
        receipts=_boolean(query, RECEIPT),
        rewind_s=float(_integer(query, "rewind")),
        speakers=_speakers(query, voice, live=live) if speakers else None,
        rest=_boolean(query, "rest") if "rest" in query else None,
        wait_in_numbers=_boolean(query, WAIT) if WAIT in query else None,
    )
    return ListenRequest(
        form=form,
        options=options,
        style=_style(query, english=english, paragraphs=not live and _boolean(query, "paragraphs")),
        live=live,
        latency=_boolean(query, "latency"),
        latency_budget_ms=float(_integer(query, "latency_budget_ms")) or None,
        utterance_split_s=float(query.get("utt_split", SPLIT_S)),
        paragraphs=not live and _boolean(query, "paragraphs"),
        tags=tuple([printable(value) for name, value in pairs if name == "tag"][:MAX_TAGS]),
        extra=extra_of(pairs),
        ignored=named(ignored),
    )


def _without_effect(pairs: Sequence[tuple[str, str]], *, live: bool, supports_keyterms: bool) -> set[str]:
    """Return the names of parameters that an upload, or a model without key terms, ignores."""
    names = {name for name, _ in pairs if name in BIASING and not supports_keyterms}
    if not live:
        names |= {name for name, value in pairs if name in LIVE_ONLY and value.casefold() not in OFF}
    return names


def _refuse_paragraphs(query: Mapping[str, str], *, lenient: bool) -> set[str]:
    """Return the name if a lenient server ignores it. Raises: BadParameter."""
    if not _boolean(query, "paragraphs"):
        return set()
    if not lenient:
        raise BadParameter("paragraphs: live streams have none; leave it out, or send the recording as an upload")
    return {"paragraphs"}


def _speakers(query: Mapping[str, str], voice: bytes, *, live: bool) -> SpeakerRules | None:
    """Return how speakers are distinguished, None if they are not. Raises: BadParameter."""
    diarizer, name = query.get("diarize_model"), query.get("speaker", "")
    if diarizer is not None and diarizer not in (DIARIZERS[:2] if live else DIARIZERS):
        allowed = ", ".join(DIARIZERS[:2] if live else DIARIZERS)
        raise BadParameter(f"diarize_model: {diarizer[:SHOWN]!r} is not valid here; must be one of {allowed}")
    least, most = _integer(query, "diarize_min_speakers") or 1, _integer(query, "diarize_max_speakers") or MOST
    if least > most:
        raise BadParameter(f"diarize_min_speakers: {least} is more than diarize_max_speakers, {most}")
    alone = _boolean(query, "speaker_only")
    if alone and not name:
        raise BadParameter(f"speaker_only: needs speaker, such as speaker={FIRST}")
    if not (_boolean(query, "diarize") or diarizer or name):
        return None
    if name and name != FIRST and not voice:
        raise BadParameter(f"speaker: {name[:SHOWN]!r} is not valid; must be {FIRST}, the voice of the first words")
    return SpeakerRules(least, most, listens=bool(name), alone=alone, voice=voice)


def check_query(
    pairs: Sequence[tuple[str, str]], *, lenient: bool, detects: bool = False, speakers: bool = False
) -> set[str]:
    """Check names, repetition, empty values and harmless parameters; return the names of ignored parameters.

    `given` is `in_plain_names`. Needs no model, so that a refused query does not load one.

    Raises: BadParameter.
    """
    listed = [(name, value) for name, value in pairs if name in TABLE]
    check_given(listed)
    lacking = frozenset() if speakers else SPEAKERS
    unsupported = unsupported_features(pairs, {REDACT, *LISTEN} - lacking)
    features = [feature for feature in unsupported if not (detects and feature.name == "language")]
    refuse_unsupported(features, lenient=lenient, here=lacking)
    redaction(pairs)
    check_single(listed, _REPEATABLE)
    ignored = {feature.name for feature in features}
    for name, value in pairs:
        parameter = TABLE.get(name)
        if parameter is None:
            on = value.casefold() not in OFF
        elif parameter.schema is BOOLEAN:
            on = boolean(name, value) and parameter.kind is Kind.IGNORED
        else:
            on = False
            if parameter.schema is NUMBER:
                _check_number(name, value)
        if on:
            ignored.add(name)
    return ignored


def _check_number(name: str, value: str) -> None:
    """Raises: BadParameter."""
    if not finite(value) >= 0:
        raise BadParameter(f"{name}: {value[:SHOWN]!r} is not valid; must be a number of at least 0")


def _style(query: Mapping[str, str], *, english: bool, paragraphs: bool) -> Style:
    smart = _boolean(query, "smart_format")
    return Style(
        punctuate=smart or paragraphs or _boolean(query, "punctuate"),
        numerals=smart or _boolean(query, "numerals"),
        english=english,
    )


def _keyterms(pairs: Sequence[tuple[str, str]]) -> Keyterms:
    """Key terms from `keyterm` phrases and `keywords`, each `word` or `word:boost`."""
    keywords = [_keyword(value) for name, value in pairs if name == "keywords"]
    return Keyterms.of_request("keyterm", (value for name, value in pairs if name == "keyterm"), keywords)


def _keyword(value: str) -> Keyword:
    word, colon, boost = value.rpartition(":")
    if not colon:
        return value.strip(), None
    if not word.strip() or ":" in word or not _BOOST.fullmatch(boost) or abs(float(boost)) > MAX_BOOST:
        raise BadParameter(
            f"keywords: {value[:64]!r} is not valid; must be word:boost, boost from -{MAX_BOOST:g} to {MAX_BOOST:g}"
        )
    return word.strip(), float(boost)


def _endpointing(query: Mapping[str, str], default: bool) -> float | None:
    value = query.get("endpointing", "true" if default else "false")
    if value.lower() in ("true", "false"):
        return DEFAULT_ENDPOINTING_MS if value.lower() == "true" else None
    return float(_integer(query, "endpointing"))


def _utterance_end(query: Mapping[str, str]) -> float | None:
    if query.get("utterance_end_ms", "false").lower() == "false":
        return None
    return float(_integer(query, "utterance_end_ms"))


def _boolean(query: Mapping[str, str], name: str) -> bool:
    return boolean(name, query.get(name, "false"))


def _integer(query: Mapping[str, str], name: str) -> int:
    """Return a whole number within the bounds of its schema; 0 if it is not given. Raises: BadParameter."""
    if name not in query:
        return 0
    schema = TABLE[name].schema
    bounds = schema.get("anyOf", [schema])[0]
    return whole_number(name, query[name], range(bounds["minimum"], bounds["maximum"] + 1))
