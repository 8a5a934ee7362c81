"""Parser of the query of `/v2/listen`. Pure.

Every parameter that this server does not support is refused by name, except values that switch a feature off and those
that change no text (`mip_opt_out`, `tag`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from server.audio.formats import Encoding
from server.audio.raw import PlainCodec
from server.errors import BadParameter
from server.models.selection import ModelNames, is_english
from server.protocols.features import OFF, SHOWN, boolean, check_given, check_single, in_plain_names, whole_number
from server.protocols.flux.messages import rules_of
from server.recognition.keyterms.keyterms import Keyterms
from server.recognition.turns import TurnRules
from server.text.formatting import Style

ENGLISH, MULTILINGUAL = "flux-general-en", "flux-general-multi"
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
RATES = range(8_000, 48_001)
CODECS = {
    "linear16": (PlainCodec.S16, Encoding.LINEAR16),
    "linear32": (PlainCodec.F32, Encoding.LINEAR32),
    "mulaw": (PlainCodec.MULAW, Encoding.MULAW),
    "alaw": (PlainCodec.ALAW, Encoding.ALAW),
}
REPEATABLE = frozenset({"keyterm", "language_hint", "redact", "tag"})
QUERY = frozenset({
    "model", "encoding", "sample_rate", "eager_eot_threshold", "eot_threshold", "eot_timeout_ms", "keyterm",
    "language_hint", "numerals", "profanity_filter", "mip_opt_out", "redact", "tag",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class FluxRequest:
    """A parsed query. `model`, `language` and `hints` select the model; `rate` is in Hz.

    `multilingual`: the language is that of the hints, which the server has to know.
    """

    model: str | None
    language: str | None
    codec: PlainCodec
    encoding: Encoding
    rate: int
    rules: TurnRules
    phrases: tuple[str, ...]
    style: Style
    hints: tuple[str, ...] = ()
    multilingual: bool = False

    @property
    def keyterms(self) -> Keyterms:
        """Raises: BadParameter."""
        return Keyterms.of_request("keyterm", self.phrases)


def parse_query(pairs: Sequence[tuple[str, str]]) -> FluxRequest:
    """Parse the query. Raises: BadParameter, which names the parameter."""
    pairs = in_plain_names(pairs, QUERY)
    for name, value in pairs:
        if name not in QUERY and (value.casefold() not in OFF or name.startswith(("redact", "callback"))):
            raise BadParameter(f"{_shown(name)}: not supported at /v2/listen; leave it out")
    given = [(name, value) for name, value in pairs if name in QUERY]
    check_single(given, REPEATABLE)
    check_given(given)
    query = dict(given)
    if boolean("profanity_filter", query.get("profanity_filter", "false")):
        raise BadParameter("profanity_filter: not supported by this server; leave it out")
    boolean("mip_opt_out", query.get("mip_opt_out", "false"))
    model, language = _model(query.get("model"))
    codec, encoding, rate = _form(query.get("encoding"), query.get("sample_rate"))
    thresholds = {name: _float(name, query[name]) for name in sorted(query) if name.startswith(("eot_", "eager_"))}
    style = Style(punctuate=True, numerals=boolean("numerals", query.get("numerals", "false")))
    phrases = tuple(value.strip() for name, value in given if name == "keyterm")
    hints = tuple(value.strip() for name, value in given if name == "language_hint")
    rules, multilingual = rules_of(TurnRules(), thresholds), query["model"].casefold() == MULTILINGUAL
    return FluxRequest(model, language, codec, encoding, rate, rules, phrases, style, hints, multilingual)


def _model(given: str | None) -> tuple[str | None, str | None]:
    """Return the model and language to select. Raises: BadParameter."""
    if given is None:
        raise BadParameter(f"model: missing; set model={ENGLISH} or the name of a model of this server")
    if given.casefold() == ENGLISH:
        return None, "en"
    return (None if given.casefold() == MULTILINGUAL else given), None


def language_of(request: FluxRequest, names: ModelNames) -> str | None:
    """Return the language to select. A stream has one language: the hints choose it. Raises: BadParameter."""
    hints = request.hints
    if request.multilingual and not names.multilingual:
        raise BadParameter(f"model: {MULTILINGUAL} needs models of two languages, which this server does not have")
    if request.multilingual and not hints:
        raise BadParameter(
            f"language_hint: missing; a stream has one language here, so {MULTILINGUAL} needs it, for example en"
        )
    if request.language is not None and hints and not is_english(hints):
        raise BadParameter(f"language_hint: {_shown(hints[0])!r} needs model={MULTILINGUAL} or the name of a model")
    return names.one_language("language_hint", request.model, hints) or request.language


def _form(encoding: str | None, rate: str | None) -> tuple[PlainCodec, Encoding, int]:
    """Return the audio format. Raises: BadParameter."""
    if encoding is None:
        raise BadParameter(f"encoding: missing; containers are not supported at /v2/listen: set {', '.join(CODECS)}")
    if encoding not in CODECS:
        raise BadParameter(f"encoding: {_shown(encoding)!r} is not supported here; must be {', '.join(CODECS)}")
    if rate is None:
        raise BadParameter("sample_rate: missing; raw audio needs it, for example sample_rate=16000")
    codec, label = CODECS[encoding]
    return codec, label, whole_number("sample_rate", rate, RATES)


def _float(name: str, value: str) -> float:
    if _NUMBER.fullmatch(value) is None:
        raise BadParameter(f"{name}: {_shown(value)!r} is not valid; must be a number such as 0.7")
    return float(value)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:SHOWN])
