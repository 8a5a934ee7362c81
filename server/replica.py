"""One replica: the parts that its endpoints share, built from settings and a model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version

import torch
from pydantic import SecretStr

from batching.batcher import Policy
from batching.capacity import Capacity
from batching.engine import Engine
from model.ctc.words import Decoder
from model.description import ModelDescription
from server.access.guard import Guard
from server.access.keys import KeyRing, read_secrets
from server.access.tokens import Tokens
from server.audio.decode_queue import DecodingPool
from server.operations.drain import Drain, DrainTimes, OpenSessions
from server.operations.metrics import Metrics
from server.recognition.admission import Admission
from server.recognition.engines import Deliver, Engines, MakeEngine
from server.recognition.recognizer import Recognizer
from server.recognition.session import MAX_BACKLOG_S, Limits, Session, SessionOptions
from server.resume.seal import read_keys
from server.resume.tickets import TicketService
from server.served_model import ModelCard, Models, Servable, ServedModel, VadModel
from server.settings import Settings
from server.streaming.connection import ConnectionContext
from server.streaming.flow_control import LiveLimits

MakeSession = Callable[[SessionOptions, ModelDescription, Decoder, Limits, int | None], Session]
STALL_S = 10.0  # one piece of engine work takes milliseconds; seconds mean that the device hangs
STOP_TIMEOUT_S = 5.0  # for the batch that is running
TILE_ROWS = 16  # of `reproducible`: small enough not to waste much on a few streams, a full vector width on many
FLUSH_TIMEOUT_S = 3.0  # for finals, summaries and closes of the streams that a drain did not wait for
FLUSHES = 8  # that may wait in a queue on top of the audio


@dataclass(frozen=True, slots=True)
class Replica:
    """Parts that the endpoints share; nothing in it belongs to one connection."""

    settings: Settings
    config: ModelDescription
    card: ModelCard
    models: Models
    decoder: Decoder
    recognizer: Recognizer
    sessions: OpenSessions
    drain: Drain
    metrics: Metrics
    guard: Guard
    limits: Limits
    live_limits: LiveLimits
    window_samples: int | None
    clock: Callable[[], float]
    decoding: DecodingPool
    tickets: TicketService
    make_session: MakeSession = Session

    @property
    def ready(self) -> bool:
        """Whether `/readyz` answers 200. A full replica is ready: it refuses by itself."""
        return not self.sessions.draining and self.recognizer.engines.ready(STALL_S)

    def session(self, options: SessionOptions, limits: Limits) -> Session:
        """Make the session of one connection or upload."""
        return self.make_session(options, self.config, self.decoder, limits, self.window_samples)

    def connection_context(self, idle_timeout_s: float | None = None) -> ConnectionContext:
        """Return what live connections share; `idle_timeout_s` None is that of Deepgram's protocol."""
        limits = self.live_limits
        if idle_timeout_s is not None:
            limits = replace(limits, idle_timeout_s=idle_timeout_s)
        return ConnectionContext(limits, self.metrics, self.clock, self.decoding)


def build_replica(
    settings: Settings,
    model: ServedModel,
    decoder: Decoder,
    vad_model: VadModel | None,
    clock: Callable[[], float],
    *,
    make_session: MakeSession = Session,
) -> Replica:
    """Build a replica from settings and a loaded model. Raises: SettingsError."""
    config = model.config
    metrics = Metrics(settings.max_batch, settings.slots)
    if model.device.type == "cuda":
        metrics.watch_gpu(lambda: torch.cuda.memory_allocated(model.device))
    metrics.build_info.labels(version("tutti-asr"), settings.commit, config.name, str(model.device)).set(1)
    card = ModelCard.of(config.name, config.version, model.digest)
    window = vad_model.step_samples if vad_model is not None else None
    engines = Engines(
        _engine(settings, config, model, clock, config.step_samples, name="model"),
        _engine(settings, config, vad_model, clock, window, name="vad") if vad_model and window else None,
        step_samples=config.step_samples,
        clock=clock,
    )
    recognizer = Recognizer(
        config,
        decoder,
        metrics,
        engines=engines,
        admission=_admission(settings, config, metrics),
        budget_s=settings.latency_budget_ms / 1_000,
        clock=clock,
    )
    sessions = OpenSessions(metrics)
    replica = Replica(
        settings=settings,
        config=config,
        card=card,
        models=Models(config.name, settings.model_aliases, settings.strict_models),
        decoder=decoder,
        recognizer=recognizer,
        sessions=sessions,
        drain=Drain(sessions, _drain_times(settings), clock),
        metrics=metrics,
        guard=Guard(_keys(settings, clock), sessions, recognizer, metrics=metrics, settings=settings, clock=clock),
        limits=_limits(settings),
        live_limits=_live_limits(settings),
        window_samples=window,
        clock=clock,
        decoding=DecodingPool(),
        tickets=_tickets(settings, model, decoder),
        make_session=make_session,
    )
    metrics.ready.set_function(lambda: float(replica.ready))
    return replica


def _admission(settings: Settings, config: ModelDescription, metrics: Metrics) -> Admission:
    capacity = Capacity(
        step_s=config.step_samples / config.sample_rate,
        objective_s=settings.latency_budget_ms / 1_000,
        max_batch=settings.max_batch,
    )
    admission = Admission(settings.slots, capacity, follow=settings.max_streams == "auto")
    metrics.estimated_capacity.set_function(lambda: float(admission.estimate))
    metrics.reserved.set_function(lambda: float(capacity.reserved()))
    metrics.slowdown.set_function(lambda: capacity.slowdown)
    metrics.sessions_max.set_function(lambda: float(admission.limit))
    return admission


def _keys(settings: Settings, clock: Callable[[], float]) -> KeyRing:
    """Raises: SettingsError."""
    secrets = read_secrets("token key", _plain(settings.token_keys), settings.token_keys_file)
    tokens = Tokens(secret for _, secret in secrets)
    return KeyRing.load(_plain(settings.api_keys), settings.api_keys_file, tokens, clock)


def _tickets(settings: Settings, model: ServedModel, decoder: Decoder) -> TicketService:
    """Raises: SettingsError."""

    def setup() -> tuple[str, ...]:
        rules = (settings.min_endpoint_ms, settings.silence_endpoint_ms, settings.max_utterance_s)
        return model.digest, model.precision, decoder.digest, repr(rules)

    keys = read_keys(read_secrets("resume key", _plain(settings.resume_keys), settings.resume_keys_file))
    return TicketService(keys, ttl_s=settings.resume_ttl_s, setup=setup, clock=time.time)


def _plain(secrets: Iterable[SecretStr]) -> list[str]:
    return [secret.get_secret_value() for secret in secrets]


def _drain_times(settings: Settings) -> DrainTimes:
    return DrainTimes(
        timeout_s=settings.drain_timeout_s,
        spread_s=settings.drain_spread_s,
        linger_s=settings.drain_linger_s,
        flush_s=FLUSH_TIMEOUT_S,
    )


def _limits(settings: Settings) -> Limits:
    return Limits(
        min_endpoint_ms=settings.min_endpoint_ms,
        silence_endpoint_ms=settings.silence_endpoint_ms,
        max_utterance_s=settings.max_utterance_s,
        max_backlog_s=settings.max_backlog_s,
    )


def _live_limits(settings: Settings) -> LiveLimits:
    return LiveLimits(
        idle_timeout_s=settings.idle_timeout_s,
        stall_timeout_s=settings.stall_timeout_s,
        write_timeout_s=settings.write_timeout_s,
        max_backlog_s=settings.max_backlog_s,
        max_session_s=settings.max_session_s,
    )


def _engine(
    settings: Settings,
    config: ModelDescription,
    model: Servable,
    clock: Callable[[], float],
    step_samples: int,
    *,
    name: str,
) -> MakeEngine:
    """Return a factory of the engine, to be called with the function that takes its results."""
    longest_s = max(settings.max_backlog_s, MAX_BACKLOG_S)
    max_queued = math.ceil(longest_s * config.sample_rate / step_samples) + FLUSHES * (config.flush_steps + 2)

    def make(deliver: Deliver) -> Engine:
        return Engine(
            model.slots(
                capacity=settings.slots,
                largest=settings.max_batch,
                tile_rows=TILE_ROWS if settings.reproducible else None,
            ),
            policy=Policy(settings.policy),
            max_queued=max_queued,
            deliver=deliver,
            step_s=step_samples / config.sample_rate,
            warm_up=True,
            clock=clock,
            name=name,
        )

    return make
