"""The service of one model (engines, decoders, recognizer, tickets), built from a loaded model."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version

from pydantic import SecretStr

from batching.thread.step_token import StepToken
from model.ctc.bias import BiasError
from model.ctc.interface import Decoder
from model.ctc.search.symbols import Symbols
from model.decoder import rewind_of
from model.description import ModelDescription
from model.errors import VocabularyError
from model.facts import ModelFacts
from model.machine.runtime import steps_at_once
from model.prompts import AUTO
from server.access.keys import read_secrets
from server.coordination.coordinator import Coordinator, ModelSlots
from server.coordination.limits import TICKET_TTL_S
from server.errors import BadParameter, SettingsError, of_setting
from server.models.engine_source import EnginePlan, EngineSource
from server.models.loading import AUXILIARY_HZ, WINDOWS, LoadedModel, ModelCard
from server.models.selection import SHOWN, is_english, tag_of
from server.operations.metrics import Metrics, ModelMetrics
from server.recognition.decoding.second_pass import SecondPass
from server.recognition.decoding.segment_threads import threads_of
from server.recognition.engines import Engines
from server.recognition.keyterms.keyterms import check_speakable
from server.recognition.recognizer import Recognizer
from server.recognition.request import (
    ACCURATE,
    FORKS,
    GRAMMAR,
    RECEIPT,
    REDACT,
    RESUMABLE,
    REWIND,
    SPEAKERS,
    Feature,
    Request,
    check_features,
    is_excluded,
)
from server.recognition.segments.endpointing import VoiceRules
from server.recognition.session import Session
from server.recognition.session_options import Finals, Limits, SessionOptions
from server.recognition.steps import Auxiliary
from server.recognition.turn_questions import TurnQuestions
from server.recognition.whisper.timed_pass import TimedPass
from server.recognition.whisper.whisper_decoder import WhisperDecoder
from server.resume.tickets import MOST_STATE_BYTES, TicketService, read_keys
from server.settings import Settings
from server.text.redaction_kinds import number_language

MakeSession = Callable[[SessionOptions, ModelDescription, Decoder, Limits, VoiceRules | None], Session]
TURN_HZ = 16_000  # of a turn model's audio
NO_SPEAKERS = "diarize: not supported by this server; leave it out, or start the server with --speakers"
NO_AUXILIARY: Mapping[Auxiliary, EngineSource] = {}
NOTHING: Mapping[Feature, str] = {}


@dataclass(frozen=True, slots=True)
class ModelService:
    """One served model. It admits and recognizes streams once its recognizer has started."""

    name: str
    languages: tuple[str, ...]
    facts: ModelFacts
    card: ModelCard
    decoder: Decoder
    grammars: Mapping[str, Decoder]
    accurate: Decoder | None  # for streams that ask for accurate finals; None: not available
    accurate_grammars: Mapping[str, Decoder]
    rewind: Decoder | None  # for streams whose finals can be decoded again; None: not available
    finals: Finals  # of streams that do not ask
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
        return isinstance(self.accurate, WhisperDecoder)

    def session(self, request: Request, limits: Limits) -> Session:
        """Make the session of one connection or upload. Raises: BadParameter."""
        self.check(request)
        options, decoder = self._settled(request), self.decoder_for(request)
        try:
            check_speakable(options.keyterms, decoder)
        except BiasError as error:
            raise BadParameter(str(error)) from error
        if options.finals == "accurate":
            limits = limits.with_accurate_finals()
        voice = self.voice
        if voice is not None and not (voice.ends_speech or options.speech_events):
            voice = None
        return self.make_session(options, self.config, decoder, limits, voice)

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
        if options.finals == "accurate":
            chosen = self._accurate_for(options)
        elif options.grammar:
            chosen = self.grammars[options.grammar]
        else:
            chosen = self.rewind if options.rewind_s else self.decoder
        assert chosen is not None, "checked"
        return chosen

    def _accurate_for(self, options: SessionOptions) -> Decoder | None:
        """Return the decoder of accurate finals, None if there is none."""
        return self.accurate_grammars.get(options.grammar) if options.grammar else self.accurate

    def _settled(self, request: Request) -> SessionOptions:
        """Return the options of a session: defaults are set, and features that yield to others are left out."""
        options = request.options
        excluded = is_excluded(ACCURATE, request) or (self._by_whisper and RECEIPT.counts(request))
        default = "fast" if self._accurate_for(options) is None or excluded else self.finals
        return replace(
            options,
            sample_rate=options.sample_rate or self.config.sample_rate,
            finals=options.finals or default,
            number_language=number_language(self.spoken(options.language)) if options.redact else None,
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
        if self._accurate_for(request.options) is None:
            lacking[ACCURATE] = (
                f"finals: accurate is not available for model {self.name!r}: it needs beam search and a model "
                "trained by this project"
            )
        if self._by_whisper and request.options.finals == "accurate":
            lacking[RECEIPT] = (
                f"receipt: cannot be combined with {ACCURATE.name} on this server, whose second pass by Whisper cannot "
                "be replayed; leave one of the two out"
            )
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


class ServiceBuilder:
    """Builds the services of one replica's models, which share its machine, its metrics and its resume keys."""

    def __init__(
        self,
        settings: Settings,
        auxiliary: Mapping[Auxiliary, EngineSource],
        metrics: Metrics,
        clock: Callable[[], float],
        make_session: MakeSession,
        *,
        coordinator: Coordinator,
    ) -> None:
        """Raises: SettingsError, ModelError."""
        self._settings = settings
        self._auxiliary = auxiliary
        self._metrics = metrics
        self._clock = clock
        self._make_session = make_session
        self._coordinator = coordinator
        self._step_tokens = itertools.cycle([StepToken() for _ in range(steps_at_once(settings.threads))])
        self._second_pass = SecondPass(clock, processes=settings.processes)
        threads, timeout_s = threads_of(settings.processes), settings.second_pass_timeout_s
        self._timed_pass = TimedPass(clock, threads=threads, timeout_s=timeout_s)
        self._questions = _questions(settings, metrics, clock)
        keys = resume_keys(settings)
        self._own_key = not keys
        self._resume_keys = keys or [os.urandom(32)]
        metrics.sessions_max.set_function(self.limit)
        metrics.estimated_capacity.set_function(lambda: coordinator.estimate)

    def limit(self) -> float:
        """Return how many channels may be open at the present mix of models."""
        return self._coordinator.limit

    def build(self, model: LoadedModel) -> ModelService:
        """Return the service of a model; nothing runs before its recognizer starts. Raises: SettingsError."""
        config, metrics = model.facts.config, self._metrics.of_model(model.name)
        voice = self._voice(model)
        recognizer = Recognizer(
            config,
            model.decoder,
            metrics,
            engines=self._engines(model),
            slots=self._slots(model.name, config, metrics),
            second_pass=self._timed_pass if isinstance(model.accurate, WhisperDecoder) else self._second_pass,
            budget_s=self._settings.latency_budget_ms / 1_000,
            fork_slots=self._settings.forks_here,
            clock=self._clock,
            questions=self._questions_of(model),
        )
        tickets = self._tickets(model)
        self._describe(model)
        return ModelService(
            model.name,
            model.languages,
            model.facts,
            model.card,
            model.decoder,
            model.grammars,
            model.accurate,
            model.accurate_grammars,
            rewind_of(model.decoder),
            self._settings.finals,
            recognizer,
            metrics,
            tickets,
            voice,
            Auxiliary.SPEAKERS in self._auxiliary_of(model),
            self._make_session,
        )

    def _describe(self, model: LoadedModel) -> None:
        gpu, device = model.engines.gpu, model.facts.device
        if gpu is not None:
            import torch

            self._metrics.watch_gpu(lambda: torch.cuda.memory_allocated(gpu))
        self._metrics.build_info.labels(version("tutti-asr"), self._settings.commit, model.name, str(device)).set(1)

    def release(self, service: ModelService) -> None:
        """Release a service that has stopped: its streams no longer count, and its gauges read 0."""
        self._coordinator.close_slots(service.name)
        service.metrics.gone()

    def stop(self) -> None:
        """Stop what the models share."""
        self._second_pass.stop()
        self._timed_pass.stop()
        if self._questions is not None:
            self._questions.stop()

    def _questions_of(self, model: LoadedModel) -> TurnQuestions | None:
        """Raises: SettingsError."""
        rate = model.facts.config.sample_rate
        if self._questions is not None and rate != TURN_HZ:
            raise SettingsError(
                f"turn_model: needs a model at {TURN_HZ} Hz, and {model.name!r} takes {rate} Hz; leave it out"
            )
        return self._questions

    def _voice(self, model: LoadedModel) -> VoiceRules | None:
        """Use of the voice-activity model; `auto` has none for another sample rate. Raises: SettingsError."""
        if Auxiliary.VAD not in self._auxiliary:
            return None
        rate, ends_speech = model.facts.config.sample_rate, self._settings.vad == "silero"
        if rate == AUXILIARY_HZ:
            return VoiceRules(WINDOWS[Auxiliary.VAD], ends_speech=ends_speech)
        if ends_speech:
            raise SettingsError(
                f"vad: silero needs a model at {AUXILIARY_HZ} Hz, and {model.name!r} takes {rate} Hz; use --vad auto"
            )
        return None

    def _auxiliary_of(self, model: LoadedModel) -> Mapping[Auxiliary, EngineSource]:
        """Return the auxiliary models that hear the audio of a model: all, at their sample rate."""
        return self._auxiliary if model.facts.config.sample_rate == AUXILIARY_HZ else {}

    def _engines(self, model: LoadedModel) -> Engines:
        settings, clock = self._settings, self._clock
        facts = model.facts
        step_token = None if facts.device.type == "cuda" else next(self._step_tokens)
        plan = EnginePlan.of(settings, facts.config, f"model {model.name}")
        make_auxiliary = {}
        for kind, source in self._auxiliary_of(model).items():
            small = EnginePlan.of(settings, facts.config, f"{kind} {model.name}", WINDOWS[kind])
            make_auxiliary[kind] = source.maker(small, next(self._step_tokens), clock)
        return Engines(
            model.engines.maker(plan, step_token, clock),
            make_auxiliary,
            step_samples=facts.row_samples,
            clock=clock,
        )

    def _slots(self, name: str, config: ModelDescription, metrics: ModelMetrics) -> ModelSlots:
        step_s = config.step_samples / config.sample_rate
        slots = self._coordinator.open_slots(name, step_s, metrics.slots_used.set)
        metrics.capacity.set_function(lambda: float(slots.estimate))
        metrics.reserved.set_function(lambda: float(slots.reserved))
        metrics.slowdown.set_function(lambda: slots.slowdown)
        return slots

    def _tickets(self, model: LoadedModel) -> TicketService:
        settings = self._settings

        def setup() -> tuple[str, ...]:
            rules = (settings.min_endpoint_ms, settings.max_utterance_s)
            decoders = (model.decoder.digest, *(grammar.digest for grammar in model.grammars.values()))
            small = (settings.vad, str(settings.speakers))
            return model.facts.digest, model.facts.precision, *decoders, repr(rules), *small

        return TicketService(
            self._resume_keys,
            ttl_s=TICKET_TTL_S,
            setup=setup,
            clock=time.time,
            use=self._coordinator,
            own_key=self._own_key,
        )


def _questions(settings: Settings, metrics: Metrics, clock: Callable[[], float]) -> TurnQuestions | None:
    """Return the questions to the turn model, if there is one. Raises: ModelError."""
    path = settings.turn_model
    if path is None:
        return None
    from model.turn_ends.turn_model import TurnModel

    counters = metrics.turn_questions
    return TurnQuestions(
        lambda: TurnModel.load(path), lambda result: counters[result].inc(), clock, processes=settings.processes
    )


def resume_keys(settings: Settings) -> list[bytes]:
    """Return the keys of tickets, those given and then those of the file. Raises: SettingsError."""
    with of_setting("resume_keys"):
        given = read_keys(read_secrets("key", plain(settings.resume_keys), None))
    with of_setting("resume_keys_file"):
        return given + read_keys(read_secrets("key", (), settings.resume_keys_file))


def plain(secrets: Iterable[SecretStr]) -> list[str]:
    """Return secrets as text."""
    return [secret.get_secret_value() for secret in secrets]
