"""Building of the services of a replica's models: engines, slots, tickets, and what the models share."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version

from pydantic import SecretStr

from batching.thread.step_token import StepToken
from model.ctc.two_pass import TwoPassDecoder
from model.decoder import acknowledging_of, rewind_of
from model.machine.runtime import steps_at_once
from model.turn_ends.turn_model import TurnModel
from server.access.keys import read_secrets
from server.coordination.coordinator import Coordinator, ModelSlots
from server.coordination.limits import TICKET_TTL_S
from server.errors import SettingsError, of_setting
from server.models.engine_source import EnginePlan, EngineSource
from server.models.loading import AUXILIARY_HZ, WINDOWS, LoadedModel, speaker_weights
from server.models.service import MakeSession, ModelService
from server.operations.metrics import Metrics, ModelMetrics
from server.recognition.decoding.second_pass import SecondPass
from server.recognition.decoding.segment_threads import threads_of
from server.recognition.engines import Engines
from server.recognition.recognizer import Recognizer
from server.recognition.segments.endpointing import VoiceRules
from server.recognition.session_options import Finals
from server.recognition.steps import TOGETHER, Auxiliary
from server.recognition.turn_questions import TurnQuestions
from server.recognition.whisper.timed_pass import TimedPass
from server.recognition.whisper.whisper_decoder import WhisperDecoder
from server.resume.tickets import TicketService, read_keys
from server.settings import Settings

TURN_HZ = 16_000  # of a turn model's audio
COUNTS_AS: Mapping[Finals, float] = {"fast": 1.0, "context": 1.5, "accurate": 7.0}
"""Streams without a second pass that fit on the same machine as one with it. Source: docs/measured.md"""


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
        by_whisper = isinstance(model.passes.get(("accurate", "")), WhisperDecoder)
        recognizer = Recognizer(
            config,
            metrics,
            engines=self._engines(model),
            slots=self._slots(model, metrics),
            second_pass=self._timed_pass if by_whisper else self._second_pass,
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
            model.passes,
            rewind_of(model.decoder),
            acknowledging_of(model.facts, model.decoder),
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

            self._metrics.gpu_memory.set_function(lambda: torch.cuda.memory_allocated(gpu))
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
            small = EnginePlan.of(settings, facts.config, f"{kind} {model.name}", WINDOWS[kind] * TOGETHER[kind])
            make_auxiliary[kind] = source.maker(small, next(self._step_tokens), clock)
        return Engines(
            model.engines.maker(plan, step_token, clock), make_auxiliary, step_samples=facts.row_samples, clock=clock
        )

    def _slots(self, model: LoadedModel, metrics: ModelMetrics) -> ModelSlots:
        config, finals = model.facts.config, self._settings.live_finals
        counts_as = COUNTS_AS[finals] if isinstance(model.passes.get((finals, "")), TwoPassDecoder) else 1.0
        step_s = config.step_samples / config.sample_rate / counts_as
        slots = self._coordinator.open_slots(model.name, step_s, metrics.slots_used.set)
        metrics.capacity.set_function(lambda: float(slots.estimate))
        metrics.reserved.set_function(lambda: float(slots.reserved))
        metrics.slowdown.set_function(lambda: slots.slowdown)
        return slots

    def _tickets(self, model: LoadedModel) -> TicketService:
        settings = self._settings
        voices = speaker_weights() if settings.speakers else ""

        def setup() -> tuple[str, ...]:
            rules = (settings.min_endpoint_ms, settings.max_utterance_s, settings.rest_s)
            all_decoders = model.decoder, *model.grammars.values(), *model.passes.values()
            decoders = [decoder.digest for decoder in all_decoders]
            others = repr(rules), settings.vad, voices, settings.finals
            return model.facts.digest, model.facts.precision, *decoders, *others

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
    path, counters = settings.turn_model, metrics.turn_questions
    if path is None:
        return None
    return TurnQuestions(
        lambda: TurnModel.load(path), lambda result: counters[result].inc(), clock, processes=settings.processes
    )


def resume_keys(settings: Settings) -> list[bytes]:
    """Return the keys of tickets, those given and then those of the file. Raises: SettingsError."""
    with of_setting("resume_keys"):
        named = read_keys(read_secrets("key", plain(settings.resume_keys), None))
    with of_setting("resume_keys_file"):
        return named + read_keys(read_secrets("key", (), settings.resume_keys_file))


def plain(secrets: Iterable[SecretStr]) -> list[str]:
    """Return secrets as text."""
    return [secret.get_secret_value() for secret in secrets]
