"""One replica: the parts that its endpoints share, built from settings and models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar

from starlette.requests import HTTPConnection

from server.access.guard import Guard, redaction_of
from server.access.keys import KeyRing, read_secrets
from server.access.tokens import Tokens
from server.access.voices import VoiceFolder
from server.audio.decode_queue import DecodingPool
from server.audio.recordings.remote_recording import ForkServer
from server.callbacks.callbacks import Callbacks
from server.callbacks.delivery import signing_key
from server.callbacks.folder import CallbackFolder
from server.callbacks.hosts import AllowedHosts
from server.coordination.coordinator import Coordinator
from server.coordination.local import LocalCoordinator
from server.coordination.term_building import TermBuilding
from server.errors import of_setting
from server.models.engine_source import EngineSource
from server.models.loading import LoadedModel, speaker_weights
from server.models.registry import ModelRegistry, RegistryEntry
from server.models.service import NOTHING, MakeSession, ModelService
from server.models.service_builder import ServiceBuilder, plain
from server.operations.drain import Drain, OpenSessions
from server.operations.metrics import KeyMetrics, Metrics
from server.receipts.keys import ReceiptKeys
from server.recognition.request import Feature, Request
from server.recognition.session import Session
from server.recognition.session_options import Limits
from server.recognition.steps import Auxiliary
from server.settings import Settings
from server.streaming.flow_control import ConnectionContext, LiveLimits
from server.text.own_forms import OwnForms, own_forms_of
from server.text.redaction_kinds import Redaction
from server.usage.log import UsageFiles, UsageLog
from server.usage.meters import Usage

AnyRequest = TypeVar("AnyRequest", bound=Request)
QUIET_TIMEOUT_S = 60.0  # without audio or a message, for protocols without a keep-alive message
STALL_S = 10.0  # one piece of engine work takes milliseconds; seconds mean that the device hangs


@dataclass(frozen=True, slots=True)
class Replica:
    """Parts that the endpoints share; nothing in it belongs to one connection."""

    settings: Settings
    models: ModelRegistry
    sessions: OpenSessions
    drain: Drain
    metrics: Metrics
    guard: Guard
    limits: Limits
    live_limits: LiveLimits
    clock: Callable[[], float]
    decoding: DecodingPool  # of live streams
    forks: ForkServer  # for uploads
    terms: TermBuilding
    usage: Usage
    receipts: ReceiptKeys | None  # None: no key signs receipts
    own_forms: OwnForms  # the operator's own written forms
    callbacks: Callbacks | None  # None: `callback` is refused
    voices: VoiceFolder | None  # None: `speaker` has no names

    async def accept(
        self,
        connection: HTTPConnection,
        model: ModelService,
        request: AnyRequest,
        *,
        terms: tuple[str, ...] = (),
        lacking: Mapping[Feature, str] = NOTHING,
    ) -> AnyRequest:
        """Return a request as it is served, for the key of its connection, once it is checked and its `terms` built.

        `terms`: its key terms as they were sent; `lacking`: features that its endpoint does not have. Raises:
        BadParameter, TooManyOpenings.
        """
        request = self._with_own(model, request, redaction_of(connection))
        model.check(request, lacking)
        await self.terms.build(self.guard.owner(connection), terms, request.options.keyterms.bias, model.decoder)
        return request

    def check(self, model: ModelService, request: Request) -> None:
        """Check the request of a port whose clients send none, as those of clients are. Raises: BadParameter."""
        model.settle(self._with_own(model, request), self.limits)

    def _with_own(self, model: ModelService, request: AnyRequest, redact: Collection[Redaction] = ()) -> AnyRequest:
        return request.with_own(self.own_forms, redact, written=model.facts.tokens.written)

    @property
    def ready(self) -> bool:
        """Whether `/readyz` answers 200. A full replica is ready: it refuses by itself."""
        return not self.sessions.draining and self.models.ready(STALL_S)

    def connection_context(self, *, keep_alive: bool = True) -> ConnectionContext:
        """Return what live connections share; `keep_alive`: whether the protocol has a keep-alive message."""
        limits = self.live_limits if keep_alive else replace(self.live_limits, idle_timeout_s=QUIET_TIMEOUT_S)
        return ConnectionContext(limits, self.metrics, self.clock, self.decoding)


def build_replica(
    settings: Settings,
    models: Sequence[LoadedModel],
    auxiliary: Mapping[Auxiliary, EngineSource],
    clock: Callable[[], float],
    *,
    make_session: MakeSession = Session,
    outlines: Sequence[RegistryEntry] = (),
    coordinator: Coordinator | None = None,
) -> Replica:
    """Build a replica from settings and loaded models, the default first; `outlines` of those that can be loaded.

    `coordinator` None: this process is the whole server. Raises: SettingsError.
    """
    coordinator = coordinator or LocalCoordinator(settings, clock)
    metrics = Metrics(settings.max_batch, settings.all_slots)
    builder = ServiceBuilder(settings, auxiliary, metrics, clock, make_session, coordinator=coordinator)
    registry = ModelRegistry(builder, settings, models, outlines, clock)
    sessions = OpenSessions(metrics)
    replica = Replica(
        settings=settings,
        models=registry,
        sessions=sessions,
        drain=Drain(sessions, settings.drain_timeout_s, clock),
        metrics=metrics,
        guard=Guard(client_keys(settings, clock), sessions, coordinator, metrics=metrics, settings=settings),
        limits=Limits(
            min_endpoint_ms=settings.min_endpoint_ms,
            max_utterance_s=settings.max_utterance_s,
            max_backlog_s=settings.max_backlog_s,
            rest_s=None if settings.rest_s == "off" else settings.rest_s,
        ),
        live_limits=LiveLimits(
            idle_timeout_s=settings.idle_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            max_backlog_s=settings.max_backlog_s,
        ),
        clock=clock,
        decoding=DecodingPool(),
        forks=ForkServer(),
        terms=TermBuilding(clock),
        usage=_usage(settings, metrics),
        receipts=receipt_keys(settings),
        own_forms=own_forms_of(settings.written_forms),
        callbacks=_callbacks(settings, metrics),
        voices=enrolled_voices(settings),
    )
    metrics.ready.set_function(lambda: float(replica.ready))
    return replica


def client_keys(settings: Settings, clock: Callable[[], float] = perf_counter) -> KeyRing:
    """Return the keys of clients, and what signs their tokens. Raises: SettingsError."""
    with of_setting("token_keys"):
        given = plain(settings.token_keys)
        Tokens(given)
    with of_setting("token_keys_file"):
        tokens = Tokens(secret for _, secret in read_secrets("key", given, settings.token_keys_file))
    with of_setting("api_keys_file"):
        return KeyRing.load(plain(settings.api_keys), settings.api_keys_file, tokens, clock)


def receipt_keys(settings: Settings) -> ReceiptKeys | None:
    """Return the keys that sign receipts; None: there are no receipts. Raises: SettingsError."""
    if settings.receipt_key_file is None:
        return None
    with of_setting("receipt_key_file"):
        return ReceiptKeys.load(settings.receipt_key_file)


def callback_rules(settings: Settings) -> tuple[AllowedHosts, bytes | None]:
    """Return the hosts of callbacks, and the key that signs them, if there is one. Raises: SettingsError."""
    with of_setting("callback_hosts"):
        hosts = AllowedHosts(settings.callback_hosts)
    with of_setting("callback_secret"):
        secret = settings.callback_secret
        return hosts, None if secret is None else signing_key(secret.get_secret_value())


def callback_folder(settings: Settings) -> CallbackFolder | None:
    """Return the folder of callbacks, made if needed; None: there are no callbacks. Raises: SettingsError."""
    if settings.callback_folder is None:
        return None
    with of_setting("callback_folder"):
        return CallbackFolder(settings.callback_folder)


def _callbacks(settings: Settings, metrics: Metrics) -> Callbacks | None:
    """Raises: SettingsError."""
    folder, (hosts, key) = callback_folder(settings), callback_rules(settings)
    if folder is None:
        return None
    callbacks = Callbacks(hosts, folder, key, lambda outcome: metrics.callbacks[outcome].inc())
    metrics.callbacks_waiting.set_function(lambda: float(callbacks.waiting))
    return callbacks


def enrolled_voices(settings: Settings) -> VoiceFolder | None:
    """Return the folder of voices; None: there are none. Raises: SettingsError, ModelError."""
    if settings.voices is None or not settings.speakers:
        return None
    with of_setting("voices"):
        return VoiceFolder(settings.voices, speaker_weights())


def usage_files(settings: Settings) -> UsageFiles | None:
    """Return the files of usage records, in a folder made if needed; None: there are none. Raises: SettingsError."""
    return None if settings.usage_log is None else UsageFiles(settings.usage_log)


def _usage(settings: Settings, metrics: Metrics) -> Usage:
    """Raises: SettingsError."""
    limit, files = settings.metrics_by_key, usage_files(settings)
    counter = KeyMetrics(metrics.registry, limit) if limit else None
    return Usage(None if files is None else UsageLog(files, metrics.usage_records_lost.inc), counter)
