"""Parser of the query of `/v2/listen`. Pure.

Every parameter that this server does not support is refused by name, or listed in `ignored` by a lenient server, except
values that switch a feature off and those that change no text (`mip_opt_out`, `tag`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from server.errors import BadParameter
from server.models.selection import ModelNames, is_english
from server.protocols.features import (
    NEVER_IGNORED,
    OFF,
    SHOWN,
    boolean,
    check_given,
    check_single,
    form_of,
    in_plain_names,
    named,
    plain_name,
    redaction,
)
from server.protocols.flux.messages import rules_of
from server.recognition.keyterms.keyterms import Keyterms
from server.recognition.request import Request
from server.recognition.session_options import SessionOptions
from server.recognition.turns import TurnRules
from server.text.formatting import Style

ENGLISH, MULTILINGUAL = "flux-general-en", "flux-general-multi"
LENIENCE = "leave it out, or start the server with --lenient-features to have it ignored"
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
REPEATABLE = frozenset({"keyterm", "language_hint", "redact", "tag"})
QUERY = frozenset({
    "model", "encoding", "sample_rate", "eager_eot_threshold", "eot_threshold", "eot_timeout_ms", "keyterm",
    "language_hint", "numerals", "profanity_filter", "mip_opt_out", "redact", "tag",
})  # fmt: skip


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
    ignored: tuple[str, ...] = ()

    def with_keyterms(self) -> FluxRequest:
        """Raises: BadParameter."""
        return replace(self, options=replace(self.options, keyterms=Keyterms.of_request("keyterm", self.phrases)))


def parse_query(pairs: Sequence[tuple[str, str]], *, lenient: bool = False) -> FluxRequest:
    """Parse the query; a `lenient` server ignores unsupported features. Raises: BadParameter, which names the first."""
    pairs = in_plain_names(pairs, QUERY)
    given = [(name, value) for name, value in pairs if name in QUERY]
    check_single(given, REPEATABLE)
    check_given(given)
    query = dict(given)
    ignored = list(_unsupported(pairs, lenient=lenient))
    if boolean("profanity_filter", query.get("profanity_filter", "false")):
        ignored.append("profanity_filter")
        if not lenient:
            raise BadParameter(f"profanity_filter: not supported by this server; {LENIENCE}")
    boolean("mip_opt_out", query.get("mip_opt_out", "false"))
    model, language = _model(query.get("model"))
    thresholds = {name: _float(name, query[name]) for name in sorted(query) if name.startswith(("eot_", "eager_"))}
    style = Style(punctuate=True, numerals=boolean("numerals", query.get("numerals", "false")))
    phrases = tuple(value.strip() for name, value in given if name == "keyterm")
    hints = tuple(value.strip() for name, value in given if name == "language_hint")
    rules, multilingual = rules_of(TurnRules(), thresholds), query["model"].casefold() == MULTILINGUAL
    if multilingual and not hints:
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
        redact=redaction(given),
        fork_after_s=rules.fork_after_s,
        forks=True,
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
        ignored=named(ignored),
    )


def _unsupported(pairs: Sequence[tuple[str, str]], *, lenient: bool) -> Iterator[str]:
    """Yield the names of parameters that this path does not have. Raises: BadParameter unless it may ignore them."""
    for name, value in pairs:
        never = plain_name(name).startswith(NEVER_IGNORED)
        if name in QUERY or (value.casefold() in OFF and not never):
            continue
        if never or not lenient:
            raise BadParameter(f"{_shown(name)}: not supported at /v2/listen; {'leave it out' if never else LENIENCE}")
        yield name


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
    if request.language is not None and hints and not is_english(hints):
        raise BadParameter(f"language_hint: {_shown(hints[0])!r} needs model={MULTILINGUAL} or the name of a model")
    return names.one_language("language_hint", request.model, hints) or request.language


def _float(name: str, value: str) -> float:
    if _NUMBER.fullmatch(value) is None:
        raise BadParameter(f"{name}: {_shown(value)!r} is not valid; must be a number such as 0.7")
    return float(value)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:SHOWN])
