"""Streams of a model that join, leave and are forked at random steps, on an engine that the test drives.

Everything between audio and events is the server's: sessions, recognizer, decoding, forks. Only the places of the forks
are random instead of in pauses, because any step will do.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from batching.events import BatchDone, EngineEvent
from model.ctc.interface import Decoder
from model.ctc.words import Word
from server.audio.pcm import PCM
from server.coordination.local import LocalCoordinator
from server.errors import CloseReason
from server.operations.metrics import Metrics
from server.recognition.active_session import ActiveSession
from server.recognition.decoding.second_pass import SecondPass
from server.recognition.engines import EngineStreams
from server.recognition.events import Closed, Event, Final, Forked, Silence, StepTiming
from server.recognition.forks import Fork
from server.recognition.messages import EndOfAudio, Samples
from server.recognition.recognizer import Recognizer
from server.recognition.segments.pauses import Pauses
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions
from server.settings import Settings
from tests.support.servers.fakes import FakeClock
from tests.support.streams.driven_engine import DrivenEngine
from tests.support.streams.wire_bench import DrivenEngineServer, Recovering

Outputs = list[bytes]  # digests of the bits, step by step
SLOTS = 16
NEVER_S = 1e9
SETTLED = 5  # rounds of messages until every command is answered
MakeEngine = Callable[[Callable[[EngineEvent], None]], Any]


class MortalEngine:
    """A front end's engine on the other side of a socket, which is lost now and then; driven as `DrivenEngine`."""

    def __init__(self, slots: Callable[[], Any], losses: float, deliver: Callable[[EngineEvent], None]) -> None:
        self._slots, self._losses = slots, losses
        self._dice = np.random.default_rng(7)
        self._served = DrivenEngineServer(slots())
        self._front = Recovering(self._served)
        self._front.engine._deliver = deliver
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._front.engine, name)  # the calls of sessions

    def turn(self) -> None:
        """Move what waits in the sockets, run a batch, and lose the engine now and then."""
        self._front.move()
        self._served.turn()
        if self._dice.random() < self._losses:
            self._front.lose()
            self._served = DrivenEngineServer(self._slots())
            self._front.connect(self._served)
            self.lost += 1
        self._front.move()

    def settle(self) -> None:
        """Run until nothing moves."""
        for _ in range(SETTLED):
            self._front.move()
            self._served.settle()
        self._front.move()


class _Engines:
    """The speech engine alone, without a warm-up."""

    def __init__(self, make_engine: MakeEngine) -> None:
        self.engine = make_engine(self._take)
        self._on_event: Callable[[EngineEvent], None] = lambda _: None
        self.seen: Callable[[BatchDone], None] = lambda _: None

    async def start(self, on_speech: Callable[[EngineEvent], None], on_auxiliary: object) -> None:
        del on_auxiliary
        self._on_event = on_speech

    def require_warm(self) -> Any:
        return self.engine

    def open(
        self, count: int, *, budget_s: float, background: bool, auxiliary: object
    ) -> tuple[EngineStreams, dict[Any, Any]]:
        ids = tuple(self.engine.open(budget_s=budget_s, background=background) for _ in range(count))
        return EngineStreams(self.engine, ids), {}

    def _take(self, event: EngineEvent) -> None:
        if isinstance(event, BatchDone):
            self.seen(event)
        self._on_event(event)


class _RandomPlaces(Pauses):
    """Forks after the steps of the given numbers."""

    def __init__(self, places: set[int]) -> None:
        super().__init__(NEVER_S)
        self._places, self._number = places, 0

    def forks(self, silence_s: float) -> bool:
        super().forks(silence_s)
        self._number += 1
        return self._number in self._places


@dataclass(eq=False)
class Stream:
    """One stream: its input, and its results."""

    audio: PCM
    places: set[int]  # steps after which it is forked
    by_flush: bool = False  # ended by `Finalize`, else cut off
    ended: bool = False
    events: list[Event] = field(default_factory=list)
    outputs: Outputs = field(default_factory=list)
    forked: dict[float, Outputs] = field(default_factory=dict)  # outputs of its forks by their place
    sent: int = 0
    active: ActiveSession | None = None

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        del timing
        self.events += events

    @property
    def forks(self) -> dict[float, tuple[Word, ...] | None]:
        """Words of its forks by their place; None: refused."""
        forked = [event for event in self.events if isinstance(event, Forked)]
        return {event.end_s: None if event.found is None else event.found.words for event in forked}

    @property
    def own(self) -> list[Event]:
        """Its events without those of forks, and of the silence in its audio."""
        return [event for event in self.events if not isinstance(event, Forked | Silence)]

    @property
    def last_words(self) -> tuple[Word, ...]:
        """The words of its last final."""
        return [event for event in self.events if isinstance(event, Final)][-1].words


class ForkedStreams:
    """A model, its decoder, and the streams that run on it; `slots` is the number of spare ones."""

    def __init__(
        self, model: Any, decoder: Decoder, *, open_at_once: int = 64, slots: int = SLOTS, losses: float = 0.0
    ) -> None:
        """`losses`: probability that a pass of the engine is its last, and another one takes over."""
        self._model, self._decoder, self._most = model, decoder, open_at_once

        def state_slots() -> Any:
            return model.slots(capacity=open_at_once + slots, largest=open_at_once)

        self.engines: Any = _Engines(
            partial(MortalEngine, state_slots, losses) if losses else partial(DrivenEngine, state_slots())
        )
        self.metrics = Metrics(max_batch=open_at_once, max_streams=open_at_once)
        clock = FakeClock()
        coordinator = LocalCoordinator(Settings(max_streams=open_at_once), clock)
        self.slots = coordinator.open_slots("model", 0.08)
        self.recognizer = Recognizer(
            model.config,
            self.metrics.of_model("model"),
            engines=self.engines,
            slots=self.slots,
            second_pass=SecondPass(clock),
            budget_s=0.1,
            fork_slots=slots,
            clock=clock,
        )
        self.most_used = 0  # slots of streams, as admission counts them

    def run(self, streams: Sequence[Stream], seed: int) -> None:
        """Run these streams to their ends: they join, send and leave in a random order."""
        asyncio.run(self._run(streams, np.random.default_rng(seed)))

    async def _run(self, streams: Sequence[Stream], dice: np.random.Generator) -> None:
        await self.recognizer.start()
        owners: dict[ActiveSession, Stream] = {}
        self.engines.seen = lambda batch: self._record(batch, owners)
        waiting, open_ = list(streams), list[Stream]()
        while waiting or open_:
            while waiting and self.slots.slots_used < self._most and dice.random() < 0.7:
                stream = waiting.pop()
                stream.active = await self._open(stream)
                owners[stream.active] = stream
                open_.append(stream)
            for stream in dice.permutation(np.array(open_, object))[: dice.integers(1, self._most + 1)]:
                self._send(stream)
            for _ in range(int(dice.integers(0, 3))):
                self.engines.engine.turn()
            self.most_used = max(self.most_used, self.slots.slots_used)
            open_ = [stream for stream in open_ if stream.active is not None and stream.active.open]
        self.engines.engine.settle()

    async def _open(self, stream: Stream) -> ActiveSession:
        options = SessionOptions(
            self._model.config.sample_rate,
            partials=True,
            every_step=True,
            fork_after_s=NEVER_S if stream.places else None,
            forks=bool(stream.places),
        )
        session = Session(options, self._model.config, self._decoder, Limits(max_backlog_s=NEVER_S))
        if stream.places:
            session._on_step.clear()
            _, in_order = session._on_results
            session._on_results.clear()
            session._find_pauses(_RandomPlaces(stream.places))
            session._on_results.append(in_order)
        return await self.recognizer.open(session, stream)

    def _send(self, stream: Stream) -> None:
        """Send the next step of a stream, or end it."""
        active, step = stream.active, self._model.config.step_samples
        assert active is not None
        if stream.sent < len(stream.audio):
            piece = stream.audio[stream.sent : stream.sent + step]
            stream.sent += len(piece)
            active.push(active.session.take(Samples(piece[:, None], 0.0)))
        elif stream.by_flush and not stream.ended:
            stream.ended = True
            active.take(EndOfAudio(CloseReason.CLOSE_STREAM, 0.0))
        elif not stream.by_flush or any(isinstance(event, Closed) for event in stream.events):
            active.close()

    def _record(self, batch: BatchDone, owners: dict[ActiveSession, Stream]) -> None:
        """Keep the outputs of each row: of a stream, or of one of its forks."""
        for stream, row in zip(batch.streams, batch.outputs, strict=True):
            outputs = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            route = self.recognizer._routes.get(stream)
            if route is None:
                continue
            if isinstance(route.active, Fork):
                owner = owners.get(route.active.origin)
                if owner is not None:
                    owner.forked.setdefault(route.active.place.end_s, []).append(outputs)
            elif isinstance(route.active, ActiveSession):
                owners[route.active].outputs.append(outputs)


def check(
    model: Any, decoder: Decoder, recordings: Sequence[PCM], forks: int, *, slots: int = 16, losses: float = 0.0
) -> int:
    """Fork these streams at random steps; compare each stream with one that never forked, and each fork with a flush.

    Returns: the number of forks that ran.
    """
    dice, size, lead = np.random.default_rng(forks), model.config.step_samples, model.config.lead_samples
    streams = [Stream(audio, set(), by_flush=bool(dice.random() < 0.5)) for audio in recordings]
    for _ in range(forks):
        stream = streams[dice.integers(len(streams))]
        stream.places.add(int(dice.integers(1, (len(stream.audio) + lead) // size + 1)))
    forked = ForkedStreams(model, decoder, slots=slots, losses=losses)
    forked.run(streams, seed=1)
    assert not losses or forked.engines.engine.lost
    alone = [Stream(stream.audio, set(), stream.by_flush) for stream in streams]
    ForkedStreams(model, decoder).run(alone, seed=2)
    flushed = [
        (stream, place, Stream(stream.audio[: round(place * model.config.sample_rate)], set(), by_flush=True))
        for stream in streams
        for place, words in stream.forks.items()
        if words is not None
    ]
    ForkedStreams(model, decoder).run([reference for _, _, reference in flushed], seed=3)
    for stream, other in zip(streams, alone, strict=True):
        assert_equal(stream, other)
    for stream, place, reference in flushed:
        assert stream.forks[place] == reference.last_words
        outputs = stream.forked[place]
        assert outputs == reference.outputs[-len(outputs) :]
    assert forked.most_used <= 64, "forks take no slot of a stream"
    assert not forked.recognizer._forks.running
    assert not forked.recognizer._routes
    return len(flushed)


def assert_equal(stream: Stream, other: Stream) -> None:
    """Streams that were cut off may have got more or fewer of their results."""
    if stream.by_flush:
        assert stream.own == other.own
        assert len(stream.outputs) == len(other.outputs)
    count = min(len(stream.outputs), len(other.outputs))
    assert stream.outputs[:count] == other.outputs[:count]
    for event, others_event in zip(stream.own, other.own, strict=False):
        assert event == others_event
