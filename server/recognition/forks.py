"""Forks: the result of a flush after one of a stream's steps, while the stream itself continues.

A fork begins with the model's state and the decoder's after that step. It is a separate engine stream in one of a few
spare slots, and runs the steps of silence that a flush would push. So its log-probabilities and words are bit-identical
to those of a stream that ends there. The stream itself runs no extra step.

A fork without a free slot, or with a failed step, is reported as refused; its stream is not affected otherwise. A
second pass over its text takes no slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from batching.errors import BatchingError
from model.ctc.words import Word
from server.operations.metrics import ModelMetrics
from server.recognition.active_session import ActiveSession
from server.recognition.decoding.batch_decoder import Route, StreamOwner
from server.recognition.events import Event, Final, ForkWords, StepTiming
from server.recognition.messages import StepDecoded, Waited
from server.recognition.results.pending_finals import PendingFinal, PendingFinals, PendingFork
from server.recognition.results.result_order import ImmediateOrder, Unanswered
from server.recognition.segments.segmenter import Segmenter
from server.recognition.steps import Marker, Work


class Fork:
    """A running fork: session, sink and owner of its steps for `BatchDecoder`."""

    background = False
    rests = None  # a fork does not rest

    def __init__(
        self,
        origin: ActiveSession,
        channel: Segmenter,
        place: PendingFork,
        stream: int,
        *,
        on_flushed: Callable[[Fork], None],
        on_end: Callable[[Fork, ForkWords | None], None],
    ) -> None:
        """`channel`: the fork's own; `place`: its place in the results of `origin`; `stream`: its id in the engine.

        `on_flushed` is called with its last step. `on_end` is called once with its words, None if it failed; not if it
        is dropped, or its origin is closed.
        """
        self.origin, self.channel, self.place, self.stream = origin, channel, place, stream
        self.ended = False
        self.session = self.sink = self
        self.pending = PendingFinals(1, ImmediateOrder(), Unanswered()) if channel.segment.two_pass else None
        self._running: tuple[Word, ...] = ()  # before the segment ends, as known up to `_known_s`
        self._known_s = 0.0
        self._first: tuple[Word, ...] = ()  # of the first pass
        self._on_flushed, self._on_end = on_flushed, on_end

    @property
    def open(self) -> bool:
        """Whether its words are still needed."""
        return not self.ended and self.origin.open

    def take(self, message: StepDecoded | Waited) -> list[Any]:
        """Return the events of one step's result; a final with a second pass waits for it."""
        if isinstance(message, Waited):
            return message.events
        closes = message.tag.marker is Marker.CLOSE
        if closes:
            self._running, self._known_s = self.channel.segment.partial_words, self.channel.segment.known_s
        results = self.channel.decoded(message.tag)
        if closes:
            finals = [one.first if isinstance(one, PendingFinal) else one for one in results]
            self._first = next(final.words for final in finals if isinstance(final, Final))
            self._on_flushed(self)
        return results if self.pending is None else self.pending.answered(0, results)

    def push(self, work: Sequence[Work]) -> None:
        """Not called: a fork has no further work."""

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """End with the final."""
        del timing
        for event in events:
            if isinstance(event, Final):
                self._on_end(self, ForkWords(event.words, self._running, self._known_s, self._first))

    def fail(self, error: Exception) -> None:
        """End without words."""
        del error
        if self.open:
            self._on_end(self, None)


class Forks:
    """The forks of one model's streams in this process; at most `slots` run at a time."""

    def __init__(
        self,
        routes: dict[int, Route],
        metrics: ModelMetrics,
        *,
        slots: int,
        budget_s: float,
        start_second_passes: Callable[[StreamOwner], None],
    ) -> None:
        """`routes`: by engine stream; the forks add and remove their own.

        `start_second_passes`: of a session, once the words of one of its forks are known.
        """
        self._routes, self._start_second_passes = routes, start_second_passes
        self._metrics = metrics
        self._slots, self._budget_s = slots, budget_s
        self.running: dict[int, Fork] = {}  # by engine stream

    def start(self, origin: ActiveSession, channel: Segmenter, state: bytes) -> None:
        """Start the channel's oldest fork from the model's state, exported after the step that was decoded last."""
        assert origin.session.pending is not None, "only a stream with pauses is forked"
        pending = origin.session.pending.next_fork()
        if len(self.running) >= self._slots or not self._started(origin, channel, pending, state):
            self._metrics.forks["refused"].inc()
            self._resolve(origin, pending, None)

    def _started(self, origin: ActiveSession, channel: Segmenter, pending: PendingFork, state: bytes) -> bool:
        """Open a stream for a fork and queue its steps. Returns: False if the engine cannot take it."""
        engine = origin.speech.engine
        try:
            stream = engine.open(budget_s=self._budget_s)
        except BatchingError:
            return False
        fork = Fork(origin, channel.fork(), pending, stream, on_flushed=self._close, on_end=self._end)
        self.running[stream] = fork
        self._routes[stream] = Route(fork, fork.channel)
        try:
            engine.restore(stream, state)
            for step in pending.steps:
                fork.channel.sent(step.pcm, Marker.FLUSH)
                engine.push(stream, step.row, tag=step.tag)
        except BatchingError:
            fork.ended = True
            self._close(fork)
            return False
        return True

    def drop(self, origin: ActiveSession) -> None:
        """Close the forks of a session that ends."""
        for fork in [fork for fork in self.running.values() if fork.origin is origin]:
            self._close(fork)

    def _end(self, fork: Fork, found: ForkWords | None) -> None:
        fork.ended = True
        self._close(fork)
        self._metrics.forks["failed" if found is None else "done"].inc()
        self._resolve(fork.origin, fork.place, found)

    def _close(self, fork: Fork) -> None:
        """Free the slot of a fork, unless it was freed before."""
        if self.running.get(fork.stream) is not fork:
            return
        del self.running[fork.stream], self._routes[fork.stream]
        fork.origin.speech.engine.close(fork.stream)
        fork.channel.segment.release()

    def _resolve(self, origin: ActiveSession, place: PendingFork, found: ForkWords | None) -> None:
        """Pass a fork's words to its session, None if it was refused, and send the results that waited for them."""
        if not origin.open:
            return
        assert origin.session.pending is not None, "its place came from here"
        due = origin.session.pending.resolve_fork(place, found)
        self._start_second_passes(origin)
        for waited, timing in due:
            events = origin.session.take(Waited(waited))
            if origin.open:  # the events of an earlier step may have ended it
                origin.sink.on_events(events, timing)
