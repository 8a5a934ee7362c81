"""Parser of the query of Deepgram's `/v1/listen`: text parameters to options, or a refusal. Pure.

A value that would corrupt the result is refused. Features that the server lacks are accepted and named in `ignored`:
real clients always send a dozen parameters that they can live without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from server.audio.formats import PLAIN, RAW, AudioForm, audio_form
from server.errors import BadParameter
from server.model_names import MULTI
from server.protocols.deepgram.parameters import BUDGETS_MS, DOWNMIX_CHANNELS, MAX_MS, PARAMETERS, SAMPLE_RATES
from server.recognition.keyterms import NO_KEYTERMS, Keyterms, Keyword
from server.recognition.session import DEFAULT_ENDPOINTING_MS, Finals, SessionOptions, finals_of
from server.text.formatting import Style

Pairs = Iterable[tuple[str, str]]

_TRUE, _FALSE = {"true", "1"}, {"false", "0"}
_FORMATTING = ("smart_format", "punctuate", "numerals", "dictation")
KNOWN = frozenset(parameter.name for parameter in PARAMETERS)
BIASING = frozenset({"keyterm", "keywords"})
MAX_BOOST = 100.0  # of `keywords`: far beyond anything that helps
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # of an ignored parameter: safe in a header
_BOOST = re.compile(r"-?[0-9]{1,3}(\.[0-9]{1,6})?")
MAX_IGNORED = 32
MAX_TAGS, TAG_CHARACTERS = 8, 64  # tags are a client's own names for its stream, kept for logs
FEATURES = {  # of Deepgram's, not ours, that change the transcript: refused by a server with `strict_features`
    "diarize", "diarize_model", "diarize_version", "detect_entities", "detect_language", "language",
    "profanity_filter", "redact", "replace", "search",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ListenRequest:
    """The query, parsed. `form` is the form of the audio."""

    form: AudioForm
    channels: int
    multichannel: bool
    interim_results: bool
    step_results: bool
    stable_words: bool
    latency: bool
    interim_interval_ms: float
    latency_budget_ms: float | None
    vad_events: bool
    endpointing_ms: float | None
    utterance_end_ms: float | None
    style: Style
    punctuated_words: bool
    keyterms: Keyterms
    resumable: bool
    grammar: str
    finals: Finals | None
    tags: tuple[str, ...]
    ignored: tuple[str, ...]

    @property
    def without_accurate(self) -> dict[str, object]:
        """What does not go with accurate finals: they are not saved in tickets, and stable words may change in them."""
        return {"grammar": self.grammar, "resumable": self.resumable, "stable_words": self.stable_words}

    def live_options(self, model_rate: int) -> SessionOptions:
        """Options of a live stream for a model that hears `model_rate` Hz. Raises: BadParameter."""
        if self.resumable and self.form.encoding not in PLAIN:
            raise BadParameter(f"resumable: only with encoding={', '.join(sorted(PLAIN))}")
        return SessionOptions(
            sample_rate=self.form.decoded_rate(model_rate),
            channels=self.form.decoded_channels(multichannel=self.multichannel),
            multichannel=self.multichannel,
            partials=self.interim_results,
            every_step=self.step_results,
            tell_stable=self.stable_words,
            partial_interval_ms=self.interim_interval_ms,
            endpointing_ms=self.endpointing_ms,
            utterance_end_ms=self.utterance_end_ms,
            keyterms=self.keyterms,
            resumable=self.resumable,
            grammar=self.grammar,
            finals=self.finals,
        )


def parse_query(
    pairs: Pairs,
    max_channels: int,
    *,
    default_endpointing: bool = True,
    supports_keyterms: bool = True,
    strict_features: bool = False,
    english: bool = True,
) -> ListenRequest:
    """Read the query of a request whose model is chosen. Raises: BadParameter.

    Of a parameter given twice the last one counts, but key terms add up.
    """
    given = list(pairs)
    query = dict(given)
    for name in query:
        if name.startswith("callback"):
            raise BadParameter("callback: this server sends results on the connection only")
    multichannel = _boolean(query, "multichannel")
    channels = _integer(query, "channels", range(1, max_channels + 1) if multichannel else DOWNMIX_CHANNELS, default=1)
    known = KNOWN if supports_keyterms else KNOWN - BIASING
    ignored = sorted(name for name, value in query.items() if _ignored(name, value, known))
    if strict_features and not FEATURES.isdisjoint(ignored):
        raise BadParameter(f"{min(FEATURES.intersection(ignored))}: this server does not do that")
    return ListenRequest(
        form=_form(query, channels),
        channels=channels,
        multichannel=multichannel,
        interim_results=_boolean(query, "interim_results"),
        step_results=_boolean(query, "step_results"),
        stable_words=_boolean(query, "stable_words"),
        latency=_boolean(query, "latency"),
        interim_interval_ms=float(_integer(query, "interim_interval_ms", range(MAX_MS + 1), default=0)),
        latency_budget_ms=_latency_budget(query),
        vad_events=_boolean(query, "vad_events"),
        endpointing_ms=_endpointing(query, default_endpointing),
        utterance_end_ms=_utterance_end(query),
        style=_style(query, english=english),
        punctuated_words=any(_is_on(query, name) for name in _FORMATTING),
        keyterms=_keyterms(given) if supports_keyterms else NO_KEYTERMS,
        resumable=_boolean(query, "resumable"),
        grammar=query.get("grammar", ""),
        finals=finals_of(query.get("finals", "")),
        tags=tuple([_shown(value) for name, value in given if name == "tag" and value][:MAX_TAGS]),
        ignored=tuple(ignored[:MAX_IGNORED]),
    )


def _style(query: Mapping[str, str], *, english: bool) -> Style:
    smart = _is_on(query, "smart_format")
    return Style(
        punctuate=smart or _is_on(query, "punctuate"),
        numerals=smart or _is_on(query, "numerals"),
        english=english,
    )


def _keyterms(given: Sequence[tuple[str, str]]) -> Keyterms:
    """Phrases of `keyterm`, and `keywords` as `word` or `word:boost`; empty ones are skipped."""
    keywords = [_keyword(value) for name, value in given if name == "keywords" and value.strip()]
    return Keyterms.of_request("keyterm", (value for name, value in given if name == "keyterm"), keywords)


def _keyword(value: str) -> Keyword:
    word, colon, boost = value.rpartition(":")
    if not colon:
        return value.strip(), None
    if not word.strip() or not _BOOST.fullmatch(boost) or abs(float(boost)) > MAX_BOOST:
        raise BadParameter(
            f"keywords: {value[:64]!r} is not word:boost with a boost from -{MAX_BOOST:g} to {MAX_BOOST:g}"
        )
    return word.strip(), float(boost)


def _form(query: Mapping[str, str], channels: int) -> AudioForm:
    """Form of the audio. `sample_rate` is read, and checked, only with an encoding that does not carry it."""
    encoding = query.get("encoding")
    raw = encoding is not None and encoding in RAW and "sample_rate" in query
    rate = _integer(query, "sample_rate", SAMPLE_RATES, default=0) if raw else None
    return audio_form(encoding, rate, channels)


def _endpointing(query: Mapping[str, str], default: bool) -> float | None:
    asked = query.get("endpointing", "true" if default else "false")
    if asked.lower() in ("true", "false"):
        return DEFAULT_ENDPOINTING_MS if asked.lower() == "true" else None
    return float(_integer(query, "endpointing", range(MAX_MS + 1), default=0))


def _utterance_end(query: Mapping[str, str]) -> float | None:
    if query.get("utterance_end_ms", "false").lower() == "false":
        return None
    return float(_integer(query, "utterance_end_ms", range(1, MAX_MS + 1), default=0))


def _latency_budget(query: Mapping[str, str]) -> float | None:
    if "latency_budget_ms" not in query:
        return None
    return float(_integer(query, "latency_budget_ms", BUDGETS_MS, default=0))


def _ignored(name: str, value: str, known: AbstractSet[str]) -> bool:
    """True for a parameter without effect here, unless its value asks for nothing, as `diarize=false` does."""
    if name == "language":
        return value.lower() == MULTI  # any other one chose the model
    if name in known or not _NAME.fullmatch(name):
        return False
    return value.lower() not in _FALSE


def _shown(tag: str) -> str:
    """A tag cut to its length in logs, unprintable characters replaced."""
    return "".join(c if c.isprintable() else "?" for c in tag[:TAG_CHARACTERS])


def _is_on(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "false").lower() in _TRUE


def _boolean(query: Mapping[str, str], name: str) -> bool:
    if query.get(name, "false").lower() not in _TRUE | _FALSE:
        raise BadParameter(f"{name}: must be true or false")
    return _is_on(query, name)


def _integer(query: Mapping[str, str], name: str, allowed: range, *, default: int) -> int:
    value = query.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) not in allowed:
        raise BadParameter(f"{name}: must be a whole number from {allowed[0]} to {allowed[-1]}")
    return int(value)
