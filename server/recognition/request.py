"""What a client asks of a stream or an upload, in any protocol, and which features exclude which. Values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

from server.audio.formats import PLAIN, AudioForm
from server.errors import BadParameter
from server.recognition.session_options import Finals, SessionOptions
from server.text.formatting import PLAIN as NO_STYLE
from server.text.formatting import Style
from server.text.numbers.chinese_digits import parts, plain
from server.text.numbers.spoken_digits import Part
from server.text.own_forms import OwnForms
from server.text.redaction_kinds import Redaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks of one stream or upload: the form of its audio, its session's options, and its style."""

    form: AudioForm
    options: SessionOptions
    style: Style = NO_STYLE
    live: bool = True  # an upload ignores the features of live streams alone

    def with_own(self, own: OwnForms, redact: Collection[Redaction] = (), *, written: bool = False) -> Self:
        """Return the request with the operator's own written forms, and with what the client's key always masks.

        `written`: the model writes capitals and marks.
        """
        options = replace(self.options, redact=self.options.redact | frozenset(redact))
        style = self.style.with_own(own, options.redact, settled_only=options.interim_stability == "high")
        style = replace(style.with_grammar(options.grammar), written=written)
        return replace(self, options=options, style=style)


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a request may ask for; `name` is that of the parameter, with its value if only one counts."""

    name: str
    asked: Callable[[Request], object]
    live_only: bool = False

    def counts(self, request: Request) -> bool:
        """Whether a request asks for it and does not ignore it."""
        return bool(self.asked(request)) and (request.live or not self.live_only)


def _has_number(request: Request) -> bool:
    """Whether a key term has a number word, of English or Mandarin, or a digit."""
    terms = (*request.options.keyterms.phrases, *(word for word, _ in request.options.keyterms.keywords))
    texts = [[plain(word) for word in term.split()] for term in terms]
    return any(Part.NUMBER in parts(words, in_number=False, ordinals=True, wary=True) for words in texts)


GRAMMAR = Feature("grammar", lambda request: request.options.grammar)
ACCURATE = Feature("finals=accurate", lambda request: request.options.finals == "accurate")
CONTEXT = Feature("finals=context", lambda request: request.options.finals == "context")
SECOND_PASS: Mapping[Finals, Feature] = {"accurate": ACCURATE, "context": CONTEXT}
REWIND = Feature("rewind", lambda request: request.options.rewind_s, live_only=True)
REDACT = Feature("redact", lambda request: request.options.redact)
RECEIPT = Feature("receipt", lambda request: request.options.receipts)
RESUMABLE = Feature("resumable", lambda request: request.options.resumable, live_only=True)
UTTERANCES = Feature("utterances", lambda request: request.options.spoken_order, live_only=True)
SMART = Feature("endpointing=smart", lambda request: request.options.scored_end, live_only=True)
STABLE_WORDS = Feature("stable_words", lambda request: request.options.tell_stable, live_only=True)
MULTICHANNEL = Feature("multichannel", lambda request: request.options.streams > 1)
FORKS = Feature("early words of turns", lambda request: request.options.forks, live_only=True)
WAIT = Feature("wait_in_numbers", lambda request: request.options.wait_in_numbers, live_only=True)
REST = Feature("rest", lambda request: request.options.rest is not False)
NUMBER_TERMS = Feature(
    "redact and key terms that have numbers", lambda request: request.options.redact and _has_number(request)
)
READ_AGAIN = Feature(
    "resumable and a second pass",
    lambda request: request.options.resumable and any(one.asked(request) for one in SECOND_PASS.values()),
    live_only=True,
)
SPEAKERS = Feature("diarize", lambda request: request.options.speakers)
PACKED = Feature("an encoding that is compressed or in a container", lambda request: request.form.encoding not in PLAIN)

FEATURES = (GRAMMAR, ACCURATE, CONTEXT, REWIND, REDACT, RECEIPT, RESUMABLE, UTTERANCES, SMART, SPEAKERS, WAIT)
"""Features that may be refused, in the order in which they are checked."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Two features that no session has together: a request for both is refused, or the first `yields`."""

    first: Feature
    second: Feature
    why: str
    refusal: str = ""  # instead of the usual text
    yields: bool = False

    @property
    def text(self) -> str:
        """The error of a request that asks for both."""
        parameter, _, value = self.first.name.partition("=")
        subject = f"{parameter}: {value}".rstrip()
        return self.refusal or f"{subject} cannot be combined with {self.second.name}; leave one of the two out"


_RAW = f"requires one of encoding={', '.join(sorted(PLAIN))}"
_TICKETS = "tickets do not hold its state"
EXCLUSIONS = (
    Exclusion(ACCURATE, STABLE_WORDS, "the second pass may change them"),
    Exclusion(CONTEXT, STABLE_WORDS, "the second pass may change them"),
    Exclusion(REWIND, GRAMMAR, "there is one decoder a stream"),
    Exclusion(REWIND, ACCURATE, "a correction has words of the first pass"),
    Exclusion(REWIND, CONTEXT, "a correction has words of the first pass"),
    Exclusion(REWIND, REDACT, "a number may begin before the new words"),
    Exclusion(REWIND, RESUMABLE, _TICKETS),
    Exclusion(REWIND, RECEIPT, "a correction has no receipt"),
    Exclusion(REWIND, SPEAKERS, "a correction has no speakers"),
    Exclusion(RECEIPT, SPEAKERS, "a replay does not distinguish speakers"),
    Exclusion(
        RECEIPT,
        NUMBER_TERMS,
        "a receipt has the key terms",
        f"receipt: cannot be combined with {NUMBER_TERMS.name}, since a receipt would hold them; leave these key terms "
        "out",
    ),
    Exclusion(RECEIPT, PACKED, "a replay needs the samples as they were sent", f"receipt: {_RAW}"),
    Exclusion(
        RESUMABLE,
        REDACT,
        "tickets hold unmasked text",
        "redact: cannot be combined with resumable, whose tickets hold unmasked text",
    ),
    Exclusion(RESUMABLE, PACKED, "tickets do not hold a decoder's state", f"resumable: {_RAW}"),
    Exclusion(UTTERANCES, RESUMABLE, _TICKETS),
    Exclusion(SMART, RESUMABLE, _TICKETS),
    Exclusion(FORKS, RESUMABLE, _TICKETS, yields=True),
    Exclusion(FORKS, MULTICHANNEL, "pauses are those of one channel", yields=True),
    Exclusion(REST, READ_AGAIN, "the audio of a segment is sent again without gaps", yields=True),
    Exclusion(REST, REWIND, "a correction places words by all audio before it", yields=True),
    Exclusion(REST, SPEAKERS, "vectors of voices are those of all audio", yields=True),
)


def check_features(request: Request, lacking: Mapping[Feature, str]) -> None:
    """Check what a request asks for, where the features in `lacking` are refused with their text. Raises: BadParameter.

    The first of `FEATURES` that is refused is named.
    """
    for feature in FEATURES:
        if not feature.counts(request):
            continue
        if feature in lacking:
            raise BadParameter(lacking[feature])
        for row in EXCLUSIONS:
            if row.first is feature and row.second.asked(request):
                raise BadParameter(row.text)


def is_excluded(feature: Feature, request: Request) -> bool:
    """Whether a request counts on something that excludes this feature."""
    pairs = [(row.first, row.second) for row in EXCLUSIONS]
    others = [first if second is feature else second for first, second in pairs if feature in (first, second)]
    return any(other.counts(request) for other in others)
