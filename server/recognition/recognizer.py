"""The event-loop side of the engine: sessions and their streams, admission, decoding of each batch's results."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from batching.engine import Engine
from batching.errors import BatchingError, EngineDown, WrongState
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from model.config import ModelConfig
from model.ctc.words import Decoder
from server.errors import EngineDead, Refused, ServerNotReady
from server.operations.metrics import Metrics
from server.recognition.admission import Admission, ThreadTime
from server.recognition.events import Event, StepTiming, StreamBroken
from server.recognition.segmenter import Segmenter
from server.recognition.session import Session
from server.recognition.steps import StepTag, WindowTag, Work

Outputs = NDArray[np.float32]


class EventSink(Protocol):
    """Whoever holds the other end of a session."""

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Take what a step changed, often nothing. `timing` is None for what answers no step."""


class Streams(Protocol):
    """What a recognition needs of the recognizer."""

    def push(self, recognition: ActiveSession, work: Sequence[Work]) -> None:
        """Hand work to the engines, in order."""

    def close(self, recognition: ActiveSession) -> None:
        """Let go of a session's streams."""

    def export(self, recognition: ActiveSession) -> None:
        """Have the engine's states of a session told to it, as they are behind all work so far."""

    def restore(self, recognition: ActiveSession, states: Sequence[bytes]) -> None:
        """Give a session's streams these states, by channel."""


class ActiveSession:
    """One session's streams in the engine. `close` it when the session is over; more often does no harm."""

    def __init__(self, owner: Streams, session: Session, sink: EventSink, streams: Sequence[int]) -> None:
        self.session = session
        self.sink = sink
        self.streams = tuple(streams)  # by channel
        self.open = True
        self._owner = owner

    def push(self, work: Sequence[Work]) -> None:
        """Hand work to the engine, in order."""
        if self.open:
            self._owner.push(self, work)

    def export(self) -> None:
        """Have the engine's states told to the session, as they are behind all work so far."""
        if self.open:
            self._owner.export(self)

    def restore(self, states: Sequence[bytes]) -> None:
        """Go on from these states, by channel; before any work. Raises: WrongState."""
        if self.open:
            self._owner.restore(self, states)

    def close(self) -> None:
        """Drop whatever is still waiting; decoder states come back now, slots when the engine has let go of them."""
        if self.open:
            self.open = False
            self._owner.close(self)
            self.session.release()

    def fail(self, error: Exception) -> None:
        """Tell the connection that nothing more will come."""
        if self.open:
            self.close()
            self.sink.on_events([StreamBroken(error)], None)


class BatchTiming(msgspec.Struct, frozen=True, gc=False):
    """What all rows of a batch share; `done_s` is the clock time at which the outputs were there."""

    step_s: float
    done_s: float
    rows: int


class Row(msgspec.Struct, frozen=True):
    """One step's answer, outputs (T, V)."""

    tag: StepTag
    outputs: Outputs
    queue_wait_s: float
    batch: BatchTiming


@dataclass(frozen=True, slots=True)
class Route:
    """One channel's way back; `held` are answers that wait for the voice-activity model."""

    recognition: ActiveSession
    channel: Segmenter
    held: deque[Row] = field(default_factory=deque)

    @property
    def due(self) -> bool:
        """Whether the oldest held answer is still wanted, and its audio was heard by the voice-activity model."""
        speech = self.channel.speech
        if not self.held or speech is None or not self.recognition.open:
            return False
        return speech.covers(self.held[0].tag.end_sample)


_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.decoding")

Routes = Mapping[int, Route]


class BatchDecoder:
    """Owns the decoder; the states belong to the channels."""

    def __init__(self, decoder: Decoder, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._decoder = decoder
        self._metrics = metrics
        self._clock = clock

    def take_steps(self, batch: BatchDone, routes: Routes) -> None:
        """Decode the rows of streams that are still open."""
        due: list[tuple[Route, Row]] = []
        indices: list[int] = []
        voiced: list[Route] = []
        timing = BatchTiming(batch.step_s, batch.started_s + batch.step_s, len(batch.streams))
        for i, (stream, tag, waited_s) in enumerate(zip(batch.streams, batch.tags, batch.queue_wait_s, strict=True)):
            route = routes.get(stream)
            if route is None or not isinstance(tag, StepTag):
                continue
            row = Row(tag, batch.outputs[i], waited_s, timing)
            if route.channel.speech is None:
                indices.append(i)
                due.append((route, row))
            else:
                route.held.append(row)
                voiced.append(route)
        if due:
            all_rows = len(indices) == len(batch.streams)
            self._decode(due, batch.outputs if all_rows else batch.outputs[indices])
        self._release(voiced)

    def take_voice(self, batch: BatchDone, routes: Routes) -> None:
        """Take the probabilities of speech, (B, 1), and whatever waited for them."""
        voiced: list[Route] = []
        for stream, tag, probability in zip(batch.streams, batch.tags, batch.outputs.reshape(-1), strict=True):
            route = routes.get(stream)
            if route is not None and route.channel.speech is not None and isinstance(tag, WindowTag):
                route.channel.speech.heard(tag.end_sample, float(probability))
                voiced.append(route)
        self._release(voiced)

    def _release(self, routes: Sequence[Route]) -> None:
        """Decode the held answers that are due, one step of a channel at a time."""
        while due := [(route, route.held.popleft()) for route in routes if route.due]:
            self._decode(due, np.stack([row.outputs for _, row in due]))  # (B, T, V)

    def _decode(self, due: Sequence[tuple[Route, Row]], outputs: Outputs) -> None:
        """Advance each channel by one step, outputs (B, T, V), and tell each connection.

        All rows are read before any is told, so that one pair of clock readings covers all that the decoder does.
        """
        began_s = self._clock()
        try:
            self._decoder.advance([route.channel.state for route, _ in due], outputs)
            said = [route.recognition.session.decoded(route.channel, row.tag) for route, row in due]
        except Exception as error:  # noqa: BLE001 - as a failed model step: these streams end, and no others
            self._metrics.errors.labels("decode").inc()
            _log.error("decoding failed", rows=len(due), error=repr(error))
            for route, _ in due:
                route.recognition.fail(error)
            return
        decoded_s = self._clock()
        decode_s = decoded_s - began_s
        self._metrics.decode.observe(decode_s)
        self._metrics.handover.observe(began_s - due[0][1].batch.done_s)
        for (route, row), events in zip(due, said, strict=True):
            if route.recognition.open:  # what was told of an earlier row may have ended it
                batch = row.batch
                handover_s = began_s - batch.done_s
                timing = StepTiming(
                    row.tag.arrived_s, row.queue_wait_s, batch.step_s, handover_s, decode_s, decoded_s, batch.rows
                )
                route.recognition.sink.on_events(events, timing)


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
        self._decoding = BatchDecoder(decoder, metrics, clock)
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
        self, session: Session, sink: EventSink, *, background: bool = False, budget_s: float | None = None
    ) -> ActiveSession:
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

    def _admit(self, session: Session, sink: EventSink, *, background: bool, budget_s: float) -> ActiveSession:
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
        recognition = ActiveSession(self, session, sink, streams)
        for stream, channel in zip(streams, session.channels, strict=True):
            self._routes[stream] = Route(recognition, channel)
        for stream, vad_stream in zip(streams, heard, strict=False):
            self._vad_streams[stream] = vad_stream
            self._vad_routes[vad_stream] = self._routes[stream]
        self._held.update(streams)
        self._vad_held.update(heard)
        self._metrics.slots_used.set(self.slots_used)
        return recognition

    def push(self, recognition: ActiveSession, work: Sequence[Work]) -> None:
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

    def export(self, recognition: ActiveSession) -> None:
        """Have the states of a session's streams told to it, as they are behind all work so far."""
        assert self._engine is not None  # a recognition exists
        try:
            for stream in recognition.streams:
                self._engine.export(stream)
        except BatchingError as error:
            recognition.fail(error)

    def restore(self, recognition: ActiveSession, states: Sequence[bytes]) -> None:
        """Let a session's streams, which have had no work, go on from these states. Raises: WrongState."""
        assert self._engine is not None
        if any(len(state) != self._engine.state_bytes for state in states) or len(states) != len(recognition.streams):
            raise WrongState("these are not this model's states")
        for stream, state in zip(recognition.streams, states, strict=True):
            self._engine.restore(stream, state)

    def close(self, recognition: ActiveSession) -> None:
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
