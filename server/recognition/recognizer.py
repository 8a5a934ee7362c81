"""The event-loop side of the engine: sessions and their streams, admission, each engine event to its session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batching.errors import BatchingError
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from model.ctc.words import Decoder
from model.description import ModelDescription
from server.errors import EngineDead, Refused, ServerFull
from server.operations.metrics import ModelMetrics
from server.recognition.active_session import ActiveSession, EventSink
from server.recognition.admission import Admission, Machine, ThreadTime
from server.recognition.decoding.batch_decoder import BatchDecoder, Route
from server.recognition.decoding.second_pass import Outcome, SecondPass
from server.recognition.engines import Engines
from server.recognition.session import Session

BACKGROUND_BUDGET_S = 10.0  # uploads wait for live streams, but no longer than this


class _Held:
    """Streams that an engine has not reported closed; its length is the slots that they take."""

    def __init__(self) -> None:
        self.speech: set[int] = set()
        self.vad: set[int] = set()

    def __len__(self) -> int:
        return max(len(self.speech), len(self.vad))


class Recognizer:
    """Admits the sessions of one model, routes its engines' events to them, decodes.

    Live sessions enter as `Admission` lets them. Those in the background, of uploads, have slots of their own.
    """

    def __init__(
        self,
        config: ModelDescription,
        decoder: Decoder,
        metrics: ModelMetrics,
        *,
        engines: Engines,
        admission: Admission,
        machine: Machine,
        second_pass: SecondPass,
        background_slots: int,
        budget_s: float,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] | None = None,
    ) -> None:
        """`machine` knows the load of all models of the process, which also share `second_pass`."""
        self.engines = engines
        self.admission = admission
        self._machine = machine
        machine.join(admission, lambda: len(self._live))
        self._step_s = config.step_samples / config.sample_rate
        self._decoder = BatchDecoder(decoder, metrics, clock, second_pass, self._on_second_pass)
        self._metrics = metrics
        self._budget_s, self._background_slots = budget_s, background_slots
        self._clock, self._busy_clock = clock, busy_clock or ThreadTime()
        self._routes: dict[int, Route] = {}
        self._vad_routes: dict[int, Route] = {}
        self._live, self._background = _Held(), _Held()
        self._changed = asyncio.Event()  # slots that are held, or the estimate

    async def start(self) -> None:
        """Start the engines and take their events. Raises: EngineDead."""
        await self.engines.start(self._on_event, self._on_vad_event)

    def stop(self, timeout_s: float) -> None:
        """End the engines. Raises: EngineDown if a model thread does not end."""
        self.engines.stop(timeout_s)

    # Sessions

    @property
    def slots_used(self) -> int:
        """Slots that an engine holds or is about to hold."""
        return len(self._live) + len(self._background)

    async def empty(self) -> None:
        """Wait until no slot is held."""
        while self.slots_used:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def refuse_if_full(self) -> None:
        """Refuse a request before any work on it. Raises: ServerFull."""
        self.admission.refuse_if_full(self._machine.load(self.admission))

    async def open_in_background(self, session: Session, sink: EventSink) -> ActiveSession:
        """Wait while live streams fill the server, then do as `open`; raises the same."""
        try:
            async with asyncio.timeout(BACKGROUND_BUDGET_S):
                while self.admission.full(self._machine.load(self.admission)) or self._lacks_slots(session):
                    await self._change()
        except TimeoutError:
            session.release()
            raise ServerFull("live streams take all that this server carries: send the recording later") from None
        except BaseException:
            session.release()
            raise
        return self.open(session, sink, background=True)

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
        if not background:
            self.admission.check(self._machine.load(self.admission), count, now)
        elif self._lacks_slots(session):
            raise ServerFull("all recordings that this server takes at a time are being recognized")
        speech, vad = self.engines.open(count, budget_s=budget_s, background=background)
        active = ActiveSession(session, sink, speech, vad, self._on_session_closed, background=background)
        routes = [Route(active, channel) for channel in session.channels]
        self._routes.update(zip(speech.ids, routes, strict=True))
        held = self._background if background else self._live
        held.speech.update(speech.ids)
        if vad is not None:
            self._vad_routes.update(zip(vad.ids, routes, strict=True))
            held.vad.update(vad.ids)
        self._count_slots()
        return active

    def _lacks_slots(self, session: Session) -> bool:
        """Whether too few of the slots that are kept for background sessions are free."""
        return len(self._background) + len(session.channels) > self._background_slots

    def look(self) -> None:
        """Update the estimate if a period is over, for times without a batch."""
        self._look(self._clock())

    def _on_session_closed(self, active: ActiveSession) -> None:
        self.admission.capacity.ended(len(active.speech.ids))
        for stream in active.speech.ids:
            del self._routes[stream]
        if active.vad is not None:
            for stream in active.vad.ids:
                del self._vad_routes[stream]

    # Results

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case BatchDone():
                self._update_admission(event)
                self._observe(event)
                self._decoder.take_steps(event, self._routes)
            case WarmedUp(step_s):
                self.admission.warmed_up(step_s)
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
        for held in (self._live, self._background):
            held.speech.discard(stream)
        self._count_slots()
        if not (self._live.speech or self._background.speech):
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
                for held in (self._live, self._background):
                    held.vad.discard(stream)
                self._count_slots()
            case StreamFailed(stream, error) if stream in self._vad_routes:
                self._metrics.errors.labels("vad").inc()
                self._vad_routes[stream].active.fail(error)
            case EngineStopped(error):
                self._on_stopped(error)

    def _on_stopped(self, error: BaseException | None) -> None:
        """Break every session: without one of its engines a replica recognizes nothing. No slot is held any more."""
        if error is not None:
            self._metrics.errors.labels("engine").inc()
        for active in {id(route.active): route.active for route in self._routes.values()}.values():
            active.fail(EngineDead("the model thread ended"))
        self._live, self._background = _Held(), _Held()
        self._count_slots()

    def _count_slots(self) -> None:
        self._metrics.slots_used.set(self.slots_used)
        self._changed.set()

    def _update_admission(self, batch: BatchDone) -> None:
        """Feed the capacity estimate. A step waits for this thread on its way in, and again on its way out."""
        now = self._clock()
        added_s = batch.step_s + 2 * (now - batch.started_s - batch.step_s)
        live_ages_s = [wait_s + added_s for wait_s in batch.live_wait_s]
        self._machine.rows += len(batch.streams)
        self.admission.capacity.ran(len(batch.streams), batch.step_s, live_ages_s, batch.steps)
        self._look(now)

    def _on_second_pass(self, outcome: Outcome) -> None:
        self.admission.capacity.waited(outcome.wait_s)

    def _look(self, now: float) -> None:
        if not self.admission.capacity.due(now):
            return  # the clock of this thread is a system call, too dear for every batch
        machine = self._machine
        self.admission.look(now, self._busy_clock(), machine.load(self.admission), machine.rows)
        self._changed.set()

    def _observe(self, batch: BatchDone) -> None:
        metrics, size = self._metrics, len(batch.streams)
        metrics.batches.inc()
        metrics.batch_rows.inc(size)
        metrics.batch_size.observe(size)
        metrics.inference.observe(batch.step_s)
        metrics.realtime_factor.observe(batch.step_s / (size * self._step_s))
        metrics.queue_depth.set(batch.queued)
        metrics.uploads_wait.set(batch.background_waits)
        metrics.queue_wait.observe_all(batch.queue_wait_s)
