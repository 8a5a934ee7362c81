"""A resumable session without engine or sockets, and a client that loses it at random places."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from server.recognition.events import Closed, Event, Final
from server.recognition.messages import ReleaseStates, StateSaved, TicketTaken
from server.recognition.saved_state import SavedStream
from server.recognition.steps import Work
from tests.support.streams.session_bench import SessionBench

_decode = msgspec.msgpack.Decoder(SavedStream).decode


@dataclass(frozen=True)
class Finalize:
    """Return the client's frame for one channel or all."""

    channel: int | None = None


@dataclass(frozen=True)
class Configure:
    """The client's frame."""

    phrases: tuple[str, ...]


@dataclass(frozen=True)
class Context:
    """The client's frame."""

    text: str


Control = Finalize | Configure | Context
Script = Sequence["np.ndarray | Control"]  # audio is (S, C) int16


class ResumableBench(SessionBench):
    """A session whose state can be saved and restored."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, resumable=True)
        assert self.session.resumption is not None
        self.resumption = self.session.resumption
        self.saved: list[SavedStream] = []

    def mark(self) -> None:
        """Request the state after all work so far; it is added to `saved` when this work is answered."""
        self.resumption.mark()
        for queue in self._work:
            queue.append("mark")  # type: ignore[arg-type]

    def restore(self, saved: SavedStream) -> float:
        """Restore a state from its serialized form. Returns: the stream time at which audio must continue."""
        restored = _decode(msgspec.msgpack.encode(saved))
        self.resumption.restoring(restored)()
        self._states = [pickle.loads(state) for state in restored.states]
        return self.session.audio.received_s

    def _answer(self, index: int, piece: Work) -> None:
        if piece != "mark":
            super()._answer(index, piece)
        else:
            state = pickle.dumps(self._states[index])
            self.events += self.session.take(StateSaved(index, state))
            self._queue([])
        self._collect()

    def resolve(self, place: int = 0) -> None:
        """Finish a second pass."""
        super().resolve(place)
        self._collect()

    def _collect(self) -> None:
        while (saved := self.resumption.order.take_saved()) is not None:
            self.saved.append(saved)
            self.events += self.session.take(TicketTaken())


@dataclass
class Sent:
    """A control frame, and the number of samples sent before it."""

    control: Control
    at: int
    order: int


class Client:
    """Client that sends a script, loses its server at random positions, and keeps the results."""

    def __init__(self, script: Script, seed: int, **options: Any) -> None:
        self._script, self._options = script, options
        self._dice = random.Random(seed)
        self._rate = options.get("sample_rate", 16_000)
        audio = [item for item in script if isinstance(item, np.ndarray)]
        self._audio = np.concatenate(audio) if audio else np.zeros((0, options.get("channels", 1)), np.int16)
        self._controls: list[Sent] = []
        at = 0
        for order, item in enumerate(script):
            if isinstance(item, np.ndarray):
                at += len(item)
            else:
                self._controls.append(Sent(item, at, order))
        self.finals: list[Final] = []
        self.moves = 0
        self.repeated = 0
        self.ends: list[Closed] = []

    def run(self, losses: int) -> None:
        """Stream the whole script over `losses + 1` connections."""
        saved: SavedStream | None = None
        done = 0  # items of the script that the saved state contains
        for remaining in range(losses, -1, -1):
            bench = ResumableBench(**self._options)
            bench.late = True
            position = 0 if saved is None else round(bench.restore(saved) * self._rate)
            first = 0 if saved is None else saved.finals
            self.moves += saved is not None
            pending = self._pending(position, done)
            until = len(self._audio) if not remaining else self._dice.randint(position, len(self._audio))
            marks = self._stream(bench, position, pending, until, done)
            if not remaining:
                bench.answer()
                bench.close()
            self._answer_some(bench, everything=not remaining)
            self._receive(bench.events, first)
            if bench.saved:
                saved = bench.saved[-1]
                done = marks[len(bench.saved) - 1]
            bench.session.take(ReleaseStates())

    def _pending(self, position: int, done: int) -> list[Sent]:
        """Return the controls to resend: those after the saved position, and those at it that are not in the state."""
        return [sent for sent in self._controls if sent.at > position or (sent.at == position and sent.order >= done)]

    def _stream(self, bench: ResumableBench, position: int, pending: list[Sent], until: int, done: int) -> list[int]:
        """Send up to a position in pieces of any size; return the number of script items in each saved state."""
        marks: list[int] = []
        while True:
            while pending and pending[0].at == position and position <= until:
                self._say(bench, pending[0].control)
                done = pending.pop(0).order + 1
                self._answer_some(bench)
            if position >= until:
                return marks
            stop = min([until, position + self._dice.randint(1, 6_000), *(sent.at for sent in pending[:1])])
            bench.send(self._audio[position:stop].tobytes())
            position = stop
            if self._dice.random() < 0.3 and not bench.resumption.waits:
                bench.mark()
                marks.append(done)
            self._answer_some(bench)

    def _answer_some(self, bench: ResumableBench, *, everything: bool = False) -> None:
        channels = list(range(len(bench.session.channels))) * 3
        self._dice.shuffle(channels)
        for channel in channels:
            bench.answer(self._dice.randint(0, 3), channel)
        if everything:
            bench.answer()
        while bench.opened and (everything or self._dice.random() < 0.5):
            bench.resolve(self._dice.randrange(len(bench.opened)))

    def _say(self, bench: ResumableBench, control: Control) -> None:
        if isinstance(control, Finalize):
            bench.finalize(control.channel)
        elif isinstance(control, Context):
            bench.session.keyterms.add_context(control.text)
        else:
            bench.session.keyterms.replace_phrases(control.phrases)

    def _receive(self, events: Sequence[Event], first: int) -> None:
        finals = [event for event in events if isinstance(event, Final)]
        for number, final in enumerate(finals, start=first + 1):
            if number > len(self.finals):
                self.finals.append(final)
            else:
                assert final == self.finals[number - 1], "a repeated final differs"
                self.repeated += 1
        self.ends += [event for event in events if isinstance(event, Closed)]
