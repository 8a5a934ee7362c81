"""The event-loop side of the engine: which stream belongs to whom, and who may come in.

Every batch arrives as one call on the event loop; its rows are decoded together, and each connection is told what its
own rows changed. A slot counts as taken from `open` until the engine says that the stream is closed, so admission can
never promise a slot twice. Sockets and wire protocols are unknown here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from batching.engine import Engine
from batching.errors import BatchingError, EngineDown, WrongState
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from model.config import ModelConfig
from model.ctc.words import Decoder
from server.errors import EngineDead, Refused, ServerNotReady
from server.operations.metrics import Metrics
from server.recognition.admission import Admission
from server.recognition.decoding import Decoding
from server.recognition.recognition import Recognition, Route, Sink
from server.recognition.session import Session
from server.recognition.steps import StepTag, Work
from server.recognition.thread_time import ThreadTime

Deliver = Callable[[EngineEvent], None]
MakeEngine = Callable[[Deliver], Engine]
BACKGROUND_BUDGET_S = 10.0  # uploads wait behind live streams, but not for ever


class Recognizer:
    """Sessions in, events out; owns the engines' fronts and the permits."""

    def __init__(
        self,
        config: ModelConfig,
        decoder: Decoder,
        metrics: Metrics,
        *,
        admission: Admission,
        budget_s: float,
        make_engine: MakeEngine,
        make_vad: MakeEngine | None,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] | None = None,
    ) -> None:
        self._config = config
        self._decoding = Decoding(decoder, metrics, clock)
        self._metrics = metrics
        self.admission = admission
        self._budget_s = budget_s
        self._make_engine, self._make_vad = make_engine, make_vad
        self._clock, self._busy_clock = clock, busy_clock or ThreadTime()
        self._engine: Engine | None = None
        self._vad: Engine | None = None
        self._routes: dict[int, Route] = {}
        self._vad_routes: dict[int, Route] = {}
        self._vad_streams: dict[int, int] = {}  # engine stream -> its voice-activity stream
        self._held: set[int] = set()  # every stream that the engine has not reported closed
        self._vad_held: set[int] = set()
        self._warm_up: asyncio.Future[None] | None = None
        self._warm_stream = 0  # no stream has this id
        self._warm = False

    # Life

    async def start(self) -> None:
        """Start the engines and wait for one step of silence to come through. Raises: EngineDead."""
        loop = asyncio.get_running_loop()
        self._warm_up = loop.create_future()
        self._engine = self._make_engine(_deliver_to(loop, self._on_event))
        self._engine.start()
        self._warm_stream = self._engine.open(budget_s=self._budget_s)
        self._engine.push(self._warm_stream, np.zeros(self._config.step_samples, np.int16))
        if self._make_vad is not None:
            self._vad = self._make_vad(_deliver_to(loop, self._on_vad_event))
            self._vad.start()
        await self._warm_up
        self._engine.close(self._warm_stream)
        self._warm = True

    def stop(self, timeout_s: float) -> None:
        """End the engines; sessions still open are broken. Raises: EngineDown if a thread does not end."""
        for engine in (self._vad, self._engine):
            if engine is not None:
                engine.stop(timeout_s)

    def ready(self, stall_s: float) -> bool:
        """Return whether the engines run, are warm and have not been at one piece of work for this long."""
        if not self._warm:
            return False
        return all(_moves(engine, self._clock(), stall_s) for engine in (self._engine, self._vad) if engine is not None)

    @property
    def slots_used(self) -> int:
        """Slots that an engine holds or is about to hold."""
        return max(len(self._held), len(self._vad_held))

    # Sessions

    def refuse_if_full(self) -> None:
        """Spare a request that cannot be served. Raises: ServerFull."""
        self.admission.refuse_if_full(self.slots_used)

    def open(
        self, session: Session, sink: Sink, *, background: bool = False, budget_s: float | None = None
    ) -> Recognition:
        """Admit a session, one slot a channel; release it if it is refused. Raises: ServerFull, ServerNotReady.

        `budget_s` is within which its steps should be answered, None = the operator's choice; what runs in the
        background has a long one of its own. Also raises BatchingError if the model thread hangs.
        """
        try:
            budget_s = BACKGROUND_BUDGET_S if background else budget_s or self._budget_s
            return self._admit(session, sink, background=background, budget_s=budget_s)
        except (Refused, BatchingError):
            session.release()
            raise

    def _admit(self, session: Session, sink: Sink, *, background: bool, budget_s: float) -> Recognition:
        if self._engine is None or not self._warm:
            raise ServerNotReady("the engine is not ready")
        now = self._clock()
        self.admission.look(now, self._busy_clock(), self.slots_used)
        self.admission.check(self.slots_used, len(session.channels), now)
        try:
            streams = [self._engine.open(budget_s=budget_s, background=background) for _ in session.channels]
            heard = [self._vad.open(budget_s=budget_s, background=background) for _ in streams] if self._vad else []
        except EngineDown as error:
            raise ServerNotReady("the engine is down") from error
        recognition = Recognition(self, session, sink, streams)
        for stream, channel in zip(streams, session.channels, strict=True):
            self._routes[stream] = Route(recognition, channel)
        for stream, vad_stream in zip(streams, heard, strict=False):
            self._vad_streams[stream] = vad_stream
            self._vad_routes[vad_stream] = self._routes[stream]
        self._held.update(streams)
        self._vad_held.update(heard)
        self._metrics.slots_used.set(self.slots_used)
        return recognition

    def push(self, recognition: Recognition, work: Sequence[Work]) -> None:
        """Hand work to the engines; a stream that the engine cannot take is broken."""
        assert self._engine is not None  # a recognition exists
        try:
            for piece in work:
                stream = recognition.streams[piece.channel]
                if isinstance(piece.tag, StepTag):
                    self._engine.push(stream, piece.pcm, tag=piece.tag, reset=piece.reset)
                elif self._vad is not None:
                    self._vad.push(self._vad_streams[stream], piece.pcm, tag=piece.tag)
        except BatchingError as error:
            recognition.fail(error)

    def export(self, recognition: Recognition) -> None:
        """Have the states of a session's streams told to it, as they are behind all work so far."""
        assert self._engine is not None  # a recognition exists
        try:
            for stream in recognition.streams:
                self._engine.export(stream)
        except BatchingError as error:
            recognition.fail(error)

    def restore(self, recognition: Recognition, states: Sequence[bytes]) -> None:
        """Let a session's streams, which have had no work, go on from these states. Raises: WrongState."""
        assert self._engine is not None
        if any(len(state) != self._engine.state_bytes for state in states) or len(states) != len(recognition.streams):
            raise WrongState("these are not this model's states")
        for stream, state in zip(recognition.streams, states, strict=True):
            self._engine.restore(stream, state)

    def close(self, recognition: Recognition) -> None:
        """Let go of a session's streams."""
        for stream in recognition.streams:
            del self._routes[stream]
            vad_stream = self._vad_streams.pop(stream, None)
            if self._vad is not None and vad_stream is not None:
                del self._vad_routes[vad_stream]
                self._vad.close(vad_stream)
            if self._engine is not None:
                self._engine.close(stream)

    # Results

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case WarmedUp(step_s):
                self.admission.warmed_up(step_s)
            case BatchDone():
                self._follow(event)
                self._count(event)
                if self._warm:
                    self._decoding.take_steps(event, self._routes)
                else:
                    self._warmed_up(None)
            case StateExported():
                self._on_state(event)
            case StreamClosed(stream):
                self._on_closed(stream)
            case StreamFailed(stream, error):
                if stream in self._routes:
                    self._metrics.errors.labels("step").inc()
                    self._routes[stream].recognition.fail(error)
                elif stream == self._warm_stream:
                    self._warmed_up(error)
            case EngineStopped(error):
                self._on_stopped(error)

    def _on_closed(self, stream: int) -> None:
        self._held.discard(stream)
        self._metrics.slots_used.set(self.slots_used)
        if not self._held:
            self._metrics.queue_depth.set(0)  # whatever waited went without a batch

    def _on_state(self, exported: StateExported) -> None:
        route = self._routes.get(exported.stream)
        if route is not None and route.recognition.open:
            session, sink = route.recognition.session, route.recognition.sink
            sink.on_events(session.exported(route.channel, exported.state), None)

    def _on_vad_event(self, event: EngineEvent) -> None:
        match event:
            case BatchDone():
                self._decoding.take_voice(event, self._vad_routes)
            case StreamClosed(stream):
                self._vad_held.discard(stream)
                self._metrics.slots_used.set(self.slots_used)
            case StreamFailed(stream, error) if stream in self._vad_routes:
                self._metrics.errors.labels("vad").inc()
                self._vad_routes[stream].recognition.fail(error)
            case EngineStopped(error):
                self._on_stopped(error)

    def _on_stopped(self, error: BaseException | None) -> None:
        """No engine, no service: every session ends, and no slot is owed by anybody any more."""
        self._warm = False
        self._warmed_up(EngineDead("the model thread ended"))
        if error is not None:
            self._metrics.errors.labels("engine").inc()
        for recognition in {id(route.recognition): route.recognition for route in self._routes.values()}.values():
            recognition.fail(EngineDead("the model thread ended"))
        self._held.clear()
        self._vad_held.clear()
        self._metrics.slots_used.set(0)

    def _warmed_up(self, error: Exception | None) -> None:
        if self._warm_up is None or self._warm_up.done():
            return
        if error is None:
            self._warm_up.set_result(None)
        else:
            self._warm_up.set_exception(error)

    def _follow(self, batch: BatchDone) -> None:
        """Let admission see how this replica is doing: a step waits for this thread on its way in, and out again."""
        now = self._clock()
        added_s = batch.step_s + 2 * (now - batch.started_s - batch.step_s)
        self.admission.ran(len(batch.streams), batch.step_s, [wait_s + added_s for wait_s in batch.live_wait_s])
        self.admission.look(now, self._busy_clock(), self.slots_used)

    def _count(self, batch: BatchDone) -> None:
        metrics, size = self._metrics, len(batch.streams)
        metrics.batches.inc()
        metrics.batch_rows.inc(size)
        metrics.batch_size.observe(size)
        metrics.inference.observe(batch.step_s)
        audio_s = size * self._config.step_samples / self._config.sample_rate
        metrics.realtime_factor.observe(batch.step_s / audio_s)
        metrics.queue_depth.set(batch.queued)
        metrics.queue_wait.observe_all(batch.queue_wait_s)


def _moves(engine: Engine, now: float, stall_s: float) -> bool:
    busy_since = engine.busy_since()
    return engine.alive and (busy_since is None or now - busy_since < stall_s)


def _deliver_to(loop: asyncio.AbstractEventLoop, on_event: Deliver) -> Deliver:
    """Return what the model thread calls: one hop to the event loop, and nothing once the loop is gone."""

    def deliver(event: EngineEvent) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(on_event, event)

    return deliver
