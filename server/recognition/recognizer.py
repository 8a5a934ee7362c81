"""The event-loop side of the engine: sessions and their streams, admission, decoding of each batch's results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from batching.errors import BatchingError, WrongState
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from model.ctc.words import Decoder, Word
from model.description import ModelDescription
from server.errors import EngineDead, Refused
from server.operations.metrics import ModelMetrics
from server.recognition.admission import Admission, Machine, ThreadTime
from server.recognition.engines import Engines, EngineStreams
from server.recognition.events import Event, StepTiming, StreamBroken
from server.recognition.held_steps import OpenFinal
from server.recognition.second_decodes import Outcome, SecondDecodes
from server.recognition.segmenter import Segmenter
from server.recognition.session import Session
from server.recognition.steps import StepTag, WindowTag, Work

BACKGROUND_BUDGET_S = 10.0  # uploads wait behind live streams, but no longer than this

Outputs = NDArray[np.float32]

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.decoding")


class EventSink(Protocol):
    """Receives a session's events: a connection, an upload, the in-process client."""

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Take the events of one step, often none. `timing` is None for events that answer no step."""


class ActiveSession:
    """A session that the recognizer admitted, its engine streams and its sink.

    `close` it when the session is over; a second call does nothing.
    """

    def __init__(
        self,
        session: Session,
        sink: EventSink,
        speech: EngineStreams,
        vad: EngineStreams | None,
        on_close: Callable[[ActiveSession], None],
        *,
        background: bool = False,
    ) -> None:
        self.session = session
        self.sink = sink
        self.background = background
        self.speech, self.vad = speech, vad
        self.open = True
        self._on_close = on_close

    def push(self, work: Sequence[Work]) -> None:
        """Hand work to the engines, in order. The session is broken if an engine cannot take it."""
        if not self.open:
            return
        speech, vad = self.speech, self.vad
        try:
            for piece in work:
                if isinstance(piece.tag, StepTag):
                    speech.engine.push(speech.ids[piece.channel], piece.pcm, tag=piece.tag, reset=piece.reset)
                elif vad is not None:
                    vad.engine.push(vad.ids[piece.channel], piece.pcm, tag=piece.tag)
        except BatchingError as error:
            self.fail(error)

    def export(self) -> None:
        """Ask the engine for every stream's state behind all work so far; `Session.exported` gets each of them."""
        if not self.open:
            return
        try:
            for stream in self.speech.ids:
                self.speech.engine.export(stream)
        except BatchingError as error:
            self.fail(error)

    def restore(self, states: Sequence[bytes]) -> None:
        """Start the streams from these states, by channel; before any work. Raises: WrongState."""
        if not self.open:
            return
        engine, ids = self.speech.engine, self.speech.ids
        if any(len(state) != engine.state_bytes for state in states) or len(states) != len(ids):
            raise WrongState("these are not this model's states")
        for stream, state in zip(ids, states, strict=True):
            engine.restore(stream, state)

    def close(self) -> None:
        """Drop waiting work; decoder states are released now, slots when the engines have closed the streams."""
        if not self.open:
            return
        self.open = False
        self._on_close(self)
        for streams in (self.vad, self.speech):
            if streams is not None:
                for stream in streams.ids:
                    streams.engine.close(stream)
        self.session.release()

    def fail(self, error: Exception) -> None:
        """Close, and send `StreamBroken`, which nothing follows."""
        if self.open:
            self.close()
            self.sink.on_events([StreamBroken(error)], None)


class BatchTiming(msgspec.Struct, frozen=True, gc=False):
    """Times that all rows of a batch share; `done_s` is the clock time at which the outputs were there."""

    step_s: float
    done_s: float
    rows: int


class Row(msgspec.Struct, frozen=True):
    """The model's answer to one step, outputs (T, V)."""

    tag: StepTag
    outputs: Outputs
    queue_wait_s: float
    batch: BatchTiming


@dataclass(frozen=True, slots=True)
class Route:
    """From an engine stream back to its channel. `held` are rows that wait for the voice-activity model."""

    active: ActiveSession
    channel: Segmenter
    held: deque[Row] = field(default_factory=deque)

    @property
    def due(self) -> bool:
        """Whether the session is open and the voice-activity model has answered for the oldest held row's audio."""
        speech = self.channel.speech
        if not self.held or speech is None or not self.active.open:
            return False
        return speech.covers(self.held[0].tag.end_sample)


Routes = Mapping[int, Route]


class BatchDecoder:
    """Decodes the rows of batches and sends each session its events; the decoder states belong to the channels."""

    def __init__(
        self,
        decoder: Decoder,
        metrics: ModelMetrics,
        clock: Callable[[], float],
        second: SecondDecodes,
        on_second: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """`on_second` is told of the second decodes of live streams."""
        self._decoder = decoder
        self._metrics = metrics
        self._clock = clock
        self._second, self._on_second = second, on_second

    def take_steps(self, batch: BatchDone, routes: Routes) -> None:
        """Decode the rows of streams that are still open; hold those that wait for the voice-activity model.

        Of a chunk, the first steps of all streams are decoded together, then the second ones, and so on.
        """
        timing = BatchTiming(batch.step_s, batch.started_s + batch.step_s, len(batch.streams))
        for first in range(batch.steps):
            self._take_rows(batch, range(first, len(batch.streams), batch.steps), timing, routes)

    def _take_rows(self, batch: BatchDone, rows: range, timing: BatchTiming, routes: Routes) -> None:
        """Do so with these rows, each of another stream."""
        due: list[tuple[Route, Row]] = []
        indices: list[int] = []
        voiced: list[Route] = []
        for i in rows:
            route, tag = routes.get(batch.streams[i]), batch.tags[i]
            if route is None or not isinstance(tag, StepTag):
                continue
            row = Row(tag, batch.outputs[i], batch.queue_wait_s[i], timing)
            if route.channel.speech is None:
                indices.append(i)
                due.append((route, row))
            else:
                route.held.append(row)
                voiced.append(route)
        if due:
            all_rows = len(indices) == len(batch.streams)
            self._decode(due, batch.outputs if all_rows else batch.outputs[indices])
        self._decode_held(voiced)

    def take_voice(self, batch: BatchDone, routes: Routes) -> None:
        """Take probabilities of speech, (B, 1), and decode the rows that waited for them."""
        voiced: dict[int, Route] = {}
        for stream, tag, probability in zip(batch.streams, batch.tags, batch.outputs.reshape(-1), strict=True):
            route = routes.get(stream)
            if route is not None and route.channel.speech is not None and isinstance(tag, WindowTag):
                route.channel.speech.heard(tag.end_sample, float(probability))
                voiced[stream] = route
        self._decode_held(voiced.values())

    def _decode_held(self, routes: Collection[Route]) -> None:
        """Decode the held rows that are due, one step of a channel at a time."""
        while due := [(route, route.held.popleft()) for route in routes if route.due]:
            self._decode(due, np.stack([row.outputs for _, row in due]))  # (B, T, V)

    def _decode(self, due: Sequence[tuple[Route, Row]], outputs: Outputs) -> None:
        """Advance each channel by one step, outputs (B, T, V), and send each session its events.

        The events of all rows are made before any is sent, so that one pair of clock readings covers all decoding.
        """
        began_s = self._clock()
        try:
            self._decoder.advance([route.channel.state for route, _ in due], outputs)
            events_by_row = [route.active.session.decoded(route.channel, row.tag) for route, row in due]
        except Exception as error:  # noqa: BLE001 - as a failed model step: these streams end, and no others
            self._metrics.errors.labels("decode").inc()
            _log.error("decoding failed", rows=len(due), error=repr(error))
            for route, _ in due:
                route.active.fail(error)
            return
        decoded_s = self._clock()
        decode_s = decoded_s - began_s
        self._metrics.decode.observe(decode_s)
        self._metrics.handover.observe(began_s - due[0][1].batch.done_s)
        for (route, row), events in zip(due, events_by_row, strict=True):
            if route.active.open:  # the events of an earlier row may have ended it
                batch = row.batch
                handover_s = began_s - batch.done_s
                timing = StepTiming(
                    row.tag.arrived_s, row.queue_wait_s, batch.step_s, handover_s, decode_s, decoded_s, batch.rows
                )
                self._decode_again(route, timing)
                route.active.sink.on_events(events, timing)

    def _decode_again(self, route: Route, timing: StepTiming) -> None:
        """Hand the finals that this step opened to the threads; the step and those behind it wait."""
        active, session = route.active, route.active.session
        if not session.holds:
            return
        session.timed(route.channel, timing)
        for final in session.take_opened():
            done = partial(self._settle, active, final)
            self._second.submit(partial(_unless_over, active, final), done, background=active.background)
            self._metrics.second_queue.set(self._second.waiting)

    def _settle(self, active: ActiveSession, final: OpenFinal, outcome: Outcome) -> None:
        """Send a final, and what waited for it."""
        metrics = self._metrics
        metrics.second_queue.set(self._second.waiting)
        if not active.open:
            return
        if outcome.error is not None:
            metrics.second_failures.inc()
            _log.error("second decode failed, the first one's text is sent", error=repr(outcome.error))
        metrics.second_wait.observe(outcome.wait_s)
        metrics.second_decode.observe(outcome.decode_s)
        if not active.background:
            self._on_second(outcome)
        now = self._clock()
        for events, timing in active.session.settle(final, outcome.words):
            if active.open:  # the events of an earlier step may have ended it
                active.sink.on_events(events, None if timing is None else _later(timing, now))


def _unless_over(active: ActiveSession, final: OpenFinal) -> tuple[Word, ...]:
    """Decode again, unless nobody waits for it any more."""
    return final.again() if active.open else ()


def _later(timing: StepTiming, now: float) -> StepTiming:
    """Return the timing of a step whose text waited: all of that is decoding."""
    decode_s = timing.decode_s + now - timing.decoded_s
    return msgspec.structs.replace(timing, decode_s=decode_s, decoded_s=now)


class Recognizer:
    """Admits the sessions of one model, routes its engines' events to them, decodes."""

    def __init__(
        self,
        config: ModelDescription,
        decoder: Decoder,
        metrics: ModelMetrics,
        *,
        engines: Engines,
        admission: Admission,
        machine: Machine,
        second: SecondDecodes,
        budget_s: float,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] | None = None,
    ) -> None:
        """`machine` knows the load of the models beside this one, which also share `second`."""
        self.engines = engines
        self.admission = admission
        self._machine, self._second = machine, second
        machine.join(admission, lambda: self.slots_used)
        self._step_s = config.step_samples / config.sample_rate
        self._decoder = BatchDecoder(decoder, metrics, clock, second, self._on_second)
        self._metrics = metrics
        self._budget_s = budget_s
        self._clock, self._busy_clock = clock, busy_clock or ThreadTime()
        self._routes: dict[int, Route] = {}
        self._vad_routes: dict[int, Route] = {}
        self._held: set[int] = set()  # every stream that the engine has not reported closed
        self._vad_held: set[int] = set()

    async def start(self) -> None:
        """Start the engines and take their events. Raises: EngineDead."""
        await self.engines.start(self._on_event, self._on_vad_event)

    def stop(self, timeout_s: float) -> None:
        """End the engines and the second decodes. Raises: EngineDown if a model thread does not end."""
        self._second.stop()
        self.engines.stop(timeout_s)

    # Sessions

    @property
    def slots_used(self) -> int:
        """Slots that an engine holds or is about to hold."""
        return max(len(self._held), len(self._vad_held))

    def refuse_if_full(self) -> None:
        """Refuse a request before any work on it. Raises: ServerFull."""
        self.admission.refuse_if_full(self._machine.load(self.admission))

    def open(
        self, session: Session, sink: EventSink, *, background: bool = False, budget_s: float | None = None
    ) -> ActiveSession:
        """Admit a session, one slot a channel; release it if it is refused. Raises: ServerFull, ServerNotReady.

        Its steps should be answered within `budget_s`, None = the operator's choice; background work has a long
        budget of its own. Also raises BatchingError if the model thread hangs.
        """
        try:
            return self._admit(
                session,
                sink,
                background=background,
                budget_s=BACKGROUND_BUDGET_S if background else budget_s or self._budget_s,
            )
        except (Refused, BatchingError):
            session.release()
            raise

    def _admit(self, session: Session, sink: EventSink, *, background: bool, budget_s: float) -> ActiveSession:
        self.engines.require_warm()
        now, count = self._clock(), len(session.channels)
        self._look(now)
        self.admission.check(self._machine.load(self.admission), count, now)
        speech, vad = self.engines.open(count, budget_s=budget_s, background=background)
        active = ActiveSession(session, sink, speech, vad, self._on_session_closed, background=background)
        routes = [Route(active, channel) for channel in session.channels]
        self._routes.update(zip(speech.ids, routes, strict=True))
        self._held.update(speech.ids)
        if vad is not None:
            self._vad_routes.update(zip(vad.ids, routes, strict=True))
            self._vad_held.update(vad.ids)
        self._metrics.slots_used.set(self.slots_used)
        return active

    def _on_session_closed(self, active: ActiveSession) -> None:
        for stream in active.speech.ids:
            del self._routes[stream]
        if active.vad is not None:
            for stream in active.vad.ids:
                del self._vad_routes[stream]

    # Results

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case WarmedUp(step_s):
                self.admission.warmed_up(step_s)
            case BatchDone():
                self._update_admission(event)
                self._observe(event)
                self._decoder.take_steps(event, self._routes)
            case StateExported():
                self._on_state(event)
            case StreamClosed(stream):
                self._on_stream_closed(stream)
            case StreamFailed(stream, error) if stream in self._routes:
                self._metrics.step_failed()
                self._routes[stream].active.fail(error)
            case EngineStopped(error):
                self._on_stopped(error)

    def _on_stream_closed(self, stream: int) -> None:
        self._held.discard(stream)
        self._metrics.slots_used.set(self.slots_used)
        if not self._held:
            self._metrics.queue_depth.set(0)  # steps that still waited were dropped without a batch
            self._metrics.uploads_wait.set(0)

    def _on_state(self, exported: StateExported) -> None:
        route = self._routes.get(exported.stream)
        if route is not None and route.active.open:
            route.active.sink.on_events(route.active.session.exported(route.channel, exported.state), None)

    def _on_vad_event(self, event: EngineEvent) -> None:
        match event:
            case BatchDone():
                self._decoder.take_voice(event, self._vad_routes)
            case StreamClosed(stream):
                self._vad_held.discard(stream)
                self._metrics.slots_used.set(self.slots_used)
            case StreamFailed(stream, error) if stream in self._vad_routes:
                self._metrics.errors.labels("vad").inc()
                self._vad_routes[stream].active.fail(error)
            case EngineStopped(error):
                self._on_stopped(error)

    def _on_stopped(self, error: BaseException | None) -> None:
        """Break every session: without one of its engines a replica recognises nothing. No slot is held any more."""
        if error is not None:
            self._metrics.errors.labels("engine").inc()
        for active in {id(route.active): route.active for route in self._routes.values()}.values():
            active.fail(EngineDead("the model thread ended"))
        self._held.clear()
        self._vad_held.clear()
        self._metrics.slots_used.set(0)

    def _update_admission(self, batch: BatchDone) -> None:
        """Feed the capacity estimate. A step waits for this thread on its way in, and again on its way out."""
        now = self._clock()
        added_s = batch.step_s + 2 * (now - batch.started_s - batch.step_s)
        live_ages_s = [wait_s + added_s for wait_s in batch.live_wait_s]
        self._machine.rows += len(batch.streams)
        self.admission.capacity.ran(len(batch.streams), batch.step_s, live_ages_s, batch.steps)
        self._look(now)

    def _on_second(self, outcome: Outcome) -> None:
        self.admission.capacity.waited(outcome.wait_s)

    def _look(self, now: float) -> None:
        machine = self._machine
        self.admission.look(now, self._busy_clock(), machine.load(self.admission), machine.rows)

    def _observe(self, batch: BatchDone) -> None:
        metrics, size = self._metrics, len(batch.streams)
        metrics.batches.inc()
        metrics.batch_rows.inc(size)
        metrics.batch_size.observe(size)
        metrics.inference.observe(batch.step_s)
        metrics.realtime_factor.observe(batch.step_s / (size * self._step_s))
        metrics.queue_depth.set(batch.queued)
        metrics.uploads_wait.set(batch.filling_waits)
        metrics.queue_wait.observe_all(batch.queue_wait_s)
