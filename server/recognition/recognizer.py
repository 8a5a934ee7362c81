"""The engine's event-loop side: opens sessions and their streams, and routes each engine event to its session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from model.description import ModelDescription
from server.coordination.coordinator import ModelSlots
from server.coordination.slots import StreamLease
from server.errors import EngineDead
from server.operations.metrics import ModelMetrics
from server.recognition.active_session import FORK, ActiveSession, EventSink, WatchesResults
from server.recognition.decoding.batch_decoder import BatchDecoder, Route
from server.recognition.decoding.second_pass import SegmentPass
from server.recognition.engines import Engines
from server.recognition.forks import Forks
from server.recognition.messages import ReleaseStates
from server.recognition.segments.segmenter import other_words
from server.recognition.session import Session
from server.recognition.steps import Auxiliary
from server.recognition.turn_questions import TurnQuestions

BACKGROUND_BUDGET_S = 10.0  # uploads wait for live streams, but no longer than this


class Recognizer:
    """Opens the sessions of one model if it has slots, routes engine events to them, and decodes."""

    def __init__(
        self,
        config: ModelDescription,
        metrics: ModelMetrics,
        *,
        engines: Engines,
        slots: ModelSlots,
        second_pass: SegmentPass,
        budget_s: float,
        fork_slots: int,
        clock: Callable[[], float],
        questions: TurnQuestions | None = None,
    ) -> None:
        """Models of the process share `second_pass`, and `questions` to a turn model if there is one.

        `fork_slots`: forks at a time.
        """
        self.engines = engines
        self.slots = slots
        self._step_s = config.step_samples / config.sample_rate
        self._decoder = BatchDecoder(metrics, clock, second_pass, lambda outcome: slots.waited(outcome.wait_s))
        self._metrics = metrics
        self._budget_s = budget_s
        self._clock = clock
        self._questions = questions
        self._routes: dict[int, Route] = {}
        start = self._decoder.start_second_passes
        self._forks = Forks(self._routes, metrics, slots=fork_slots, budget_s=budget_s, start_second_passes=start)
        self._leases: dict[int, StreamLease] = {}  # of streams that the speech engine has not reported closed
        self._auxiliary_routes: dict[Auxiliary, dict[int, Route]] = {model: {} for model in Auxiliary}
        self._auxiliary_leases: dict[Auxiliary, dict[int, StreamLease]] = {model: {} for model in Auxiliary}

    async def start(self) -> None:
        """Start the engines and take their events. Raises: EngineDead."""
        await self.engines.start(self._on_event, self._on_auxiliary_event)

    # Sessions

    async def open_in_background(self, session: Session, sink: EventSink) -> ActiveSession:
        """Wait while live streams fill the server, then act as `open`. Raises: as `open`."""
        return await self._admit(session, sink, background=True, within_s=BACKGROUND_BUDGET_S)

    async def open(
        self, session: Session, sink: EventSink, *, background: bool = False, budget_s: float | None = None
    ) -> ActiveSession:
        """Admit a session, one slot a channel; release it if it is refused. Raises: ServerFull, ServerNotReady.

        Its steps should be answered within `budget_s`, None = the operator's choice; background work has a long
        budget of its own. Also raises BatchingError if the model thread hangs.
        """
        return await self._admit(session, sink, background=background, budget_s=budget_s)

    async def _admit(
        self,
        session: Session,
        sink: EventSink,
        *,
        background: bool,
        budget_s: float | None = None,
        within_s: float | None = None,
    ) -> ActiveSession:
        """Open an admitted session. A session that is refused or cancelled holds no slot and no state."""
        budget_s = BACKGROUND_BUDGET_S if background else budget_s or self._budget_s
        try:
            self.engines.require_warm()
            lease = await self.slots.take(len(session.channels), background=background, within_s=within_s)
            active = self._activate(session, sink, lease, background=background, budget_s=budget_s)
        except BaseException:
            session.take(ReleaseStates())
            raise
        if session.options.scored_end is not None:
            try:
                active.ask_in_pauses()
            except BaseException:
                active.close()
                raise
        return active

    def _activate(
        self, session: Session, sink: EventSink, lease: StreamLease, *, background: bool, budget_s: float
    ) -> ActiveSession:
        try:
            count, models = len(session.channels), tuple(session.channels[0].followed)
            speech, auxiliary = self.engines.open(count, budget_s=budget_s, background=background, auxiliary=models)
        except BaseException:
            lease.cancel()
            raise
        if isinstance(session, WatchesResults):
            sink = session.watched(sink)
        active = ActiveSession(
            session,
            sink,
            speech,
            auxiliary,
            self._on_session_closed,
            background=background,
            questions=self._questions,
            metrics=self._metrics,
            on_rest=self.slots.rest,
        )
        routes = [Route(active, channel) for channel in session.channels]
        self._routes.update(zip(speech.ids, routes, strict=True))
        self._leases.update(dict.fromkeys(speech.ids, lease))
        for model, streams in auxiliary.items():
            lease.opened(model)
            self._auxiliary_routes[model].update(zip(streams.ids, routes, strict=True))
            self._auxiliary_leases[model].update(dict.fromkeys(streams.ids, lease))
        return active

    def _on_session_closed(self, active: ActiveSession) -> None:
        self._forks.drop(active)
        rules = active.session.options.speakers
        if rules is not None and rules.listens:
            outcome = "left_out" if rules.alone else "marked"
            self._metrics.other_voice_words[outcome].inc(other_words(active.session.channels))
        for stream in active.speech.ids:
            del self._routes[stream]
        for model, streams in active.auxiliary.items():
            for stream in streams.ids:
                del self._auxiliary_routes[model][stream]

    # Results

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case BatchDone():
                self._observe(event)
                self._decoder.take_steps(event, self._routes)
            case WarmedUp(step_s):
                self.slots.warmed_up(step_s)
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
        lease = self._leases.pop(stream, None)
        if lease is not None:
            lease.closed()
        if not self._leases:
            # Steps that still waited were dropped without a batch.
            self._metrics.queue_depth.value = self._metrics.uploads_wait.value = 0.0

    def _on_state(self, exported: StateExported) -> None:
        route = self._routes.get(exported.stream)
        if route is None:
            return
        if exported.tag is not FORK:
            self._decoder.take_state(route, exported.state)
        elif isinstance(route.active, ActiveSession) and route.active.open:
            start = partial(self._forks.start, route.active, route.channel, exported.state)
            self._decoder.after_rows(route, start)

    def _on_auxiliary_event(self, model: Auxiliary, event: EngineEvent) -> None:
        routes = self._auxiliary_routes[model]
        match event:
            case BatchDone():
                self._decoder.take_windows(event, routes)
            case StateExported(stream, state=state) if stream in routes:
                self._decoder.take_state(routes[stream], state, model)
            case StreamClosed(stream):
                lease = self._auxiliary_leases[model].pop(stream, None)
                if lease is not None:
                    lease.closed(model)
            case StreamFailed(stream, error) if stream in routes:
                self._metrics.errors.labels(model).inc()
                routes[stream].active.fail(error)
            case EngineStopped(error):
                self._on_stopped(error)

    def _on_stopped(self, error: BaseException | None) -> None:
        """Fail every session and release all slots: a replica needs all of its engines."""
        if error is not None:
            self._metrics.errors.labels("engine").inc()
        for active in {id(route.active): route.active for route in self._routes.values()}.values():
            active.fail(EngineDead("the model thread ended"))
        self._leases.clear()
        for leases in self._auxiliary_leases.values():
            leases.clear()
        self.slots.clear()

    def _observe(self, batch: BatchDone) -> None:
        """Count late steps, and write the batch's metrics.

        A step waits for this thread once before and once after the engine.
        """
        now, metrics = self._clock(), self._metrics
        added_s = batch.step_s + 2 * (now - batch.started_s - batch.step_s)
        waits_s = self._without_forks(batch) if self._forks.running else batch.live_wait_s
        self.slots.ran(batch, [wait_s + added_s for wait_s in waits_s], now)
        metrics.queue_depth.value, metrics.uploads_wait.value = batch.queued, batch.background_waits
        metrics.queue_wait.observe_all(batch.queue_wait_s)
        if batch.leads:  # a batch of several processes is counted in one of them
            size = batch.rows_in_all or len(batch.streams)
            metrics.batches.value += 1
            metrics.batch_rows.value += size
            metrics.batch_size.observe(size)
            metrics.inference.observe(batch.step_s)
            metrics.realtime_factor.observe(batch.step_s / (size * self._step_s))

    def _without_forks(self, batch: BatchDone) -> Sequence[float]:
        """Return the waits of live steps that belong to no fork.

        Steps of a fork are pushed together and run one after another, so their waits do not indicate the load.
        """
        # With steps of uploads in the batch it is not known which rows the waits belong to.
        if len(batch.live_wait_s) != len(batch.streams):
            return batch.live_wait_s
        pairs = zip(batch.streams, batch.live_wait_s, strict=True)
        return [wait_s for stream, wait_s in pairs if stream not in self._forks.running]
