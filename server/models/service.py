"""The service of one model: decoders, recognizer and tickets, and what a request may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from model.ctc.bias import BiasError
from model.ctc.interface import Decoder
from model.ctc.search.symbols import Symbols
from model.description import ModelDescription
from model.errors import VocabularyError
from model.facts import ModelFacts
from model.prompts import AUTO
from server.errors import BadParameter
from server.models.engine_source import EngineSource
from server.models.loading import AUXILIARY_HZ, ModelCard
from server.models.selection import SHOWN, is_english, tag_of
from server.operations.metrics import ModelMetrics
from server.recognition.keyterms.keyterms import check_speakable
from server.recognition.recognizer import Recognizer
from server.recognition.request import (
    ACCURATE,
    FORKS,
    GRAMMAR,
    RECEIPT,
    REDACT,
    REST,
    RESUMABLE,
    REWIND,
    SECOND_PASS,
    SPEAKERS,
    WAIT,
    Feature,
    Request,
    check_features,
    is_excluded,
)
from server.recognition.segments.endpointing import VoiceRules
from server.recognition.session import Session
from server.recognition.session_options import Finals, Limits, SessionOptions
from server.recognition.steps import Auxiliary
from server.recognition.whisper.whisper_decoder import WhisperDecoder
from server.resume.tickets import MOST_STATE_BYTES, TicketService
from server.text.redaction_kinds import number_language

MakeSession = Callable[[SessionOptions, ModelDescription, Decoder, Limits, VoiceRules | None], Session]
NO_SPEAKERS = "diarize: not supported by this server; leave it out, or start the server with --speakers"
NO_AUXILIARY: Mapping[Auxiliary, EngineSource] = {}
_REPEATED = (RECEIPT, RESUMABLE)  # features that need the same text again, maybe by another server
NOTHING: Mapping[Feature, str] = {}
NEEDS: Mapping[Finals, str] = {
    "accurate": "beam search and a model trained by this project",
    "context": "beam search, and a network with attention and 8-bit weights trained by this project, without Whisper",
}


@dataclass(frozen=True, slots=True)
class ModelService:
    """One served model. It admits and recognizes streams once its recognizer has started."""

    name: str
    languages: tuple[str, ...]
    facts: ModelFacts
    card: ModelCard
    decoder: Decoder
    grammars: Mapping[str, Decoder]
    passes: Mapping[tuple[Finals, str], Decoder]  # with a second pass, by finals and grammar ("": none)
    rewind: Decoder | None  # for streams whose finals can be decoded again; None: not available
    acknowledging: Decoder | None  # for streams of turns; None: acknowledgements are known by their text alone
    finals: Finals | Literal["auto"]  # of requests that do not ask
    recognizer: Recognizer
    metrics: ModelMetrics
    tickets: TicketService
    voice: VoiceRules | None  # None: no voice-activity model
    speakers: bool  # whether speakers can be distinguished
    make_session: MakeSession

    @property
    def config(self) -> ModelDescription:
        """Its sample rate, step and symbols."""
        return self.facts.config

    def english(self, language: str | None = None) -> bool:
        """Whether the words of a stream that states this language are known to be English."""
        return is_english(self.spoken(language))

    @property
    def _by_whisper(self) -> bool:
        """Whether accurate finals are those of Whisper."""
        return isinstance(self.passes.get(("accurate", "")), WhisperDecoder)

    def session(self, request: Request, limits: Limits) -> Session:
        """Make the session of one connection or upload. Raises: BadParameter."""
        options, decoder, limits = self.settle(request, limits)
        voice = self.voice
        if voice is not None and not (voice.ends_speech or options.speech_events):
            voice = None
        return self.make_session(options, self.config, decoder, limits, voice)

    def settle(self, request: Request, limits: Limits) -> tuple[SessionOptions, Decoder, Limits]:
        """Return options, decoder and limits of a request's session. Raises: BadParameter if it cannot be served."""
        self.check(request)
        options, decoder = self._settled(request), self.decoder_for(request)
        try:
            check_speakable(options.keyterms, decoder)
        except BiasError as error:
            raise BadParameter(str(error)) from error
        if options.finals == "accurate" and options.fork_after_s is None:  # turns end when they do without
            limits = limits.with_accurate_finals()
        if options.rest is False or is_excluded(REST, replace(request, options=options)):
            limits = replace(limits, rest_s=None)
        elif options.rest and limits.rest_s is None:
            raise BadParameter("rest: streams do not rest on this server; leave it out, or set rest_s there")
        return options, decoder, limits

    def check(self, request: Request, lacking: Mapping[Feature, str] = NOTHING) -> None:
        """Check that the features of a request are available here, and go together; an endpoint is `lacking` others.

        Raises: BadParameter.
        """
        self._check_language(request.options.language)
        check_features(request, {**self._lacking(request), **lacking})

    def _check_language(self, language: str | None) -> None:
        """Raises: BadParameter for one that the model does not have, and for `auto` where it has no choice."""
        prompts, other = self.facts.prompts, repr((language or "")[:SHOWN])
        if prompts is not None and prompts.choice(tag_of(language or "")) is None:
            raise BadParameter(f"language: model {self.name!r} has {', '.join(self.languages)} and auto, not {other}")
        if prompts is None and language is not None and language.casefold() == AUTO:
            has = ", ".join(self.languages) or "one language"
            raise BadParameter(f"language: model {self.name!r} does not detect the language; it has {has}")

    def spoken(self, language: str | None) -> tuple[str, ...]:
        """Return the languages of a stream's words: the stated one of a model that lets it choose, else the model's."""
        prompts = self.facts.prompts
        if prompts is None or not language or prompts.choice(tag_of(language)) in (None, prompts.automatic):
            return self.languages
        return (tag_of(language),)

    def decoder_for(self, request: Request) -> Decoder:
        """Return the decoder of a request that was checked."""
        options = self._settled(request)
        chosen: Decoder | None
        if options.finals not in {None, "fast"}:
            chosen = self.passes[options.finals, options.grammar]
        elif options.grammar:
            chosen = self.grammars[options.grammar]
        else:
            chosen = self.rewind if options.rewind_s else self.decoder
            if options.marks_acknowledgements and self.acknowledging is not None:
                chosen = self.acknowledging
        assert chosen is not None, "checked"
        return chosen

    def marks_acknowledgements(self, request: Request) -> bool:
        """Whether the decoder of a request marks them by their sound."""
        decoders = self.acknowledging, self.passes.get(("context", ""))
        return self.acknowledging is not None and self.decoder_for(request) in decoders

    def finals_of(self, request: Request) -> Finals:
        """Return the finals of a request: those that it asks for, else the default, which yields to other features.

        By default recordings have accurate ones. Live streams have those of the network with the segment as context,
        but streams that resume do not, whose clients would send audio again.
        """
        options, finals = request.options, self.finals
        if options.finals is not None:
            return options.finals
        if finals == "auto" and not request.live:
            finals = "accurate"
        elif finals == "auto":
            finals = "fast" if options.resumable else "context"
        foreign = self._by_whisper and any(feature.counts(request) for feature in _REPEATED)
        if foreign or (finals, options.grammar) not in self.passes or is_excluded(SECOND_PASS[finals], request):
            return "fast"
        return finals

    def _settled(self, request: Request) -> SessionOptions:
        """Return the options of a session: defaults are set, and features that yield to others are left out."""
        options = request.options
        return replace(
            options,
            sample_rate=options.sample_rate or self.config.sample_rate,
            finals=self.finals_of(request),
            number_language=number_language(self.spoken(options.language)),
            language=None if options.language is None else tag_of(options.language),
            prompts=self.facts.prompts,
            forks=options.forks and not is_excluded(FORKS, request),
        )

    def _lacking(self, request: Request) -> dict[Feature, str]:
        """Return the features that this model does not have, each with the text of the refusal."""
        lacking, grammar = dict[Feature, str](), request.options.grammar
        if grammar not in self.grammars:
            there = f"there is {', '.join(self.grammars)}" if self.grammars else "it has none"
            lacking[GRAMMAR] = f"grammar: the model {self.name!r} does not have {grammar[:SHOWN]!r}; {there}"
        for finals, feature in SECOND_PASS.items():
            if (finals, grammar) not in self.passes:
                lacking[feature] = (
                    f"finals: {finals} is not available for model {self.name!r}: it needs {NEEDS[finals]}"
                )
        if self._by_whisper and request.options.finals == "accurate":
            lacking |= {
                feature: f"{feature.name}: cannot be combined with {ACCURATE.name} on this server, whose second pass "
                "by Whisper cannot be replayed; leave one of the two out"
                for feature in _REPEATED
            }
        if self.rewind is None:
            lacking[REWIND] = (
                f"rewind: model {self.name!r} is not searched for key terms, which it needs: by beam search over "
                "letters or phones, or as a transducer; leave it out"
            )
        if not self.speakers:
            lacking[SPEAKERS] = self._why_no_speakers
        state_bytes = self.recognizer.engines.state_bytes * request.options.streams
        if state_bytes > MOST_STATE_BYTES:
            lacking[RESUMABLE] = (
                f"resumable: the state of a stream of model {self.name!r} has {state_bytes / 2**20:.1f} MiB, but a "
                f"ticket holds at most {MOST_STATE_BYTES / 2**20:g} MiB; leave it out"
            )
        if number_language(self.spoken(request.options.language)) is None:
            lacking[WAIT] = (
                f"wait_in_numbers: unfinished numbers are known in English and Mandarin only, and the words of model "
                f"{self.name!r} may be of another language; leave it out"
            )
            lacking[REDACT] = (
                f"redact: numbers are masked in English and Mandarin only, and the words of model {self.name!r} may be "
                "of another language; select an English or Mandarin model"
            )
        return lacking

    @property
    def _why_no_speakers(self) -> str:
        rate = self.config.sample_rate
        if rate != AUXILIARY_HZ:
            return f"diarize: needs a model at {AUXILIARY_HZ} Hz, and {self.name!r} takes {rate} Hz; leave it out"
        return NO_SPEAKERS

    def check_keyterms(self, parameters: Iterable[str]) -> None:
        """Check that the model supports key terms; our own, decoded greedily, ignores them and says so.

        `parameters` are the names under which some were given. Raises: BadParameter.
        """
        for parameter in parameters:
            if not self.decoder.supports_bias and self.facts.published:
                raise BadParameter(
                    f"{parameter}: the model {self.name!r} ({self.config.architecture}) does not support key terms"
                    f"{_why_no_terms(self.facts)}"
                )


def _why_no_terms(facts: ModelFacts) -> str:
    """Return why a model that is decoded greedily takes no key terms, and whether beam search would."""
    assert facts.published, "our own models are excepted"
    with suppress(VocabularyError):
        if Symbols.of_tokens(facts.tokens, known_letters=False).spells_key_terms:
            return ", because it is decoded greedily: a server that is started with --decoder beam takes them"
    return ": its symbols do not spell words letter by letter"
