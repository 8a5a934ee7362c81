"""A session that the recognizer admitted: its engine streams, its sink, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from batching.errors import BatchingError, WrongState
from server.operations.metrics import ModelMetrics
from server.recognition.engines import EngineStreams
from server.recognition.events import Event, StepTiming, StreamBroken, separated
from server.recognition.messages import AskInPauses, Flushing, ReleaseStates
from server.recognition.segments.resting import Rests
from server.recognition.session import Session
from server.recognition.steps import Auxiliary, StepTag, Work
from server.recognition.turn_questions import TurnQuestions

FORK = "fork"
"""Tag of an export from which a fork begins."""


class EventSink(Protocol):
    """Receives a session's events: a connection, an upload, the in-process client."""

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Handle the events of one step, often none. `timing` is None for events that belong to no step."""


@runtime_checkable
class WatchesResults(Protocol):
    """A session that sees its results on their way to the sink."""

    def watched(self, sink: EventSink) -> EventSink:
        """Return a sink that passes everything on to this one."""


class ActiveSession:
    """A session that the recognizer admitted, its engine streams and its sink.

    `close` it when the session is over; a second call does nothing.
    """

    def __init__(
        self,
        session: Session,
        sink: EventSink,
        speech: EngineStreams,
        auxiliary: Mapping[Auxiliary, EngineStreams],
        on_close: Callable[[ActiveSession], None],
        *,
        background: bool = False,
        questions: TurnQuestions | None = None,
        metrics: ModelMetrics,
        on_rest: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`questions`: to the turn model, for sessions that ask in pauses.

        `on_rest` receives the number of channels that began to rest, negative if they ended it; not of an upload.
        """
        self.session = session
        self.rests = session.rests
        self.sink = sink
        self.background = background
        self.speech, self.auxiliary = speech, auxiliary
        self.open = True
        self._on_close = on_close
        self._questions = questions
        self._asks = False
        self._metrics, self._on_rest, self._resting = metrics, on_rest, 0

    def take(self, message: Flushing) -> None:
        """Flush or end the session: its work goes to the engines, and its events to the sink."""
        work, events = separated(self.session.take(message))
        self.push(work)
        self.sink.on_events(events, None)

    def push(self, work: Sequence[Work]) -> None:
        """Pass work to the engines, in order. If an engine cannot accept it, the session fails."""
        if not self.open:
            return
        rests = self.rests
        if rests is not None and rests.unsent_work:
            work, rests.unsent_work = [*rests.unsent_work, *work], []
        speech = self.speech
        try:
            for piece in work:
                if isinstance(piece.tag, StepTag):
                    row = piece.pcm if piece.prompt is None else piece.row
                    speech.engine.push(speech.ids[piece.channel], row, tag=piece.tag, reset=piece.reset)
                    if piece.forks:
                        speech.engine.export(speech.ids[piece.channel], FORK)
                else:
                    small = self.auxiliary[piece.tag.model]
                    small.engine.push(small.ids[piece.channel], piece.pcm, tag=piece.tag)
        except BatchingError as error:
            self.fail(error)
        if rests is not None:
            self._after_rest(rests)

    @property
    def all_rest(self) -> bool:
        """Whether all channels rest; not known of an upload."""
        return self._resting == len(self.session.channels)

    def _after_rest(self, rests: Rests) -> None:
        """Count the steps that rested, and send their events."""
        self._metrics.rested_steps.value += rests.skipped
        rests.skipped = 0
        if self.open:
            if not self.background:
                self._count_resting(sum([rest.resting for rest in rests.channels]))
            events, rests.unsent_events = rests.unsent_events, []
            if events:
                self.sink.on_events(events, None)

    def _count_resting(self, channels: int) -> None:
        if channels != self._resting:
            self._metrics.resting.value += channels - self._resting
            self._on_rest(channels - self._resting)
            self._resting = channels

    def export(self) -> None:
        """Request every stream's state after all work so far from the engines; each becomes a `StateSaved`."""
        if not self.open:
            return
        try:
            for streams in self._engines:
                for stream in streams.ids:
                    streams.engine.export(stream)
        except BatchingError as error:
            self.fail(error)

    def restore(self, states: Sequence[bytes], auxiliary: Sequence[Sequence[bytes]]) -> None:
        """Start the streams of all models from these states, by channel; before any work. Raises: WrongState."""
        if not self.open:
            return
        if any(len(given) != len(self.auxiliary) for given in auxiliary):
            raise WrongState("these are not the states of this stream's models")
        pairs = [(self.speech, states), *zip(self.auxiliary.values(), zip(*auxiliary, strict=True), strict=False)]
        for streams, given in pairs:
            size = streams.engine.state_bytes
            if any(len(state) != size for state in given) or len(given) != len(streams.ids):
                raise WrongState("these are not this model's states")
        for streams, given in pairs:
            for stream, state in zip(streams.ids, given, strict=True):
                streams.engine.restore(stream, state)

    def ask_in_pauses(self) -> None:
        """Query the turn model in pauses from now on; no effect without a turn model. Raises: ServerFull."""
        questions = self._questions
        if questions is None or self._asks or not self.open:
            return
        questions.enter(len(self.session.channels))
        self._asks = True
        self.session.take(AskInPauses(questions.ask))

    def close(self) -> None:
        """Drop waiting work and release the decoder states; the slots are released once the engines have closed the
        streams.
        """
        if not self.open:
            return
        self.open = False
        self._count_resting(0)
        if self._asks and self._questions is not None:
            self._questions.leave(len(self.session.channels))
        self._on_close(self)
        for streams in self._engines:
            for stream in streams.ids:
                streams.engine.close(stream)
        self.session.take(ReleaseStates())

    @property
    def _engines(self) -> tuple[EngineStreams, ...]:
        return (*self.auxiliary.values(), self.speech)

    def fail(self, error: Exception) -> None:
        """Close, and send `StreamBroken` as the last event."""
        if self.open:
            self.close()
            self.sink.on_events([StreamBroken(error)], None)
